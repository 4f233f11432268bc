//! The journal: batches in the order they were appended, in segment files.
//!
//! ```text
//!   append ──copy──▶ pending ──swap──▶ flusher ──one write, one sync──▶ active segment
//!                                         │ full: rolls into a spare
//!   keeper ──zeros, or an old segment renamed──▶ spares        closed segments ──▶ keeper
//!                                                              (wholly in the rows)
//! ```
//!
//! It handles sequences, epochs and bytes, not rows: [`Journal::release`] reports the batch up to
//! which the rows are complete. It spawns no thread, reads no clock and uses no randomness:
//! [`Flusher`] and [`Keeper`] are stepped by their owner, a thread or the simulator.
//!
//! Invariants:
//! - a batch is durable when its segment was synced after it was written and all earlier batches
//!   are durable;
//! - after a failed write or sync nothing is written or synced again: [`Stop`] is permanent;
//! - segments are used in the order of their ids, without a gap; a spare has its final name,
//!   synced, before it is used, so that rolling costs no directory sync;
//! - a segment is released only when all its batches are in the rows and its successor's header was
//!   synced;
//! - the lock order is writer, growing, pending, segments.
//!
//! A cut tail cannot reappear: an owner's first act is a seal with its own, higher epoch, written
//! over the cut with zeros behind it and synced before anything is appended. A record of the cut
//! window would have to continue a chain it was not written for, with a lower epoch.

mod keeper;
pub(crate) mod limits;
mod log;
pub(crate) mod mark;
mod options;
mod pending;
mod read;
pub(crate) mod record;
pub(crate) mod recover;
mod segments;
pub(crate) mod walk;
pub(crate) mod writer;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use keeper::Keeper;
pub use options::Options;
pub use read::Pin;
pub use record::Position;
pub use recover::Bounds;
pub use writer::Flusher;

use crate::{Epoch, Error, Sequence, Shortage, Stop, Volume};
use keeper::Growing;
use mark::Mark;
use pending::Inbox;
use record::{RECORD_HEADER_LEN, SEGMENT_HEADER_LEN, SegmentHeader, segment_id, segment_name};
use recover::recover;
use segments::Segments;
use writer::Writer;

/// Called whenever something advanced or failed. The store may hold locks meanwhile: the function
/// should wake a thread and return, and must not call the store.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// A recovered journal. Clones share it.
#[derive(Clone, Debug)]
pub struct Journal {
    core: Arc<Core>,
}

/// What the owner, the flusher and the keeper share.
struct Core {
    volume: Arc<dyn Volume>,
    options: Options,
    identity: u64,
    wake: Wake,
    /// Called when there is work for the keeper.
    nudge: Wake,
    stop: Stop,
    inbox: Inbox,
    writer: Mutex<Writer>,
    growing: Mutex<Growing>,
    segments: Mutex<Segments>,
    /// The last batch that was appended.
    appended: AtomicU64,
    /// The last durable batch. The same as in the segments, without their lock.
    durable: AtomicU64,
    /// The rows are complete up to this batch.
    through: AtomicU64,
    /// No spare could be created: the device is full.
    no_spare: AtomicBool,
    /// Free space is below the watermark.
    below_watermark: AtomicBool,
    /// Free space, as it was measured last.
    free_bytes: AtomicU64,
    /// The last owner closed the journal, and no owner began since.
    closed: AtomicBool,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let durable = self.durable.load(Ordering::Relaxed);
        f.debug_struct("Core").field("durable", &durable).finish_non_exhaustive()
    }
}

impl Journal {
    /// Creates the first segment of a new store, replacing what an unfinished creation left.
    pub fn create(volume: &dyn Volume, options: &Options, identity: u64) -> Result<(), Error> {
        let options = options.bounded();
        let names =
            volume.list().map_err(|error| Error::io("list", &volume.describe(""), error))?;
        for name in names.iter().filter(|name| segment_id(name).is_some()) {
            remove(volume, name)?;
        }
        let name = segment_name(1);
        let failed = |operation| {
            let file = volume.describe(&name);
            move |error| Error::io(operation, &file, error)
        };
        let file = volume.create(&name).map_err(failed("create"))?;
        keeper::write_zeros(&*file, 0, u64::from(options.segment_bytes)).map_err(failed("fill"))?;
        let header = SegmentHeader {
            identity,
            id: 1,
            first: 1,
            epoch: 0,
            previous: 0,
            synced: Position { segment: 1, offset: 0 },
        };
        file.write_all_at(&header.encode(), 0).map_err(failed("write"))?;
        file.sync().map_err(failed("sync"))?;
        // An unfinished creation may have left the mark of another identity.
        remove(volume, mark::NAME)?;
        volume.sync_names().map_err(failed("sync the directory of"))
    }

