//! The state of a queue: its configuration, its places, its counters, and its jobs in progress.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::codec::{BadBytes, Reader, Write};
use crate::command::QueueName;
use crate::config::Config;
use crate::decision::bytes_of::{
    decode_config, decode_digest, decode_end, decode_missing, decode_name, decode_optional_u32,
    encode_config, encode_end, encode_missing, encode_name,
};
use crate::decision::{QueueId, RedriveStarted};
use crate::holding::Elsewhere;
use crate::ids::{Seq, Time};
use crate::key::Digest;
use crate::limits;
use crate::message::{Message, Slot};
use crate::outcome::{Place, RedriveView, Stats};
use crate::places::delayed::Delayed;
use crate::places::groups::Leads;
use crate::places::leased::Leased;
use crate::places::ready::Ready;
use crate::places::resident::Resident;
use crate::record::{decode_error, encode_error};
use crate::row::RowKey;

#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) id: QueueId,
    pub(crate) name: QueueName,
    pub(crate) config: Config,
    pub(crate) version: u64,
    pub(crate) created_at: Time,
    pub(crate) paused: bool,
    /// Keys of older messages are forgotten, wherever their records are.
    pub(crate) keys_from: Seq,
    /// Keys of operations issued earlier may have been forgotten under a shorter retention.
    pub(crate) dated_from: Time,
    /// Earlier retentions that were raised, shortest first.
    pub(crate) shorter: Vec<Shorter>,
    pub(crate) purge: Option<Purge>,
    pub(crate) redrives: BTreeMap<Digest, Job>,
    pub(crate) stats: Stats,
    /// Remembered keys, by expiry bucket.
    pub(crate) remembered: BTreeMap<u64, u64>,

    pub(crate) ready: Ready,
    /// Deliverable groups, by the age of their oldest ready member.
    pub(crate) open: BTreeSet<(Seq, Digest)>,
    /// Groups of the queue that are in memory.
    pub(crate) groups: BTreeSet<Digest>,
    /// Deliverable groups that only the rows know.
    pub(crate) leads: Option<Leads>,
    pub(crate) delayed: Delayed,
    pub(crate) leased: Leased,
    pub(crate) parked: Resident,
    pub(crate) dead: Resident,
    /// When messages in memory reach their time to live.
    pub(crate) expiring: BTreeMap<(Time, Seq), Slot>,
    pub(crate) rate: Rate,
    pub(crate) elsewhere: Elsewhere,
    pub(crate) dirty: bool,
}

/// A purge in progress: removes messages below a number.
#[derive(Clone, Debug)]
pub(crate) struct Purge {
    pub(crate) below: Seq,
    pub(crate) delete: bool,
    /// How far the rows have been read; `None` if all have. Not durable.
    pub(crate) cursor: Option<RowKey>,
}

impl Purge {
    /// Whether the purge removes the message. A leased one stays, unless the queue is deleted.
    pub(crate) fn takes(&self, message: &Message) -> bool {
        message.seq < self.below && (self.delete || message.place() != Place::Leased)
    }
}

/// A redrive, in progress or remembered.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) started: RedriveStarted,
    pub(crate) started_at: Time,
    pub(crate) matched: u64,
    pub(crate) moved: u64,
    /// The number of the next message to look at; if it names keys, how many were looked at.
    pub(crate) cursor: Seq,
    pub(crate) done: bool,
    /// Stopped by an operator.
    pub(crate) cancelled: bool,
    /// Everything up to here is in memory. Not durable.
    pub(crate) horizon: Seq,
}

impl Job {
    pub(crate) fn new(started_at: Time, started: RedriveStarted) -> Self {
        Self {
            started,
            started_at,
            matched: 0,
            moved: 0,
            cursor: 0,
            done: false,
            cancelled: false,
            horizon: 0,
        }
    }

    pub(crate) fn view(&self) -> RedriveView {
        RedriveView {
            id: Arc::clone(&self.started.id),
            matched: self.matched,
            moved: self.moved,
            total: self.started.total,
            by_keys: self.started.by_keys,
            missing: self.missing().to_vec(),
            done: self.done,
            cancelled: self.cancelled,
            dry_run: self.started.dry_run,
        }
    }

    /// If it names keys: those left to look at.
    pub(crate) fn left(&self) -> &[Arc<str>] {
        self.started.missing.get(self.missing().len()..).unwrap_or_default()
    }

