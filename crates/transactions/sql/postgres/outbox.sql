-- The outbox of Hapax for PostgreSQL 11 and newer. Run it once, as a migration; running it again
-- changes nothing.
--
-- A row is a message to send. It is written in the transaction of the change that it reports, and
-- `hapax relay --database postgres://…` sends it to the broker under its key.
--
-- The body is bytea: insert text as convert_to('…', 'UTF8'), or bind it as a parameter of bytes. In a
-- quoted literal, backslashes are escapes.
CREATE TABLE IF NOT EXISTS hapax_outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text COLLATE "C" NOT NULL,
    message_key text COLLATE "C" NOT NULL CHECK (octet_length(message_key) BETWEEN 1 AND 255),
    message_group text COLLATE "C" NOT NULL DEFAULT '',
    body bytea NOT NULL,
    content_type text NOT NULL DEFAULT '',
    -- A JSON object of strings.
    headers jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(headers) = 'object'),
    -- Both are counted from created_at.
    delay_ms bigint,
    ttl_ms bigint,
    fingerprint text,
    -- The date of the operation, if it is earlier than this row: see the guide.
    issued_at timestamptz CHECK (isfinite(issued_at)),
    created_at timestamptz NOT NULL DEFAULT now() CHECK (isfinite(created_at)),
    -- The following columns belong to the relay. A refused row is tried again at retry_at. After
    -- too many tries it is parked with the error.
    tries integer NOT NULL DEFAULT 0,
    retry_at timestamptz,
    error text,
    parked_at timestamptz
) WITH (
    -- Rows are short-lived: vacuum early.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);

-- For the groups whose first row waits for its next try.
CREATE INDEX IF NOT EXISTS hapax_outbox_retries ON hapax_outbox (queue, message_group)
    WHERE retry_at IS NOT NULL AND parked_at IS NULL;

-- Notifies the relay when the transaction commits. Without this trigger it polls every second.
CREATE OR REPLACE FUNCTION hapax_outbox_notify() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NOTIFY hapax_outbox;
    RETURN NULL;
END $$;

DROP TRIGGER IF EXISTS hapax_outbox_notify ON hapax_outbox;
CREATE TRIGGER hapax_outbox_notify AFTER INSERT ON hapax_outbox
    FOR EACH STATEMENT EXECUTE FUNCTION hapax_outbox_notify();
