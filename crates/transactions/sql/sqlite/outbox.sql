-- The outbox of Hapax for SQLite 3.38 and newer. Run this once, as a migration; run again it
-- changes nothing.
--
-- A row is a message to be sent. It is written in the transaction of the state that it tells about,
-- and `hapax relay --database sqlite://PATH` moves it to the broker under its key. AUTOINCREMENT: a
-- number that was deleted must never come again, or a relay could delete a row it never read. The
-- checks of types: SQLite keeps what it is given, such as a key that is a blob, and a row that is no
-- message is parked.
CREATE TABLE IF NOT EXISTS hapax_outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue TEXT NOT NULL CHECK (typeof(queue) = 'text'),
    message_key TEXT NOT NULL CHECK (
        typeof(message_key) = 'text' AND length(CAST(message_key AS BLOB)) BETWEEN 1 AND 255),
    message_group TEXT NOT NULL DEFAULT '' CHECK (typeof(message_group) = 'text'),
    body BLOB NOT NULL,
    content_type TEXT NOT NULL DEFAULT '' CHECK (typeof(content_type) = 'text'),
    -- An object of texts.
    headers TEXT NOT NULL DEFAULT '{}'
        CHECK (typeof(headers) = 'text' AND json_valid(headers) AND json_type(headers) = 'object'),
    -- Both counted from created_at_ms on.
    delay_ms INTEGER CHECK (typeof(delay_ms) IN ('integer', 'null')),
    ttl_ms INTEGER CHECK (typeof(ttl_ms) IN ('integer', 'null')),
    fingerprint TEXT CHECK (typeof(fingerprint) IN ('text', 'null')),
    -- When the operation was born, where that was before this row: see the guide.
    issued_at_ms INTEGER CHECK (typeof(issued_at_ms) IN ('integer', 'null')),
    created_at_ms INTEGER NOT NULL
        DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))
        CHECK (typeof(created_at_ms) = 'integer'),
    -- What follows is the relay's. A row it could not send is tried again at retry_at_ms; one that
    -- was refused too often is parked, with the error, and left alone.
    tries INTEGER NOT NULL DEFAULT 0,
    retry_at_ms INTEGER,
    error TEXT,
    parked_at_ms INTEGER
);

-- The groups that wait for their first row to be tried again.
CREATE INDEX IF NOT EXISTS hapax_outbox_retries ON hapax_outbox (queue, message_group)
    WHERE retry_at_ms IS NOT NULL AND parked_at_ms IS NULL;
