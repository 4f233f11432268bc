-- Found: the effect is there, whatever the fence: roll back, and settle done with this result. (A
-- lease that was lost meanwhile gets lease_lost for that, which is fine.) No row: it was swept or
-- rolled back in between, so enter again.
SELECT fence, result, result_type FROM hapax_inbox
WHERE (consumer, tenant, queue, message_key, message_group, generation)
    = ($1, $2, $3, $4, $5, $6)
