-- Sweep: rows older than so many milliseconds (?4), at most so many at once (?5). Again while it
-- deletes as many as it may.
DELETE FROM hapax_inbox
WHERE (consumer, tenant, queue, message_key, message_group, generation) IN (
    SELECT consumer, tenant, queue, message_key, message_group, generation FROM hapax_inbox
    WHERE consumer = ?1 AND tenant = ?2 AND queue = ?3
      AND entered_at_ms < CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - ?4
    ORDER BY entered_at_ms LIMIT ?5)
