//! Dead messages become ready again under their own keys.
//!
//! A redrive has an id: repeated, it moves nothing twice. It is a job that runs in bounded steps,
//! at the requested rate: over the given keys, or over the messages that were dead when it began. A
//! few keys are one step, which is taken at once. A digest of the request is stored, so that
//! another redrive under the same id is refused.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::codec::Write;
use crate::command::{QueueName, Redrive, Select};
use crate::content::Invalid;
use crate::decision::{Decision, Next, QueueId, RedriveStarted};
use crate::ids::{Fence, Seq, Stamp, Time};
use crate::key::Digest;
use crate::limits::{self, Bounds};
use crate::load::{Need, RangeOf};
use crate::machine::{Machine, Verdict};
use crate::message::{Message, State};
use crate::moves::send::wake;
use crate::moves::settle::go;
use crate::outcome::{Outcome, Place, RedriveView, Refusal};
use crate::queue::{Job, Queue};
use crate::record::{What, encode_error};
use crate::row::{File, RowKey, nobody};
use crate::state::event;

pub(crate) fn decide(
    machine: &Machine,
    stamp: Stamp,
    redrive: &Redrive,
    out: &mut Verdict,
) -> Outcome {
    match start(machine, stamp, redrive, out) {
        Ok(view) => Outcome::Redrive(Box::new(view)),
        Err(refusal) => Outcome::Refused(refusal),
    }
}

pub(crate) fn progress(machine: &Machine, name: &QueueName, id: &str) -> Outcome {
    let Some(queue) = machine.queues.named(name) else {
        return Outcome::Refused(Refusal::NoSuchQueue);
    };
    match queue.redrives.get(&job_digest(queue, id)) {
        Some(job) => Outcome::Redrive(Box::new(job.view())),
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
    Outcome::Redrive(Box::new(view))
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
        let is_other = job.started.asked.is_some_and(|asked| asked != digest_of(redrive));
        return if is_other { Err(Refusal::OtherRedrive) } else { Ok(job.view()) };
    }
    if machine.is_store_full() {
        return Err(Refusal::StoreFull);
    }
    let job = Job::new(stamp.at, asked_for(stamp, queue, redrive));
    let looked = job.started.by_keys.then(|| Looked::at(machine, queue, &job, stamp.at, &[]));
    if !looked.as_ref().is_some_and(|looked| looked.done) {
        check_count(machine, queue)?;
    }
    let mut view = job.view();
    let is_moved = !job.started.dry_run;
    out.decisions.push(Decision::RedriveStarted(Box::new(job.started)));
    if let Some(looked) = looked {
        (view.matched, view.done) = (looked.digests.len() as u64, looked.done);
        view.moved = if is_moved { view.matched } else { 0 };
        view.missing.clone_from(&looked.missing);
        looked.push(queue, digest, is_moved, out);
    }
    Ok(view)
}

/// Checks the limits on redrives in progress: each takes memory and a turn in every tick.
fn check_count(machine: &Machine, queue: &Queue) -> Result<(), Refusal> {
    let under_way = |queue: &Queue| queue.redrives.values().filter(|job| !job.done).count();
    let of_tenant = machine.queues.iter().filter(|it| it.name.tenant == queue.name.tenant);
    let of_tenant = of_tenant.map(under_way).sum();
    let of_queue = under_way(queue);
    if of_queue >= limits::REDRIVES_MAX {
        return Err(Refusal::TooManyRedrives(of_queue));
    }
    if of_tenant >= limits::REDRIVES_OF_TENANT_MAX {
        return Err(Refusal::TooManyRedrives(of_tenant));
    }
    Ok(())
}

/// The first record of a redrive.
fn asked_for(stamp: Stamp, queue: &Queue, redrive: &Redrive) -> RedriveStarted {
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
        asked: Some(digest_of(redrive)),
    };
    match &redrive.select {
        Select::All => {}
        Select::Filter { error_contains, group, dead_before, dead_after } => {
            started.error_contains = error_contains.as_deref().map(Into::into);
            started.group = group.as_deref().map(Into::into);
            started.dead_before = dead_before.unwrap_or(started.dead_before);
            started.dead_after = *dead_after;
        }
        Select::Keys { group, .. } => {
            started.by_keys = true;
            (started.missing, _) = named(&redrive.select);
            started.group.clone_from(group);
            started.total = Some(started.missing.len() as u64);
        }
    }
    started
}

/// The keys that a redrive names, each once, in the order in which they are looked at; and their
/// group.
pub(crate) fn named(select: &Select) -> (Vec<Arc<str>>, Option<&str>) {
    let Select::Keys { keys, group } = select else { return (Vec::new(), None) };
    let keys: BTreeSet<_> = keys.iter().cloned().collect();
    (keys.into_iter().collect(), group.as_deref())
}

