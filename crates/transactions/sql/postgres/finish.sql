-- Finish: the last statement before COMMIT, with NULLs if there is no result. Required: it must
-- update one row. PostgreSQL answers COMMIT of a transaction in which a statement failed with
-- ROLLBACK, which most drivers do not report; this statement fails there. If it is not one row,
-- roll back and fail the attempt. After COMMIT, settle done with the result.
UPDATE hapax_inbox SET result = $8, result_type = $9
WHERE (consumer, tenant, queue, message_key, message_group, generation, fence)
    = ($1, $2, $3, $4, $5, $6, $7)
