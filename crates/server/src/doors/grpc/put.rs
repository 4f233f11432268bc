//! Encodes the most frequent answers of the streams directly from outcomes, without an intermediate
//! type and without an allocation for each.

use hapax_core::{Answer, Delivery, Settled};
use hapax_wire::lean;
use hapax_wire::{AnswerKind, SettleKind};

use crate::doors::shape;

/// Encodes an answer of a stream. Most are `accepted`.
pub(super) fn answer(frame: &mut Vec<u8>, reference: u64, answer: Answer) {
    if let Answer::Accepted { id, place, at } = &answer {
        let (kind, state) = (AnswerKind::Accepted as u8, shape::state(*place) as u8);
        return lean::put_answer(frame, reference, kind, &id.0, state, at.0);
    }
    lean::put_nested(frame, lean::ANSWER, &shape::answer(reference, answer));
}

/// Encodes a delivery.
pub(super) fn delivery(frame: &mut Vec<u8>, message: &Delivery, lease: &[u8]) {
    let content = &*message.content;
    let id = if content.has_key() { String::new() } else { message.id.to_string() };
    let points = message.recovery_points.iter();
    lean::put_delivery(
        frame,
        &lean::Delivery {
            lease,
            fence: message.lease.fence.0,
            key: if id.is_empty() { content.key() } else { &id },
            id: &message.id.0,
            attempt: message.attempt,
            generation: message.generation,
            group: content.group().unwrap_or_default(),
            body: content.body(),
            content_type: content.content_type().unwrap_or_default(),
            headers: content.headers().map(|(name, value)| (name, value.as_bytes())).collect(),
            accepted_at_ms: message.accepted_at.0,
            deadline_ms: message.deadline.0,
            recovery_points: points.map(|(name, data)| (name.as_str(), &data[..])).collect(),
        },
    );
}

/// Encodes the answer to a settle of a stream. Most are `ok`.
pub(super) fn settled(frame: &mut Vec<u8>, reference: u64, answer: Settled) {
    if let Settled::Ok { place, deadline } = answer {
        let (kind, state) = (SettleKind::Ok as u8, shape::state(place) as u8);
        return lean::put_settled(frame, reference, kind, state, deadline.map(|at| at.0));
    }
    lean::put_nested(frame, lean::SETTLED, &shape::settled(reference, answer, false));
}
