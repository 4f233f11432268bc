-- Finish: the last statement before COMMIT, with NULLs if there is no result. Required: it must
-- change one row. A deadlock rolls the whole transaction back, and so may a lock wait timeout; then
-- the row does not exist, and this changes none. If it is not one row, roll back and fail the
-- attempt. After COMMIT, settle done with the result. COALESCE is needed because MySQL counts only
-- rows that change.
UPDATE hapax_inbox SET result = COALESCE(?, ''), result_type = ?
WHERE consumer = ? AND tenant = ? AND queue = ?
  AND message_key = ? AND message_group = ? AND generation = ? AND fence = ?
