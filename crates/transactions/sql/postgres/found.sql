-- Found: a fence above yours means that you are late: roll back, and settle nothing. Otherwise
-- the effect is there: roll back, and settle done with this result. No row: it was swept or rolled
-- back in between, so enter again.
SELECT fence, result, result_type FROM hapax_inbox
WHERE (consumer, tenant, queue, message_key, message_group, generation)
    = ($1, $2, $3, $4, $5, $6)
