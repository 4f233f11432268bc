/**
 * The tables and statements of inbox and outbox, as `hapax sql inbox` and `hapax sql outbox` print
 * them; a test compares. Every client runs the same ones, so that services in several languages can
 * share a database.
 */

/** The migration of the inbox. Running it again changes nothing. */
export const INBOX_SCHEMA = `-- The inbox of Hapax for PostgreSQL 11 and newer. Run it once, as a migration; running it again
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
`;

/** The migration of the outbox. Running it again changes nothing. */
export const OUTBOX_SCHEMA = `-- The outbox of Hapax for PostgreSQL 11 and newer. Run it once, as a migration; running it again
-- changes nothing.
--
-- A row is a message to send. It is written in the transaction of the change that it reports, and
-- \`hapax relay --database postgres://…\` sends it to the broker under its key.
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
`;

/** Inserts the row of a delivery: one row, and the message is new. */
export const ENTER = `INSERT INTO hapax_inbox
    (consumer, tenant, queue, message_key, message_group, generation, fence)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING`;

/** Finds the row of a message that was processed before. */
export const FOUND = `SELECT fence, result, result_type FROM hapax_inbox
WHERE (consumer, tenant, queue, message_key, message_group, generation)
    = ($1, $2, $3, $4, $5, $6)`;

/** Stores the result, as the last statement before the commit: one row, or the attempt fails. */
export const FINISH = `UPDATE hapax_inbox SET result = $8, result_type = $9
WHERE (consumer, tenant, queue, message_key, message_group, generation, fence)
    = ($1, $2, $3, $4, $5, $6, $7)`;

/** Lists old rows, a page at a time. */
export const OLD = `SELECT message_key, message_group, generation, fence,
    (extract(epoch FROM entered_at) * 1000000)::bigint
FROM hapax_inbox
WHERE consumer = $1 AND tenant = $2 AND queue = $3
  AND entered_at < now() - $4::bigint * interval '1 millisecond'
  AND (entered_at, message_key, message_group, generation)
    > (timestamptz 'epoch' + $5::bigint * interval '1 microsecond', $6, $7, $8)
ORDER BY entered_at, message_key, message_group, generation LIMIT $9`;

/** Deletes one row whose message has ended. */
export const SWEEP = `DELETE FROM hapax_inbox
WHERE (consumer, tenant, queue, message_key, message_group, generation, fence)
    = ($1, $2, $3, $4, $5, $6, $7)`;

/** Writes a message into the outbox. */
export const SEND = `INSERT INTO hapax_outbox (queue, message_key, message_group, body, content_type, headers,
    delay_ms, ttl_ms, fingerprint, issued_at)
VALUES ($1, $2, $3, $4, $5, $6::text::jsonb, $7, $8, $9,
    to_timestamp($10::bigint / 1000.0::double precision))`;
