-- Send a parked row after all, once its reason is gone.
UPDATE hapax_outbox SET parked_at = NULL, retry_at = NULL, tries = 0, error = NULL WHERE id = ?
