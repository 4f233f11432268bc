-- Enter: the first statement of the transaction, before any write of your own. One row inserted:
-- the message is new, continue. None: it was processed before, see "found".
INSERT INTO hapax_inbox
    (consumer, tenant, queue, message_key, message_group, generation, fence)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING
