//! The machine: one partition's state, the dispatch of its commands, and the application of its
//! decisions.
//!
//! Invariants:
//! - `decide` changes nothing, `apply` decides nothing;
//! - time never runs backwards;
//! - a decision applied twice is applied once.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::checkpoint::{Emptied, Gone, Snapshot};
use crate::codec::{BadBytes, Reader, Write};
use crate::command::{Command, QueueName};
use crate::content::Invalid;
use crate::decision::{Decision, QueueId};
use crate::heads::Heads;
use crate::ids::{Fence, Seq, Stamp, Time};
use crate::key::Digest;
use crate::limits::Bounds;
use crate::message::{Messages, Slot};
use crate::moves;
use crate::outcome::{Effect, Outcome};
use crate::places::groups::Groups;
use crate::places::keys::Keys;
use crate::places::leased::AWAY_BYTES;
use crate::places::relay::Relays;
use crate::queues::Queues;
use crate::receives::Receives;
use crate::recipe::Recipe;
use crate::row::RowKey;

/// The state of one partition.
#[derive(Debug)]
pub struct Machine {
    pub(crate) bounds: Bounds,
    /// How the keys and bodies of its data are hashed.
    pub(crate) recipe: Recipe,
    pub(crate) partition: u16,
    /// Number of partitions of the broker; the step between fences.
    pub(crate) partitions: u16,
    epoch: u32,
    pub(crate) now: Time,
    pub(crate) next_seq: Seq,
    next_fence: u64,
    pub(crate) queues: Queues,
    pub(crate) messages: Messages,
    pub(crate) keys: Keys,
    pub(crate) groups: Groups,
    pub(crate) relays: Relays,
    pub(crate) receives: Receives,
    /// Leases of all queues whose messages are only in the rows, by message.
    pub(crate) leases_away: BTreeMap<Seq, Fence>,
    /// The checkpoint that is being copied.
    pub(crate) snapshot: Option<Box<Snapshot>>,
    /// What the checkpoint in progress deletes.
    pub(crate) gone: Arc<Gone>,
    /// The list of messages of the last checkpoint, for reuse.
    pub(crate) emptied: Emptied,
    /// Groups created for a look-up that may turn out to be empty.
    pub(crate) asked: Vec<Digest>,
    /// How far rows were read for browse pages that were not read to the end.
    pub(crate) browsed: Vec<(RowKey, Seq)>,
    /// No timer is due earlier.
    pub(crate) next_due: Time,
    /// Keys were forgotten by time since the last cut.
    pub(crate) keys_expired: bool,
    /// The store only has room for settles.
    store_full: bool,
    /// Queues with limits that hold more or less than was reported. Not durable.
    pub(crate) held_changed: Vec<QueueId>,
    /// Where the next tick begins.
    pub(crate) tick: Tick,
    /// The queue whose delays end first. Not durable.
    pub(crate) delays_from: QueueId,
    /// Queues whose oldest message may be in the rows alone. Not durable.
    pub(crate) heads: Heads,
    scratch: Verdict,
    /// What the verdict found; used while its decisions are applied.
    pub(crate) found: Found,
}

/// What `decide` returns besides the outcome.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) decisions: Vec<Decision>,
    pub(crate) effects: Vec<Effect>,
    pub(crate) found: Found,
    /// Where the next tick begins.
    pub(crate) tick: Option<Tick>,
}

/// What a command looked up while it was decided, so that applying need not look again. A shortcut
/// only: a decision replayed from the journal has none.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// A key that is unknown.
    pub(crate) unknown: Option<Digest>,
    /// The slot of the settled message.
    pub(crate) settled: Option<Slot>,
    /// The slots of the delivered messages, in order.
    pub(crate) taken: Vec<Slot>,
}

impl Found {
    fn is_empty(&self) -> bool {
        self.unknown.is_none() && self.settled.is_none() && self.taken.is_empty()
    }

    fn clear(&mut self) {
        (self.unknown, self.settled) = (None, None);
        self.taken.clear();
    }
}

/// Where a tick begins. A tick does a bounded amount of work, and the next one continues with those
/// that had no turn. Not durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tick {
    pub(crate) queue: QueueId,
    pub(crate) turn: Turn,
}

/// The kinds of work of a tick, in this order in each queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Turn {
    /// Rows of delayed messages that are due are read.
    #[default]
    Delays,
    Leases,
    Lives,
    Purge,
    Redrive(Digest),
}

/// Decisions to be journaled, and effects that wait until they are durable.
///
/// Invariant: neither `bytes` nor any batch in `full` is larger than the journal accepts.
#[derive(Debug)]
pub struct Batch {
    at: Time,
    bytes: Vec<u8>,
    decisions: usize,
    /// The most bytes the journal takes at once.
    bytes_max: usize,
    /// Earlier batches that had no room for the next command.
    full: Vec<Vec<u8>>,
    pub effects: Vec<Effect>,
}

impl Default for Batch {
    fn default() -> Self {
        Self::with_max(usize::MAX)
    }
}

/// Memory used by the state, by kind, and how much of it a checkpoint would free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Messages in memory, with their histories, errors and recovery points.
    pub messages: usize,
    pub message_bytes: usize,
    /// Groups in memory, without their messages.
    pub groups: usize,
    pub group_bytes: usize,
    /// Emits that wait to be sent to their queues.
    pub relays: usize,
    pub relay_bytes: usize,
    /// Deadlines of leases whose messages are only in the rows.
    pub leases: usize,
    pub lease_bytes: usize,
    /// Receives that may be repeated.
    pub receives: usize,
    pub receive_bytes: usize,
    /// Records, deletes and changed messages that wait for a checkpoint.
    pub unwritten_bytes: usize,
    /// Records that the checkpoint in progress writes.
    pub frozen_bytes: usize,
    /// Messages and groups that cannot be evicted before a checkpoint has written them.
    pub changed: usize,
    /// Whether a checkpoint would free the disk space of expired keys.
    pub keys_expired: bool,
}

impl Usage {
    /// Bytes that can be evicted, apart from what changed.
    pub fn head_bytes(&self) -> usize {
        self.message_bytes + self.group_bytes
    }
}

const BATCH_VERSION: u8 = 1;

impl Batch {
    /// A batch for a journal that takes at most `bytes_max` at once.
    pub fn with_max(bytes_max: usize) -> Self {
        let (at, bytes, full, effects) = (Time(0), Vec::new(), Vec::new(), Vec::new());
        Self { at, bytes, decisions: 0, bytes_max, full, effects }
    }

    /// Starts a batch at a time.
    pub fn begin(&mut self, at: Time) {
        assert!(self.full.is_empty(), "what is full is journaled before the next begins");
        self.at = at;
        self.bytes.clear();
        head(at, &mut self.bytes);
        self.decisions = 0;
        self.effects.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.decisions == 0 && self.full.is_empty()
    }

    /// Number of decisions in `bytes`.
    pub fn decisions(&self) -> usize {
        self.decisions
    }

    /// Whether there are batches that go into the journal before `bytes`.
    pub fn has_full(&self) -> bool {
        !self.full.is_empty()
    }

