-- Sweep: deletes one row whose message has ended.
DELETE FROM hapax_inbox
WHERE consumer = ? AND tenant = ? AND queue = ?
  AND message_key = ? AND message_group = ? AND generation = ? AND fence = ?
