//! A store that joins a log and an archive of rows.
//!
//! ```text
//!   Joined ──append──▶ log
//!     │  └──checkpoint──▶ slot ──Checkpointer──▶ archive ◀──Merger
//!     └──get_many, scan──────────────────────────▶┘
//! ```
//!
//! It knows when what may happen to the two, and neither where the batches are kept
//! ([`Log`]) nor where the runs are ([`Volume`]). The archive's manifest holds `through` and the
//! epoch, so that rows and position change together. [`disk::DiskStore`](crate::disk::DiskStore)
//! is this store over files.
//!
//! Invariants:
//! - an epoch is the log's first, then in the manifest, and then in a batch; the position of its
//!   beginning is in the manifest soon after;
//! - a checkpoint's `through` is durable in the log before the manifest has it, and batches are
//!   released after that;
//! - what earlier owners left over is removed after the claim, and nothing is merged before;
//! - a failure in any worker stops the whole store permanently.

mod owner;
#[cfg(test)]
mod tests;
pub(crate) mod threads;
mod workers;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

pub use threads::Threads;
pub use workers::{Checkpointer, Merger};

use crate::archive::{self, Archive, CheckpointJob, MergeJob, Reader};
use crate::journal::Wake;
use crate::log::Log;
use crate::{Checkpoint, Epoch, Error, Lock, Room, Sequence, Volume};
use threads::Signal;

/// A partition. Dropping it without [`close`](crate::Store::close) is a crash.
pub struct Joined<L: Log> {
    pub(crate) shared: Arc<Shared<L>>,
    reader: Reader,
    epoch: Option<Epoch>,
    /// The last batch that was appended.
    last: Sequence,
    threads: Option<Threads<L>>,
}

/// What a store is made of.
pub(crate) struct Parts<L> {
    pub(crate) volume: Arc<dyn Volume>,
    /// Opened while nobody else can replace its manifest.
    pub(crate) archive: Archive,
    pub(crate) log: L,
    pub(crate) wake: Wake,
    pub(crate) signals: Arc<Signals>,
    pub(crate) lock: Option<Box<dyn Lock>>,
    /// The minimum epoch of the next owner, if this is a copy without an owner yet.
    pub(crate) lineage: Option<Epoch>,
}

/// Opens a store over a log and a volume of another crate.
///
/// The log has to be claimed before the archive is read: see decision 0021. So the opening is in
/// two parts: the log gets [`Opening::on_durable`], is claimed, and then [`Opening::stepped`] or
/// [`Opening::threaded`] joins it to its archive. The first [`Log::claim`] then returns the epoch
/// that was claimed.
pub struct Opening {
    signals: Arc<Signals>,
    wake: Wake,
}

impl Opening {
    pub fn new(wake: Wake) -> Self {
        Self { signals: Arc::default(), wake }
    }

    /// What the log calls when a batch became durable, a question was answered, or it stopped.
    pub fn on_durable(&self) -> Wake {
        let (signals, wake) = (Arc::clone(&self.signals), Arc::clone(&self.wake));
        Arc::new(move || {
            signals.durable_moved();
            wake();
        })
    }

    /// The store, and its workers for the caller to step.
    pub fn stepped<L: Log>(
        self,
        volume: Arc<dyn Volume>,
        options: archive::Options,
        log: L,
    ) -> Result<Stepped<L>, Error> {
        let Self { signals, wake } = self;
        let archive = Archive::open(Arc::clone(&volume), options)?;
        let parts = Parts { volume, archive, log, wake, signals, lock: None, lineage: None };
        let store = Joined::new(parts)?;
        let (checkpointer, merger) = (store.checkpointer(), store.merger());
        Ok(Stepped { store, checkpointer, merger })
    }

    /// The store with its workers on threads that stop with it.
    pub fn threaded<L: Log>(
        self,
        volume: Arc<dyn Volume>,
        options: archive::Options,
        log: L,
    ) -> Result<Joined<L>, Error> {
        let Stepped { mut store, checkpointer, merger } = self.stepped(volume, options, log)?;
        let mut threads = checkpointer.threads();
        threads.start("hapax-checkpoint", move |shared| {
            threads::checkpoint(|| Ok(false), checkpointer, shared)
        })?;
        threads.start("hapax-merge", |shared| threads::merge(merger, shared))?;
        store.keep(threads);
        Ok(store)
    }
}

/// A store and its workers, which the caller steps.
#[derive(Debug)]
pub struct Stepped<L: Log> {
    pub store: Joined<L>,
    pub checkpointer: Checkpointer<L>,
    pub merger: Merger<L>,
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening").finish_non_exhaustive()
    }
}

impl<L: Log> Joined<L> {
    pub(crate) fn new(parts: Parts<L>) -> Result<Self, Error> {
        let Parts { volume, archive, log, wake, signals, lock, lineage } = parts;
        let (reader, through) = (archive.reader(), archive.head().through);
        let last = log.durable()?;
        let shared = Arc::new(Shared {
            volume,
            archive,
            log,
            wake,
            signals,
            lock: Mutex::new(lock),
            ownership: Mutex::new(()),
            lineage: Mutex::new(lineage),
            slot: Mutex::new(None),
            checkpoint: Mutex::new(None),
            merge: Mutex::new(None),
            owned: AtomicBool::new(false),
            under_way: AtomicU64::new(0),
            checkpointed: AtomicU64::new(through),
            checkpoint_full: AtomicBool::new(false),
            merge_full: AtomicBool::new(false),
        });
        Ok(Self { shared, reader, epoch: None, last, threads: None })
    }

