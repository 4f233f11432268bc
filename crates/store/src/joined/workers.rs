//! The background work of the store, in bounded steps.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Shared, Threads, lock};
use crate::Error;
use crate::archive::{Space, Step};
use crate::log::Log;

/// Writes checkpoints.
pub struct Checkpointer<L> {
    pub(super) shared: Arc<Shared<L>>,
}

impl<L: Log> Checkpointer<L> {
    /// Threads for the workers of the store, none yet.
    pub(crate) fn threads(&self) -> Threads<L> {
        Threads::new(&self.shared)
    }

    /// One step of the checkpoint. False if there is none, or it waits: for the journal, for
    /// merges, or for room.
    pub fn step(&mut self) -> Result<bool, Error> {
        self.shared.step_checkpoint()
    }
}

/// Merges runs of rows.
pub struct Merger<L> {
    pub(super) shared: Arc<Shared<L>>,
}

impl<L: Log> Merger<L> {
    /// One step of a merge. False if there is none, or no room.
    pub fn step(&mut self) -> Result<bool, Error> {
        self.shared.step_merge()
    }
}

impl<L> std::fmt::Debug for Checkpointer<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checkpointer").finish_non_exhaustive()
    }
}

impl<L> std::fmt::Debug for Merger<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Merger").finish_non_exhaustive()
    }
}

impl<L: Log> Shared<L> {
    pub(super) fn step_checkpoint(&self) -> Result<bool, Error> {
        let mut job = lock(&self.checkpoint);
        if job.is_none() {
            self.log.stop().check()?;
            // Taken while `job` is locked, so that a claim finds it in one of the two places. The
            // slot's lock is released before the rows are encoded: the owner must not wait for
            // them.
            let Some(next) = self.next_checkpoint() else { return Ok(false) };
            let mut rows = self.archive.empty_rows();
            (next.rows)(&mut rows);
            let begun = self.archive.checkpoint(rows, next.through, next.at);
            *job = Some((begun, next.through));
            return Ok(true);
        }
        let Some((begun, through)) = job.as_mut() else { return Ok(false) };
        let through = *through;
        // Before reading the journal's progress: otherwise its next step could be missed.
        self.signals.waiting_for_durable.store(true, Ordering::Release);
        let durable = self.log.durable()?;
        self.archive.note_synced(self.log.synced());
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
        self.log.release(through);
        self.signals.merge.raise();
        (self.wake)();
        Ok(true)
    }

    /// The next checkpoint, unless merges are behind.
    fn next_checkpoint(&self) -> Option<crate::Checkpoint> {
        let mut slot = lock(&self.slot);
        if slot.is_none() || self.archive.behind() {
            return None;
        }
        slot.take()
    }

    fn space(&self) -> Result<Space, Error> {
        let free_bytes = self.volume.free_bytes().map_err(|error| {
            self.fail(Error::io("measure the room of", &self.volume.describe(""), error))
        })?;
        Ok(Space { free_bytes, is_short: self.room().is_low() })
    }

    fn step_merge(&self) -> Result<bool, Error> {
        let mut merge = lock(&self.merge);
        self.log.stop().check()?;
        if !self.owned.load(Ordering::Acquire) {
            return Ok(false);
        }
        if merge.is_none() {
            *merge = self.archive.merge(self.space()?);
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
