-- The outbox of Hapax for MySQL 8 and MariaDB 10.5. Run it once, as a migration; running it again
-- changes nothing.
--
-- A row is a message to send, written in the transaction of the change that it reports. `hapax
-- relay` reads PostgreSQL and SQLite only. For MySQL this is the table, and below is what a relay
-- of your own must do.
CREATE TABLE IF NOT EXISTS hapax_outbox (
    id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    queue VARBINARY(80) NOT NULL,
    message_key VARBINARY(255) NOT NULL,
    message_group VARBINARY(255) NOT NULL DEFAULT '',
    body LONGBLOB NOT NULL,
    content_type VARCHAR(255) NOT NULL DEFAULT '',
    headers JSON,
    delay_ms BIGINT,
    ttl_ms BIGINT,
    fingerprint VARCHAR(255),
    issued_at TIMESTAMP(3) NULL,
    created_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    tries INT NOT NULL DEFAULT 0,
    retry_at TIMESTAMP(3) NULL,
    error TEXT,
    parked_at TIMESTAMP(3) NULL,
    KEY hapax_outbox_retries (queue, message_group, retry_at)
) ENGINE = InnoDB;
