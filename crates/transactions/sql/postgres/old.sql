-- Old: rows older than $4 milliseconds, oldest first, after the last row of the previous page ($5
-- to $8; for the first page 0, '', '' and 0), at most $9. Never delete by age alone: a message may
-- wait for any time. Ask the broker about each key (GET /v1/queues/{queue}/keys/{key}, with ?group=
-- if keys are per group), and delete the row only if the key is done or discarded, of a later
-- generation than the row, or unknown. The broker cannot be asked about a message without a key:
-- keep its row while the queue has messages.
SELECT message_key, message_group, generation, fence,
    (extract(epoch FROM entered_at) * 1000000)::bigint
FROM hapax_inbox
WHERE consumer = $1 AND tenant = $2 AND queue = $3
  AND entered_at < now() - $4::bigint * interval '1 millisecond'
  AND (entered_at, message_key, message_group, generation)
    > (timestamptz 'epoch' + $5::bigint * interval '1 microsecond', $6, $7, $8)
ORDER BY entered_at, message_key, message_group, generation LIMIT $9
