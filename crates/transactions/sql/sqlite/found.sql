-- Found: the effect is there, whatever the fence: roll back, and settle done with this result. (A
-- lease that was lost meanwhile gets lease_lost for that, which is fine.) The casts: SQLite keeps
-- what it is given, and a result may have been stored as text.
SELECT fence, CAST(result AS BLOB), CAST(result_type AS TEXT) FROM hapax_inbox
WHERE consumer = ?1 AND tenant = ?2 AND queue = ?3
  AND message_key = ?4 AND message_group = ?5 AND generation = ?6
