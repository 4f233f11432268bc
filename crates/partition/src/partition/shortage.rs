//! Checkpoints that free disk space.
//!
//! A checkpoint lets the journal free segments, and lets the store drop the rows of messages that
//! ended. So while the disk is short of space one is taken although neither memory nor the journal
//! requires it, even when idle: if something was decided since the previous one, and if it writes
//! little compared to what it frees.

use hapax_core::{Time, Usage};
use hapax_store::{Room, Shortage, Store};

use super::{Partition, memory};

/// Checkpoints that write much, or free no segment, are this many times as far apart.
pub(super) const RARELY: u64 = 10;

impl<S: Store> Partition<S> {
    /// When a checkpoint that frees space is due.
    pub(super) fn relief_at(&self, usage: &Usage) -> Option<Time> {
        let Room::Low(shortage) = self.room else { return None };
        if !self.is_changed || self.cutting.is_some() {
            return None;
        }
        // Messages that ended take little. The others take as much in the rows as in the journal.
        let apart = apart(shortage, memory::changed_bytes(usage) as u64)?;
        let at = self.cut_at.plus(self.options.relief_ms.saturating_mul(apart));
        Some(at.max(self.unwritable_until(usage)))
    }
}

/// How far apart such checkpoints are if the next one writes about `cost` bytes; `None` if it does
/// not fit.
fn apart(shortage: Shortage, cost: u64) -> Option<u64> {
    let cheap = (shortage.releasable_bytes / 2).max(shortage.free_bytes / 8);
    // A message takes more in memory than in its row: the actual cost is less.
    let fits = cost <= cheap.max(shortage.free_bytes);
    let is_worthwhile = cost <= cheap && shortage.releasable_bytes > 0;
    fits.then_some(if is_worthwhile { 1 } else { RARELY })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_frees_much_for_little_is_written_soon_and_what_does_not_fit_never() {
        let apart = |free_bytes, releasable_bytes, cost| {
            apart(Shortage { free_bytes, releasable_bytes }, cost)
        };
        assert_eq!(apart(0, 1_000, 500), Some(1), "it frees twice as much");
        assert_eq!(apart(0, 1_000, 501), None, "it does not fit");
        assert_eq!(apart(600, 1_000, 501), Some(RARELY), "it fits, and frees little");
        assert_eq!(apart(8_000, 100, 1_000), Some(1), "it takes little of what is free");
        assert_eq!(apart(8_000, 100, 8_000), Some(RARELY));
        assert_eq!(apart(8_000, 100, 8_001), None);
        assert_eq!(apart(8_000, 0, 0), Some(RARELY), "it frees no segment");
    }
}