/// The digest of a redrive's request, by which another request under the same id is recognised.
fn digest_of(redrive: &Redrive) -> Digest {
    let mut asked = Vec::new();
    asked.u8(redrive.dry_run.into());
    asked.optional(redrive.per_s.map(u64::from));
    match &redrive.select {
        Select::All => asked.u8(0),
        Select::Filter { error_contains, group, dead_before, dead_after } => {
            asked.u8(1);
            encode_error(error_contains.as_deref(), &mut asked);
            encode_error(group.as_deref(), &mut asked);
            asked.optional(dead_before.map(|before| before.0));
            asked.optional(dead_after.map(|after| after.0));
        }
        Select::Keys { .. } => {
            asked.u8(2);
            let (keys, group) = named(&redrive.select);
            encode_error(group, &mut asked);
            keys.iter().for_each(|key| asked.text(key));
        }
    }
    Digest::of_redrive(&asked)
}

pub(crate) fn is_by_keys(queue: &Queue, job: &Digest) -> bool {
    queue.redrives.get(job).is_some_and(|job| job.started.by_keys)
}

/// Adds what the next step of a redrive over dead messages needs.
pub(crate) fn need_rows(machine: &Machine, queue: &Queue, job: &Digest, needs: &mut Vec<Need>) {
    if let Some(known) = queue.redrives.get(job)
        && known.horizon <= known.cursor
    {
        needs.push(machine.range(
            RowKey::filed(queue.id, File::Dead, known.cursor),
            RowKey::file(queue.id, File::Dead).after_prefix(),
            RangeOf::Redrive(queue.id, *job),
        ));
    }
}

/// Adds what the next step of a redrive that names keys needs.
pub(crate) fn need_left(machine: &Machine, queue: &Queue, job: &Digest, needs: &mut Vec<Need>) {
    if let Some(job) = queue.redrives.get(job) {
        need_keys(machine, queue, job.left(), job.started.group.as_deref(), needs);
    }
}

/// Adds as many of the keys as one step looks at.
pub(crate) fn need_keys(
    machine: &Machine,
    queue: &Queue,
    keys: &[Arc<str>],
    group: Option<&str>,
    needs: &mut Vec<Need>,
) {
    let most = machine.bounds.keys_at_once(queue.config.max_body_bytes);
    for key in keys.iter().take(most) {
        for digest in machine.digests_named(queue, key, group) {
            machine.need_key(&digest, needs);
        }
    }
}

/// What one step over keys found.
struct Looked {
    /// Digests of the dead messages among them.
    digests: Vec<Digest>,
    missing: Vec<Arc<str>>,
    cursor: Seq,
    done: bool,
}

impl Looked {
    /// Looks at the next keys of the job. Those in `taken` are moved by another redrive.
    fn at(machine: &Machine, queue: &Queue, job: &Job, at: Time, taken: &[Digest]) -> Self {
        let most = machine.bounds.keys_at_once(queue.config.max_body_bytes);
        let (allowed, left) = (job.allowance(at), job.left());
        let group = job.started.group.as_deref();
        let (mut digests, mut missing) = (Vec::new(), Vec::new());
        for key in left.iter().take(most) {
            if digests.len() as u64 >= allowed {
                break;
            }
            let dead = machine.digests_named(queue, key, group).into_iter().find(|digest| {
                let slot = machine.keys.living(&machine.messages, digest);
                let message = slot.map(|slot| machine.messages.at(slot));
                message.is_some_and(|it| it.place() == Place::Dead && it.queue == queue.id)
                    && !taken.contains(digest)
                    && !digests.contains(digest)
            });
            match dead {
                Some(digest) => digests.push(digest),
                None => missing.push(Arc::clone(key)),
            }
        }
        let seen = digests.len() + missing.len();
        let cursor = job.cursor + seen as u64;
        Self { digests, missing, cursor, done: seen == left.len() }
    }

    fn push(self, queue: &Queue, job: Digest, is_moved: bool, out: &mut Verdict) {
        let Self { digests, cursor, done, .. } = self;
        if is_moved && !digests.is_empty() {
            out.effects.push(wake(queue));
        }
        let (queue, matched) = (queue.id, digests.len() as u64);
        out.decisions.push(Decision::Redriven { queue, job, digests, matched, cursor, done });
    }
}

/// One step of a redrive that names keys.
pub(crate) fn step_keys(
    machine: &Machine,
    queue: &Queue,
    digest: &Digest,
    at: Time,
    left: &mut usize,
    out: &mut Verdict,
) {
    let Some(job) = queue.redrives.get(digest).filter(|job| !job.done) else { return };
    let looked = Looked::at(machine, queue, job, at, &taken(out));
    *left = left.saturating_sub((looked.cursor - job.cursor).max(1) as usize);
    if looked.cursor > job.cursor {
        looked.push(queue, *digest, !job.started.dry_run, out);
    }
}