    /// Batches that go into the journal before `bytes`, oldest first.
    pub fn take_full(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.full)
    }

    /// Adds the decisions of one command. If the batch would become too large, the earlier ones
    /// become a batch of their own. If the decisions alone are too large, nothing is added and
    /// their size is returned as the error.
    fn push_all(&mut self, decisions: &[Decision]) -> Result<(), usize> {
        let (before, count) = (self.bytes.len(), self.decisions);
        decisions.iter().for_each(|decision| self.push(decision));
        if self.bytes.len() <= self.bytes_max {
            return Ok(());
        }
        let own = self.bytes.split_off(before);
        let mut next = Vec::with_capacity(own.len() + 16);
        head(self.at, &mut next);
        next.extend_from_slice(&own);
        if next.len() > self.bytes_max {
            self.decisions = count;
            return Err(next.len());
        }
        assert!(count > 0, "a batch with nothing else in it has the command's size");
        self.full.push(std::mem::replace(&mut self.bytes, next));
        self.decisions -= count;
        Ok(())
    }

    /// The bytes to journal.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn push(&mut self, decision: &Decision) {
        if decision.is_durable() {
            let before = self.bytes.len();
            debug_assert!(before > 0, "a batch is begun before it is filled");
            decision.encode(&mut self.bytes);
            debug_assert!(self.bytes.len() > before, "what is durable has bytes");
            self.decisions += 1;
        }
    }
}

fn head(at: Time, out: &mut Vec<u8>) {
    out.u8(BATCH_VERSION);
    out.number(at.0);
}

/// Reads a batch back.
pub fn read_batch(bytes: &[u8]) -> Result<(Time, Vec<Decision>), BadBytes> {
    let mut reader = Reader::new(bytes);
    let version = reader.u8("batch")?;
    if version != BATCH_VERSION {
        return Err(BadBytes::Tag("batch", version));
    }
    let at = Time(reader.number("time")?);
    let mut decisions = Vec::new();
    while !reader.is_empty() {
        decisions.push(Decision::decode(&mut reader)?);
    }
    Ok((at, decisions))
}

impl Machine {
    /// An empty partition, one of `partitions`. `seed` randomises the hash tables, so that callers
    /// cannot cause collisions.
    pub fn new(partition: u16, partitions: u16, epoch: u32, seed: u64) -> Self {
        Self::with_bounds(partition, partitions, epoch, seed, Recipe::First, Bounds::default())
    }

    /// Like `new`, with a given recipe and bounds.
    pub fn with_bounds(
        partition: u16,
        partitions: u16,
        epoch: u32,
        seed: u64,
        recipe: Recipe,
        bounds: Bounds,
    ) -> Self {
        assert!(partitions <= crate::limits::PARTITIONS_MAX && partition < partitions);
        assert!(epoch < Fence::EPOCHS, "an epoch is refused when its partition is opened");
        bounds.check();
        Self {
            bounds,
            recipe,
            partition,
            partitions,
            epoch,
            now: Time(0),
            next_seq: 1,
            next_fence: partition.into(),
            queues: Queues::default(),
            messages: Messages::default(),
            keys: Keys::new(seed, bounds.index_places),
            groups: Groups::new(seed),
            relays: Relays::default(),
            receives: Receives::default(),
            leases_away: BTreeMap::new(),
            snapshot: None,
            gone: Arc::default(),
            emptied: Emptied::default(),
            asked: Vec::new(),
            browsed: Vec::new(),
            next_due: Time::NEVER,
            keys_expired: false,
            store_full: false,
            held_changed: Vec::new(),
            tick: Tick::default(),
            delays_from: 0,
            heads: Heads::default(),
            scratch: Verdict::default(),
            found: Found::default(),
        }
    }

    /// Makes room for the records of about `bytes` between two checkpoints. Without it tables grow
    /// on demand.
    pub fn expect_records(&mut self, bytes: usize) {
        self.keys.expect(bytes);
    }

    /// The time of the last batch.
    pub fn now(&self) -> Time {
        self.now
    }

    /// When `Command::Expire` should come next. It may find nothing to do.
    pub fn next_deadline(&self) -> Option<Time> {
        let relay = self.relays.next_deadline().unwrap_or(Time::NEVER);
        let deadline = self.next_due.min(relay).min(self.heads_due());
        (deadline != Time::NEVER).then_some(deadline)
    }

    /// Sets whether the store only has room for settles.
    pub fn set_store_full(&mut self, full: bool) {
        self.store_full = full;
    }

    pub(crate) fn is_store_full(&self) -> bool {
        self.store_full || self.keys.is_crowded(&self.messages)
    }