    /// The keys found to have no dead message.
    fn missing(&self) -> &[Arc<str>] {
        let keys = &self.started.missing;
        let total = self.started.total.filter(|_| self.started.by_keys).unwrap_or_default();
        let left = total.saturating_sub(self.cursor) as usize;
        keys.get(..keys.len().saturating_sub(left)).unwrap_or_default()
    }

    /// How many may be moved by `at` at the requested rate.
    pub(crate) fn allowance(&self, at: Time) -> u64 {
        let Some(per_s) = self.started.per_s else { return u64::MAX };
        let allowed = (at.since(self.started_at) + 1_000).saturating_mul(per_s.into()) / 1_000;
        allowed.saturating_sub(self.matched)
    }

    /// When the rate allows the next one.
    pub(crate) fn next_at(&self, at: Time) -> Time {
        match self.started.per_s {
            Some(per_s) if self.allowance(at) == 0 => {
                let earned = (self.matched + 1).saturating_mul(1_000).div_ceil(per_s.into());
                self.started_at.plus(earned.saturating_sub(1_000))
            }
            _ => at,
        }
    }
}

/// A token bucket, one token per send. Only in memory: after a restart it is full again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rate {
    used_milli: u64,
    at: Time,
}

impl Rate {
    /// How long to wait for a token; zero if there is one.
    pub(crate) fn wait_ms(&self, per_s: u32, at: Time) -> u64 {
        debug_assert!(per_s > 0, "a rate of none is refused when it is configured");
        let used = self.used_at(per_s, at);
        let room = u64::from(per_s) * 1_000;
        if used + 1_000 <= room { 0 } else { (used + 1_000 - room).div_ceil(per_s.into()).max(1) }
    }

    pub(crate) fn take(&mut self, per_s: u32, at: Time) {
        debug_assert!(at >= self.at, "time never runs backwards");
        *self = Self { used_milli: self.used_at(per_s, at) + 1_000, at };
    }

    /// Subtracts tokens that other partitions took. The debt is at most two seconds' worth, because
    /// reports can be old.
    pub(crate) fn take_elsewhere(&mut self, per_s: u32, at: Time, count: u64) {
        let used = self.used_at(per_s, at).saturating_add(count.saturating_mul(1_000));
        *self = Self { used_milli: used.min(u64::from(per_s) * 2_000), at: at.max(self.at) };
    }

    fn used_at(&self, per_s: u32, at: Time) -> u64 {
        let back = at.since(self.at).saturating_mul(per_s.into());
        self.used_milli.saturating_sub(back)
    }
}

/// A retention that was raised. It still applies to keys that ended under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shorter {
    /// No operation that ended under it is dated later.
    pub(crate) until: Time,
    pub(crate) retention_ms: u64,
}

impl Queue {
    /// Applies a changed configuration.
    pub(crate) fn configure(&mut self, at: Time, config: Config, version: u64) {
        if let Some(before) = self.config.retention_ms {
            let forgotten = Time(at.0.saturating_sub(before));
            self.dated_from = self.dated_from.max(forgotten);
            if config.retention_ms.is_none_or(|after| after > before) {
                self.raise_retention(at, before);
            }
        }
        self.config = config;
        debug_assert!(version >= self.version, "versions grow");
        self.version = version;
        self.dirty = true;
    }

    fn raise_retention(&mut self, at: Time, before: u64) {
        let until = at.plus(limits::DATED_AHEAD_MS);
        let is_over = |past: &Shorter| past.until.plus(past.retention_ms) <= at;
        // Everything it applies to is too old already, and stays so.
        let over = self.shorter.iter().filter(|past| is_over(past)).map(|past| past.until).max();
        self.dated_from = self.dated_from.max(over.unwrap_or_default());
        self.shorter.retain(|past| !is_over(past) && past.retention_ms < before);
        self.shorter.push(Shorter { until, retention_ms: before });
        if self.shorter.len() > limits::RETENTIONS_MAX {
            let first = self.shorter.remove(0);
            if let Some(next) = self.shorter.first_mut() {
                next.retention_ms = first.retention_ms; // Those dated between are refused early.
            }
        }
    }

    /// Whether an operation of that date may have been done and forgotten by now.
    pub(crate) fn is_too_old(&self, dated: Time, at: Time) -> bool {
        let is_over = |retention: u64| dated.plus(retention) <= at;
        self.config.retention_ms.is_some_and(is_over)
            || (Time(0) < self.dated_from && dated <= self.dated_from)
            || self.shorter.iter().any(|it| dated <= it.until && is_over(it.retention_ms))
    }

