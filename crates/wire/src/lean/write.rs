//! Writes messages from slices, as the generated types do: fields in order, without those that have
//! their default value.

use super::read::{Delivery, Message};

/// Writes the head of a `SendFrame` or a `ClaimsFrame`: its queue. Messages or claims follow.
pub fn frame_head(out: &mut Vec<u8>, queue: &str) {
    put_bytes(out, 1 << 3 | 2, queue.as_bytes());
}

/// Writes a message of the generated types as a field of the enclosing one.
pub fn put_nested(out: &mut Vec<u8>, key: u8, message: &impl prost::Message) {
    out.push(key);
    put_varint(out, message.encoded_len() as u64);
    // A vector grows, so this cannot fail.
    let _ = message.encode(out);
}

/// Writes a `ClaimRequest` as a field of a `ClaimsFrame`. `claim` has all its other fields, encoded
/// before.
pub fn put_claim(out: &mut Vec<u8>, reference: u64, wait_ms: u64, claim: &[u8]) {
    let length = claim.len() + number_length(wait_ms) + number_length(reference);
    out.push(super::CLAIM);
    put_varint(out, length as u64);
    out.extend_from_slice(claim);
    put_number(out, 8 << 3, wait_ms);
    put_number(out, 12 << 3, reference);
}

/// Writes a `Message` as a field of a `SendFrame`.
pub fn put_message(out: &mut Vec<u8>, message: &Message<'_>) {
    let headers = message.headers.iter();
    let headers = headers.map(|(name, value)| entry_length(name, value.as_bytes()));
    let length = number_length(message.reference)
        + message.key.map_or(0, |key| present_length(key.len()))
        + bytes_length(message.body.len())
        + bytes_length(message.content_type.len())
        + message.group.map_or(0, |group| present_length(group.len()))
        + headers.sum::<usize>()
        + option_length(message.delay_ms)
        + option_length(message.ttl_ms)
        + message.fingerprint.map_or(0, |text| present_length(text.len()))
        + option_length(message.issued_at_ms);
    out.push(super::MESSAGE);
    put_varint(out, length as u64);
    let start = out.len();
    put_number(out, 1 << 3, message.reference);
    put_text(out, 2 << 3 | 2, message.key);
    put_bytes(out, 3 << 3 | 2, message.body);
    put_bytes(out, 4 << 3 | 2, message.content_type.as_bytes());
    put_text(out, 5 << 3 | 2, message.group);
    for (name, value) in &message.headers {
        put_entry(out, 6 << 3 | 2, name, value.as_bytes());
    }
    put_option(out, 7 << 3, message.delay_ms);
    put_option(out, 8 << 3, message.ttl_ms);
    put_text(out, 9 << 3 | 2, message.fingerprint);
    put_option(out, 10 << 3, message.issued_at_ms);
    debug_assert_eq!(out.len() - start, length);
}

/// Writes an `Answer` with only these fields, as a field of a `SendReply`.
pub fn put_answer(
    out: &mut Vec<u8>,
    reference: u64,
    kind: u8,
    id: &[u8; 16],
    state: u8,
    accepted_at_ms: u64,
) {
    let small = usize::from(kind != 0) + usize::from(state != 0);
    let length =
        number_length(reference) + 2 * small + 2 + id.len() + number_length(accepted_at_ms);
    out.push(super::ANSWER);
    put_varint(out, length as u64);
    put_number(out, 1 << 3, reference);
    put_number(out, 2 << 3, kind.into());
    put_bytes(out, 3 << 3 | 2, id);
    put_number(out, 4 << 3, state.into());
    put_number(out, 5 << 3, accepted_at_ms);
}

/// Writes a `SettleAnswer` with only these fields, as a field of a `WorkReply`.
pub fn put_settled(
    out: &mut Vec<u8>,
    reference: u64,
    kind: u8,
    state: u8,
    deadline_ms: Option<u64>,
) {
    let small = usize::from(kind != 0) + usize::from(state != 0);
    let length = number_length(reference) + 2 * small + option_length(deadline_ms);
    out.push(super::SETTLED);
    put_varint(out, length as u64);
    put_number(out, 1 << 3, reference);
    put_number(out, 2 << 3, kind.into());
    put_number(out, 3 << 3, state.into());
    put_option(out, 4 << 3, deadline_ms);
}

