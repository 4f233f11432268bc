-- Finish: the last statement before COMMIT, with NULLs if there is no result. Required: it must
-- update one row. A statement of yours may have rolled the transaction back (ON CONFLICT ROLLBACK,
-- RAISE(ROLLBACK), a full disk); then the row does not exist, and this updates none. If it is not
-- one row, roll back and fail the attempt. After COMMIT, settle done with the result.
UPDATE hapax_inbox SET result = ?8, result_type = ?9
WHERE consumer = ?1 AND tenant = ?2 AND queue = ?3
  AND message_key = ?4 AND message_group = ?5 AND generation = ?6 AND fence = ?7
