-- Sweep: deletes one row whose message has ended.
DELETE FROM hapax_inbox
WHERE (consumer, tenant, queue, message_key, message_group, generation, fence)
    = ($1, $2, $3, $4, $5, $6, $7)
