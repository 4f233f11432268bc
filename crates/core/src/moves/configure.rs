//! A queue is created, changed, paused.

use crate::command::{Configure, Follow, QueueName};
use crate::decision::{Configured, Decision, QueueId};
use crate::ids::Time;
use crate::limits;
use crate::machine::{Machine, Verdict};
use crate::moves::send::wake;
use crate::outcome::{Outcome, Refusal};
use crate::queue::Queue;

pub(crate) fn decide(machine: &Machine, configure: Configure, out: &mut Verdict) -> Outcome {
    match configured(machine, configure) {
        Ok((configured, is_changed)) => {
            let version = configured.version;
            if is_changed {
                out.decisions.push(Decision::Configured(Box::new(configured)));
            }
            Outcome::Configured { version, created: is_changed && version == 1 }
        }
        Err(refusal) => Outcome::Refused(refusal),
    }
}

/// The configuration, and whether it changes anything: the queue is new or has another one.
fn configured(machine: &Machine, configure: Configure) -> Result<(Configured, bool), Refusal> {
    let Configure { queue: name, config, if_version } = configure;
    config.check().map_err(Refusal::InvalidConfig)?;
    let existing = machine.queues.named(&name);
    if let Some(expected) = if_version {
        expected.check(existing.map(|queue| (queue.id, queue.version)))?;
    }
    let is_changed = existing.is_none_or(|queue| queue.config != config);
    let version = existing.map_or(0, |queue| queue.version) + u64::from(is_changed);
    let queue = match existing {
        Some(queue) => {
            queue.config.check_change(&config).map_err(Refusal::InvalidConfig)?;
            queue.id
        }
        None if machine.queues.len() >= limits::QUEUES_MAX => {
            return Err(Refusal::TooManyQueues(machine.queues.len()));
        }
        None => machine.queues.next_id(),
    };
    Ok((Configured { queue, name, config, version }, is_changed))
}

/// Adopts a queue from the leading partition. The number of queues is not checked again: the
/// leading partition checked it, and all partitions must agree.
pub(crate) fn follow(machine: &Machine, follow: Follow, out: &mut Verdict) -> Outcome {
    let Follow { queue: name, config, version } = follow;
    let (queue, created) = match machine.queues.named(&name) {
        Some(known) if known.version > version => {
            return Outcome::Refused(Refusal::VersionChanged(known.version));
        }
        Some(known) => {
            if let Err(invalid) = known.config.check_change(&config) {
                return Outcome::Refused(Refusal::InvalidConfig(invalid));
            }
            if known.version == version && known.config == config {
                return Outcome::Configured { version, created: false };
            }
            (known.id, false)
        }
        None => (machine.queues.next_id(), true),
    };
    let configured = Configured { queue, name, config, version };
    out.decisions.push(Decision::Configured(Box::new(configured)));
    Outcome::Configured { version, created }
}

pub(crate) fn pause(
    machine: &Machine,
    name: &QueueName,
    paused: bool,
    out: &mut Verdict,
) -> Outcome {
    let Some(queue) = machine.queues.named(name) else {
        return Outcome::Refused(Refusal::NoSuchQueue);
    };
    if queue.paused != paused {
        out.decisions.push(Decision::Paused { queue: queue.id, paused });
        if !paused {
            out.effects.push(wake(queue));
        }
    }
    Outcome::Ok
}

pub(crate) fn apply(machine: &mut Machine, at: Time, configured: Configured) {
    let Configured { queue: id, name, config, version } = configured;
    if machine.queues.get(id).is_none() {
        // The new queue does not inherit the keys of an earlier queue of this name.
        machine.queues.insert(Queue::new(id, name, config.clone(), at, machine.next_seq));
    }
    if let Some(queue) = machine.queues.get_mut(id) {
        queue.configure(at, config, version);
    }
    machine.report_later(id);
}

pub(crate) fn apply_paused(machine: &mut Machine, queue: QueueId, paused: bool) {
    if let Some(queue) = machine.queues.get_mut(queue) {
        queue.paused = paused;
        queue.dirty = true;
    }
}