/// Messages moved by earlier redrives in this tick: each message is moved once.
fn taken(out: &Verdict) -> Vec<Digest> {
    let moved = out.decisions.iter().filter_map(|decision| match decision {
        Decision::Redriven { digests, .. } => Some(digests),
        _ => None,
    });
    moved.flatten().copied().collect()
}

fn check(redrive: &Redrive) -> Result<(), Invalid> {
    if !(1..=limits::REDRIVE_ID_BYTES_MAX).contains(&redrive.id.len()) {
        return Err(Invalid::Id);
    }
    if redrive.per_s == Some(0) {
        return Err(Invalid::Redrive);
    }
    if let Select::Keys { keys, .. } = &redrive.select
        && let Some(long) = keys.iter().find(|key| key.len() > limits::KEY_BYTES_MAX)
    {
        return Err(Invalid::KeyLength(long.len()));
    }
    match &redrive.select {
        Select::Filter { error_contains, group, .. }
            if error_contains.as_ref().is_some_and(|text| text.len() > limits::ERROR_BYTES_MAX)
                || group.as_ref().is_some_and(|text| text.len() > limits::GROUP_BYTES_MAX) =>
        {
            Err(Invalid::Redrive)
        }
        Select::Keys { keys, group }
            if !(1..=limits::REDRIVE_KEYS_MAX).contains(&keys.len())
                || group.as_ref().is_some_and(|text| text.len() > limits::GROUP_BYTES_MAX) =>
        {
            Err(Invalid::Redrive)
        }
        // An empty filter would mean all messages, for which there is `Select::All`.
        Select::Filter {
            error_contains: None,
            group: None,
            dead_before: None,
            dead_after: None,
        } => Err(Invalid::Redrive),
        Select::Keys { .. } | Select::Filter { .. } | Select::All => Ok(()),
    }
}

fn job_digest(queue: &Queue, id: &str) -> Digest {
    Digest::of_id(&queue.name, "redrive", id)
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
    let taken: BTreeSet<Digest> = taken(out).into_iter().collect();
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
        if matches(&job.started, message) && !taken.contains(&message.digest) {
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

/// Looking at this many dead messages costs as much as moving one.
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
    let Some(state) = machine.queues.get(queue) else { return };
    let Some(known) = state.redrives.get(job).filter(|job| !job.done) else { return };
    if cursor <= known.cursor && !done {
        return; // Applied before.
    }
    let (is_moved, missing) = (!known.started.dry_run, missing(machine, known, digests, cursor));
    let mut moved = 0;
    for digest in digests.iter().filter(|_| is_moved) {
        let Some(slot) = machine.keys.living(&machine.messages, digest) else { continue };
        let message = machine.messages.at_mut(slot);
        if message.place() != Place::Dead {
            continue;
        }
        message.attempts = 0;
        message.ttl_at = Time::NEVER; // The redrive lifts its time to live.
        message.remember(event(at, What::Redriven, &nobody(), ""));
        // A claim has nothing to deliver: its key is free again.
        let next = if message.claim { Next::Freed } else { Next::Ready };
        go(machine, at, slot, Fence(0), next);
        moved += 1;
    }
    let Some(state) = machine.queues.get_mut(queue) else { return };
    state.dirty = true;
    let Some(job) = state.redrives.get_mut(job) else { return };
    job.matched += matched;
    job.moved += moved;
    debug_assert!(job.moved <= job.matched, "only what matched is moved");
    if let Some(missing) = missing {
        job.started.missing = missing;
    }
    (job.cursor, job.done) = (cursor, done);
}

/// For a redrive that names keys: the missing ones, and those left to look at from the cursor on.
/// Redrives of 0.1 finished at once, and began with the missing keys.
fn missing(machine: &Machine, job: &Job, digests: &[Digest], cursor: Seq) -> Option<Vec<Arc<str>>> {
    let queue = machine.queues.get(job.started.queue).filter(|_| job.started.by_keys)?;
    let seen = cursor.checked_sub(job.cursor).filter(|_| cursor != Seq::MAX)? as usize;
    let (known, left) =
        job.started.missing.split_at_checked(job.started.missing.len() - job.left().len())?;
    let is_found = |key: &str| {
        let named = machine.digests_named(queue, key, job.started.group.as_deref());
        named.iter().any(|digest| digests.contains(digest))
    };
    let still = left.iter().enumerate().filter(|(place, key)| *place >= seen || !is_found(key));
    Some(known.iter().chain(still.map(|(_, key)| key)).cloned().collect())
}
