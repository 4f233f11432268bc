//! The store on a disk: the default.
//!
//! ```text
//!   DiskStore ──append──▶ journal ◀──Flusher, Keeper
//!       │  └──checkpoint──▶ slot ──Checkpointer──▶ archive ◀──Merger
//!       └──get_many, scan──────────────────────────▶┘
//! ```
//!
//! It joins the [`journal`](crate::journal) and the [`archive`](crate::archive) under one lock
//! file and one format marker. The archive's manifest holds `through` and the epoch: it is the one
//! place where rows and journal position move together.
//!
//! [`DiskStore::open`] gives the store to its owner and the [`Workers`] to whoever steps them: the
//! simulator, or threads of their own ([`Workers::spawn`]). Only [`DiskStore::open_threaded`] and
//! the threads know a clock; the rest is deterministic.
//!
//! Invariants:
//! - the format marker is the last file of a new store and of a backup: without it a directory
//!   with anything in it is refused;
//! - an epoch is in the manifest before any record bears it, and its seal's place soon after;
//! - a checkpoint's `through` is durable in the journal before the manifest has it, and a segment
//!   is let go after that;
//! - a failure in any worker stops all of it, for good.

mod backup;
mod check;
mod marker;
mod owner;
mod threads;
mod workers;

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use backup::{Moment, Planted, Source, Stage, backup, backup_planted};
pub use check::{Summary, check};
pub use marker::NAME as MARKER_NAME;
pub use threads::Threads;
pub use workers::{Checkpointer, Merger, Workers};

use crate::archive::{self, Archive, CheckpointJob, MergeJob, Reader};
use crate::journal::{self, Bounds, Journal, Position, Wake};
use crate::{Checkpoint, Epoch, Error, Lock, OsVolume, Room, Sequence, Volume};
use threads::Signal;

/// The lock file of a directory.
pub(crate) const LOCK_NAME: &str = "LOCK";

/// What may be chosen about a store on disk.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub journal: journal::Options,
    pub archive: archive::Options,
    /// Given to a new store for good. It is part of every record's checksum, so that no bytes a
    /// user stores pass for a record; draw it at random. [`DiskStore::open_threaded`] does.
    pub identity: u64,
    /// Refuse a directory that holds no store, instead of creating one there.
    pub must_exist: bool,
    /// For the first open of a copy: the epoch of its owner, so that it is above all epochs of the
    /// original, whose owners went on after the copy was made. It grows with the time of opening,
    /// so that copies which are opened one after the other are above each other, in whatever order
    /// they were made. Where the copy is ahead of it, its epoch is raised by a large step.
    pub lineage: Option<Epoch>,
}

/// A partition in a directory. Dropping it without [`close`](crate::Store::close) is a crash.
pub struct DiskStore {
    shared: Arc<Shared>,
    reader: Reader,
    epoch: Option<Epoch>,
    /// The last batch that was appended.
    last: Sequence,
    threads: Option<Threads>,
}

