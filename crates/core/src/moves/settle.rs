//! A worker settles its lease.
//!
//! Only the newest lease of a message can settle. A lease that was settled gets the same answer
//! when it is settled the same way again; any other gets `lease_lost`.

use std::sync::Arc;

use bytes::Bytes;

use crate::command::{Blob, Emit, LeaseName, Settle, Verb};
use crate::config::{DedupScope, OnLost};
use crate::content::{Content, Invalid};
use crate::decision::{Decision, Next};
use crate::ids::{Fence, Stamp, Time};
use crate::key::Digest;
use crate::limits;
use crate::machine::{Machine, Verdict};
use crate::message::{How, Message, Settlement, Slot, State};
use crate::moves::expire::{after_failure, free};
use crate::moves::send::{check_for, wake};
use crate::outcome::{Answer, Effect, Outcome, Place, Relay, Settled};
use crate::places::keys::Known;
use crate::queue::Queue;
use crate::record::{End, What};
use crate::state::{Ending, event};

pub(crate) fn decide(
    machine: &Machine,
    stamp: Stamp,
    settle: Settle,
    out: &mut Verdict,
) -> Outcome {
    Outcome::Settled(answer(machine, stamp, settle, out).unwrap_or_else(|answer| answer))
}

fn answer(
    machine: &Machine,
    stamp: Stamp,
    settle: Settle,
    out: &mut Verdict,
) -> Result<Settled, Settled> {
    let name = settle.lease;
    let message = match machine.keys.find(&machine.messages, &name.digest) {
        Some(Known::Living(slot)) => {
            out.found.settled = Some(slot);
            machine.messages.at(slot)
        }
        // An expired key is unknown, whether or not it has been swept.
        Some(Known::Record(record)) if record.expires_at > stamp.at => {
            let is_same = record.fence == name.fence && record.seq == name.seq;
            return Err(match (record.end, settle.verb) {
                (End::Done, Verb::Done { .. }) if is_same => ok(Place::Done, None),
                (End::Freed, Verb::Release | Verb::Fail { .. } | Verb::Park { .. }) if is_same => {
                    ok(Place::Discarded, None)
                }
                (End::Done, _) => lost(Some(Place::Done), record.result),
                (End::Discarded, _) => lost(Some(Place::Discarded), None),
                _ => lost(None, None),
            });
        }
        _ => return Err(lost(None, None)),
    };
    let queue = machine.queues.get(message.queue);
    let Some(queue) = queue.filter(|queue| !queue.is_deleted()) else {
        return Err(lost(None, None)); // It is deleted with its queue.
    };
    let is_held = message.lease().is_some_and(|lease| lease.fence == name.fence);
    // An expired lease can end, but not continue. A parked message is in doubt, and a failure does
    // not resolve the doubt: its holder may have done the work before it failed.
    let ends = match settle.verb {
        Verb::Done { .. } => true,
        Verb::Fail { .. } | Verb::Release | Verb::Park { .. } => message.place() != Place::Parked,
        Verb::Extend { .. } | Verb::Begin | Verb::Save { .. } => false,
    };
    let may = is_held || ends && message.may_settle(name.fence);
    if message.seq != name.seq || !may {
        return Err(settled_before(message, &name, &settle.verb));
    }
    debug_assert!(message.may_settle(name.fence), "who holds a message may settle it");
    let holder = Holder { machine, queue, message, stamp, fence: name.fence };
    match settle.verb {
        Verb::Done { result, emits } => holder.done(result, emits, out),
        Verb::Fail { error, delay_ms, dead } => holder.fail(&error, delay_ms, dead, out),
        Verb::Release => Ok(holder.release(out)),
        Verb::Park { error, delay_ms, dead } => holder.park(&error, delay_ms, dead, out),
        Verb::Extend { lease_ms } => holder.extend(lease_ms, out),
        Verb::Begin => holder.begin(out),
        Verb::Save { name, data } => holder.save(&name, data, out),
    }
}

/// The same lease, settled the same way again, gets the same answer.
fn settled_before(message: &Message, name: &LeaseName, verb: &Verb) -> Settled {
    let how = match verb {
        Verb::Fail { .. } => Some(How::Failed),
        Verb::Release => Some(How::Released),
        Verb::Park { .. } => Some(How::Parked),
        Verb::Done { .. } | Verb::Extend { .. } | Verb::Begin | Verb::Save { .. } => None,
    };
    let settled = message.extra.as_ref().and_then(|extra| extra.settled);
    match settled.filter(|settled| settled.fence == name.fence && message.seq == name.seq) {
        Some(settled) if how == Some(settled.how) => ok(settled.place, settled.deadline),
        _ => lost(Some(message.place()), None),
    }
}

