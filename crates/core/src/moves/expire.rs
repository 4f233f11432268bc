//! The passing of time: delayed messages become ready, leases expire, messages reach their time to
//! live, jobs continue.

use std::sync::Arc;

use crate::config::{OnGroupDead, OnLost};
use crate::decision::{Decision, Next};
use crate::ids::{Fence, Stamp, Time};
use crate::key::Digest;
use crate::limits::Bounds;
use crate::machine::{Machine, Tick, Turn, Verdict};
use crate::message::{Message, Slot, State};
use crate::moves::send::wake;
use crate::moves::settle::{go, held};
use crate::moves::{purge, redrive};
use crate::outcome::{Effect, Outcome, Place};
use crate::queue::Queue;
use crate::record::{End, What};
use crate::state::{Ending, event};

/// Why a message died of age.
pub(crate) const OVER: &str = "its time to live was over";
const LOST: &str = "its lease was lost";

/// Applies what follows from the time alone and is therefore not journaled: delays end, receives
/// and key counts expire.
pub(crate) fn advance(machine: &mut Machine, at: Time, effects: &mut Vec<Effect>) {
    for relay in machine.relays.take_due(at, machine.bounds.expire_step) {
        effects.push(Effect::Relay(Box::new(relay)));
    }
    if machine.next_due > at {
        return;
    }
    forget_receives(machine, at);
    for queue in machine.queues.iter_mut() {
        machine.keys_expired |= queue.expire_keys(at);
    }
    let Bounds { expire_step, tick_step, .. } = machine.bounds;
    let mut due = Vec::new();
    for queue in machine.queues.iter_from(machine.delays_from) {
        if due.len() >= tick_step {
            machine.delays_from = queue.id; // Queues that had no turn come first next time.
            break;
        }
        let before = due.len();
        due.extend(queue.delayed.due_by(at).take(expire_step.min(tick_step - before)));
        if due.len() > before {
            effects.push(wake(queue));
        }
    }
    for slot in due {
        machine.relocate(slot, State::Ready);
    }
    machine.next_due = next_due(machine, at);
}

/// The earliest of all timers. Work that is not finished is due at once.
fn next_due(machine: &Machine, at: Time) -> Time {
    let mut next = machine.receives.by_end.first_key_value().map_or(Time::NEVER, |(end, ())| end.0);
    for queue in machine.queues.iter() {
        let leased = queue.leased.next_deadline(&machine.messages);
        let expiring = queue.expiring.first_key_value().map(|((ttl_at, _), _)| *ttl_at);
        let keys = queue.remembered.first_key_value().map(|(drop_at, _)| Time(*drop_at));
        let purge = queue.purge.as_ref().map(|_| at);
        let redrives = queue.redrives.values().filter(|job| !job.done);
        let redrive = redrives.map(|job| job.next_at(at)).min();
        let timers = [leased, expiring, keys, purge, redrive, queue.delayed.next_deadline()];
        next = timers.into_iter().flatten().fold(next, Time::min);
    }
    next
}

fn forget_receives(machine: &mut Machine, at: Time) {
    let receives = &mut machine.receives;
    while let Some(((until, id), ())) = receives.by_end.first_key_value()
        && *until <= at
    {
        let id = *id;
        receives.remove(&id);
    }
}

/// One tick: handles what is due, up to the bound of a tick. Every queue, and in it leases, time to
/// live, the purge and every redrive, gets its turn whatever else is due: the next tick begins with
/// the first that had none, or else with another than this one.
pub(crate) fn decide(machine: &Machine, stamp: Stamp, out: &mut Verdict) -> Outcome {
    if machine.next_due > stamp.at {
        return Outcome::Ok; // A tick that only reads heads need not look at every queue.
    }
    let mut left = machine.bounds.tick_step;
    let mut named = false;
    for (place, (queue, turn)) in round(machine, stamp.at).enumerate() {
        if place == 1 || left == 0 {
            out.tick = Some(Tick { queue: queue.id, turn });
        }
        if left == 0 {
            break;
        }
        match turn {
            Turn::Delays => {} // Rows were read for it; what they had becomes ready by itself.
            Turn::Leases => lose_leases(machine, queue, stamp, &mut left, out),
            Turn::Lives => end_lives(machine, queue, stamp.at, &mut left, out),
            Turn::Purge => purge::step(machine, queue, &mut left, out),
            Turn::Redrive(job) if redrive::is_by_keys(queue, &job) => {
                // The keys of the other redrives were not loaded for this tick.
                if !std::mem::replace(&mut named, true) {
                    redrive::step_keys(machine, queue, &job, stamp.at, &mut left, out);
                }
            }
            Turn::Redrive(job) => redrive::step(machine, queue, &job, stamp.at, &mut left, out),
        }
    }
    Outcome::Ok
}

