-- Where `hapax relay --results hapax_results` writes what became of the messages it moved; any
-- other name will do. A row is there from the moment the broker has its message, as `waiting`, and
-- ends as `done` (with the result), `dead` or `discarded` (with the error), or `forgotten` where the
-- queue no longer knows the key. Set it to `waiting` again to have it looked up once more, as after
-- a redrive.
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
