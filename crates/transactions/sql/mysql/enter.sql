-- Enter: the first statement of the transaction, before any write of your own. If it succeeds, the
-- message is new: continue. Error 1062 (duplicate entry), which does not end the transaction: it
-- was processed before, see "found". Do not use INSERT IGNORE, which hides other errors too.
INSERT INTO hapax_inbox
    (consumer, tenant, queue, message_key, message_group, generation, fence)
VALUES (?, ?, ?, ?, ?, ?, ?)
