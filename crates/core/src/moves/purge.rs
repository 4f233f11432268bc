//! A queue is purged or deleted.
//!
//! Messages that wait (ready, delayed, parked, dead) are removed in bounded steps, so that other
//! queues are not delayed. From the start of the purge they are not delivered any more. Leased
//! messages are left to their workers, unless the queue is deleted.

use crate::command::{self, QueueName};
use crate::decision::{Decision, QueueId};
use crate::ids::{Seq, Time};
use crate::key::Digest;
use crate::machine::{Machine, Verdict};
use crate::message::{Message, Slot};
use crate::moves::send::wake;
use crate::outcome::{Effect, Outcome, Refusal};
use crate::queue::{Purge, Queue};
use crate::record::{End, What};
use crate::row::{RowKey, nobody};
use crate::state::{Ending, event};

pub(crate) fn decide(machine: &Machine, purge: &command::Purge, out: &mut Verdict) -> Outcome {
    start(machine, &purge.queue, purge.keys, false, out)
}

pub(crate) fn delete(machine: &Machine, name: &QueueName, out: &mut Verdict) -> Outcome {
    start(machine, name, true, true, out)
}

fn start(
    machine: &Machine,
    name: &QueueName,
    keys: bool,
    delete: bool,
    out: &mut Verdict,
) -> Outcome {
    let Some(queue) = machine.queues.named(name) else {
        return Outcome::Refused(Refusal::NoSuchQueue);
    };
    let below = machine.next_seq;
    out.decisions.push(Decision::PurgeStarted { queue: queue.id, below, keys, delete });
    Outcome::Ok
}

/// One step of a purge.
pub(crate) fn step(machine: &Machine, queue: &Queue, left: &mut usize, out: &mut Verdict) {
    let Some(purge) = &queue.purge else { return };
    if *left == 0 {
        return;
    }
    let victims = victims(machine, queue);
    *left = left.saturating_sub(victims.len().max(1));
    let is_read = victims.len() < machine.bounds.job_step && purge.cursor.is_none();
    let finished = is_read || are_all(queue, &victims);
    if victims.is_empty() && !finished {
        return;
    }
    let digests: Vec<Digest> =
        victims.iter().map(|slot| machine.messages.at(*slot).digest).collect();
    out.effects.extend(digests.iter().map(|digest| Effect::Ended { digest: *digest }));
    out.decisions.push(Decision::Purged { queue: queue.id, digests, finished });
    if !purge.delete {
        out.effects.push(wake(queue)); // Younger ones may have waited behind those removed.
    }
}

/// Whether these are all messages of the queue: there is nothing to read. The rows of a queue whose
/// messages have all ended are deleted ones, perhaps millions.
pub(crate) fn are_all(queue: &Queue, victims: &[Slot]) -> bool {
    debug_assert!(victims.len() as u64 <= queue.stats.messages(), "every message is counted");
    victims.len() as u64 == queue.stats.messages()
}

/// The messages in memory that the next step removes.
pub(crate) fn victims(machine: &Machine, queue: &Queue) -> Vec<Slot> {
    let Some(Purge { below, delete, .. }) = queue.purge else { return Vec::new() };
    let messages = &machine.messages;
    let is_here = |seq, slot| messages.is_ready(seq, slot);
    let single = queue.ready.waiting_below(below, is_here).map(|(_, slot)| slot);
    let members = queue.groups.iter().filter_map(|digest| machine.groups.get(digest));
    let members = members.flat_map(|group| group.members.waiting_below(below, is_here));
    let members = members.map(|(_, slot)| slot);
    let is_below = move |entry: &(Seq, Slot)| entry.0 < below;
    let parked = queue.parked.from(0).take_while(is_below);
    let shelves = parked.chain(queue.dead.from(0).take_while(is_below)).map(|(_, slot)| slot);
    let leased = queue.leased.iter(messages).filter(|_| delete);
    single
        .chain(members)
        .chain(queue.delayed.below(below))
        .chain(shelves)
        .chain(leased)
        .filter(|slot| messages.at(*slot).seq < below)
        .take(machine.bounds.job_step)
        .collect()
}

/// Whether the message is being purged: whatever is answered about it, it will be removed.
pub(crate) fn takes(machine: &Machine, message: &Message) -> bool {
    let queue = machine.queues.get(message.queue);
    let purge = queue.and_then(|queue| queue.purge.as_ref());
    purge.is_some_and(|purge| purge.takes(message))
}

pub(crate) fn apply_started(
    machine: &mut Machine,
    queue: QueueId,
    below: Seq,
    keys: bool,
    delete: bool,
) {
    let now = machine.now;
    if let Some(queue) = machine.queues.get_mut(queue) {
        if keys {
            queue.keys_from = below;
            queue.remembered.clear();
            queue.stats.keys = 0;
        }
        let cursor = Some(RowKey::message_prefix(queue.id));
        let delete = delete || queue.is_deleted();
        queue.purge = Some(Purge { below, delete, cursor });
        queue.dirty = true;
    }
    machine.due(now);
}

pub(crate) fn apply(
    machine: &mut Machine,
    at: Time,
    queue: QueueId,
    digests: &[Digest],
    finished: bool,
) {
    // Keys of messages below this were removed, by this purge or an earlier one.
    let keys_from = machine.queues.get(queue).map_or(0, |queue| queue.keys_from);
    for digest in digests {
        let Some(slot) = machine.keys.living(&machine.messages, digest) else { continue };
        let is_forgotten = machine.messages.at(slot).seq < keys_from;
        let end = if is_forgotten { End::Forgotten } else { End::Discarded };
        let purged = Some(event(at, What::Discarded, &nobody(), "purged"));
        let error = Some("purged".into());
        machine.end(at, slot, Ending { error, event: purged, ..Ending::new(end) });
    }
    crate::moves::receive::trim(machine, queue);
    if !finished {
        return;
    }
    let Some(state) = machine.queues.get_mut(queue) else { return };
    state.dirty = true;
    if state.purge.take().is_some_and(|purge| purge.delete) {
        debug_assert_eq!(state.stats.messages(), 0, "a queue goes when nothing is left in it");
        let jobs: Vec<Digest> = state.redrives.keys().copied().collect();
        for job in jobs {
            machine.keys.delete_row(RowKey::redrive(queue, &job));
        }
        machine.keys.delete_row(RowKey::queue(queue));
        machine.queues.remove(queue);
        machine.heads.remove(queue);
    }
}
