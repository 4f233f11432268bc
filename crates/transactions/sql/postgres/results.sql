-- The table for `hapax relay --results hapax_results`; any other name works too. A row is inserted
-- as `waiting` when the broker has confirmed the message, and becomes `done` (with the result),
-- `dead` or `discarded` (with the error), or `forgotten` if the queue no longer knows the key. Set
-- it to `waiting` again to have it looked up again, for example after a redrive.
CREATE TABLE IF NOT EXISTS hapax_results (
    queue text COLLATE "C" NOT NULL,
    message_key text COLLATE "C" NOT NULL,
    message_group text COLLATE "C" NOT NULL,
    state text NOT NULL DEFAULT 'waiting',
    result bytea,
    result_type text,
    error text,
    sent_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    PRIMARY KEY (queue, message_key, message_group)
);

CREATE INDEX IF NOT EXISTS hapax_results_waiting
    ON hapax_results (queue, message_key, message_group) WHERE state = 'waiting';
