//! A message is sent, for the first time or again.

use crate::command::{Allowance, SendMessage};
use crate::config::{DedupScope, Guarantee, OnDead, Order, UndatedKeys};
use crate::content::{Content, Invalid};
use crate::cut::Mark;
use crate::decision::{Accepted, Decision, QueueId};
use crate::ids::{MessageId, Stamp, Time};
use crate::key::{self, Digest, Fingerprint};
use crate::limits;
use crate::machine::{Machine, Verdict};
use crate::message::{Extra, Lease, Links, Message, Slot, State};
use crate::moves::purge;
use crate::outcome::{Answer, Effect, Finished, InFlight, Outcome, Place, Quota};
use crate::places::keys::Known;
use crate::queue::Queue;
use crate::record::{End, KeyRecord, What, remember_duplicates};
use crate::row::nobody;
use crate::state::event;

pub(crate) fn decide(
    machine: &Machine,
    stamp: Stamp,
    send: SendMessage,
    out: &mut Verdict,
) -> Outcome {
    Outcome::Sent(answer(machine, stamp, send, out).unwrap_or_else(|answer| answer))
}

fn answer(
    machine: &Machine,
    stamp: Stamp,
    send: SendMessage,
    out: &mut Verdict,
) -> Result<Answer, Answer> {
    check(&send)?;
    let queue = machine.queues.named(&send.queue).ok_or(Answer::NoSuchQueue)?;
    check_for(queue, &send.content)?;
    let content = &send.content;
    let keyless = !content.has_key();
    let digest = machine.scoped(queue, send.digest, content);
    let (mut released, mut dated_ahead) = (None, None);
    if !keyless {
        let asked = Asked { queue, digest, fingerprint: &send.fingerprint, claim: false };
        released = known(machine, stamp.at, &asked, out)?;
        dated_ahead = check_date(queue, stamp.at, content.key_bytes(), send.issued_at)?;
    }
    check_room(machine, queue, stamp.at, content.size() as u64, send.allowance)?;

    let seq = machine.next_seq;
    let id = MessageId::new(stamp.at, machine.partition, seq);
    let delay = send.delay_ms.unwrap_or(queue.config.delay_ms);
    let due = (delay > 0).then(|| stamp.at.plus(delay));
    let ttl = send.ttl_ms.or(queue.config.ttl_ms);
    // A dead message that is released may have held others of its group.
    if due.is_none() || released.is_some() {
        out.effects.push(wake(queue));
    }
    out.decisions.extend(released);
    let digest = if keyless { Digest::of_keyless(id) } else { digest };
    if keyless {
        out.found.unknown = Some(digest); // Each number is used once.
    }
    out.decisions.push(Decision::Accepted(Box::new(Accepted {
        seq,
        queue: queue.id,
        digest,
        fingerprint: send.fingerprint,
        content: send.content,
        due,
        ttl_at: ttl.map_or(Time::NEVER, |ttl| stamp.at.plus(ttl)),
        claim: None,
        dated_ahead,
    })));
    let place = if due.is_some() { Place::Delayed } else { Place::Ready };
    Ok(Answer::Accepted { id, place, at: stamp.at })
}

pub(crate) fn wake(queue: &Queue) -> Effect {
    Effect::Wake(queue.id)
}

/// Checks a send independently of its queue.
fn check(send: &SendMessage) -> Result<(), Answer> {
    if let Some(delay) = send.delay_ms.filter(|delay| *delay > limits::DELAY_MS_MAX) {
        return Err(Answer::Invalid(Invalid::Delay(delay)));
    }
    if send.ttl_ms == Some(0) {
        return Err(Answer::Invalid(Invalid::TimeToLive));
    }
    Ok(())
}

/// Checks a message against the limits of its queue.
pub(crate) fn check_for(queue: &Queue, content: &Content) -> Result<(), Answer> {
    let config = &queue.config;
    if !content.has_key() && config.guarantee != Guarantee::AtLeastOnce {
        return Err(Answer::Invalid(Invalid::MissingKey));
    }
    if content.group().is_none() && config.dedup_scope == DedupScope::Group {
        return Err(Answer::Invalid(Invalid::MissingGroup));
    }
    let bytes = content.body().len() as u64;
    if bytes > config.max_body_bytes {
        let max = config.max_body_bytes;
        return Err(Answer::Invalid(Invalid::BodyTooLarge { bytes, max }));
    }
    Ok(())
}