/// Everything that has work to do, in the order of the next tick.
pub(crate) fn round(machine: &Machine, at: Time) -> impl Iterator<Item = (&Queue, Turn)> {
    let Tick { queue: first, turn: from } = machine.tick;
    let is_late = move |queue: &Queue, turn: Turn| queue.id == first && turn < from;
    let all = machine.queues.iter_from(first);
    let all = all.flat_map(move |queue| turns(machine, queue, at).map(move |turn| (queue, turn)));
    let last = machine.queues.get(first).into_iter();
    let last = last.flat_map(move |queue| turns(machine, queue, at).map(move |turn| (queue, turn)));
    all.filter(move |(queue, turn)| !is_late(queue, *turn))
        .chain(last.filter(move |(queue, turn)| is_late(queue, *turn)))
}

/// The work to do in the queue.
fn turns(machine: &Machine, queue: &Queue, at: Time) -> impl Iterator<Item = Turn> {
    let is_alive = !queue.is_deleted(); // Everything in a deleted one goes with it.
    let delays = is_alive && queue.delayed.unloaded_due(at).is_some();
    let leases = queue.leased.next_deadline(&machine.messages).is_some_and(|end| end <= at);
    let leases = is_alive && leases;
    let lives = is_alive && queue.expiring.range(..=(at, u64::MAX)).next().is_some();
    let singles = [
        (delays, Turn::Delays),
        (leases, Turn::Leases),
        (lives, Turn::Lives),
        (queue.purge.is_some(), Turn::Purge),
    ];
    let singles = singles.into_iter().filter_map(|(is_due, turn)| is_due.then_some(turn));
    let jobs = queue.redrives.iter();
    let jobs = jobs.filter(move |(_, job)| is_alive && !job.done && job.allowance(at) > 0);
    singles.chain(jobs.map(|(digest, _)| Turn::Redrive(*digest)))
}

fn lose_leases(
    machine: &Machine,
    queue: &Queue,
    stamp: Stamp,
    left: &mut usize,
    out: &mut Verdict,
) {
    let most = machine.bounds.expire_step.min(*left);
    for slot in queue.leased.expired(&machine.messages, stamp.at).take(most) {
        *left -= 1;
        let message = machine.messages.at(slot);
        let Some(lease) = message.lease() else { continue };
        debug_assert!(lease.deadline <= stamp.at, "a lease holds until its deadline");
        let parks = lease.begun && queue.config.on_lost == OnLost::Park;
        let next = match (message.claim, parks) {
            (_, true) => Next::Parked,
            (true, false) => Next::Freed,
            (false, false) => after_failure(message, queue, stamp, None),
        };
        let (digest, fence) = (message.digest, lease.fence);
        out.decisions.push(Decision::Lost { digest, fence, next });
        out.effects.push(Effect::Lost { queue: message.queue, digest, fence });
        if matches!(next, Next::Dead | Next::Freed | Next::Parked) {
            out.effects.push(Effect::Ended { digest });
            if message.group.is_some() {
                out.effects.push(wake(queue));
            }
        }
    }
}

