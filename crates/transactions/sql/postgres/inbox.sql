-- The inbox of Hapax for PostgreSQL 11 and newer. Run it once, as a migration; running it again
-- changes nothing.
--
-- A row means that this consumer has processed this message, and that its effect is in this
-- database. It is written in the transaction of the effect, so a visible row belongs to a committed
-- effect. Texts are compared byte by byte (COLLATE "C").
CREATE TABLE IF NOT EXISTS hapax_inbox (
    consumer text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    message_key text COLLATE "C" NOT NULL,
    message_group text COLLATE "C" NOT NULL,
    generation integer NOT NULL,
    fence bigint NOT NULL,
    result bytea,
    result_type text,
    entered_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, tenant, queue, message_key, message_group, generation)
);

-- For the sweep.
CREATE INDEX IF NOT EXISTS hapax_inbox_age ON hapax_inbox (entered_at);