fn ok(place: Place, deadline: Option<Time>) -> Settled {
    Settled::Ok { place, deadline }
}

fn lost(place: Option<Place>, result: Option<Blob>) -> Settled {
    Settled::LeaseLost { place, result }
}

/// The holder of the newest lease.
struct Holder<'a> {
    machine: &'a Machine,
    queue: &'a Queue,
    message: &'a Message,
    stamp: Stamp,
    fence: Fence,
}

impl Holder<'_> {
    fn done(
        &self,
        result: Option<Blob>,
        emits: Vec<Emit>,
        out: &mut Verdict,
    ) -> Result<Settled, Settled> {
        check_result(self.queue, result.as_ref()).map_err(Settled::Invalid)?;
        let emits = self.keyed(emits)?;
        let first = self.machine.relays.next_id();
        for (id, emit) in (first..).zip(&emits) {
            let (emit, issued_at) = (emit.clone(), self.stamp.at);
            let within = emit.queue == self.queue.name;
            let relay = Relay { id, emit, within, issued_at, attempts: 0, refused: None };
            out.effects.push(Effect::Relay(Box::new(relay)));
        }
        let digest = self.message.digest;
        out.decisions.push(Decision::Done { digest, fence: self.fence, result, emits });
        out.effects.push(Effect::Ended { digest });
        self.wake_group(out);
        Ok(ok(Place::Done, None))
    }

    /// Checks the emits and gives each its key.
    fn keyed(&self, mut emits: Vec<Emit>) -> Result<Vec<Emit>, Settled> {
        if emits.is_empty() {
            return Ok(emits);
        }
        let bytes: usize = emits.iter().map(|emit| emit.content.size() + emit.name.len()).sum();
        if emits.len() > limits::EMITS_MAX || bytes > limits::EMITS_BYTES_MAX {
            return Err(Settled::Invalid(Invalid::Emits));
        }
        let bounds = &self.machine.bounds;
        if !self.machine.relays.has_room(&emits, bounds.relays, bounds.relay_bytes) {
            return Err(Settled::RelayFull);
        }
        for (place, emit) in emits.iter_mut().enumerate() {
            let Some(target) = self.machine.queues.named(&emit.queue) else {
                return Err(Settled::NoSuchQueue { emit: place });
            };
            if let Some(delay) = emit.delay_ms.filter(|delay| *delay > limits::DELAY_MS_MAX) {
                return Err(Settled::Invalid(Invalid::Delay(delay)));
            }
            if emit.ttl_ms == Some(0) {
                return Err(Settled::Invalid(Invalid::TimeToLive));
            }
            if emit.name.len() > limits::EMIT_NAME_BYTES_MAX {
                return Err(Settled::Invalid(Invalid::EmitName(emit.name.len())));
            }
            if emit.content.key().is_empty() {
                if emit.name.is_empty() {
                    return Err(Settled::Invalid(Invalid::Emits));
                }
                let key = self.derived(&emit.name);
                emit.content = with_key(&emit.content, &key).map_err(Settled::Invalid)?;
            }
            // An emit that its queue can never accept must not be retried for ever.
            if let Err(Answer::Invalid(invalid)) = check_for(target, &emit.content) {
                return Err(Settled::Invalid(invalid));
            }
        }
        debug_assert!(emits.iter().all(|emit| emit.content.has_key()), "repeating is harmless");
        match same(&emits) {
            // The second one would be taken for a duplicate of the first, and be lost.
            Some((first, second)) => Err(Settled::Invalid(Invalid::SameEmits(first, second))),
            None => Ok(emits),
        }
    }

    /// The key of an emit that came without one.
    fn derived(&self, name: &str) -> String {
        let content = &self.message.content;
        let id = self.message.id(self.machine.partition).to_string();
        let parent = hapax_keys::Parent {
            queue: &self.queue.name.queue,
            group: content.group().filter(|_| self.queue.config.dedup_scope == DedupScope::Group),
            key: if content.has_key() { content.key() } else { &id },
            generation: self.message.generation,
        };
        hapax_keys::derive(&parent, name)
    }

    fn fail(
        &self,
        error: &str,
        delay_ms: Option<u64>,
        dead: bool,
        out: &mut Verdict,
    ) -> Result<Settled, Settled> {
        let next = self.failed(delay_ms, dead)?;
        let digest = self.message.digest;
        let error: Arc<str> = bounded(error).into();
        out.decisions.push(Decision::Failed { digest, fence: self.fence, error, next });
        Ok(self.gone(next, out))
    }

    /// The next state after a failure.
    fn failed(&self, delay_ms: Option<u64>, dead: bool) -> Result<Next, Settled> {
        if let Some(delay) = delay_ms.filter(|delay| *delay > limits::DELAY_MS_MAX) {
            return Err(Settled::Invalid(Invalid::Delay(delay)));
        }
        Ok(match (self.message.claim, dead) {
            (_, true) => Next::Dead,
            (true, false) => Next::Freed,
            (false, false) => after_failure(self.message, self.queue, self.stamp, delay_ms),
        })
    }

    /// Returns the message to its old place, without counting an attempt.
    fn release(&self, out: &mut Verdict) -> Settled {
        let next = if self.message.claim { Next::Freed } else { Next::Ready };
        let digest = self.message.digest;
        out.decisions.push(Decision::Released { digest, fence: self.fence, next });
        if next == Next::Freed {
            out.effects.push(Effect::Ended { digest });
            self.wake_group(out);
        } else {
            out.effects.push(wake(self.queue));
        }
        answer_of(next)
    }

    /// The holder does not know whether the effect happened: parks a begun message if the queue
    /// parks. A message that was not begun had no effect, and fails.
    fn park(
        &self,
        error: &str,
        delay_ms: Option<u64>,
        dead: bool,
        out: &mut Verdict,
    ) -> Result<Settled, Settled> {
        let failed = self.failed(delay_ms, dead)?;
        let begun = self.message.lease().is_some_and(|lease| lease.begun);
        let parks = begun && self.queue.config.on_lost == OnLost::Park;
        let next = if parks { Next::Parked } else { failed };
        let digest = self.message.digest;
        let error: Arc<str> = bounded(error).into();
        out.decisions.push(Decision::Parked { digest, fence: self.fence, error, next });
        Ok(self.gone(next, out))
    }

    /// Notifies waiters of a message that does not become ready by itself, and wakes its group.
    fn gone(&self, next: Next, out: &mut Verdict) -> Settled {
        if matches!(next, Next::Dead | Next::Freed | Next::Parked) {
            out.effects.push(Effect::Ended { digest: self.message.digest });
            self.wake_group(out);
        }
        answer_of(next)
    }

    fn extend(&self, lease_ms: Option<u64>, out: &mut Verdict) -> Result<Settled, Settled> {
        let lease_ms = lease_ms.unwrap_or(self.queue.config.lease_ms);
        if !(limits::LEASE_MS_MIN..=limits::LEASE_MS_MAX).contains(&lease_ms) {
            return Err(Settled::Invalid(Invalid::LeaseLength(lease_ms)));
        }
        let deadline = self.stamp.at.plus(lease_ms);
        let digest = self.message.digest;
        out.decisions.push(Decision::Extended { digest, fence: self.fence, deadline });
        Ok(ok(Place::Leased, Some(deadline)))
    }

    /// A lease past its deadline that was not superseded may settle, `extend`, and save. It may not
    /// begin: the next tick expires it, and the begun message would be in doubt.
    fn begin(&self, out: &mut Verdict) -> Result<Settled, Settled> {
        let (place, lease) = (self.message.place(), self.message.lease());
        let Some(lease) = lease else { return Err(lost(Some(place), None)) };
        if !lease.begun {
            if lease.deadline <= self.stamp.at {
                return Err(lost(Some(place), None));
            }
            let digest = self.message.digest;
            out.decisions.push(Decision::Begun { digest, fence: self.fence });
        }
        Ok(ok(Place::Leased, Some(lease.deadline)))
    }

    fn save(&self, name: &str, data: Bytes, out: &mut Verdict) -> Result<Settled, Settled> {
        if !(1..=limits::RECOVERY_POINT_NAME_BYTES_MAX).contains(&name.len()) {
            return Err(Settled::Invalid(Invalid::PointName));
        }
        let points = self.message.extra.as_ref().map(|extra| &extra.points);
        let others = points.into_iter().flatten().filter(|(known, _)| *known != name);
        let (count, bytes) = others.fold((1, name.len() + data.len()), |(count, bytes), point| {
            (count + 1, bytes + point.0.len() + point.1.len())
        });
        if count > limits::RECOVERY_POINTS_MAX || bytes > limits::RECOVERY_POINTS_BYTES_MAX {
            return Err(Settled::Invalid(Invalid::Points));
        }
        let (digest, name) = (self.message.digest, name.into());
        out.decisions.push(Decision::Saved { digest, fence: self.fence, name, data });
        Ok(ok(Place::Leased, self.message.deadline()))
    }

    fn wake_group(&self, out: &mut Verdict) {
        if self.message.group.is_some() {
            out.effects.push(wake(self.queue));
        }
    }
}