impl DiskStore {
    /// Opens a store and recovers its journal, or creates one in an empty directory. Nothing of
    /// an existing store is changed before the owner claims it.
    pub fn open(
        volume: Arc<dyn Volume>,
        options: Options,
        wake: Wake,
    ) -> Result<(Self, Workers), Error> {
        if options.must_exist && marker::read(&*volume)?.is_none() {
            return Err(marker::absent(&*volume));
        }
        let lock = volume.lock(LOCK_NAME).map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => Error::Locked { file: volume.describe(LOCK_NAME) },
            _ => Error::io("lock", &volume.describe(LOCK_NAME), error),
        })?;
        let identity = match marker::read(&*volume)? {
            Some(identity) => identity,
            None => Self::create(&volume, &options)?,
        };
        marker::refuse_missing_manifest(&*volume)?;
        let head = match archive::head(&*volume)? {
            Some(head) => head,
            None => Archive::open(Arc::clone(&volume), options.archive)?.head(),
        };
        let signals = Arc::new(Signals::default());
        let synced = Position::from_bits(head.synced);
        let bounds = Bounds { epoch: head.epoch, through: head.through, synced };
        let (on_wake, on_nudge) = (Arc::clone(&signals), Arc::clone(&signals));
        let user_wake = Arc::clone(&wake);
        let journal = Journal::open(
            Arc::clone(&volume),
            &options.journal,
            identity,
            bounds,
            Arc::new(move || {
                on_wake.durable_moved();
                user_wake();
            }),
            Arc::new(move || on_nudge.background.raise()),
        )?;
        let last = journal.durable()?;
        // After the journal: opening the archive removes leftovers.
        let archive = Archive::open(Arc::clone(&volume), options.archive)?;
        assert_eq!(archive.head(), head, "nobody else has the lock");
        let reader = archive.reader();
        let shared = Arc::new(Shared {
            volume,
            identity,
            archive,
            journal,
            wake,
            signals,
            lock: Mutex::new(Some(lock)),
            ownership: Mutex::new(()),
            lineage: Mutex::new(options.lineage),
            slot: Mutex::new(None),
            checkpoint: Mutex::new(None),
            merge: Mutex::new(None),
            under_way: AtomicU64::new(0),
            checkpointed: AtomicU64::new(head.through),
            checkpoint_full: AtomicBool::new(false),
            merge_full: AtomicBool::new(false),
        });
        let workers = Workers::new(&shared);
        Ok((Self { shared, reader, epoch: None, last, threads: None }, workers))
    }

    /// Opens or creates the store in the directory `path`, with its workers on threads that end
    /// with it.
    pub fn open_threaded(path: &Path, mut options: Options, wake: Wake) -> Result<Self, Error> {
        let opened = match options.must_exist {
            true => OsVolume::open(path),
            false => OsVolume::create(path),
        };
        let volume =
            opened.map_err(|error| Error::io("open", &path.display().to_string(), error))?;
        if options.identity == 0 {
            // The standard library's only randomness; enough to tell stores apart.
            options.identity = RandomState::new().build_hasher().finish();
        }
        let (mut store, workers) = Self::open(Arc::new(volume), options, wake)?;
        store.threads = Some(workers.spawn()?);
        Ok(store)
    }

    /// What [`backup`] copies from, on any thread, while the store goes on.
    pub fn source(&self) -> Source {
        Source::new(&self.shared)
    }

    /// The largest batch that [`append`](crate::Store::append) takes.
    pub fn batch_bytes_max(&self) -> u32 {
        self.shared.journal.batch_bytes_max()
    }

    /// The archive under the store, for its figures.
    pub fn archive(&self) -> &Archive {
        &self.shared.archive
    }

    /// Makes a new store. The marker comes last, so that a crash on the way leaves a directory
    /// that is created anew: until then there can be no epoch and no batch.
    fn create(volume: &Arc<dyn Volume>, options: &Options) -> Result<u64, Error> {
        if !Journal::is_unused(&**volume)? {
            return Err(marker::missing(&**volume));
        }
        let head = Archive::open(Arc::clone(volume), options.archive)?.head();
        if head.epoch > 0 || head.through > 0 {
            return Err(marker::missing(&**volume));
        }
        Journal::create(&**volume, &options.journal, options.identity)?;
        marker::write(&**volume, options.identity)?;
        Ok(options.identity)
    }
}

impl Drop for DiskStore {
    fn drop(&mut self) {
        // Not a close: what is pending stays unwritten, as in a crash.
        self.shared.journal.stop().fail("it was dropped");
        self.shared.interrupt();
    }
}

impl fmt::Debug for DiskStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let directory = self.shared.volume.describe("");
        f.debug_struct("DiskStore").field("directory", &directory).finish_non_exhaustive()
    }
}

/// What the owner and the workers share. The lock order is checkpoint, slot, merge; the journal's
/// and the archive's own locks come after.
struct Shared {
    volume: Arc<dyn Volume>,
    identity: u64,
    archive: Archive,
    journal: Journal,
    wake: Wake,
    signals: Arc<Signals>,
    /// Held until the store is closed, or all that share it are gone.
    lock: Mutex<Option<Box<dyn Lock>>>,
    /// Claims and backups exclude each other, so that a backup's manifest knows the epochs of its
    /// records.
    ownership: Mutex<()>,
    /// The least epoch of the next owner, where this is a copy that nobody owned yet.
    lineage: Mutex<Option<Epoch>>,
    /// A checkpoint that was handed in and not begun.
    slot: Mutex<Option<Checkpoint>>,
    checkpoint: Mutex<Option<(CheckpointJob, Sequence)>>,
    merge: Mutex<Option<MergeJob>>,
    /// The `through` of the checkpoint in `slot` or `checkpoint`; 0 for none.
    under_way: AtomicU64,
    /// The `through` of the last checkpoint that is visible.
    checkpointed: AtomicU64,
    checkpoint_full: AtomicBool,
    merge_full: AtomicBool,
}

impl Shared {
    fn fail(&self, error: Error) -> Error {
        self.journal.stop().fail(&error.to_string());
        self.interrupt();
        (self.wake)();
        error
    }

    /// Ends the waiting of all threads, so that they look around.
    fn interrupt(&self) {
        self.journal.interrupt();
        self.signals.background.raise();
        self.signals.merge.raise();
    }

    fn room(&self) -> Room {
        let full =
            self.checkpoint_full.load(Ordering::Relaxed) || self.merge_full.load(Ordering::Relaxed);
        if full { Room::Low } else { self.journal.room() }
    }

    fn is_merge_full(&self) -> bool {
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
struct Signals {
    /// For the thread of keeper and checkpointer.
    background: Signal,
    merge: Signal,
    /// The checkpointer waits for the journal.
    waiting_for_durable: AtomicBool,
}

impl Signals {
    fn durable_moved(&self) {
        if self.waiting_for_durable.swap(false, Ordering::AcqRel) {
            self.background.raise();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