    pub(crate) fn new(id: QueueId, name: QueueName, config: Config, at: Time, seq: Seq) -> Self {
        Self {
            id,
            name,
            config,
            version: 0,
            created_at: at,
            paused: false,
            keys_from: seq,
            dated_from: Time(0),
            shorter: Vec::new(),
            purge: None,
            redrives: BTreeMap::new(),
            stats: Stats::default(),
            remembered: BTreeMap::new(),
            ready: Ready::default(),
            open: BTreeSet::new(),
            groups: BTreeSet::new(),
            leads: None,
            delayed: Delayed::default(),
            leased: Leased::default(),
            parked: Resident::default(),
            dead: Resident::default(),
            expiring: BTreeMap::new(),
            rate: Rate::default(),
            elsewhere: Elsewhere::default(),
            dirty: true,
        }
    }

    pub(crate) fn is_deleted(&self) -> bool {
        self.purge.as_ref().is_some_and(|purge| purge.delete)
    }

    /// Whether messages that can be received may be in the rows alone, apart from those of groups
    /// that are in memory.
    pub(crate) fn has_unread(&self) -> bool {
        self.ready.gap().is_some() || self.leads.is_some()
    }

    /// A message was evicted: a purge that has read past its row goes back to it.
    pub(crate) fn purge_again(&mut self, message: &Message) {
        if let (Some(purge), Some(row)) = (&mut self.purge, message.row)
            && purge.takes(message)
        {
            purge.cursor = Some(purge.cursor.map_or(row, |cursor| cursor.min(row)));
        }
    }

    /// Counts a key's record that was added or removed.
    pub(crate) fn count_key(&mut self, drop_at: u64, came: bool) {
        let count = self.remembered.entry(drop_at).or_default();
        if came {
            *count += 1;
            self.stats.keys += 1;
        } else if *count > 0 {
            debug_assert!(self.stats.keys > 0, "keys are counted by bucket and together");
            *count -= 1;
            self.stats.keys -= 1;
        }
    }

    /// Drops the counts of expired buckets. Returns whether there were any.
    pub(crate) fn expire_keys(&mut self, at: Time) -> bool {
        let before = self.remembered.len();
        while let Some((drop_at, count)) = self.remembered.first_key_value()
            && *drop_at <= at.0
        {
            debug_assert!(self.stats.keys >= *count, "keys are counted by bucket and together");
            self.stats.keys -= count;
            self.remembered.pop_first();
            self.dirty = true;
        }
        self.remembered.len() < before
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let stats = &self.stats;
        debug_assert_eq!(self.remembered.values().sum::<u64>(), stats.keys, "keys by bucket");
        debug_assert!(stats.messages() > 0 || stats.bytes == 0, "nothing takes no room");
        encode_name(&self.name, out);
        encode_config(&self.config, out);
        out.number(self.version);
        out.number(self.created_at.0);
        out.u8(self.paused.into());
        out.number(self.keys_from);
        out.number(self.dated_from.0);
        let purge = self.purge.as_ref();
        // `keys_from` decides whether keys are purged too; repeated here for the view.
        let keys = purge.is_some_and(|purge| purge.below <= self.keys_from);
        let purge_flags =
            purge.map_or(0, |purge| 1 | u8::from(keys) << 1 | u8::from(purge.delete) << 2);
        out.u8(purge_flags);
        out.number(purge.map_or(0, |purge| purge.below));
        for count in [
            stats.ready,
            stats.delayed,
            stats.leased,
            stats.parked,
            stats.dead,
            stats.keys,
            stats.bytes,
            stats.sent_total,
            stats.duplicate_total,
            stats.done_total,
            stats.failed_total,
            stats.lease_lost_total,
        ] {
            out.number(count);
        }
        out.number(self.remembered.len() as u64);
        for (drop_at, count) in &self.remembered {
            encode_end(Time(*drop_at), out);
            out.number(*count);
        }
        if !self.shorter.is_empty() || stats.held > 0 {
            out.number(self.shorter.len() as u64);
            for shorter in &self.shorter {
                out.number(shorter.until.0);
                out.number(shorter.retention_ms);
            }
            out.number(stats.held);
        }
    }

