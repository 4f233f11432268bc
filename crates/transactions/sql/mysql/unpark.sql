-- Send a parked row again, once the reason is fixed.
UPDATE hapax_outbox SET parked_at = NULL, retry_at = NULL, tries = 0, error = NULL WHERE id = ?
