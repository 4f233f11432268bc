-- The inbox of Hapax for MySQL 8 and MariaDB 10.5. Run it once, as a migration; running it again
-- changes nothing.
--
-- A row means that this consumer has processed this message, and that its effect is in this
-- database. It is written in the transaction of the effect, so a visible row belongs to a committed
-- effect. The columns of the primary key are VARBINARY: the usual collations treat `a` and `A` as
-- equal, and most of them `a` and `a ` too, and would confuse two messages.
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
