-- Send: in the transaction of your own writes. Only queue, message_key and body are required.
INSERT INTO hapax_outbox (queue, message_key, message_group, body, content_type, headers,
    delay_ms, ttl_ms, fingerprint, issued_at)
VALUES ($1, $2, $3, $4, $5, $6::text::jsonb, $7, $8, $9,
    to_timestamp($10::bigint / 1000.0::double precision))
