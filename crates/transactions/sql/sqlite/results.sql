-- The table for `hapax relay --results hapax_results`; any other name works too. A row is inserted
-- as `waiting` when the broker has confirmed the message, and becomes `done` (with the result),
-- `dead` or `discarded` (with the error), or `forgotten` if the queue no longer knows the key. Set
-- it to `waiting` again to have it looked up again, for example after a redrive.
CREATE TABLE IF NOT EXISTS hapax_results (
    queue TEXT NOT NULL,
    message_key TEXT NOT NULL,
    message_group TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'waiting',
    result BLOB,
    result_type TEXT,
    error TEXT,
    sent_at_ms INTEGER NOT NULL
        DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
    finished_at_ms INTEGER,
    PRIMARY KEY (queue, message_key, message_group)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS hapax_results_waiting
    ON hapax_results (queue, message_key, message_group) WHERE state = 'waiting';