fn answer_of(next: Next) -> Settled {
    match next {
        Next::Ready => ok(Place::Ready, None),
        Next::Delayed(due) => ok(Place::Delayed, Some(due)),
        Next::Dead => ok(Place::Dead, None),
        Next::Parked => ok(Place::Parked, None),
        Next::Freed => ok(Place::Discarded, None),
    }
}

/// Truncates an error to what is kept of it.
pub(crate) fn bounded(error: &str) -> &str {
    let end = error.floor_char_boundary(limits::ERROR_BYTES_MAX);
    debug_assert!(error.is_char_boundary(end) && end <= limits::ERROR_BYTES_MAX);
    error.get(..end).unwrap_or(error)
}

/// Checks a result against the limits of the queue.
pub(crate) fn check_result(queue: &Queue, result: Option<&Blob>) -> Result<(), Invalid> {
    let Some(result) = result else { return Ok(()) };
    let (bytes, max) = (result.body.len() as u64, queue.config.max_body_bytes);
    if bytes > max {
        return Err(Invalid::BodyTooLarge { bytes, max });
    }
    result.check()
}

/// Two emits that go to one queue under one key.
fn same(emits: &[Emit]) -> Option<(usize, usize)> {
    emits.iter().enumerate().find_map(|(second, emit)| {
        let is_same =
            |other: &Emit| other.content.key() == emit.content.key() && other.queue == emit.queue;
        emits.iter().take(second).position(is_same).map(|first| (first, second))
    })
}

