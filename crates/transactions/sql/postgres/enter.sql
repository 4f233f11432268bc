-- Enter: first of all in the transaction, before any write of your own. One row inserted: you are
-- the first, go on. None: somebody was here before, see "found".
INSERT INTO hapax_inbox
    (consumer, tenant, queue, message_key, message_group, generation, fence)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING
