//! A worker takes messages.

use crate::command::{LeaseName, Receive};
use crate::config::{Guarantee, OnGroupDead};
use crate::content::Invalid;
use crate::decision::{Decision, Leased};
use crate::ids::{Fence, Seq, Stamp, Time};
use crate::key::Digest;
use crate::limits;
use crate::machine::{Machine, Verdict};
use crate::message::{Lease, Message, Slot, State};
use crate::moves::send::wake;
use crate::outcome::{Delivery, Effect, Outcome, Place, Refusal};
use crate::queue::Queue;
use crate::receives::Remembered;
use crate::record::End;
use crate::state::Ending;

pub(crate) fn decide(
    machine: &Machine,
    stamp: Stamp,
    receive: Receive,
    out: &mut Verdict,
) -> Outcome {
    match deliveries(machine, stamp, receive, out) {
        Ok(deliveries) => Outcome::Received(deliveries),
        Err(refusal) => Outcome::Refused(refusal),
    }
}

fn deliveries(
    machine: &Machine,
    stamp: Stamp,
    receive: Receive,
    out: &mut Verdict,
) -> Result<Vec<Delivery>, Refusal> {
    check(&receive).map_err(Refusal::Invalid)?;
    let queue = machine.queues.named(&receive.queue).ok_or(Refusal::NoSuchQueue)?;
    let lease_ms = receive.lease_ms.unwrap_or(queue.config.lease_ms);
    if !(limits::LEASE_MS_MIN..=limits::LEASE_MS_MAX).contains(&lease_ms) {
        return Err(Refusal::Invalid(Invalid::LeaseLength(lease_ms)));
    }
    let id = receive.receive_id.as_ref().map(|id| Digest::of_receive(queue.id, id));
    if let Some(remembered) = id.and_then(|id| machine.receives.by_id.get(&id))
        && remembered.until > stamp.at
    {
        let again = again(machine, remembered);
        if !again.is_empty() {
            if queue.stats.ready > 0 && !queue.paused {
                out.effects.push(wake(queue)); // What it was woken for is left to other waiters.
            }
            return Ok(again);
        }
    }
    if queue.paused {
        return Ok(Vec::new());
    }
    let Taken { taken, leaves_some, is_unread } = take(machine, queue, stamp.at, &receive, out);
    debug_assert!(taken.len() <= receive.max as usize, "no more than was asked for");
    debug_assert!(
        taken.iter().map(|slot| machine.messages.at(*slot)).all(|message| {
            message.state == State::Ready && message.queue == queue.id && !message.claim
        }),
        "only what is ready in this queue is handed out"
    );
    if taken.is_empty() {
        // Those in front died, or the rows were not read to their end: there may be more behind.
        let goes_on = !out.decisions.is_empty() || leaves_some && is_unread;
        out.effects.extend(goes_on.then(|| wake(queue)));
        return Ok(Vec::new());
    }
    let deadline = stamp.at.plus(lease_ms);
    let first = machine.next_fence();
    let finish = queue.config.guarantee == Guarantee::AtMostOnce;
    let mut deliveries = Vec::with_capacity(taken.len());
    let mut digests = Vec::with_capacity(taken.len());
    for (place, slot) in taken.iter().copied().enumerate() {
        let message = machine.messages.at(slot);
        digests.push(message.digest);
        let fence = first.plus(place as u64 * u64::from(machine.partitions));
        deliveries.push(delivery(machine, message, fence, message.attempts + 1, deadline));
        if finish {
            out.effects.push(Effect::Ended { digest: message.digest });
        }
    }
    out.decisions.push(Decision::Leased(Box::new(Leased {
        queue: queue.id,
        fence: first,
        deadline,
        worker: receive.worker,
        receive: id,
        finish,
        digests,
        step: machine.partitions,
    })));
    out.found.taken = taken;
    // A waiter that was not woken because this one was is needed now.
    out.effects.extend(leaves_some.then(|| wake(queue)));
    Ok(deliveries)
}

fn check(receive: &Receive) -> Result<(), Invalid> {
    if !(1..=limits::RECEIVE_MAX).contains(&receive.max) {
        return Err(Invalid::ReceiveMax);
    }
    if receive.worker.len() > limits::WORKER_BYTES_MAX {
        return Err(Invalid::Worker);
    }
    let id = receive.receive_id.as_ref();
    if id.is_some_and(|id| !(1..=limits::RECEIVE_ID_BYTES_MAX).contains(&id.len())) {
        return Err(Invalid::Id);
    }
    Ok(())
}

/// The same messages under the same leases, as far as they still hold. If none does, the receive is
/// treated as a new one.
fn again(machine: &Machine, remembered: &Remembered) -> Vec<Delivery> {
    let held = remembered.leases.iter().filter_map(|name| {
        let slot = machine.keys.living(&machine.messages, &name.digest)?;
        let message = machine.messages.at(slot);
        let lease = message.lease().filter(|lease| lease.fence == name.fence)?;
        Some(delivery(machine, message, name.fence, message.attempts, lease.deadline))
    });
    held.collect()
}

struct Taken {
    taken: Vec<Slot>,
    /// Whether there may be more to receive, in memory or in the rows.
    leaves_some: bool,
    /// Whether the rows were read in part, because there are enough in memory, or because many of
    /// them are of messages that ended.
    is_unread: bool,
}

/// The oldest deliverable messages. Those past their time to live become dead instead.
fn take(machine: &Machine, queue: &Queue, at: Time, receive: &Receive, out: &mut Verdict) -> Taken {
    let max = receive.max as usize;
    let mut taken = Vec::with_capacity(max.min(64));
    let messages = &machine.messages;
    let is_here = |seq, slot| messages.is_ready(seq, slot);
    let purged_below = queue.purge.as_ref().map_or(0, |purge| purge.below);
    let mut single = queue.ready.oldest(is_here).peekable();
    let mut groups = queue.open.iter().peekable();
    let mut bytes = 0;
    let mut offer = |slot: Slot, taken: &mut Vec<Slot>| {
        let message = messages.at(slot);
        if message.ttl_at <= at {
            let error = crate::moves::expire::OVER.into();
            out.decisions.push(Decision::Died { digest: message.digest, error });
            out.effects.push(Effect::Ended { digest: message.digest });
        } else if message.seq >= purged_below {
            taken.push(slot);
            bytes += message.content.size();
        }
        bytes >= machine.bounds.receive_bytes || taken.len() >= max
    };
    let mut is_unread = queue.has_unread();
    let mut is_full = false;
    while !is_full {
        let next_single: Option<Seq> = single.peek().map(|(seq, _)| *seq);
        match (next_single, groups.peek()) {
            (Some(seq), lead) if lead.is_none_or(|(lead, _)| seq < *lead) => {
                if let Some((_, slot)) = single.next() {
                    is_full = offer(slot, &mut taken);
                }
            }
            (_, Some((lead, digest))) => {
                groups.next();
                let Some(group) = machine.groups.get(digest) else { continue };
                is_unread |= group.members.gap().is_some_and(|gap| gap.from <= *lead);
                let most = if receive.several_per_group { max } else { taken.len() + 1 };
                let members = group.members.oldest(is_here);
                for (_, slot) in members.take_while(|(seq, _)| *seq < group.held_from()) {
                    let dies = messages.at(slot).ttl_at <= at;
                    is_full = offer(slot, &mut taken);
                    let holds = dies && queue.config.on_group_dead == OnGroupDead::Park;
                    if holds || is_full || taken.len() >= most {
                        break;
                    }
                }
            }
            _ => break,
        }
    }
    let leaves_ready = queue.stats.ready > taken.len() as u64;
    // If delivered messages are done at once, their groups continue at once.
    let finishes = queue.config.guarantee == Guarantee::AtMostOnce;
    let is_listed = finishes || single.peek().is_some() || groups.peek().is_some();
    Taken { leaves_some: leaves_ready && (is_listed || is_unread), taken, is_unread }
}

pub(crate) fn delivery(
    machine: &Machine,
    message: &Message,
    fence: Fence,
    attempt: u32,
    deadline: Time,
) -> Delivery {
    let points = message.extra.as_ref().map(|extra| extra.points.clone());
    Delivery {
        lease: message.lease_name(fence),
        id: message.id(machine.partition),
        attempt,
        generation: message.generation,
        content: message.content.clone(),
        accepted_at: message.accepted_at,
        deadline,
        lease_ms: deadline.since(machine.now),
        recovery_points: points.unwrap_or_default(),
    }
}

pub(crate) fn apply(machine: &mut Machine, at: Time, leased: Leased) {
    let mut leases = Vec::new();
    for (place, digest) in leased.digests.iter().enumerate() {
        let fence = leased.fence.plus(place as u64 * u64::from(leased.step));
        machine.use_fence(fence);
        let taken = machine.found.taken.get(place).copied();
        let Some(slot) = machine.living_or(taken, digest) else { continue };
        let message = machine.messages.at_mut(slot);
        // A replayed message may not be due yet: delays end with the time of a batch, and not
        // every batch leaves a record.
        if !matches!(message.place(), Place::Ready | Place::Delayed) {
            continue; // Applied before.
        }
        message.leased_at = at;
        if let Some(extra) = &mut message.extra {
            extra.lost = None;
        }
        message.attempts += 1;
        if leased.receive.is_some() {
            leases.push(LeaseName { digest: *digest, seq: message.seq, fence });
        }
        if leased.finish {
            finish(machine, at, slot, fence, &leased);
        } else {
            let (deadline, worker) = (leased.deadline, leased.worker.clone());
            let lease = Lease { fence, deadline, worker, begun: false };
            machine.relocate(slot, State::Leased(lease));
        }
    }
    trim(machine, leased.queue);
    if let Some(id) = leased.receive {
        remember(machine, at, id, leases);
    }
}

/// At most once: done when it is delivered.
fn finish(machine: &mut Machine, at: Time, slot: Slot, fence: Fence, leased: &Leased) {
    if let Some(queue) = machine.queues.get_mut(leased.queue) {
        queue.stats.done_total += 1;
    }
    let worker = leased.worker.clone();
    machine.end(at, slot, Ending { fence, worker, ..Ending::new(End::Done) });
}

/// Keeps the front of the queue free of entries that are no longer ready.
pub(crate) fn trim(machine: &mut Machine, queue: crate::decision::QueueId) {
    let messages = &machine.messages;
    if let Some(queue) = machine.queues.get_mut(queue) {
        queue.ready.trim(|seq, slot| messages.is_ready(seq, slot));
    }
}

fn remember(machine: &mut Machine, at: Time, id: Digest, leases: Vec<LeaseName>) {
    if leases.is_empty() {
        return; // Applied before.
    }
    let until = at.plus(limits::RECEIVE_ID_MS);
    let remembered = Remembered { until, leases, dirty: true, stored: false };
    machine.receives.insert(id, remembered);
    let (keys, messages, away) = (&machine.keys, &machine.messages, &machine.leases_away);
    machine.receives.sweep(machine.bounds.refill, |name| {
        let slot = keys.living(messages, &name.digest);
        let lease = slot.and_then(|slot| messages.at(slot).lease());
        let fence = lease.map(|lease| lease.fence).or_else(|| away.get(&name.seq).copied());
        fence == Some(name.fence)
    });
    machine.due(until);
}
