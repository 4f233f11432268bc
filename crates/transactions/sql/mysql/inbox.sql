-- The inbox of Hapax for MySQL 8 and MariaDB 10.5. Run this once, as a migration; run again it
-- changes nothing.
--
-- A row says: this consumer carried out this message, and its effect is in this database. It is
-- written in the transaction of the effect, so a row that can be seen is an effect that is there.
-- The columns of the key are VARBINARY: the usual collations take `a` for `A`, and most of them
-- `a` for `a ` too, and would take one message for another.
CREATE TABLE IF NOT EXISTS hapax_inbox (
    consumer VARBINARY(80) NOT NULL,
    tenant VARBINARY(80) NOT NULL,
    queue VARBINARY(80) NOT NULL,
    message_key VARBINARY(255) NOT NULL,
    message_group VARBINARY(255) NOT NULL,
    generation INT UNSIGNED NOT NULL,
    fence BIGINT UNSIGNED NOT NULL,
    result LONGBLOB,
    result_type VARCHAR(255),
    entered_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    PRIMARY KEY (consumer, tenant, queue, message_key, message_group, generation),
    KEY hapax_inbox_age (entered_at)
) ENGINE = InnoDB;
