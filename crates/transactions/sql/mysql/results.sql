-- The outcomes of messages, for a relay of your own: the state is `waiting` until GET
-- /v1/queues/{queue}/keys/{key} returns done, dead or discarded.
CREATE TABLE IF NOT EXISTS hapax_results (
    queue VARBINARY(80) NOT NULL,
    message_key VARBINARY(255) NOT NULL,
    message_group VARBINARY(255) NOT NULL,
    state VARCHAR(16) NOT NULL DEFAULT 'waiting',
    result LONGBLOB,
    result_type VARCHAR(255),
    error TEXT,
    sent_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    finished_at TIMESTAMP(3) NULL,
    PRIMARY KEY (queue, message_key, message_group),
    KEY hapax_results_waiting (state)
) ENGINE = InnoDB;
