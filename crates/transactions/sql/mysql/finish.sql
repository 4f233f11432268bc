-- Finish: last of all, before COMMIT, where there is a result. After COMMIT, settle done with it.
UPDATE hapax_inbox SET result = ?, result_type = ?
WHERE consumer = ? AND tenant = ? AND queue = ?
  AND message_key = ? AND message_group = ? AND generation = ? AND fence = ?
