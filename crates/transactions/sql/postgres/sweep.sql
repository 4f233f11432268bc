-- Sweep: rows older than so many milliseconds ($4), at most so many at once ($5). Again while it
-- deletes as many as it may.
DELETE FROM hapax_inbox WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM hapax_inbox
    WHERE consumer = $1 AND tenant = $2 AND queue = $3
      AND entered_at < now() - $4::bigint * interval '1 millisecond'
    ORDER BY entered_at LIMIT $5
    FOR UPDATE SKIP LOCKED))
