-- Finish: last of all, before COMMIT, where there is a result. After COMMIT, settle done with it.
UPDATE hapax_inbox SET result = ?8, result_type = ?9
WHERE consumer = ?1 AND tenant = ?2 AND queue = ?3
  AND message_key = ?4 AND message_group = ?5 AND generation = ?6 AND fence = ?7