    /// The workers' threads end with the store.
    pub(crate) fn keep(&mut self, threads: Threads<L>) {
        self.threads = Some(threads);
    }

    pub(crate) fn checkpointer(&self) -> Checkpointer<L> {
        Checkpointer { shared: Arc::clone(&self.shared) }
    }

    pub(crate) fn merger(&self) -> Merger<L> {
        Merger { shared: Arc::clone(&self.shared) }
    }

    /// The largest batch that [`append`](crate::Store::append) takes.
    pub fn batch_bytes_max(&self) -> u32 {
        self.shared.log.batch_bytes_max()
    }

    /// Whether everything that was started is done: what was appended is durable, and no
    /// checkpoint is under way.
    pub fn is_idle(&self) -> bool {
        let stopped = self.shared.log.stop().is_thrown();
        let durable = self.shared.log.durable().is_ok_and(|durable| durable == self.last);
        stopped || (durable && self.shared.under_way.load(Ordering::Acquire) == 0)
    }

    /// The log of the store.
    pub fn log(&self) -> &L {
        &self.shared.log
    }

    /// The archive of the store, for its statistics.
    pub fn archive(&self) -> &Archive {
        &self.shared.archive
    }
}

impl<L: Log> Drop for Joined<L> {
    fn drop(&mut self) {
        // Not a close: pending batches stay unwritten, as in a crash.
        self.shared.log.stop().fail("it was dropped");
        self.shared.interrupt();
    }
}

impl<L: Log> fmt::Debug for Joined<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let volume = self.shared.volume.describe("");
        f.debug_struct("Joined").field("volume", &volume).finish_non_exhaustive()
    }
}

/// What the owner and the workers share. The lock order is checkpoint, slot, merge; the journal's
/// and the archive's own locks come after.
pub(crate) struct Shared<L> {
    pub(crate) volume: Arc<dyn Volume>,
    pub(crate) archive: Archive,
    pub(crate) log: L,
    wake: Wake,
    pub(crate) signals: Arc<Signals>,
    /// Keeps other processes out where the log does not. Held until the store is closed, or all
    /// that share it are gone.
    lock: Mutex<Option<Box<dyn Lock>>>,
    /// Claims and backups exclude each other, so that a backup's manifest has the epochs of its
    /// records.
    pub(crate) ownership: Mutex<()>,
    /// The minimum epoch of the next owner, if this is a copy without an owner yet.
    lineage: Mutex<Option<Epoch>>,
    /// A checkpoint that was requested and not begun.
    slot: Mutex<Option<Checkpoint>>,
    checkpoint: Mutex<Option<(CheckpointJob, Sequence)>>,
    merge: Mutex<Option<MergeJob>>,
    /// Somebody has claimed the store. Nothing is merged before.
    owned: AtomicBool,
    /// The `through` of the checkpoint in `slot` or `checkpoint`; 0 for none.
    pub(crate) under_way: AtomicU64,
    /// The `through` of the last checkpoint that is visible.
    checkpointed: AtomicU64,
    checkpoint_full: AtomicBool,
    merge_full: AtomicBool,
}

impl<L: Log> Shared<L> {
    pub(crate) fn fail(&self, error: Error) -> Error {
        self.log.stop().fail_by(&error);
        self.interrupt();
        (self.wake)();
        // What ended the log before explains what failed after it.
        match self.log.stop().check() {
            Err(cause @ (Error::Fenced { .. } | Error::Regressed { .. })) => cause,
            _ => error,
        }
    }

    /// Wakes all threads, so that they check for work.
    pub(crate) fn interrupt(&self) {
        self.log.interrupt();
        self.signals.background.raise();
        self.signals.merge.raise();
    }

    pub(crate) fn room(&self) -> Room {
        let full =
            self.checkpoint_full.load(Ordering::Relaxed) || self.merge_full.load(Ordering::Relaxed);
        match full || self.log.is_low() {
            true => Room::Low(self.log.shortage()),
            false => Room::Free,
        }
    }

    pub(crate) fn is_merge_full(&self) -> bool {
        self.merge_full.load(Ordering::Relaxed)
    }

    fn note_full(&self, flag: &AtomicBool, value: bool) {
        if flag.swap(value, Ordering::Relaxed) != value {
            (self.wake)();
        }
    }
}

/// What the threads sleep on.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// For the thread of keeper and checkpointer.
    pub(crate) background: Signal,
    pub(crate) merge: Signal,
    /// The checkpointer waits for the journal.
    waiting_for_durable: AtomicBool,
}

impl Signals {
    pub(crate) fn durable_moved(&self) {
        if self.waiting_for_durable.swap(false, Ordering::AcqRel) {
            self.background.raise();
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `None` if somebody else holds it.
fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
