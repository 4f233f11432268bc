-- The outbox of Hapax for PostgreSQL 11 and newer. Run this once, as a migration; run again it
-- changes nothing.
--
-- A row is a message to be sent. It is written in the transaction of the state that it tells about,
-- and `hapax relay --database postgres://…` moves it to the broker under its key.
CREATE TABLE IF NOT EXISTS hapax_outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text COLLATE "C" NOT NULL,
    message_key text COLLATE "C" NOT NULL CHECK (octet_length(message_key) BETWEEN 1 AND 255),
    message_group text COLLATE "C" NOT NULL DEFAULT '',
    body bytea NOT NULL,
    content_type text NOT NULL DEFAULT '',
    -- An object of texts.
    headers jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(headers) = 'object'),
    -- Both counted from created_at on.
    delay_ms bigint,
    ttl_ms bigint,
    fingerprint text,
    -- When the operation was born, where that was before this row: see the guide.
    issued_at timestamptz CHECK (isfinite(issued_at)),
    created_at timestamptz NOT NULL DEFAULT now() CHECK (isfinite(created_at)),
    -- What follows is the relay's. A row it could not send is tried again at retry_at; one that was
    -- refused too often is parked, with the error, and left alone.
    tries integer NOT NULL DEFAULT 0,
    retry_at timestamptz,
    error text,
    parked_at timestamptz
) WITH (
    -- Rows come and go: dead ones are cleared away early.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);

-- The groups that wait for their first row to be tried again.
CREATE INDEX IF NOT EXISTS hapax_outbox_retries ON hapax_outbox (queue, message_group)
    WHERE retry_at IS NOT NULL AND parked_at IS NULL;

-- Wakes the relay when the transaction commits. Without this trigger it looks every second.
CREATE OR REPLACE FUNCTION hapax_outbox_notify() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NOTIFY hapax_outbox;
    RETURN NULL;
END $$;

DROP TRIGGER IF EXISTS hapax_outbox_notify ON hapax_outbox;
CREATE TRIGGER hapax_outbox_notify AFTER INSERT ON hapax_outbox
    FOR EACH STATEMENT EXECUTE FUNCTION hapax_outbox_notify();