/// Refuses a dated key older than the retention: it was executed once, or never will be. Returns
/// the issue time if it is in the future, to be stored with the message.
pub(crate) fn check_date(
    queue: &Queue,
    at: Time,
    key: &[u8],
    issued_at: Option<Time>,
) -> Result<Option<Time>, Answer> {
    match issued_at.or_else(|| key::date(key, at)) {
        Some(dated) => {
            let ahead_ms = dated.since(at);
            if ahead_ms > limits::DATED_AHEAD_MS {
                return Err(Answer::Invalid(Invalid::DatedAhead { ahead_ms }));
            }
            if queue.is_too_old(dated, at) {
                return Err(Answer::TooOld { dated });
            }
            Ok(issued_at.filter(|issued_at| *issued_at > at))
        }
        None if queue.config.undated_keys == UndatedKeys::Refuse => Err(Answer::UndatedKey),
        None => Ok(None),
    }
}

/// Whether the quotas and the store have room for one more.
pub(crate) fn check_room(
    machine: &Machine,
    queue: &Queue,
    at: Time,
    bytes: u64,
    allowance: Allowance,
) -> Result<(), Answer> {
    let (config, elsewhere) = (&queue.config, &queue.elsewhere);
    let over = |quota, retry_after_ms| Err(Answer::OverQuota { quota, retry_after_ms });
    let is_bounded = match allowance {
        Allowance::Queue => true,
        Allowance::Emitted => false,
        Allowance::UsedUp { quota, retry_after_ms } => return over(quota, retry_after_ms),
    };
    let messages = || queue.stats.messages() + elsewhere.messages;
    if is_bounded && config.max_messages.is_some_and(|max| messages() >= max) {
        return over(Quota::Messages, 1_000);
    }
    let bytes = || queue.stats.bytes + elsewhere.bytes + bytes;
    if is_bounded && config.max_bytes.is_some_and(|max| bytes() > max) {
        return over(Quota::Bytes, 1_000);
    }
    if let Some(per_s) = config.sends_per_s {
        let wait_ms = queue.rate.wait_ms(per_s, at);
        if wait_ms > 0 {
            return over(Quota::Rate, wait_ms);
        }
    }
    if machine.is_store_full() { Err(Answer::StoreFull) } else { Ok(()) }
}

/// A request for a key: a send or a claim.
pub(crate) struct Asked<'a> {
    pub(crate) queue: &'a Queue,
    pub(crate) digest: Digest,
    pub(crate) fingerprint: &'a Fingerprint,
    /// The caller would do the work itself.
    pub(crate) claim: bool,
}

/// The answer for a known key, as an error: it ends the send. For an unknown key, what has to be
/// decided about an older message under it before a new one is accepted, and only then.
pub(crate) fn known(
    machine: &Machine,
    at: Time,
    asked: &Asked<'_>,
    out: &mut Verdict,
) -> Result<Option<Decision>, Answer> {
    let counted = Decision::Counted { digest: asked.digest, queue: asked.queue.id };
    match machine.keys.find(&machine.messages, &asked.digest) {
        Some(Known::Living(slot)) => {
            let message = machine.messages.at(slot);
            if let Some(purged) = purged(machine, message, asked) {
                return Ok(Some(purged));
            }
            let id = message.id(machine.partition);
            conflict(&message.fingerprint, asked, id, message.accepted_at)?;
            let over =
                message.ttl_at <= at && matches!(message.place(), Place::Ready | Place::Delayed);
            if over {
                // It was only in the rows and not swept in time; it is dead all the same.
                let error = crate::moves::expire::OVER.into();
                out.decisions.push(Decision::Died { digest: message.digest, error });
                out.effects.push(Effect::Ended { digest: message.digest });
            }
            if (over || message.place() == Place::Dead)
                && let Some(released) = dead_again(machine, message, asked, out)?
            {
                return Ok(Some(released));
            }
            out.decisions.push(counted);
            Err(if over { died(machine, message) } else { alive(machine, message) })
        }
        Some(Known::Record(record)) if is_remembered(&record, asked.queue, at) => {
            let id = record.id(machine.partition);
            conflict(&record.fingerprint, asked, id, record.accepted_at)?;
            if record.end == End::Discarded && asked.queue.config.on_dead != OnDead::Pin {
                return Ok(None);
            }
            out.decisions.push(counted);
            Err(remembered(machine, *record))
        }
        Some(Known::Record(_)) => Ok(None),
        None => {
            debug_assert!(machine.keys.is_known_absent(&asked.digest), "the rows were asked");
            out.found.unknown = Some(asked.digest);
            Ok(None)
        }
    }
}

