-- Enter: first of all in the transaction, before any write of your own. It works: you are the
-- first, go on. Error 1062 (duplicate entry), which does not end the transaction: somebody was
-- here before, see "found". Not INSERT IGNORE, which hides other errors too.
INSERT INTO hapax_inbox
    (consumer, tenant, queue, message_key, message_group, generation, fence)
VALUES (?, ?, ?, ?, ?, ?, ?)
