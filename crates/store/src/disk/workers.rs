//! The background work of the store on disk: the journal's, and that of every joined store.

use super::DiskStore;
use crate::Error;
use crate::joined::threads;
use crate::joined::{Checkpointer, Merger, Shared};
use crate::journal::{Flusher, Journal, Keeper};

/// The threads of a store on disk.
pub type Threads = threads::Threads<Journal>;

/// All of a store's background work. Each `step` does a bounded amount and returns whether it did
/// anything; an error stops the store.
#[derive(Debug)]
pub struct Workers {
    pub flusher: Flusher,
    pub keeper: Keeper,
    pub checkpointer: Checkpointer<Journal>,
    pub merger: Merger<Journal>,
}

impl Workers {
    pub(super) fn new(store: &DiskStore) -> Self {
        let journal = &store.shared.log;
        Self {
            flusher: journal.flusher(),
            keeper: journal.keeper(),
            checkpointer: store.checkpointer(),
            merger: store.merger(),
        }
    }

    /// Steps each worker once. Returns whether any did something.
    pub fn step(&mut self) -> Result<bool, Error> {
        let flushed = self.flusher.step()?;
        let checkpointed = self.checkpointer.step()?;
        let kept = self.keeper.step()?;
        let merged = self.merger.step()?;
        Ok(flushed || checkpointed || kept || merged)
    }

    /// Runs the workers on threads until the store is closed, dropped or stopped.
    pub fn spawn(self) -> Result<Threads, Error> {
        let Self { flusher, mut keeper, checkpointer, merger } = self;
        let mut threads = checkpointer.threads();
        threads.start("hapax-flush", |shared| flush(flusher, shared))?;
        threads.start("hapax-checkpoint", move |shared| {
            threads::checkpoint(|| keeper.step(), checkpointer, shared)
        })?;
        threads.start("hapax-merge", |shared| threads::merge(merger, shared))?;
        Ok(threads)
    }
}

fn flush(mut flusher: Flusher, shared: &Shared<Journal>) -> Result<(), Error> {
    while !shared.log.stop().is_thrown() {
        if !flusher.step()? {
            shared.log.wait(flusher.is_starved().then_some(threads::RETRY));
        }
    }
    Ok(())
}