    /// Advances the time: what is due becomes ready. Called once at the start of a batch.
    pub fn advance(&mut self, at: Time, effects: &mut Vec<Effect>) {
        assert!(at >= self.now, "a partition's time never runs backwards");
        self.now = at;
        moves::expire::advance(self, at, effects);
    }

    /// Decides a command, applies what was decided, and appends it to the batch. The rows that the
    /// command `needs` must have been loaded. A command whose decisions exceed one journal batch is
    /// refused, and changes nothing.
    pub fn execute(&mut self, stamp: Stamp, command: Command, batch: &mut Batch) -> Outcome {
        debug_assert_eq!(stamp.at, self.now, "advance comes first");
        debug_assert!(self.found.is_empty(), "what one command looked for is not another's");
        let mut verdict = std::mem::take(&mut self.scratch);
        debug_assert!(verdict.decisions.is_empty(), "every decision before was applied");
        debug_assert!(verdict.effects.is_empty(), "every effect before was handed on");
        let is_tick = matches!(command, Command::Expire);
        let mut outcome = self.decide(stamp, command, &mut verdict);
        std::mem::swap(&mut self.found, &mut verdict.found);
        if let Err(bytes) = batch.push_all(&verdict.decisions) {
            assert!(!is_tick, "a tick of time is smaller than a batch: {bytes} bytes");
            verdict.decisions.clear();
            verdict.effects.clear();
            outcome = outcome.refused(Invalid::TooLarge { bytes, max: batch.bytes_max });
        }
        for decision in verdict.decisions.drain(..) {
            self.apply(stamp.at, decision);
        }
        self.found.clear();
        if is_tick {
            self.tick = verdict.tick.take().unwrap_or_default();
            self.forget_heads();
        }
        for effect in verdict.effects.drain(..) {
            // Waking a queue twice in a row is redundant.
            if !matches!(effect, Effect::Wake(_)) || batch.effects.last() != Some(&effect) {
                batch.effects.push(effect);
            }
        }
        self.scratch = verdict;
        outcome
    }

    fn decide(&self, stamp: Stamp, command: Command, out: &mut Verdict) -> Outcome {
        match command {
            Command::Send(send) => moves::send::decide(self, stamp, send, out),
            Command::Receive(receive) => moves::receive::decide(self, stamp, receive, out),
            Command::Settle(settle) => moves::settle::decide(self, stamp, settle, out),
            Command::Claim(claim) => moves::claim::decide(self, stamp, *claim, out),
            Command::Expire => moves::expire::decide(self, stamp, out),
            Command::Configure(configure) => moves::configure::decide(self, *configure, out),
            Command::Follow(follow) => moves::configure::follow(self, *follow, out),
            Command::Delete(queue) => moves::purge::delete(self, &queue, out),
            Command::Pause(queue) => moves::configure::pause(self, &queue, true, out),
            Command::Resume(queue) => moves::configure::pause(self, &queue, false, out),
            Command::Purge(purge) => moves::purge::decide(self, &purge, out),
            Command::Look(key) => self.look(stamp.at, &key),
            Command::Browse(browse) => self.browse(stamp.at, &browse),
            Command::Show(queue) => self.show(&queue),
            Command::Forget(key) => moves::forget::decide(self, stamp, &key, out),
            Command::Replay(replay) => moves::replay::decide(self, stamp, replay, out),
            Command::Discard(key) => moves::discard::decide(self, stamp.at, &key, out),
            Command::Resolve(resolve) => moves::resolve::decide(self, stamp.at, resolve, out),
            Command::Redrive(redrive) => moves::redrive::decide(self, stamp, &redrive, out),
            Command::CheckRedrive(redrive) => {
                moves::redrive::decide(self, stamp, &redrive, &mut Verdict::default())
            }
            Command::RedriveProgress { queue, id } => moves::redrive::progress(self, &queue, &id),
            Command::CancelRedrive { queue, id } => moves::redrive::cancel(self, &queue, &id, out),
            Command::Relayed { id, arrival } => moves::relay::decide(self, stamp, id, arrival, out),
            Command::DeadLetter(letter) => moves::relay::dead_letter(self, stamp, *letter, out),
        }
    }