/// A message that waits to be purged together with its key, in this queue or an older one of the
/// same name: a send under its key is a new message.
pub(crate) fn purged(machine: &Machine, message: &Message, asked: &Asked<'_>) -> Option<Decision> {
    let queue = machine.queues.get(message.queue)?;
    if !purge::takes(machine, message) || message.seq >= queue.keys_from {
        return None;
    }
    debug_assert!(queue.id == asked.queue.id || queue.is_deleted());
    let digests = vec![message.digest];
    Some(Decision::Purged { queue: queue.id, digests, finished: false })
}

/// Whether the record still counts for its key.
pub(crate) fn is_remembered(record: &KeyRecord, queue: &Queue, at: Time) -> bool {
    !record.is_free() && record.expires_at > at && record.seq >= queue.keys_from
}

pub(crate) fn conflict(
    first: &Fingerprint,
    asked: &Asked<'_>,
    id: MessageId,
    accepted_at: Time,
) -> Result<(), Answer> {
    let differs = first.differs(asked.fingerprint);
    if differs.is_empty() { Ok(()) } else { Err(Answer::Conflict { differs, id, accepted_at }) }
}

/// Applies `on_dead` to a send under the key of a dead message. Returns how the key is released, if
/// the send continues as a new message.
fn dead_again(
    machine: &Machine,
    message: &Message,
    asked: &Asked<'_>,
    out: &mut Verdict,
) -> Result<Option<Decision>, Answer> {
    // A claim has no message to run again, and a claimer does the work itself.
    let cannot_rerun = message.claim || asked.claim;
    match asked.queue.config.on_dead {
        OnDead::Pin => Ok(None),
        // A message being purged would be removed under its old number: its key starts anew
        // instead.
        OnDead::Rerun if !cannot_rerun && !purge::takes(machine, message) => {
            out.decisions.push(Decision::Rerun { digest: message.digest });
            out.effects.push(wake(asked.queue));
            let id = message.id(machine.partition);
            Err(Answer::Accepted { id, place: Place::Ready, at: message.accepted_at })
        }
        OnDead::Rerun | OnDead::Release => {
            Ok(Some(Decision::Forgotten { digest: message.digest, queue: message.queue }))
        }
    }
}

fn died(machine: &Machine, message: &Message) -> Answer {
    Answer::Dead {
        id: message.id(machine.partition),
        accepted_at: message.accepted_at,
        attempts: message.attempts,
        error: crate::moves::expire::OVER.into(),
        discarded: false,
    }
}

pub(crate) fn alive(machine: &Machine, message: &Message) -> Answer {
    let id = message.id(machine.partition);
    let (accepted_at, attempts) = (message.accepted_at, message.attempts);
    match message.place() {
        Place::Dead => {
            let error = message.error();
            Answer::Dead { id, accepted_at, attempts, error, discarded: false }
        }
        Place::Parked => Answer::Parked { id, accepted_at, attempts },
        place => {
            let deadline = message.deadline();
            Answer::InFlight(InFlight { id, accepted_at, place, attempts, deadline })
        }
    }
}

pub(crate) fn remembered(machine: &Machine, record: KeyRecord) -> Answer {
    let id = record.id(machine.partition);
    let (accepted_at, attempts) = (record.accepted_at, record.attempts);
    if record.end == End::Discarded {
        let error = record.error.unwrap_or_else(|| "discarded".into());
        return Answer::Dead { id, accepted_at, attempts, error, discarded: true };
    }
    Answer::Done(Box::new(Finished {
        id,
        accepted_at,
        finished_at: record.finished_at,
        remembered_until: record.expires_at,
        attempts,
        result: record.result,
    }))
}

