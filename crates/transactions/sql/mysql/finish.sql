-- Finish: last of all, before COMMIT, with NULLs where there is no result. Not optional: it must
-- change one row. A deadlock rolls the whole transaction back, and so may a lock wait timeout; then
-- the row is gone, and this changes none. Anything but one row: roll back, and fail the attempt.
-- After COMMIT, settle done with the result. COALESCE, since only rows that change are counted.
UPDATE hapax_inbox SET result = COALESCE(?, ''), result_type = ?
WHERE consumer = ? AND tenant = ? AND queue = ?
  AND message_key = ? AND message_group = ? AND generation = ? AND fence = ?
