//! A queue is emptied, or dropped.
//!
//! What waits (ready, delayed, parked, dead) goes, a bounded step at a time, so that other queues
//! do not wait for it; until it is gone it is not handed out any more. What a worker holds is
//! left to the worker, unless the queue itself goes.

use crate::command::{Purge, QueueName};
use crate::decision::{Decision, QueueId};
use crate::ids::{Seq, Time};
use crate::key::Digest;
use crate::machine::{Machine, Verdict};
use crate::message::Slot;
use crate::moves::send::wake;
use crate::outcome::{Effect, Outcome, Refusal};
use crate::queue::{self, Queue};
use crate::record::{End, What};
use crate::row::{RowKey, nobody};
use crate::state::{Ending, event};

pub(crate) fn decide(machine: &Machine, purge: &Purge, out: &mut Verdict) -> Outcome {
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

/// One step of a purge under way.
pub(crate) fn step(machine: &Machine, queue: &Queue, out: &mut Verdict) {
    let Some(purge) = &queue.purge else { return };
    let victims = victims(machine, queue, purge.below, purge.delete);
    let finished = victims.len() < machine.bounds.job_step && purge.cursor.is_none();
    if victims.is_empty() && !finished {
        return;
    }
    let digests: Vec<Digest> =
        victims.iter().map(|slot| machine.messages.at(*slot).digest).collect();
    out.effects.extend(digests.iter().map(|digest| Effect::Ended { digest: *digest }));
    out.decisions.push(Decision::Purged { queue: queue.id, digests, finished });
    if finished && !purge.delete {
        out.effects.push(wake(queue)); // Younger ones may have waited behind those that went.
    }
}

fn victims(machine: &Machine, queue: &Queue, below: Seq, delete: bool) -> Vec<Slot> {
    let messages = &machine.messages;
    let is_here = |seq, slot| messages.is_ready(seq, slot);
    let single = queue.ready.waiting(is_here).map(|(_, slot)| slot);
    let members = queue.groups.iter().filter_map(|digest| machine.groups.get(digest));
    let members = members.flat_map(|group| group.members.waiting(is_here).map(|(_, slot)| slot));
    let shelves = queue.parked.from(0).chain(queue.dead.from(0)).map(|(_, slot)| slot);
    let leased = queue.leased.iter(messages).filter(|_| delete);
    single
        .chain(members)
        .chain(queue.delayed.after(None))
        .chain(shelves)
        .chain(leased)
        .filter(|slot| messages.at(*slot).seq < below)
        .take(machine.bounds.job_step)
        .collect()
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
        queue.purge = Some(queue::Purge { below, keys, delete, cursor });
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
    let keys = machine
        .queues
        .get(queue)
        .and_then(|queue| queue.purge.as_ref())
        .is_some_and(|purge| purge.keys);
    for digest in digests {
        let Some(slot) = machine.keys.living(&machine.messages, digest) else { continue };
        let end = if keys { End::Forgotten } else { End::Discarded };
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
    }
}