/// A new message, or a claim, enters.
pub(crate) fn apply(machine: &mut Machine, at: Time, accepted: Accepted) {
    let mut before = None;
    if machine.found.unknown != Some(accepted.digest) {
        match machine.keys.find(&machine.messages, &accepted.digest) {
            Some(Known::Living(_)) => return, // Applied before.
            Some(Known::Record(record)) if record.seq >= accepted.seq => return,
            Some(Known::Record(record)) => before = Some(record),
            None => {}
        }
    }
    machine.next_seq = machine.next_seq.max(accepted.seq + 1);
    let Some(queue) = machine.queues.get_mut(accepted.queue) else { return };
    queue.stats.sent_total += 1;
    if let Some(per_s) = queue.config.sends_per_s {
        queue.rate.take(per_s, at);
        queue.elsewhere.accepted += 1;
    }
    let group = group_of(queue, &accepted.content);
    let mut extra = before.as_ref().and_then(|record| inherited(record, queue, at));
    if let Some(dated) = accepted.dated_ahead {
        extra.get_or_insert_default().dated_ahead = Some(dated);
    }
    if let Some(record) = &before {
        let is_counted = !record.is_free() && record.seq >= queue.keys_from;
        if is_counted && record.drop_at() > at.0 {
            queue.count_key(record.drop_at(), false);
        }
        machine.keys.supersede(&accepted.digest, record);
    }
    let mut attempts = 0;
    let claim = accepted.claim.is_some();
    let state = match (accepted.claim, accepted.due) {
        (Some(claim), _) => {
            machine.use_fence(claim.fence);
            attempts = 1;
            if let Some(id) = claim.id {
                extra.get_or_insert_default().claim_id = Some(id);
            }
            State::Leased(Lease {
                fence: claim.fence,
                deadline: claim.deadline,
                worker: claim.worker,
                begun: claim.begun,
            })
        }
        (None, Some(due)) => State::Delayed { due, backoff: false },
        (None, None) => State::Ready,
    };
    machine.enter(Message {
        seq: accepted.seq,
        digest: accepted.digest,
        queue: accepted.queue,
        state,
        attempts,
        generation: 0,
        accepted_at: at,
        leased_at: at,
        ttl_at: accepted.ttl_at,
        content: accepted.content,
        fingerprint: accepted.fingerprint,
        group,
        claim,
        extra,
        changed: Mark::default(),
        row: None,
        links: Links { before: Slot::NONE, after: Slot::NONE },
    });
}

pub(crate) fn group_of(queue: &Queue, content: &Content) -> Option<Digest> {
    let group = content.group().filter(|_| queue.config.order == Order::Group)?;
    Some(Digest::of_group(queue.id, group))
}

/// What a new message inherits from a free record: its history, and a freed claim's recovery
/// points.
fn inherited(record: &KeyRecord, queue: &Queue, at: Time) -> Option<Box<Extra>> {
    let hands_on = hands_on(record, queue, at) && !record.history.is_empty();
    let (history, points) = (record.history.clone(), record.points.clone());
    hands_on.then(|| Box::new(Extra { history, points, ..Extra::default() }))
}

/// Whether the next message under the key inherits from this record. Not if it belonged to an older
/// queue of that name, or was purged together with its key.
pub(crate) fn hands_on(record: &KeyRecord, queue: &Queue, at: Time) -> bool {
    record.is_free() && record.expires_at > at && record.seq >= queue.keys_from
}

/// Makes a dead message ready again because it was sent again.
pub(crate) fn apply_rerun(machine: &mut Machine, at: Time, digest: &Digest) {
    let Some(slot) = machine.keys.living(&machine.messages, digest) else { return };
    let message = machine.messages.at_mut(slot);
    if message.place() != Place::Dead {
        return;
    }
    message.attempts = 0;
    message.ttl_at = Time::NEVER; // As with a redrive.
    message.remember(event(at, What::Rerun, &nobody(), ""));
    machine.relocate(slot, State::Ready);
}

/// Counts a duplicate.
pub(crate) fn apply_counted(machine: &mut Machine, at: Time, digest: &Digest, queue: QueueId) {
    if let Some(queue) = machine.queues.get_mut(queue) {
        queue.stats.duplicate_total += 1;
        queue.dirty = true;
    }
    match machine.keys.living(&machine.messages, digest) {
        Some(slot) => {
            let extra = machine.messages.at_mut(slot).extra();
            extra.duplicates += 1;
            remember_duplicates(&mut extra.history, at, 1);
            machine.touch(slot);
        }
        None => machine.keys.count(digest, at),
    }
}
