//! What goes on behind the owner's back, in bounded steps.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Shared, Threads, lock};
use crate::archive::Step;
use crate::journal::{Flusher, Keeper};
use crate::{Error, RowSet};

/// All of a store's background work. Each `step` does a bounded piece and tells whether it did
/// anything; an error stops the store.
#[derive(Debug)]
pub struct Workers {
    pub flusher: Flusher,
    pub keeper: Keeper,
    pub checkpointer: Checkpointer,
    pub merger: Merger,
}

impl Workers {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            flusher: shared.journal.flusher(),
            keeper: shared.journal.keeper(),
            checkpointer: Checkpointer { shared: Arc::clone(shared) },
            merger: Merger { shared: Arc::clone(shared) },
        }
    }

    /// Steps each worker once; whether any did something.
    pub fn step(&mut self) -> Result<bool, Error> {
        let flushed = self.flusher.step()?;
        let checkpointed = self.checkpointer.step()?;
        let kept = self.keeper.step()?;
        let merged = self.merger.step()?;
        Ok(flushed || checkpointed || kept || merged)
    }

    /// Runs the workers on threads until the store is closed, dropped or stopped.
    pub fn spawn(self) -> Result<Threads, Error> {
        let shared = Arc::clone(&self.checkpointer.shared);
        Threads::spawn(self, shared)
    }
}

/// Writes checkpoints.
pub struct Checkpointer {
    pub(super) shared: Arc<Shared>,
}

impl Checkpointer {
    /// A piece of the checkpoint. False where there is none, or it waits: for the journal, for
    /// merges to follow, or for room.
    pub fn step(&mut self) -> Result<bool, Error> {
        self.shared.step_checkpoint()
    }
}

/// Merges runs of rows.
pub struct Merger {
    pub(super) shared: Arc<Shared>,
}

impl Merger {
    /// A piece of a merge. False where there is none, or no room.
    pub fn step(&mut self) -> Result<bool, Error> {
        self.shared.step_merge()
    }
}

impl std::fmt::Debug for Checkpointer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checkpointer").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Merger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Merger").finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn step_checkpoint(&self) -> Result<bool, Error> {
        let mut job = lock(&self.checkpoint);
        if job.is_none() {
            self.journal.stop().check()?;
            // Taken while `job` is locked, so that a claim finds it in one of the two places. The
            // slot's lock is released before the rows are made: the owner must not wait for them.
            let Some(next) = self.next_checkpoint() else { return Ok(false) };
            let mut rows = RowSet::default();
            (next.rows)(&mut rows);
            let begun = self.archive.checkpoint(rows, next.through, next.at);
            *job = Some((begun, next.through));
            return Ok(true);
        }
        let Some((begun, through)) = job.as_mut() else { return Ok(false) };
        let through = *through;
        // Before asking how far the journal is: else its next step could go unnoticed.
        self.signals.waiting_for_durable.store(true, Ordering::Release);
        let durable = self.journal.durable()?;
        self.archive.note_synced(self.journal.synced().to_bits());
        match begun.step(durable) {
            Ok(step) => {
                self.note_full(&self.checkpoint_full, false);
                match step {
                    Step::More => return Ok(true),
                    Step::Waiting => return Ok(false),
                    Step::Done => {}
                }
            }
            Err(error) if error.is_full() => {
                self.note_full(&self.checkpoint_full, true);
                return Ok(false);
            }
            Err(error) => return Err(self.fail(error)),
        }
        *job = None;
        assert_eq!(self.archive.head().through, through, "rows and position move together");
        assert!(through <= durable, "rows are seen when the journal is durable");
        let before = self.checkpointed.swap(through, Ordering::AcqRel);
        assert!(before < through, "checkpoints go forward");
        self.under_way.store(0, Ordering::Release);
        drop(job);
        self.journal.release(through);
        self.signals.merge.raise();
        (self.wake)();
        Ok(true)
    }

    /// Nothing is begun while merges cannot follow.
    fn next_checkpoint(&self) -> Option<crate::Checkpoint> {
        let mut slot = lock(&self.slot);
        if slot.is_none() || self.archive.behind() {
            return None;
        }
        slot.take()
    }

    fn step_merge(&self) -> Result<bool, Error> {
        let mut merge = lock(&self.merge);
        self.journal.stop().check()?;
        if merge.is_none() {
            *merge = self.archive.merge();
        }
        let Some(job) = merge.as_mut() else {
            self.note_full(&self.merge_full, false);
            return Ok(false);
        };
        match job.step() {
            Ok(Step::More) => {
                self.note_full(&self.merge_full, false);
                Ok(true)
            }
            Ok(Step::Waiting) => Ok(false),
            Ok(Step::Done) => {
                *merge = None;
                self.note_full(&self.merge_full, false);
                self.signals.background.raise();
                Ok(true)
            }
            Err(error) if error.is_full() => {
                *merge = None;
                self.note_full(&self.merge_full, true);
                Ok(false)
            }
            Err(error) => Err(self.fail(error)),
        }
    }
}
