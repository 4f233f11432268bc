//! Dead messages get another life under their own key.
//!
//! A redrive has an id: repeated, it moves nothing twice. By keys it is over at once; by filter or
//! for all it is a job that goes on in bounded steps, at the rate that was asked for, over the
//! messages that were dead when it began.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::command::{QueueName, Redrive, Select};
use crate::content::Invalid;
use crate::decision::{Decision, Next, QueueId, RedriveStarted};
use crate::ids::{Fence, Seq, Stamp, Time};
use crate::key::Digest;
use crate::limits::{self, Bounds};
use crate::machine::{Machine, Verdict};
use crate::message::{Message, State};
use crate::moves::send::wake;
use crate::moves::settle::go;
use crate::outcome::{Outcome, Place, RedriveView, Refusal};
use crate::queue::{Job, Queue};
use crate::record::What;
use crate::row::{RowKey, nobody};
use crate::state::event;

pub(crate) fn decide(
    machine: &Machine,
    stamp: Stamp,
    redrive: &Redrive,
    out: &mut Verdict,
) -> Outcome {
    match start(machine, stamp, redrive, out) {
        Ok(view) => Outcome::Redrive(view),
        Err(refusal) => Outcome::Refused(refusal),
    }
}

pub(crate) fn progress(machine: &Machine, name: &QueueName, id: &str) -> Outcome {
    let Some(queue) = machine.queues.named(name) else {
        return Outcome::Refused(Refusal::NoSuchQueue);
    };
    match queue.redrives.get(&job_digest(queue, id)) {
        Some(job) => Outcome::Redrive(job.view()),
        None => Outcome::Refused(Refusal::NoSuchKey),
    }
}

/// Stops a redrive. One that is over stays as it was.
pub(crate) fn cancel(machine: &Machine, name: &QueueName, id: &str, out: &mut Verdict) -> Outcome {
    let Some(queue) = machine.queues.named(name) else {
        return Outcome::Refused(Refusal::NoSuchQueue);
    };
    let digest = job_digest(queue, id);
    let Some(job) = queue.redrives.get(&digest) else {
        return Outcome::Refused(Refusal::NoSuchKey);
    };
    let mut view = job.view();
    if !job.done {
        out.decisions.push(Decision::RedriveCancelled { queue: queue.id, job: digest });
        (view.done, view.cancelled) = (true, true);
    }
    Outcome::Redrive(view)
}

fn start(
    machine: &Machine,
    stamp: Stamp,
    redrive: &Redrive,
    out: &mut Verdict,
) -> Result<RedriveView, Refusal> {
    check(redrive).map_err(Refusal::Invalid)?;
    let queue = machine.queues.named(&redrive.queue).ok_or(Refusal::NoSuchQueue)?;
    let digest = job_digest(queue, &redrive.id);
    if let Some(job) = queue.redrives.get(&digest) {
        return Ok(job.view());
    }
    if machine.is_store_full() {
        return Err(Refusal::StoreFull);
    }
    let (started, chosen) = asked_for(machine, stamp, queue, redrive);
    let job = Job::new(stamp.at, started);
    let mut view = job.view();
    out.decisions.push(Decision::RedriveStarted(Box::new(job.started)));
    // By keys it is over at once.
    if let Some(mut digests) = chosen {
        let (matched, done) = (digests.len() as u64, true);
        if redrive.dry_run {
            digests.clear();
        }
        (view.matched, view.moved, view.done) = (matched, digests.len() as u64, done);
        out.decisions.push(Decision::Redriven {
            queue: queue.id,
            job: digest,
            digests,
            matched,
            cursor: Seq::MAX,
            done,
        });
        out.effects.push(wake(queue));
    }
    Ok(view)
}