    /// Whether there is no journal, or one whose creation was not finished.
    pub fn is_unused(volume: &dyn Volume) -> Result<bool, Error> {
        let names =
            volume.list().map_err(|error| Error::io("list", &volume.describe(""), error))?;
        let segments: Vec<_> = names.iter().filter(|name| segment_id(name).is_some()).collect();
        let name = match segments.as_slice() {
            [] => return Ok(true),
            [name] => name.as_str(),
            _ => return Ok(false),
        };
        // An owner's first record is right after the header.
        let mut bytes = [0; (SEGMENT_HEADER_LEN + RECORD_HEADER_LEN) as usize];
        let failed = |error| Error::io("read", &volume.describe(name), error);
        let file = volume.open(name).map_err(failed)?;
        if file.len().map_err(failed)? < bytes.len() as u64 {
            return Ok(true);
        }
        file.read_exact_at(&mut bytes, 0).map_err(failed)?;
        Ok(bytes.iter().skip(SEGMENT_HEADER_LEN as usize).all(|byte| *byte == 0))
    }

    /// Recovers the journal without changing it: that waits for [`Journal::begin`].
    pub fn open(
        volume: Arc<dyn Volume>,
        options: &Options,
        identity: u64,
        bounds: Bounds,
        wake: Wake,
        nudge: Wake,
    ) -> Result<Self, Error> {
        let options = options.bounded();
        let recovered = recover(&*volume, identity, bounds, &mut |_, _| {})?;
        let tail = recovered.tail;
        let segments = Segments::new(&*volume, recovered, options.segment_bytes)?;
        let mark = Mark::open(&*volume, identity)?;
        let writer = Writer::new(tail, segments.active.clone(), mark);
        let core = Core {
            volume,
            options,
            identity,
            wake,
            nudge,
            stop: Stop::default(),
            inbox: Inbox::default(),
            writer: Mutex::new(writer),
            growing: Mutex::new(Growing::default()),
            segments: Mutex::new(segments),
            appended: AtomicU64::new(tail.last()),
            durable: AtomicU64::new(tail.last()),
            through: AtomicU64::new(bounds.through),
            no_spare: AtomicBool::new(false),
            below_watermark: AtomicBool::new(false),
            free_bytes: AtomicU64::new(u64::MAX),
            closed: AtomicBool::new(tail.closed),
        };
        Ok(Self { core: Arc::new(core) })
    }

    /// Starts an owner's records: cuts a torn tail, and seals what is valid. Batches in flight
    /// become durable first. Returns the last batch, and whether the last owner closed the journal
    /// after it.
    pub fn begin(&self, epoch: Epoch) -> Result<(Sequence, bool), Error> {
        let closed = self.core.closed.swap(false, Ordering::AcqRel);
        self.core.drain()?;
        self.core.seal(epoch)?;
        Ok((self.durable()?, closed))
    }

    /// Copies the batch, for the flusher to write. The caller keeps epochs and sequences in order.
    /// If too much is pending, the caller's own thread flushes.
    pub fn append(&self, epoch: Epoch, sequence: Sequence, batch: &[u8]) -> Result<(), Error> {
        let max = self.batch_bytes_max();
        let Some(length) = u32::try_from(batch.len()).ok().filter(|length| *length <= max) else {
            return Err(Error::TooLarge { bytes: batch.len() as u64, max: u64::from(max) });
        };
        loop {
            self.core.stop.check()?;
            if self.core.inbox.push(&self.core.options, epoch, sequence, length, batch) {
                let before = self.core.appended.swap(sequence, Ordering::AcqRel);
                assert_eq!(before + 1, sequence, "batches are appended in order");
                return Ok(());
            }
            if !self.core.flush()? && self.core.inbox.is_full(&self.core.options, length) {
                return Err(self.core.no_room());
            }
        }
    }

    /// Does not wake the flusher until [`Self::flush`]: the owner's own thread flushes what it
    /// appends.
    pub fn hold(&self) {
        self.core.inbox.hold(true);
    }

