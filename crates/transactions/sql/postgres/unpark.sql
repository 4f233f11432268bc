-- Send a parked row after all, once its reason is gone. One that was refused as too old needs
-- issued_at = now() besides: make sure first that it was not carried out long ago.
UPDATE hapax_outbox SET parked_at = NULL, retry_at = NULL, tries = 0, error = NULL WHERE id = $1
