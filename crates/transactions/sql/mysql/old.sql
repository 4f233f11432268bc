-- Old: rows older than a number of seconds, oldest first, with a limit. Never delete by age alone:
-- a message may wait for any time. Ask the broker about each key (GET
-- /v1/queues/{queue}/keys/{key}, with ?group= if keys are per group), and delete the row only if
-- the key is done or discarded, of a later generation than the row, or unknown. The broker cannot
-- be asked about a message without a key: keep its row while the queue has messages. Rows that are
-- kept would be read again: continue after the last row's entered_at and key.
SELECT message_key, message_group, generation, fence, entered_at FROM hapax_inbox
WHERE consumer = ? AND tenant = ? AND queue = ?
  AND entered_at < CURRENT_TIMESTAMP(3) - INTERVAL ? SECOND
ORDER BY entered_at, message_key, message_group, generation LIMIT ?
