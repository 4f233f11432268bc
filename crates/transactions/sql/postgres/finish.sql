-- Finish: last of all, before COMMIT, where there is a result. After COMMIT, settle done with it.
UPDATE hapax_inbox SET result = $8, result_type = $9
WHERE (consumer, tenant, queue, message_key, message_group, generation, fence)
    = ($1, $2, $3, $4, $5, $6, $7)