/// Writes a `Settle` with `done`, and body and content type of a result, as a field of a
/// `WorkFrame`.
pub fn put_done(out: &mut Vec<u8>, reference: u64, lease: &[u8], result: Option<(&[u8], &str)>) {
    let blob = |(body, content_type): (&[u8], &str)| {
        bytes_length(body.len()) + bytes_length(content_type.len())
    };
    let done = result.map_or(0, |result| present_length(blob(result)));
    let length = number_length(reference) + bytes_length(lease.len()) + present_length(done);
    out.push(super::SETTLE);
    put_varint(out, length as u64);
    let start = out.len();
    put_number(out, 1 << 3, reference);
    put_bytes(out, 2 << 3 | 2, lease);
    out.push(3 << 3 | 2);
    put_varint(out, done as u64);
    if let Some((body, content_type)) = result {
        out.push(1 << 3 | 2);
        put_varint(out, blob((body, content_type)) as u64);
        put_bytes(out, 1 << 3 | 2, body);
        put_bytes(out, 2 << 3 | 2, content_type.as_bytes());
    }
    debug_assert_eq!(out.len() - start, length);
}

/// Writes a `Delivery` as a field of a `WorkReply`.
pub fn put_delivery(out: &mut Vec<u8>, delivery: &Delivery<'_>) {
    let entries = delivery.headers.iter().chain(&delivery.recovery_points);
    let length = bytes_length(delivery.lease.len())
        + number_length(delivery.fence)
        + bytes_length(delivery.key.len())
        + bytes_length(delivery.id.len())
        + number_length(delivery.attempt.into())
        + number_length(delivery.generation.into())
        + bytes_length(delivery.group.len())
        + bytes_length(delivery.body.len())
        + bytes_length(delivery.content_type.len())
        + number_length(delivery.accepted_at_ms)
        + number_length(delivery.deadline_ms)
        + entries.map(|(name, value)| entry_length(name, value)).sum::<usize>();
    out.reserve(length + 8);
    out.push(1 << 3 | 2);
    put_varint(out, length as u64);
    let start = out.len();
    put_bytes(out, 1 << 3 | 2, delivery.lease);
    put_number(out, 2 << 3, delivery.fence);
    put_bytes(out, 3 << 3 | 2, delivery.key.as_bytes());
    put_bytes(out, 4 << 3 | 2, delivery.id);
    put_number(out, 5 << 3, delivery.attempt.into());
    put_number(out, 6 << 3, delivery.generation.into());
    put_bytes(out, 7 << 3 | 2, delivery.group.as_bytes());
    put_bytes(out, 8 << 3 | 2, delivery.body);
    put_bytes(out, 9 << 3 | 2, delivery.content_type.as_bytes());
    for (name, value) in &delivery.headers {
        put_entry(out, 10 << 3 | 2, name, value);
    }
    put_number(out, 11 << 3, delivery.accepted_at_ms);
    put_number(out, 12 << 3, delivery.deadline_ms);
    for (name, value) in &delivery.recovery_points {
        put_entry(out, 13 << 3 | 2, name, value);
    }
    debug_assert_eq!(out.len() - start, length);
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn varint_length(value: u64) -> usize {
    (value | 1).ilog2() as usize / 7 + 1
}

fn put_number(out: &mut Vec<u8>, key: u8, value: u64) {
    if value != 0 {
        out.push(key);
        put_varint(out, value);
    }
}

fn number_length(value: u64) -> usize {
    if value == 0 { 0 } else { 1 + varint_length(value) }
}

fn put_option(out: &mut Vec<u8>, key: u8, value: Option<u64>) {
    if let Some(value) = value {
        out.push(key);
        put_varint(out, value);
    }
}

fn option_length(value: Option<u64>) -> usize {
    value.map_or(0, |value| 1 + varint_length(value))
}

fn put_bytes(out: &mut Vec<u8>, key: u8, bytes: &[u8]) {
    if !bytes.is_empty() {
        put_present(out, key, bytes);
    }
}

fn put_present(out: &mut Vec<u8>, key: u8, bytes: &[u8]) {
    out.push(key);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A text whose presence counts: an empty one is written too.
fn put_text(out: &mut Vec<u8>, key: u8, text: Option<&str>) {
    if let Some(text) = text {
        put_present(out, key, text.as_bytes());
    }
}

fn bytes_length(length: usize) -> usize {
    if length == 0 { 0 } else { present_length(length) }
}

fn present_length(length: usize) -> usize {
    1 + varint_length(length as u64) + length
}

fn put_entry(out: &mut Vec<u8>, key: u8, name: &str, value: &[u8]) {
    out.push(key);
    put_varint(out, (bytes_length(name.len()) + bytes_length(value.len())) as u64);
    put_bytes(out, 1 << 3 | 2, name.as_bytes());
    put_bytes(out, 2 << 3 | 2, value);
}

fn entry_length(name: &str, value: &[u8]) -> usize {
    present_length(bytes_length(name.len()) + bytes_length(value.len()))
}