fn end_lives(machine: &Machine, queue: &Queue, at: Time, left: &mut usize, out: &mut Verdict) {
    let most = machine.bounds.expire_step.min(*left);
    let over = queue.expiring.range(..=(at, u64::MAX)).take(most);
    for slot in over.map(|(_, slot)| *slot) {
        *left -= 1;
        let message = machine.messages.at(slot);
        debug_assert!(matches!(message.place(), Place::Ready | Place::Delayed), "who waits ages");
        out.decisions.push(Decision::Died { digest: message.digest, error: OVER.into() });
        out.effects.push(Effect::Ended { digest: message.digest });
        if message.group.is_some() {
            out.effects.push(wake(queue));
        }
    }
}

/// The next state of a message whose attempt failed.
pub(crate) fn after_failure(
    message: &Message,
    queue: &Queue,
    stamp: Stamp,
    delay_ms: Option<u64>,
) -> Next {
    let config = &queue.config;
    debug_assert!(!message.claim, "a claim is not tried again: its key is freed");
    if message.attempts >= config.max_attempts || message.ttl_at <= stamp.at {
        return Next::Dead;
    }
    let delay = delay_ms.unwrap_or_else(|| {
        backoff(config.backoff_min_ms, config.backoff_max_ms, message, stamp.random)
    });
    Next::Delayed(stamp.at.plus(delay))
}

/// Exponential with full jitter between the queue's bounds.
fn backoff(min: u64, max: u64, message: &Message, random: u64) -> u64 {
    let doublings = message.attempts.saturating_sub(1).min(32);
    let ceiling = min.max(1).saturating_mul(1 << doublings).clamp(min, max.max(min));
    // SplitMix64: messages of one batch must not share their jitter.
    let mut mixed = random.wrapping_add(message.seq.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    let wait = min + mixed % (ceiling - min + 1);
    debug_assert!((min..=max.max(min)).contains(&wait), "a wait is within the queue's bounds");
    wait
}

pub(crate) fn apply_lost(
    machine: &mut Machine,
    at: Time,
    digest: &Digest,
    fence: Fence,
    next: Next,
) {
    let Some(slot) = held(machine, digest, fence) else { return };
    let message = machine.messages.at_mut(slot);
    let worker = message.worker();
    message.remember(event(at, What::Lost, &worker, ""));
    let extra = message.extra();
    extra.losses += 1;
    extra.lost = Some(fence);
    extra.worker = Some(worker);
    if next == Next::Dead {
        let error = if message.ttl_at <= at { OVER } else { LOST };
        message.extra().error = Some(error.into());
    }
    let queue = message.queue;
    if let Some(queue) = machine.queues.get_mut(queue) {
        queue.stats.lease_lost_total += 1;
    }
    go(machine, at, slot, fence, next);
}

pub(crate) fn apply_died(machine: &mut Machine, at: Time, digest: &Digest, error: Arc<str>) {
    let Some(slot) = machine.keys.living(&machine.messages, digest) else { return };
    let message = machine.messages.at_mut(slot);
    if !matches!(message.place(), Place::Ready | Place::Delayed) {
        return; // Applied before.
    }
    message.remember(event(at, What::Dead, &crate::row::nobody(), &error));
    message.extra().error = Some(error);
    let queue = message.queue;
    let holds = machine.holds_group(slot);
    machine.relocate(slot, State::Dead { at, holds });
    // Left in front, it would look like a message that can be delivered.
    crate::moves::receive::trim(machine, queue);
}

/// A claim ended without being done: its key is free again.
pub(crate) fn free(machine: &mut Machine, at: Time, slot: Slot, fence: Fence) {
    let message = machine.messages.at(slot);
    debug_assert!(message.claim, "only a claim frees its key");
    let worker = message.worker();
    let freed = Some(event(at, What::Freed, &worker, ""));
    machine.end(at, slot, Ending { fence, worker, event: freed, ..Ending::new(End::Freed) });
}

impl Machine {
    /// Whether the message, once dead, blocks the younger ones of its group.
    pub(crate) fn holds_group(&self, slot: Slot) -> bool {
        let message = self.messages.at(slot);
        let queue = self.queues.get(message.queue);
        message.group.is_some()
            && queue.is_some_and(|queue| queue.config.on_group_dead == OnGroupDead::Park)
    }
}