/// A redrive as it begins, and the dead that it names, where it names any by their keys.
fn asked_for(
    machine: &Machine,
    stamp: Stamp,
    queue: &Queue,
    redrive: &Redrive,
) -> (RedriveStarted, Option<Vec<Digest>>) {
    let mut started = RedriveStarted {
        queue: queue.id,
        job: job_digest(queue, &redrive.id),
        id: redrive.id.clone(),
        error_contains: None,
        group: None,
        dead_before: stamp.at.plus(1),
        dead_after: None,
        dry_run: redrive.dry_run,
        per_s: redrive.per_s,
        by_keys: false,
        total: Some(queue.stats.dead),
        missing: Vec::new(),
    };
    let mut chosen = None;
    match &redrive.select {
        Select::All => {}
        Select::Filter { error_contains, group, dead_before, dead_after } => {
            started.error_contains = error_contains.as_deref().map(Into::into);
            started.group = group.as_deref().map(Into::into);
            started.dead_before = dead_before.unwrap_or(started.dead_before);
            started.dead_after = *dead_after;
        }
        Select::Keys(keys) => {
            let (dead, missing) = dead_among(machine, queue, keys);
            started.by_keys = true;
            started.total = Some(dead.len() as u64 + missing.len() as u64);
            started.missing = missing.into_iter().collect();
            chosen = Some(dead);
        }
    }
    (started, chosen)
}

/// The dead of the queue that the keys name, and the keys that name none; each once.
fn dead_among(
    machine: &Machine,
    queue: &Queue,
    keys: &[Arc<str>],
) -> (Vec<Digest>, BTreeSet<Arc<str>>) {
    let is_dead = |digest: &Digest| {
        let slot = machine.keys.living(&machine.messages, digest);
        let message = slot.map(|slot| machine.messages.at(slot));
        message.is_some_and(|it| it.place() == Place::Dead && it.queue == queue.id)
    };
    let (mut digests, mut missing) = (Vec::new(), BTreeSet::new());
    for key in keys {
        match machine.digests_named(queue, key, None).into_iter().find(is_dead) {
            Some(digest) => digests.push(digest),
            None => _ = missing.insert(Arc::clone(key)),
        }
    }
    digests.sort_unstable();
    digests.dedup();
    (digests, missing)
}

fn check(redrive: &Redrive) -> Result<(), Invalid> {
    if !(1..=limits::REDRIVE_ID_BYTES_MAX).contains(&redrive.id.len()) {
        return Err(Invalid::Id);
    }
    if redrive.per_s == Some(0) {
        return Err(Invalid::Redrive);
    }
    match &redrive.select {
        Select::Filter { error_contains, group, .. }
            if error_contains.as_ref().is_some_and(|text| text.len() > limits::ERROR_BYTES_MAX)
                || group.as_ref().is_some_and(|text| text.len() > limits::GROUP_BYTES_MAX) =>
        {
            Err(Invalid::Redrive)
        }
        Select::Keys(keys) if !(1..=limits::REDRIVE_KEYS_MAX).contains(&keys.len()) => {
            Err(Invalid::Redrive)
        }
        // A filter that asks for nothing would mean all of them, which has a word of its own.
        Select::Filter {
            error_contains: None,
            group: None,
            dead_before: None,
            dead_after: None,
        } => Err(Invalid::Redrive),
        Select::Keys(_) | Select::Filter { .. } | Select::All => Ok(()),
    }
}

fn job_digest(queue: &Queue, id: &str) -> Digest {
    Digest::of_key(&queue.name.tenant, &queue.name.queue, Some("redrive"), id)
}

/// One step of a redrive.
pub(crate) fn step(
    machine: &Machine,
    queue: &Queue,
    digest: &Digest,
    at: Time,
    left: &mut usize,
    out: &mut Verdict,
) {
    let Some(job) = queue.redrives.get(digest).filter(|job| !job.done) else { return };
    if job.horizon < job.cursor.max(1) {
        return; // Its rows have not been read.
    }
    let Bounds { job_step, expire_step, .. } = machine.bounds;
    let allowed = job.allowance(at).min(job_step as u64) as usize;
    let mut matched = Vec::new();
    let mut cursor = job.cursor;
    let mut seen = 0;
    for (seq, slot) in queue.dead.from(job.cursor) {
        if seq > job.horizon || matched.len() >= allowed || seen >= expire_step {
            break;
        }
        seen += 1;
        cursor = seq + 1;
        let message = machine.messages.at(slot);
        if matches(&job.started, message) {
            matched.push(message.digest);
        }
    }
    let stopped = matched.len() >= allowed || seen >= expire_step;
    let mut done = false;
    if !stopped {
        // Everything in memory has been seen; what the rows hold beyond the horizon has not.
        done = job.horizon == Seq::MAX;
        cursor = cursor.max(job.horizon.saturating_add(1));
    }
    *left = left.saturating_sub(matched.len().max(seen / SEEN_PER_MOVE).max(1));
    debug_assert!(matched.len() <= allowed, "the rate that was asked for is kept");
    debug_assert!(cursor >= job.cursor, "what was seen is not looked at again");
    if cursor == job.cursor && !done {
        return;
    }
    let count = matched.len() as u64;
    if job.started.dry_run {
        matched.clear();
    }
    if !matched.is_empty() {
        out.effects.push(wake(queue));
    }
    out.decisions.push(Decision::Redriven {
        queue: queue.id,
        job: *digest,
        digests: matched,
        matched: count,
        cursor,
        done,
    });
}

/// Looking at so many dead messages counts as much as moving one.
const SEEN_PER_MOVE: usize = 8;

fn matches(job: &RedriveStarted, message: &Message) -> bool {
    let State::Dead { at, .. } = message.state else { return false };
    at < job.dead_before
        && job.dead_after.is_none_or(|after| at > after)
        && job.error_contains.as_ref().is_none_or(|text| message.error().contains(&**text))
        && job.group.as_ref().is_none_or(|group| message.content.group() == Some(group))
}

pub(crate) fn apply_started(machine: &mut Machine, at: Time, started: RedriveStarted) {
    let Some(queue) = machine.queues.get_mut(started.queue) else { return };
    if queue.redrives.contains_key(&started.job) {
        return; // Applied before.
    }
    queue.dirty = true;
    let finished = queue.redrives.iter().filter(|(_, job)| job.done);
    if queue.redrives.len() >= limits::REDRIVES_REMEMBERED_MAX
        && let Some(oldest) = finished.min_by_key(|(_, job)| job.started_at).map(|(id, _)| *id)
    {
        queue.redrives.remove(&oldest);
        machine.keys.delete_row(RowKey::redrive(queue.id, &oldest));
    }
    let job = Job::new(at, started);
    queue.redrives.insert(job.started.job, job);
    machine.due(at);
}

pub(crate) fn apply_cancelled(machine: &mut Machine, queue: QueueId, job: &Digest) {
    let Some(state) = machine.queues.get_mut(queue) else { return };
    let Some(job) = state.redrives.get_mut(job).filter(|job| !job.done) else { return };
    (job.done, job.cancelled) = (true, true);
    state.dirty = true;
}

#[expect(clippy::too_many_arguments, reason = "the fields of one decision")]
pub(crate) fn apply(
    machine: &mut Machine,
    at: Time,
    queue: QueueId,
    job: &Digest,
    digests: &[Digest],
    matched: u64,
    cursor: Seq,
    done: bool,
) {
    let Some(state) = machine.queues.get_mut(queue) else { return };
    state.dirty = true;
    let Some(job) = state.redrives.get_mut(job).filter(|job| !job.done) else { return };
    if cursor <= job.cursor && !done {
        return; // Applied before.
    }
    job.matched += matched;
    job.moved += digests.len() as u64;
    debug_assert!(job.moved <= job.matched, "only what matched is moved");
    job.cursor = cursor;
    job.done = done;
    for digest in digests {
        let Some(slot) = machine.keys.living(&machine.messages, digest) else { continue };
        let message = machine.messages.at_mut(slot);
        if message.place() != Place::Dead {
            continue;
        }
        message.attempts = 0;
        message.ttl_at = Time::NEVER; // Its time was over; somebody gave it more.
        message.remember(event(at, What::Redriven, &nobody(), ""));
        // A claim has nothing to deliver: its key is free again.
        let next = if message.claim { Next::Freed } else { Next::Ready };
        go(machine, at, slot, Fence(0), next);
    }
}
