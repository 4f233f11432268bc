-- Found: the effect is committed, whatever the fence: roll back, and settle done with this result.
-- (If the lease was lost meanwhile, the answer is lease_lost, which is fine.) No row: it was
-- deleted or rolled back in between; enter again.
SELECT fence, result, result_type FROM hapax_inbox
WHERE (consumer, tenant, queue, message_key, message_group, generation)
    = ($1, $2, $3, $4, $5, $6)
