-- The inbox of Hapax for PostgreSQL 11 and newer. Run this once, as a migration; run again it
-- changes nothing.
--
-- A row says: this consumer carried out this message, and its effect is in this database. It is
-- written in the transaction of the effect, so a row that can be seen is an effect that is there.
-- Texts are compared byte by byte (COLLATE "C"): two keys are one only if they are the same.
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