    /// Applies one decision of the batch whose time `advance` was given last. One match, so that
    /// the compiler notices a decision that nothing applies.
    pub fn apply(&mut self, at: Time, decision: Decision) {
        debug_assert_eq!(at, self.now);
        match decision {
            Decision::Accepted(accepted) => moves::send::apply(self, at, *accepted),
            Decision::Leased(leased) => moves::receive::apply(self, at, *leased),
            Decision::Done { digest, fence, result, emits } => {
                moves::settle::apply_done(self, at, &digest, fence, result, emits);
            }
            Decision::Failed { digest, fence, error, next } => {
                moves::settle::apply_failed(self, at, &digest, fence, error, next);
            }
            Decision::Released { digest, fence, next } => {
                moves::settle::apply_released(self, at, &digest, fence, next);
            }
            Decision::Parked { digest, fence, error, next } => {
                moves::settle::apply_parked(self, at, &digest, fence, error, next);
            }
            Decision::Extended { digest, fence, deadline } => {
                moves::settle::apply_extended(self, &digest, fence, deadline);
            }
            Decision::Begun { digest, fence } => {
                moves::settle::apply_begun(self, at, &digest, fence);
            }
            Decision::Saved { digest, fence, name, data } => {
                moves::settle::apply_saved(self, at, &digest, fence, &name, data);
            }
            Decision::Lost { digest, fence, next } => {
                moves::expire::apply_lost(self, at, &digest, fence, next);
            }
            Decision::Died { digest, error } => {
                moves::expire::apply_died(self, at, &digest, error);
            }
            Decision::Counted { digest, queue } => {
                moves::send::apply_counted(self, at, &digest, queue);
            }
            Decision::Configured(configured) => moves::configure::apply(self, at, *configured),
            Decision::Paused { queue, paused } => {
                moves::configure::apply_paused(self, queue, paused);
            }
            Decision::PurgeStarted { queue, below, keys, delete } => {
                moves::purge::apply_started(self, queue, below, keys, delete);
            }
            Decision::Purged { queue, digests, finished } => {
                moves::purge::apply(self, at, queue, &digests, finished);
            }
            Decision::RedriveStarted(started) => {
                moves::redrive::apply_started(self, at, *started);
            }
            Decision::Redriven { queue, job, digests, matched, cursor, done } => {
                moves::redrive::apply(self, at, queue, &job, &digests, matched, cursor, done);
            }
            Decision::RedriveCancelled { queue, job } => {
                moves::redrive::apply_cancelled(self, queue, &job);
            }
            Decision::Discarded { digest } => moves::discard::apply(self, at, &digest),
            Decision::Forgotten { digest, queue } => {
                moves::forget::apply(self, at, &digest, queue);
            }
            Decision::Rerun { digest } => moves::send::apply_rerun(self, at, &digest),
            Decision::Replayed { digest, queue, content, fingerprint } => {
                moves::replay::apply(self, at, &digest, queue, content, fingerprint);
            }
            Decision::Resolved { digest, done, result, next } => {
                moves::resolve::apply(self, at, &digest, done, result, next);
            }
            Decision::Relayed { id } => self.relays.remove(id),
            Decision::RelayRetried { id, attempts, next_at } => {
                self.relays.retry(id, attempts, next_at);
            }
            Decision::RelayRefused { id, error, key } => {
                moves::relay::apply_refused(self, id, error, key.as_deref());
            }
        }
    }

