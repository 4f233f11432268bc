-- The inbox of Hapax for SQLite 3.24 and newer. Run it once, as a migration; running it again
-- changes nothing.
--
-- A row means that this consumer has processed this message, and that its effect is in this
-- database. It is written in the transaction of the effect, so a visible row belongs to a committed
-- effect.
--
-- Begin transactions with BEGIN IMMEDIATE, set busy_timeout, and keep synchronous = FULL: with
-- NORMAL in WAL mode a power cut may undo a commit whose message is already settled. The type
-- checks: a key that is a blob differs from the same bytes as text.
CREATE TABLE IF NOT EXISTS hapax_inbox (
    consumer TEXT NOT NULL,
    tenant TEXT NOT NULL,
    queue TEXT NOT NULL,
    message_key TEXT NOT NULL,
    message_group TEXT NOT NULL,
    generation INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    result BLOB,
    result_type TEXT,
    entered_at_ms INTEGER NOT NULL
        DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
    PRIMARY KEY (consumer, tenant, queue, message_key, message_group, generation),
    CHECK (typeof(consumer) = 'text' AND typeof(tenant) = 'text' AND typeof(queue) = 'text'
        AND typeof(message_key) = 'text' AND typeof(message_group) = 'text'
        AND typeof(generation) = 'integer' AND typeof(fence) = 'integer')
) WITHOUT ROWID;

-- For the sweep.
CREATE INDEX IF NOT EXISTS hapax_inbox_age ON hapax_inbox (entered_at_ms);
