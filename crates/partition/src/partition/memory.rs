//! The memory budget of a partition: when a checkpoint is due, what is evicted, and when callers
//! wait.
//!
//! A quarter is for records that wait for a checkpoint, a quarter for those being written, a
//! quarter for the heads of queues, and a quarter for messages that arrived since.

use hapax_core::{Time, Usage};
use hapax_store::Store;

use super::{Options, Partition};

/// The largest share of the memory, so that no arena of a checkpoint exceeds its address range.
const SHARE_BYTES_MAX: usize = 512 * 1_024 * 1_024;
/// Expired keys are dropped from disk by a checkpoint; an idle partition takes one for them this
/// often.
const EXPIRED_MS: u64 = 60_000;

impl<S: Store> Partition<S> {
    /// Evicts what is beyond the budget, up to `most` messages. If nothing more can be evicted, it
    /// is not tried again before a checkpoint, or before memory has grown much.
    pub(super) fn evict(&mut self, most: usize) {
        if self.are_heads_full(&self.machine.usage()) {
            // Otherwise a checkpoint would be due, during which nothing is evicted and callers
            // wait: on a full disk for ever.
            self.machine.evict(self.heads_max() * 2, usize::MAX);
        }
        let left = self.machine.evict(self.heads_max(), most);
        let bytes = self.machine.usage().head_bytes();
        let is_stuck = left < most && bytes > self.heads_max();
        self.stuck_bytes = if is_stuck { bytes + self.heads_max() / 8 } else { 0 };
    }

    /// Evicts everything beyond the budget at once, and panics if something stays that could have
    /// been evicted. For tests and the simulator.
    #[doc(hidden)]
    pub fn check_memory(&mut self) {
        if self.stopped.is_some() || self.machine.is_in_checkpoint() {
            return;
        }
        self.evict(usize::MAX);
        let (usage, evictable) = (self.machine.usage(), self.machine.evictable_bytes());
        let is_within = usage.head_bytes() <= self.heads_max();
        assert!(is_within || evictable == 0, "{evictable} bytes could have left: {usage:?}");
        let relays_max = self.options.bounds.relay_bytes + 2 * hapax_core::limits::EMITS_BYTES_MAX;
        assert!(usage.relay_bytes <= relays_max, "emits that wait take too much: {usage:?}");
    }

    pub(super) fn is_due(&self, usage: Usage) -> bool {
        // While something can be evicted, which happens in steps, a checkpoint would only keep it
        // in memory for longer.
        let is_stuck = self.stuck_bytes > 0 || self.are_heads_full(&usage);
        let is_crowded = usage.head_bytes() > self.heads_max() * 2 && usage.changed > 0 && is_stuck;
        // Delays that end change messages without a journal record.
        let changed_bytes = changed_bytes(&usage);
        if self.is_unwritable(&usage) {
            return false;
        }
        usage.unwritten_bytes > self.records_max()
            || self.journal_bytes > self.options.journal_bytes
            || self.journal_decisions > self.options.journal_decisions
            || self.expired_at(&usage).is_some_and(|at| at <= self.machine.now())
            || self.relief_at(&usage).is_some_and(|at| at <= self.machine.now())
            || is_crowded && self.journal_bytes.max(changed_bytes / 4) > self.heads_max() / 8
    }

    /// When a checkpoint that drops expired keys is due, if there are any.
    pub(super) fn expired_at(&self, usage: &Usage) -> Option<Time> {
        let is_wanted = usage.keys_expired && self.cutting.is_none();
        let at = self.cut_at.plus(EXPIRED_MS).max(self.unwritable_until(usage));
        is_wanted.then_some(at)
    }

    /// Whether memory is full while a checkpoint is in progress. What it writes counts: after a
    /// crash all of it is read from the journal again.
    pub(super) fn is_memory_full(&self, usage: &Usage) -> bool {
        let records = usage.unwritten_bytes + usage.frozen_bytes.max(self.records_max());
        records > self.records_max() * 5 / 2 || self.are_heads_full(usage)
    }

    fn are_heads_full(&self, usage: &Usage) -> bool {
        usage.head_bytes() > self.heads_max() * 3
    }

    /// Whether a checkpoint that is due cannot wait for what is being evicted.
    pub(super) fn is_pressing(&self, usage: &Usage) -> bool {
        usage.unwritten_bytes > self.records_max() * 5 / 4 || self.is_memory_full(usage)
    }

    /// How much of a checkpoint is copied at once. All of it if memory is full: callers wait until
    /// it is written.
    pub(super) fn copy_step(&self) -> usize {
        let is_full = self.is_memory_full(&self.machine.usage());
        if is_full { usize::MAX } else { self.options.copy_step }
    }

    /// How far memory has filled up since the checkpoint in progress began: from 0 to 1, at which
    /// callers that take much memory should wait for it. Beyond 1 is the reserve of
    /// [`Partition::reserve_bytes`], at whose end all callers wait. `None` without a checkpoint.
    pub fn filling(&self) -> Option<f64> {
        self.cutting?;
        let usage = self.machine.usage();
        let records_max = self.records_max() * 5 / 2 - self.reserve_bytes();
        let records_max = records_max.saturating_sub(usage.frozen_bytes.max(self.records_max()));
        let heads_max = (self.heads_max() * 3).saturating_sub(self.reserve_bytes());
        let heads = usage.head_bytes().saturating_sub(self.cut_head_bytes);
        let heads_max = heads_max.saturating_sub(self.cut_head_bytes);
        let part = |used: usize, max: usize| used as f64 / max.max(1) as f64;
        Some(part(usage.unwritten_bytes, records_max).max(part(heads, heads_max)))
    }

    /// Memory reserved for callers that take little, while a checkpoint is behind.
    pub fn reserve_bytes(&self) -> usize {
        share(&self.options) / 4
    }

    fn records_max(&self) -> usize {
        share(&self.options)
    }

    pub(super) fn heads_max(&self) -> usize {
        share(&self.options)
    }
}

/// Estimated bytes that a checkpoint writes.
pub(super) fn cost(usage: &Usage) -> usize {
    changed_bytes(usage) + usage.unwritten_bytes
}

/// Estimated bytes of messages and groups that a checkpoint writes.
pub(super) fn changed_bytes(usage: &Usage) -> usize {
    let mean = usage.head_bytes() / (usage.messages + usage.groups).max(1);
    mean.saturating_mul(usage.changed)
}

pub(super) fn share(options: &Options) -> usize {
    (options.memory_bytes / 4).min(SHARE_BYTES_MAX)
}
