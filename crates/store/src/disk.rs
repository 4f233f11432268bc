//! The store on a disk: the default.
//!
//! It [joins](crate::joined) the [`journal`](crate::journal) and the
//! [`archive`](crate::archive) in one directory, under one lock file and one format marker.
//!
//! [`DiskStore::open`] returns the store for its owner and the [`Workers`] for the simulator or for
//! threads ([`Workers::spawn`]) to step. Only [`DiskStore::open_threaded`] and the threads use a
//! clock; the rest is deterministic.
//!
//! Invariants:
//! - the format marker is written last in a new store and in a backup: without it a directory that
//!   is not empty is refused;
//! - nobody else opens the directory while its lock is held, so that whoever owns it is confirmed
//!   at once.

mod backup;
mod check;
mod marker;
mod workers;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;
use std::sync::Arc;

pub use backup::{Moment, Planted, Source, Stage, backup, backup_planted};
pub use check::{Summary, check};
pub use marker::NAME as MARKER_NAME;
pub use workers::{Threads, Workers};

use crate::archive::{self, Archive};
use crate::joined::{Joined, Parts, Signals};
use crate::journal::{self, Bounds, Journal, Position, Wake};
use crate::{Epoch, Error, OsVolume, Volume};

/// The lock file of a directory.
pub(crate) const LOCK_NAME: &str = "LOCK";

/// Options of a store on disk.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub journal: journal::Options,
    pub archive: archive::Options,
    /// Identity of a new store, never changed. Part of every record's checksum, so that bytes
    /// stored by a user are never taken for a record; must be random. [`DiskStore::open_threaded`]
    /// sets it.
    pub identity: u64,
    /// Refuse a directory that holds no store, instead of creating one there.
    pub must_exist: bool,
    /// For the first open of a copy: the epoch of its owner, above all epochs that the original
    /// reached after the copy was made. It grows with the time of opening, so that each copy is
    /// above those opened earlier, in whatever order they were made. If the copy is ahead of it,
    /// its epoch is raised by a large step.
    pub lineage: Option<Epoch>,
}

impl Options {
    /// The smallest disk for this many stores: on a smaller one there is always [`Room::Low`].
    pub fn disk_bytes_min(&self, stores: u16) -> u64 {
        let segments = 1 + self.journal.spares_min as u64;
        let fixed = segments * u64::from(self.journal.segment_bytes) + self.archive.reserve_bytes;
        self.journal.free_bytes_min + u64::from(stores) * fixed
    }
}

/// A partition in a directory. Dropping it without [`close`](crate::Store::close) counts as a
/// crash.
pub type DiskStore = Joined<Journal>;

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
        let archive = Archive::open(Arc::clone(&volume), options.archive)?;
        assert_eq!(archive.head(), head, "nobody else has the lock");
        let (lock, lineage) = (Some(lock), options.lineage);
        let parts = Parts { volume, archive, log: journal, wake, signals, lock, lineage };
        let store = Self::new(parts)?;
        let workers = Workers::new(&store);
        Ok((store, workers))
    }

    /// Opens or creates the store in the directory `path`, with its workers on threads that stop
    /// with it.
    pub fn open_threaded(path: &Path, mut options: Options, wake: Wake) -> Result<Self, Error> {
        let opened = match options.must_exist {
            true => OsVolume::open(path),
            false => OsVolume::create(path),
        };
        let volume =
            opened.map_err(|error| Error::io("open", &path.display().to_string(), error))?;
        if options.identity == 0 {
            // The standard library's only randomness; enough to distinguish stores.
            options.identity = RandomState::new().build_hasher().finish();
        }
        let (mut store, workers) = Self::open(Arc::new(volume), options, wake)?;
        let threads = workers.spawn()?;
        store.keep(threads);
        Ok(store)
    }

    /// A source for [`backup`], usable on any thread while the store is in use.
    pub fn source(&self) -> Source {
        Source::new(&self.shared)
    }

    /// Does not wake the journal's thread until [`Self::flush`]: for one small batch it is faster
    /// to sync on the owner's thread than to switch to another and back.
    pub fn hold(&mut self) {
        self.shared.log.hold();
    }

    /// Makes appended batches durable on this thread, as far as there is room. The journal's thread
    /// does the rest. [`Self::mark`] MUST follow.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.shared.log.flush()
    }

    /// Writes the journal's mark of what was flushed: after the answers, which need not wait for
    /// it.
    pub fn mark(&mut self) -> Result<(), Error> {
        self.shared.log.mark()
    }

    /// Creates a new store. The marker comes last, so that a crash before it leaves a directory
    /// that is created again: until then there is no epoch and no batch.
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