    /// A queue as the rows know it: none of its messages is loaded.
    pub(crate) fn decode(id: QueueId, bytes: &[u8], next_seq: Seq) -> Result<Self, BadBytes> {
        let mut reader = Reader::new(bytes);
        let reader = &mut reader;
        let name = decode_name(reader)?;
        let config = decode_config(reader)?;
        let version = reader.number("version")?;
        let created_at = Time(reader.number("created")?);
        let mut queue = Self::new(id, name, config, created_at, 0);
        queue.version = version;
        queue.paused = reader.u8("paused")? != 0;
        queue.keys_from = reader.number("keys from")?;
        queue.dated_from = Time(reader.number("dated from")?);
        let flags = reader.u8("purge")?;
        let below = reader.number("purge")?;
        queue.purge = (flags & 1 != 0).then(|| Purge {
            below,
            delete: flags & 4 != 0,
            cursor: Some(RowKey::message_prefix(id)),
        });
        let stats = &mut queue.stats;
        for count in [
            &mut stats.ready,
            &mut stats.delayed,
            &mut stats.leased,
            &mut stats.parked,
            &mut stats.dead,
            &mut stats.keys,
            &mut stats.bytes,
            &mut stats.sent_total,
            &mut stats.duplicate_total,
            &mut stats.done_total,
            &mut stats.failed_total,
            &mut stats.lease_lost_total,
        ] {
            *count = reader.number("count")?;
        }
        for _ in 0..reader.count("remembered")? {
            let drop_at = decode_end(reader)?.0;
            queue.remembered.insert(drop_at, reader.number("remembered")?);
        }
        // Rows of 0.1 end here, and those of queues with nothing of what follows.
        if !reader.is_empty() {
            for _ in 0..reader.count("shorter")? {
                let until = Time(reader.number("shorter until")?);
                queue.shorter.push(Shorter { until, retention_ms: reader.number("shorter")? });
            }
        }
        // Rows written before held messages were counted end here.
        if !reader.is_empty() {
            queue.stats.held = reader.number("held")?;
        }
        reader.end()?;
        if queue.stats.ready > 0 {
            queue.ready = Ready::unloaded(0, next_seq);
            queue.leads = Some(Leads::all(next_seq));
        }
        if queue.stats.delayed > 0 {
            queue.delayed = Delayed::unloaded();
        }
        queue.dirty = false;
        Ok(queue)
    }
}

pub(crate) fn encode_job(job: &Job, out: &mut Vec<u8>) {
    let started = &job.started;
    debug_assert!(job.moved <= job.matched, "only what matched is moved");
    debug_assert!(job.moved == 0 || !started.dry_run, "a rehearsal moves nothing");
    out.text(&started.id);
    encode_error(started.error_contains.as_deref(), out);
    encode_error(started.group.as_deref(), out);
    encode_end(started.dead_before, out);
    debug_assert!(job.done || !job.cancelled, "what was stopped is over");
    let more = started.total.is_some() || started.dead_after.is_some() || job.cancelled;
    let more = more || started.asked.is_some();
    let flags = [started.dry_run, started.by_keys, job.done, more, started.asked.is_some()];
    out.u8(flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag)));
    out.optional(started.per_s.map(u64::from));
    for number in [job.started_at.0, job.matched, job.moved, job.cursor] {
        out.number(number);
    }
    if more {
        out.u8(job.cancelled.into());
        out.optional(started.dead_after.map(|after| after.0));
        out.optional(started.total);
        encode_missing(&started.missing, out);
    }
    if let Some(asked) = &started.asked {
        out.fixed(&asked.0);
    }
}

pub(crate) fn decode_job(queue: QueueId, job: Digest, bytes: &[u8]) -> Result<Job, BadBytes> {
    let mut reader = Reader::new(bytes);
    let reader = &mut reader;
    let id = reader.text("id")?.into();
    let error_contains = decode_error(reader)?;
    let group = decode_error(reader)?;
    let dead_before = decode_end(reader)?;
    let flags = reader.u8("flags")?;
    let per_s = decode_optional_u32(reader)?;
    let started = RedriveStarted {
        queue,
        job,
        id,
        error_contains,
        group,
        dead_before,
        dead_after: None,
        dry_run: flags & 1 != 0,
        per_s,
        by_keys: flags & 2 != 0,
        total: None,
        missing: Vec::new(),
        asked: None,
    };
    let mut job = Job {
        started,
        started_at: Time(reader.number("started")?),
        matched: reader.number("matched")?,
        moved: reader.number("moved")?,
        cursor: reader.number("cursor")?,
        done: flags & 4 != 0,
        cancelled: false,
        horizon: 0,
    };
    // Jobs that 0.1 began end here.
    if flags & 8 != 0 {
        job.cancelled = reader.u8("cancelled")? != 0;
        job.started.dead_after = reader.optional("dead after")?.map(Time);
        job.started.total = reader.optional("total")?;
        job.started.missing = decode_missing(reader)?;
    }
    if flags & 16 != 0 {
        job.started.asked = Some(decode_digest(reader)?);
    }
    reader.end()?;
    Ok(job)
}
