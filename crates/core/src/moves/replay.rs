//! An operator runs a finished key again, as the next generation.

use std::sync::Arc;

use crate::command::Replay;
use crate::content::{Content, Invalid};
use crate::cut::Mark;
use crate::decision::{Decision, QueueId};
use crate::ids::{Stamp, Time};
use crate::key::{Digest, Fingerprint};
use crate::machine::{Machine, Verdict};
use crate::message::{Extra, Links, Message, Slot, State};
use crate::moves::send::{group_of, is_remembered, wake};
use crate::outcome::{Outcome, Refusal};
use crate::places::keys::Known;
use crate::record::{End, What, remember};
use crate::row::nobody;
use crate::state::event;

pub(crate) fn decide(
    machine: &Machine,
    stamp: Stamp,
    replay: Replay,
    out: &mut Verdict,
) -> Outcome {
    match replayed(machine, stamp, replay, out) {
        Ok(()) => Outcome::Ok,
        Err(refusal) => Outcome::Refused(refusal),
    }
}

fn replayed(
    machine: &Machine,
    stamp: Stamp,
    replay: Replay,
    out: &mut Verdict,
) -> Result<(), Refusal> {
    let queue = machine.queues.named(&replay.key.queue).ok_or(Refusal::NoSuchQueue)?;
    let group = replay.key.group.as_deref();
    let digest = machine.digest_of(queue, &replay.key.key, group);
    let record = match machine.keys.find(&machine.messages, &digest) {
        Some(Known::Living(slot)) if machine.messages.at(slot).queue == queue.id => {
            let place = machine.messages.at(slot).place().as_str();
            return Err(Refusal::Invalid(Invalid::State(place)));
        }
        Some(Known::Record(record)) if is_remembered(&record, queue, stamp.at) => record,
        _ => return Err(Refusal::NoSuchKey),
    };
    if record.end != End::Done {
        return Err(Refusal::Invalid(Invalid::State("discarded")));
    }
    // It would come back under its old number, and be purged with the others.
    if queue.purge.as_ref().is_some_and(|purge| record.seq < purge.below) {
        return Err(Refusal::Invalid(Invalid::State("in a queue that is being purged")));
    }
    let kept = record.content.clone().map(|content| (content, record.fingerprint));
    let given = replay.content.or(kept);
    let (content, fingerprint) = given.ok_or(Refusal::Invalid(Invalid::BodyGone))?;
    if content.key() != &*replay.key.key {
        return Err(Refusal::Invalid(Invalid::OtherKey));
    }
    let differs = record.fingerprint.differs(&fingerprint);
    if !differs.is_empty() {
        return Err(Refusal::Conflict(differs));
    }
    if machine.is_store_full() {
        return Err(Refusal::StoreFull);
    }
    out.decisions.push(Decision::Replayed { digest, queue: queue.id, content, fingerprint });
    out.effects.push(wake(queue));
    Ok(())
}

/// Makes the key live again: same id, next generation, attempts from zero, history kept.
pub(crate) fn apply(
    machine: &mut Machine,
    at: Time,
    digest: &Digest,
    queue_id: QueueId,
    content: Arc<Content>,
    fingerprint: Fingerprint,
) {
    let Some(Known::Record(record)) = machine.keys.find(&machine.messages, digest) else {
        return; // Applied before.
    };
    let Some(queue) = machine.queues.get_mut(queue_id) else { return };
    let group = group_of(queue, &content);
    debug_assert!(record.seq < machine.next_seq, "numbers are given once");
    queue.count_key(record.drop_at(), false);
    machine.keys.supersede(digest, &record);
    let mut history = record.history;
    remember(&mut history, event(at, What::Replayed, &nobody(), ""));
    let (duplicates, losses, dated_ahead) = (record.duplicates, record.losses, record.dated_ahead);
    let extra = Extra { history, duplicates, losses, dated_ahead, ..Extra::default() };
    machine.enter(Message {
        seq: record.seq,
        digest: *digest,
        queue: queue_id,
        state: State::Ready,
        attempts: 0,
        generation: record.generation + 1,
        accepted_at: record.accepted_at,
        leased_at: at,
        ttl_at: Time::NEVER,
        content,
        fingerprint,
        group,
        claim: false,
        extra: Some(Box::new(extra)),
        changed: Mark::default(),
        row: None,
        links: Links { before: Slot::NONE, after: Slot::NONE },
    });
}
