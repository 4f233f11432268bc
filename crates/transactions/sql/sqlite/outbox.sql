-- The outbox of Hapax for SQLite 3.38 and newer. Run it once, as a migration; running it again
-- changes nothing.
--
-- A row is a message to send. It is written in the transaction of the change that it reports, and
-- `hapax relay --database sqlite://PATH` sends it to the broker under its key. AUTOINCREMENT is
-- needed: an id must never be reused, or a relay could delete a row that it never read. The type
-- checks are needed because SQLite stores any type, such as a blob as a key, and the relay parks a
-- row that is not a valid message.
CREATE TABLE IF NOT EXISTS hapax_outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue TEXT NOT NULL CHECK (typeof(queue) = 'text'),
    message_key TEXT NOT NULL CHECK (
        typeof(message_key) = 'text' AND length(CAST(message_key AS BLOB)) BETWEEN 1 AND 255),
    message_group TEXT NOT NULL DEFAULT '' CHECK (typeof(message_group) = 'text'),
    body BLOB NOT NULL,
    content_type TEXT NOT NULL DEFAULT '' CHECK (typeof(content_type) = 'text'),
    -- A JSON object of strings.
    headers TEXT NOT NULL DEFAULT '{}'
        CHECK (typeof(headers) = 'text' AND json_valid(headers) AND json_type(headers) = 'object'),
    -- Both are counted from created_at_ms.
    delay_ms INTEGER CHECK (typeof(delay_ms) IN ('integer', 'null')),
    ttl_ms INTEGER CHECK (typeof(ttl_ms) IN ('integer', 'null')),
    fingerprint TEXT CHECK (typeof(fingerprint) IN ('text', 'null')),
    -- The date of the operation, if it is earlier than this row: see the guide.
    issued_at_ms INTEGER CHECK (typeof(issued_at_ms) IN ('integer', 'null')),
    created_at_ms INTEGER NOT NULL
        DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))
        CHECK (typeof(created_at_ms) = 'integer'),
    -- The following columns belong to the relay. A refused row is tried again at retry_at_ms. After
    -- too many tries it is parked with the error.
    tries INTEGER NOT NULL DEFAULT 0,
    retry_at_ms INTEGER,
    error TEXT,
    parked_at_ms INTEGER
);

-- For the groups whose first row waits for its next try.
CREATE INDEX IF NOT EXISTS hapax_outbox_retries ON hapax_outbox (queue, message_group)
    WHERE retry_at_ms IS NOT NULL AND parked_at_ms IS NULL;
