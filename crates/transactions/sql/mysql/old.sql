-- Old: rows older than so many seconds, oldest first, at most so many. Age alone says nothing: a
-- message may wait for longer than any time. Ask the broker about each key (GET
-- /v1/queues/{queue}/keys/{key}, with ?group= where keys are per group), and sweep the row only
-- where the key is done or discarded, of a later generation than the row, or not known any more.
-- A message without a key cannot be asked about: keep its row while the queue has messages. Rows
-- that stay come again with the next page: read on from the last one's entered_at and key.
SELECT message_key, message_group, generation, fence, entered_at FROM hapax_inbox
WHERE consumer = ? AND tenant = ? AND queue = ?
  AND entered_at < CURRENT_TIMESTAMP(3) - INTERVAL ? SECOND
ORDER BY entered_at, message_key, message_group, generation LIMIT ?
