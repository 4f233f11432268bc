//! Checkpoints that free disk space.
//!
//! A checkpoint lets the journal free segments, and lets the store drop the rows of messages that
//! ended. So while the disk is short of space one is taken although neither memory nor the journal
//! requires it, even when idle: if something was decided since the previous one, and if it writes
//! little compared to what it frees.

use hapax_core::{Time, Usage};
use hapax_store::{Room, Store};

use super::{Partition, memory};

/// Checkpoints that write much, or free no segment, are this many times as far apart.
const RARELY: u64 = 10;

impl<S: Store> Partition<S> {
    /// When a checkpoint that frees space is due.
    pub(super) fn relief_at(&self, usage: &Usage) -> Option<Time> {
        let Room::Low(shortage) = self.room else { return None };
        if !self.is_changed || self.cutting.is_some() {
            return None;
        }
        // Messages that ended take little. The others take as much in the rows as in the journal.
        let cost = memory::changed_bytes(usage) as u64;
        let cheap = (shortage.releasable_bytes / 2).max(shortage.free_bytes / 8);
        let apart = if cost <= cheap && shortage.releasable_bytes > 0 { 1 } else { RARELY };
        // A message takes more in memory than in its row: the actual cost is less.
        let fits = cost <= cheap.max(shortage.free_bytes);
        fits.then(|| self.cut_at.plus(self.options.relief_ms.saturating_mul(apart)))
    }
}
