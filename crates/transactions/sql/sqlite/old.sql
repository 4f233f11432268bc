-- Old: rows older than ?4 milliseconds, oldest first, after the last row of the previous page (?5
-- to ?8; for the first page 0, '', '' and 0), at most ?9. Never delete by age alone: a message may
-- wait for any time. Ask the broker about each key (GET /v1/queues/{queue}/keys/{key}, with ?group=
-- if keys are per group), and delete the row only if the key is done or discarded, of a later
-- generation than the row, or unknown. The broker cannot be asked about a message without a key:
-- keep its row while the queue has messages.
SELECT message_key, message_group, generation, fence, entered_at_ms
FROM hapax_inbox
WHERE consumer = ?1 AND tenant = ?2 AND queue = ?3
  AND typeof(message_key) = 'text' AND typeof(message_group) = 'text'
  AND entered_at_ms < CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - ?4
  AND (entered_at_ms, message_key, message_group, generation) > (?5, ?6, ?7, ?8)
ORDER BY entered_at_ms, message_key, message_group, generation LIMIT ?9
