//! What a partition may keep in memory: when a checkpoint is due, what leaves it, and when callers
//! wait.
//!
//! A quarter for records that wait for a checkpoint, as much for those being written, a quarter for
//! the heads of queues, and as much for messages that came since.

use hapax_core::Usage;
use hapax_store::Store;

use super::{Options, Partition};

/// No share of the memory is larger than this, so that no arena of a checkpoint grows beyond its
/// addresses.
const SHARE_BYTES_MAX: usize = 512 * 1_024 * 1_024;
/// Expired keys leave the disk with a checkpoint; an idle partition cuts one for them this often.
const EXPIRED_MS: u64 = 60_000;

impl<S: Store> Partition<S> {
    /// Leaves what is beyond the budget to the rows, up to `most` messages. Where nothing more can
    /// leave, it is not tried again before a checkpoint, or before much has come.
    pub(super) fn evict(&mut self, most: usize) {
        let left = self.machine.evict(self.heads_max(), most);
        let bytes = self.machine.usage().head_bytes();
        let is_stuck = left < most && bytes > self.heads_max();
        self.stuck_bytes = if is_stuck { bytes + self.heads_max() / 8 } else { 0 };
    }

    /// Leaves everything beyond the budget to the rows, at once, and panics where something stays
    /// that could have left. For tests and the simulator.
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
        let is_crowded = usage.head_bytes() > self.heads_max() * 2 && usage.changed > 0;
        // Delays that end change messages and leave no trace in the journal.
        let changed_bytes = usage.head_bytes() / (usage.messages + usage.groups).max(1);
        let changed_bytes = changed_bytes.saturating_mul(usage.changed);
        usage.unwritten_bytes > self.records_max()
            || self.journal_bytes > self.options.journal_bytes
            || usage.keys_expired && self.machine.now().since(self.cut_at) > EXPIRED_MS
            || is_crowded && self.journal_bytes.max(changed_bytes / 4) > self.heads_max() / 8
    }

    /// Whether there is no room for more while a checkpoint is under way. What it writes counts:
    /// after a crash all of it is read from the journal again.
    pub(super) fn is_memory_full(&self, usage: &Usage) -> bool {
        let records = usage.unwritten_bytes + usage.frozen_bytes.max(self.records_max());
        records > self.records_max() * 5 / 2 || usage.head_bytes() > self.heads_max() * 3
    }

    /// How far memory has filled up since the checkpoint under way was cut: from 0 to 1, where
    /// whoever takes much should wait for the checkpoint. What is beyond 1 is the reserve of
    /// [`Partition::reserve_bytes`], at whose end everybody waits. `None` without a checkpoint.
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

    /// Memory that is kept for those who take little, while a checkpoint is behind.
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

pub(super) fn share(options: &Options) -> usize {
    (options.memory_bytes / 4).min(SHARE_BYTES_MAX)
}
