-- Found: the effect is committed, whatever the fence: roll back, and settle done with this result.
-- (If the lease was lost meanwhile, the answer is lease_lost, which is fine.) The casts are needed
-- because SQLite stores any type, and a result may have been stored as text.
SELECT fence, CAST(result AS BLOB), CAST(result_type AS TEXT) FROM hapax_inbox
WHERE consumer = ?1 AND tenant = ?2 AND queue = ?3
  AND message_key = ?4 AND message_group = ?5 AND generation = ?6