    pub fn usage(&self) -> Usage {
        Usage {
            messages: self.messages.len(),
            message_bytes: self.messages.bytes(),
            groups: self.groups.len(),
            group_bytes: self.groups.bytes(),
            relays: self.relays.len(),
            relay_bytes: self.relays.bytes(),
            leases: self.leases_away.len(),
            lease_bytes: self.leases_away.len() * AWAY_BYTES,
            receives: self.receives.len(),
            receive_bytes: self.receives.bytes(),
            unwritten_bytes: self.keys.footprint() + self.messages.changed() * 16,
            frozen_bytes: self.keys.checkpoint_footprint(),
            changed: self.messages.changed() + self.groups.changed(),
            keys_expired: self.keys_expired,
        }
    }

    /// The name of a queue that an effect refers to.
    pub fn queue_name(&self, id: QueueId) -> Option<&QueueName> {
        self.queues.get(id).map(|queue| &queue.name)
    }

    /// The number of the next queue that is created; all earlier ones are below it.
    pub fn next_queue(&self) -> QueueId {
        self.queues.next_id()
    }

    pub fn has_queue(&self, queue: &QueueName) -> bool {
        self.queues.named(queue).is_some()
    }

    /// Emits that wait for their queues, each once, for a new owner to send again.
    pub fn restart_relays(&mut self) -> Vec<crate::outcome::Relay> {
        self.relays.restart()
    }

    /// Emits that wait for their queues.
    pub fn relays(&self) -> impl Iterator<Item = &crate::outcome::Relay> {
        self.relays.all()
    }

    /// Whether the partition should raise its epoch, as soon as it can.
    pub fn wants_epoch(&self) -> bool {
        self.next_fence >= self.bounds.fences
    }

    /// Whether there are enough fences for any command. If not, the epoch must be raised first.
    pub fn has_fences(&self) -> bool {
        let most = u64::from(crate::limits::RECEIVE_MAX) * u64::from(self.partitions);
        self.next_fence + most < 1 << Fence::COUNTER_BITS
    }

    /// Restarts the fence counter, in an epoch that the store has made durable.
    pub fn raise_epoch(&mut self, epoch: u32) {
        assert!(epoch > self.epoch && epoch < Fence::EPOCHS, "epochs grow, up to their bound");
        self.epoch = epoch;
        self.next_fence = self.partition.into();
    }

    pub(crate) fn next_fence(&self) -> Fence {
        Fence::new(self.epoch, self.next_fence)
    }

    /// Marks fences up to this one as used.
    pub(crate) fn use_fence(&mut self, fence: Fence) {
        if fence.epoch() == self.epoch {
            let next = Fence::counter_above(fence.counter(), self.partition, self.partitions);
            self.next_fence = self.next_fence.max(next);
            debug_assert!(fence < self.next_fence(), "a fence is given once");
        }
    }

    pub(crate) fn due(&mut self, at: Time) {
        self.next_due = self.next_due.min(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raised_epoch_counts_fences_from_the_start_above_all_before() {
        let mut machine = Machine::new(2, 3, 7, 1);
        assert!(!machine.wants_epoch() && machine.has_fences());
        machine.use_fence(Fence::new(7, crate::limits::FENCES_MAX));
        assert!(machine.wants_epoch() && machine.has_fences(), "half of them are a reserve");
        machine.use_fence(Fence::new(7, (1 << 40) - 2_999));
        assert!(!machine.has_fences(), "not enough for a receive");
        let last = machine.next_fence();
        machine.raise_epoch(9);
        assert!(!machine.wants_epoch() && machine.has_fences());
        assert_eq!(machine.next_fence(), Fence::new(9, 2));
        assert!(machine.next_fence() > last);
        machine.use_fence(last);
        assert_eq!(machine.next_fence(), Fence::new(9, 2), "what an older epoch gave is not ours");
    }

    #[test]
    fn nothing_new_is_accepted_while_the_index_can_refer_to_little_more() {
        let mut machine = Machine::new(0, 1, 1, 1);
        assert!(!machine.is_store_full());
        machine.keys.crowd();
        assert!(machine.is_store_full(), "a checkpoint makes room");
    }
}
