-- Sweep: deletes one row whose message has ended.
DELETE FROM hapax_inbox
WHERE consumer = ?1 AND tenant = ?2 AND queue = ?3
  AND message_key = ?4 AND message_group = ?5 AND generation = ?6 AND fence = ?7
