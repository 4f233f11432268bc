-- Sweep: rows older than so many seconds, at most so many at once. Again while it deletes as many
-- as it may.
DELETE FROM hapax_inbox
WHERE consumer = ? AND tenant = ? AND queue = ?
  AND entered_at < CURRENT_TIMESTAMP(3) - INTERVAL ? SECOND
ORDER BY entered_at LIMIT ?
