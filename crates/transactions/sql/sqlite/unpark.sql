-- Send a parked row again, once the reason is fixed. A row that was refused as too old also needs
-- issued_at_ms = unixepoch() * 1000: make sure first that it was not processed before.
UPDATE hapax_outbox SET parked_at_ms = NULL, retry_at_ms = NULL, tries = 0, error = NULL
WHERE id = ?1
