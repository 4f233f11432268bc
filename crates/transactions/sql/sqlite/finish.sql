-- Finish: last of all, before COMMIT, with NULLs where there is no result. Not optional: it must
-- update one row. A statement of yours may have rolled the transaction back (ON CONFLICT ROLLBACK,
-- RAISE(ROLLBACK), a full disk); then the row is gone, and this updates none. Anything but one row:
-- roll back, and fail the attempt. After COMMIT, settle done with the result.
UPDATE hapax_inbox SET result = ?8, result_type = ?9
WHERE consumer = ?1 AND tenant = ?2 AND queue = ?3
  AND message_key = ?4 AND message_group = ?5 AND generation = ?6 AND fence = ?7