pub(crate) fn with_key(content: &Content, key: &str) -> Result<Arc<Content>, Invalid> {
    let mut builder =
        Content::builder(key).content_type(content.content_type()).group(content.group());
    for (name, value) in content.headers() {
        builder = builder.header(name, value);
    }
    builder.build(content.body())
}

/// The message that `fence` holds, or held last.
fn settles(machine: &Machine, digest: &Digest, fence: Fence) -> Option<Slot> {
    let slot = machine.living_or(machine.found.settled, digest)?;
    machine.messages.at(slot).may_settle(fence).then_some(slot)
}

/// The message that `fence` holds.
pub(crate) fn held(machine: &Machine, digest: &Digest, fence: Fence) -> Option<Slot> {
    let slot = machine.living_or(machine.found.settled, digest)?;
    let lease = machine.messages.at(slot).lease()?;
    (lease.fence == fence).then_some(slot)
}

pub(crate) fn apply_done(
    machine: &mut Machine,
    at: Time,
    digest: &Digest,
    fence: Fence,
    result: Option<Blob>,
    emits: Vec<Emit>,
) {
    let Some(slot) = settles(machine, digest, fence) else { return };
    let message = machine.messages.at(slot);
    let (worker, queue_id, place) = (message.worker(), message.queue, message.place());
    let mut from = None;
    if let Some(queue) = machine.queues.get_mut(queue_id) {
        queue.stats.done_total += 1;
        from = Some(&queue.name);
    }
    for emit in emits {
        let within = from == Some(&emit.queue);
        machine.relays.push(emit, within, at);
    }
    machine.end(at, slot, Ending { fence, worker, result, ..Ending::new(End::Done) });
    debug_assert!(machine.keys.living(&machine.messages, digest).is_none(), "done is done");
    if place == Place::Ready {
        crate::moves::receive::trim(machine, queue_id); // Done after its lease was lost.
    }
}

pub(crate) fn apply_failed(
    machine: &mut Machine,
    at: Time,
    digest: &Digest,
    fence: Fence,
    error: Arc<str>,
    next: Next,
) {
    let Some(slot) = settles(machine, digest, fence) else { return };
    let message = machine.messages.at_mut(slot);
    let worker = message.worker();
    message.remember(event(at, What::Failed, &worker, &error));
    let extra = message.extra();
    extra.error = Some(error);
    extra.worker = Some(worker);
    let queue = message.queue;
    if let Some(queue) = machine.queues.get_mut(queue) {
        queue.stats.failed_total += 1;
    }
    leave_lease(machine, at, slot, fence, How::Failed, next);
}