    /// Writes and syncs what is pending on this thread, as far as there is room. The flusher does
    /// the rest. [`Self::mark`] MUST follow when what is durable now was answered.
    pub fn flush(&self) -> Result<(), Error> {
        let flushed = self.core.flush_unmarked();
        self.core.inbox.hold(false);
        flushed.map(drop)
    }

    /// Writes the mark of what [`Self::flush`] synced, for which nobody should wait.
    pub fn mark(&self) -> Result<(), Error> {
        self.core.mark()
    }

    /// The largest batch that fits into a segment.
    pub fn batch_bytes_max(&self) -> u32 {
        self.core.options.batch_bytes_max
    }

    pub fn durable(&self) -> Result<Sequence, Error> {
        self.core.stop.check()?;
        Ok(self.core.durable.load(Ordering::Acquire))
    }

    /// Part of every record's checksum.
    pub(crate) fn identity(&self) -> u64 {
        self.core.identity
    }

    /// The end of what was synced.
    pub fn synced(&self) -> Position {
        lock(&self.core.segments).durable.1
    }

    /// Reports that the rows hold everything up to `through`: the keeper may reuse or remove older
    /// segments.
    pub fn release(&self, through: Sequence) {
        let durable = self.core.durable.load(Ordering::Acquire);
        assert!(through <= durable, "rows never hold what the journal may lose");
        self.core.through.fetch_max(through, Ordering::AcqRel);
        (self.core.nudge)();
    }

    /// Whether a spare could not be made, or free space is below the watermark.
    pub fn is_low(&self) -> bool {
        self.core.no_spare.load(Ordering::Relaxed) || self.core.is_short()
    }

    /// The free space, and what a checkpoint taken now would add to it.
    pub fn shortage(&self) -> Shortage {
        Shortage {
            free_bytes: self.core.free_bytes.load(Ordering::Relaxed),
            releasable_bytes: lock(&self.core.segments).releasable_bytes(),
        }
    }

    /// The stop of the journal: its cause, or a way to trigger it.
    pub fn stop(&self) -> &Stop {
        &self.core.stop
    }

    pub fn flusher(&self) -> Flusher {
        Flusher { core: Arc::clone(&self.core) }
    }

    pub fn keeper(&self) -> Keeper {
        Keeper { core: Arc::clone(&self.core) }
    }

    /// Removes the segment that is needed least, to make room for something smaller and more
    /// important. False if none can be removed.
    pub fn make_room(&self) -> Result<bool, Error> {
        self.core.make_room()
    }

    /// Makes everything appended durable.
    pub fn drain(&self) -> Result<(), Error> {
        self.core.drain()
    }

    /// Whether everything appended is durable.
    pub fn is_drained(&self) -> bool {
        let appended = self.core.appended.load(Ordering::Acquire);
        self.core.durable.load(Ordering::Acquire) >= appended
    }

    /// Makes everything durable, seals it and stops the journal permanently.
    pub fn close(&self, epoch: Epoch) -> Result<(), Error> {
        self.core.drain()?;
        self.core.seal(epoch)?;
        self.halt("it was closed");
        Ok(())
    }

    /// Stops the journal permanently as it is, and waits for steps in progress to end.
    pub fn halt(&self, cause: &str) {
        self.core.stop.fail(cause);
        self.interrupt();
        drop(lock(&self.core.writer));
        drop(lock(&self.core.growing));
    }

    /// Wakes the flusher's thread.
    pub fn interrupt(&self) {
        self.core.inbox.interrupt();
    }

    /// For the flusher's thread: sleeps until a batch is pending or it is interrupted.
    pub(crate) fn wait(&self, timeout: Option<Duration>) {
        self.core.inbox.wait(timeout);
    }
}

impl Core {
    /// Stops the journal with the error and returns it.
    fn fail(&self, error: Error) -> Error {
        self.stop.fail(&error.to_string());
        (self.wake)();
        error
    }

    fn no_room(&self) -> Error {
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        Error::io("make room for a segment in", &self.volume.describe(""), full)
    }
}

/// Ignores poisoning: a thread that panicked stops the store through its own guard.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes a file that may already be gone.
fn remove(volume: &dyn Volume, name: &str) -> Result<(), Error> {
    match volume.remove(name) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io("remove", &volume.describe(name), error))
        }
        _ => Ok(()),
    }
}

const _: () = assert!(limits::SEGMENT_BYTES_MIN > 4 * SEGMENT_HEADER_LEN);
