//! The store under a partition, one of those there are.
//!
//! An enum and not a trait object: its calls are per batch, and what only one store has (a copy of
//! its directory, a sync on the writer's thread) is asked of that one.

use std::time::{Duration, Instant};

use hapax_partition::Options;
use hapax_postgres::PostgresStore;
use hapax_store::archive::Archive;
use hapax_store::disk::{self, DiskStore};
#[cfg(test)]
use hapax_store::memory::MemoryStore;
use hapax_store::{
    Checkpoint, Claim, EachBatch, EachRow, Epoch, Error, PointKey, Question, Room, Sequence, Store,
};

/// The store of a partition.
#[derive(Debug)]
pub enum AnyStore {
    Disk(DiskStore),
    Postgres(Box<PostgresStore>),
    #[cfg(test)]
    Memory(MemoryStore),
}

/// The same call of whichever store it is.
macro_rules! of_any {
    ($any:ident, $store:ident => $call:expr) => {
        match $any {
            AnyStore::Disk($store) => $call,
            AnyStore::Postgres($store) => $call,
            #[cfg(test)]
            AnyStore::Memory($store) => $call,
        }
    };
}

/// What another node has to read and apply before it serves: a takeover takes seconds, so this is
/// less than what a disk has. Two decisions lease and finish a message. Small messages are bounded
/// by decisions; bytes are what large ones take to be read. Fewer bytes cost more than they save:
/// a checkpoint writes the bodies of all messages that are unfinished at that moment, and after
/// 16 MiB those are most of the messages of 1 KiB that were sent since the last one.
const SHARED_JOURNAL_BYTES: usize = 128 << 20;
const SHARED_JOURNAL_DECISIONS: usize = 400_000;

impl AnyStore {
    /// The bytes and decisions of journal after which a checkpoint is taken.
    pub(super) fn journal_max(&self) -> (usize, usize) {
        let Options { journal_bytes, journal_decisions, .. } = Options::default();
        match self {
            Self::Disk(_) => (journal_bytes, journal_decisions),
            Self::Postgres(_) => (SHARED_JOURNAL_BYTES, SHARED_JOURNAL_DECISIONS),
            #[cfg(test)]
            Self::Memory(_) => (journal_bytes, journal_decisions),
        }
    }

    /// Leaves what is appended until [`Self::flush`] to the writer's own thread.
    pub(super) fn hold(&mut self) {
        match self {
            Self::Disk(store) => store.hold(),
            // It gathers by itself what comes while a statement is under way.
            Self::Postgres(_) => {}
            #[cfg(test)]
            Self::Memory(_) => {}
        }
    }

    /// Makes durable what was appended since [`Self::hold`], and returns how long that took.
    /// [`Self::mark`] follows, after the answers.
    pub(super) fn flush(&mut self) -> Result<Duration, Error> {
        match self {
            Self::Disk(store) => {
                let begun = Instant::now();
                store.flush()?;
                Ok(begun.elapsed())
            }
            Self::Postgres(_) => Ok(Duration::ZERO),
            #[cfg(test)]
            Self::Memory(_) => Ok(Duration::ZERO),
        }
    }

    /// Notes how far the store is durable, for its recovery.
    pub(super) fn mark(&mut self) -> Result<(), Error> {
        match self {
            Self::Disk(store) => store.mark(),
            Self::Postgres(_) => Ok(()),
            #[cfg(test)]
            Self::Memory(_) => Ok(()),
        }
    }

    /// About how much of the checkpoint in progress is written, from 0 to 1.
    pub(super) fn checkpoint_progress(&self) -> f64 {
        match self {
            Self::Disk(store) => store.archive().checkpoint_progress(),
            Self::Postgres(store) => store.archive().map_or(1.0, Archive::checkpoint_progress),
            // It is written at once, or waits.
            #[cfg(test)]
            Self::Memory(_) => 0.0,
        }
    }

    /// What a backup is taken from, where the store is a directory.
    pub(super) fn source(&self) -> Option<disk::Source> {
        match self {
            Self::Disk(store) => Some(store.source()),
            Self::Postgres(_) => None,
            #[cfg(test)]
            Self::Memory(_) => None,
        }
    }
}

impl Store for AnyStore {
    fn claim(&mut self) -> Result<Claim, Error> {
        of_any!(self, store => store.claim())
    }

    fn read(&mut self, from: Sequence, each: EachBatch<'_>) -> Result<(), Error> {
        of_any!(self, store => store.read(from, each))
    }

    fn append(&mut self, epoch: Epoch, sequence: Sequence, batch: &[u8]) -> Result<(), Error> {
        of_any!(self, store => store.append(epoch, sequence, batch))
    }

    fn durable(&mut self) -> Result<Sequence, Error> {
        of_any!(self, store => store.durable())
    }

    fn confirm(&mut self) -> Result<Question, Error> {
        of_any!(self, store => store.confirm())
    }

    fn confirmed(&mut self) -> Result<Question, Error> {
        of_any!(self, store => store.confirmed())
    }

    fn checkpoint(&mut self, checkpoint: Checkpoint) -> Result<(), Error> {
        of_any!(self, store => store.checkpoint(checkpoint))
    }

    fn abandon(&mut self) -> Result<bool, Error> {
        of_any!(self, store => store.abandon())
    }

    fn checkpointed(&mut self) -> Result<Sequence, Error> {
        of_any!(self, store => store.checkpointed())
    }

    fn get_many(
        &mut self,
        keys: &[PointKey],
        found: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), Error> {
        of_any!(self, store => store.get_many(keys, found))
    }

    fn scan(&mut self, from: &[u8], to: &[u8], each: EachRow<'_>) -> Result<(), Error> {
        of_any!(self, store => store.scan(from, to, each))
    }

    fn room(&mut self) -> Room {
        of_any!(self, store => store.room())
    }

    fn close(&mut self) -> Result<(), Error> {
        of_any!(self, store => store.close())
    }
}