pub(crate) fn apply_parked(
    machine: &mut Machine,
    at: Time,
    digest: &Digest,
    fence: Fence,
    error: Arc<str>,
    next: Next,
) {
    let Some(slot) = settles(machine, digest, fence) else { return };
    let message = machine.messages.at_mut(slot);
    let (worker, queue) = (message.worker(), message.queue);
    let parks = next == Next::Parked;
    let extra = message.extra();
    if parks && extra.settled.is_some_and(|settled| settled.fence == fence) {
        return; // Applied before.
    }
    extra.error = Some(Arc::clone(&error));
    extra.worker = Some(Arc::clone(&worker));
    if !parks {
        message.remember(event(at, What::Failed, &worker, &error));
        if let Some(queue) = machine.queues.get_mut(queue) {
            queue.stats.failed_total += 1;
        }
    }
    leave_lease(machine, at, slot, fence, How::Parked, next);
    if parks {
        machine.messages.at_mut(slot).extra().lost = Some(fence); // It may still settle `done`.
    }
}

pub(crate) fn apply_released(
    machine: &mut Machine,
    at: Time,
    digest: &Digest,
    fence: Fence,
    next: Next,
) {
    let Some(slot) = settles(machine, digest, fence) else { return };
    let message = machine.messages.at_mut(slot);
    message.attempts = message.attempts.saturating_sub(1);
    leave_lease(machine, at, slot, fence, How::Released, next);
}

/// Takes a message out of a lease that did not finish it, and remembers the answer.
fn leave_lease(machine: &mut Machine, at: Time, slot: Slot, fence: Fence, how: How, next: Next) {
    let answer = answer_of(next);
    if let Settled::Ok { place, deadline } = answer {
        let settled = Settlement { fence, how, place, deadline };
        let extra = machine.messages.at_mut(slot).extra();
        extra.settled = Some(settled);
        extra.lost = None;
    }
    let queue = machine.messages.at(slot).queue;
    go(machine, at, slot, fence, next);
    if next != Next::Freed {
        let message = machine.messages.at(slot);
        let went = ok(message.place(), message.deadline());
        debug_assert_eq!(went, answer, "the answer names the place it went to");
    }
    crate::moves::receive::trim(machine, queue);
}

/// Moves a message from a lease to its next state.
pub(crate) fn go(machine: &mut Machine, at: Time, slot: Slot, fence: Fence, next: Next) {
    let holds = machine.holds_group(slot);
    let is_claim = machine.messages.at(slot).claim;
    debug_assert!(!is_claim || !matches!(next, Next::Ready | Next::Delayed(_)), "never delivered");
    let state = match next {
        Next::Ready => State::Ready,
        Next::Delayed(due) => State::Delayed { due, backoff: true },
        Next::Parked => State::Parked,
        Next::Dead => State::Dead { at, holds },
        Next::Freed => return free(machine, at, slot, fence),
    };
    if matches!(next, Next::Dead | Next::Parked) {
        let what = if next == Next::Dead { What::Dead } else { What::Parked };
        let message = machine.messages.at_mut(slot);
        let error = message.error();
        message.remember(event(at, what, &crate::row::nobody(), &error));
    }
    machine.relocate(slot, state);
}

pub(crate) fn apply_extended(machine: &mut Machine, digest: &Digest, fence: Fence, deadline: Time) {
    let Some(slot) = held(machine, digest, fence) else { return };
    let mut state = machine.messages.at(slot).state.clone();
    if let State::Leased(lease) = &mut state {
        lease.deadline = deadline;
    }
    machine.relocate(slot, state);
    debug_assert_eq!(machine.messages.at(slot).deadline(), Some(deadline));
}

pub(crate) fn apply_begun(machine: &mut Machine, at: Time, digest: &Digest, fence: Fence) {
    let Some(slot) = held(machine, digest, fence) else { return };
    let message = machine.messages.at_mut(slot);
    let mut worker = crate::row::nobody();
    if let State::Leased(lease) = &mut message.state {
        if lease.begun {
            return; // Applied before.
        }
        lease.begun = true;
        worker = lease.worker.clone();
    }
    message.remember(event(at, What::Begun, &worker, ""));
    machine.touch(slot);
}

pub(crate) fn apply_saved(
    machine: &mut Machine,
    at: Time,
    digest: &Digest,
    fence: Fence,
    name: &str,
    data: Bytes,
) {
    let Some(slot) = held(machine, digest, fence) else { return };
    let message = machine.messages.at_mut(slot);
    let worker = message.worker();
    let before = message.extra().points.insert(name.to_owned(), data.clone());
    if before.as_ref() == Some(&data) {
        return; // Applied before, or saved again.
    }
    debug_assert!(message.extra().points.len() <= limits::RECOVERY_POINTS_MAX);
    message.remember(event(at, What::Saved, &worker, name));
    machine.touch(slot);
}
