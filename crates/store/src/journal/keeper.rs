//! The keeper: creates spare segments before they are needed, and reuses or removes those that are
//! no longer needed.
//!
//! A new segment is filled with zeros and synced piece by piece under a temporary name, then
//! renamed to the next id. Syncing overwrites of such a file, or of a renamed old one, takes about
//! half the time of a growing file, and cannot fail for lack of space. If there is no space for the
//! next spare, the store reports [`crate::Room::Low`], and the existing spares are the reserve.
//!
//! While free space is below the watermark only that reserve is kept: further spares, and segments
//! that are no longer needed, are removed. Above it they are kept for reuse. Neither consumes free
//! space, so the two do not alternate.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::record::segment_name;
use super::recover::Segment;
use super::segments::Retired;
use super::{Core, Options, limits, lock, remove};
use crate::{Error, File, Sequence};

/// The name of a segment while it is filled.
const NEW_NAME: &str = "journal-new.tmp";

static ZEROS: [u8; 256 * 1_024] = [0; 256 * 1_024];

/// Creates, renames and removes segments, when stepped.
#[derive(Debug)]
pub struct Keeper {
    pub(super) core: Arc<Core>,
}

impl Keeper {
    /// Does a bounded amount of work. False if there was nothing to do, or no room to do it.
    pub fn step(&mut self) -> Result<bool, Error> {
        self.core.keep()
    }
}

/// A spare that is being filled.
#[derive(Debug, Default)]
pub(super) struct Growing {
    file: Option<Arc<dyn File>>,
    filled: u64,
}

/// Fills `file` from `start` to `end` with zeros, synced piece by piece.
pub(super) fn write_zeros(file: &dyn File, start: u64, end: u64) -> io::Result<()> {
    let mut at = start;
    while at < end {
        at = write_zero_piece(file, at, end)?;
    }
    Ok(())
}

fn write_zero_piece(file: &dyn File, start: u64, end: u64) -> io::Result<u64> {
    debug_assert!(start < end, "there is something to fill");
    let end = end.min(start + limits::FILL_BYTES);
    let mut at = start;
    while at < end {
        let zeros = ZEROS.get(..(end - at) as usize).unwrap_or(&ZEROS);
        file.write_all_at(zeros, at)?;
        at += zeros.len() as u64;
    }
    file.sync()?;
    Ok(end)
}

impl Core {
    /// One step of the keeper, on any thread.
    pub(super) fn keep(&self) -> Result<bool, Error> {
        let mut growing = lock(&self.growing);
        self.stop.check()?;
        let kept = match self.keep_next(&mut growing) {
            Err(error) if error.is_full() => {
                *growing = Growing::default();
                self.note(&self.no_spare, true);
                remove(&*self.volume, NEW_NAME).map(|()| false)
            }
            kept => kept,
        };
        drop(growing);
        kept.map_err(|error| self.fail(error))
    }

    fn keep_next(&self, growing: &mut Growing) -> Result<bool, Error> {
        let free_bytes = self.measure_free_bytes()?;
        self.note(&self.below_watermark, free_bytes < self.options.free_bytes_min);
        Ok(self.tidy()? || self.shed()? || self.grow(growing)?)
    }

    /// The next spare for the flusher. If the keeper is behind, the work is done here.
    pub(super) fn take_spare(&self) -> Result<Option<Segment>, Error> {
        loop {
            if let Some(spare) = lock(&self.segments).spares.pop_front() {
                (self.nudge)();
                return Ok(Some(spare));
            }
            if !self.keep()? && lock(&self.segments).spares.is_empty() {
                return Ok(None);
            }
        }
    }

    /// Removes an unfinished spare, else a segment that is no longer needed, else a spare.
    pub(super) fn make_room(&self) -> Result<bool, Error> {
        let mut growing = lock(&self.growing);
        *growing = Growing::default();
        let made = match self.volume.remove(NEW_NAME) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.tidy_up_to(0).and_then(|did| Ok(did || self.remove_spare(0)?))
            }
            Err(error) => Err(Error::io("remove", &self.volume.describe(NEW_NAME), error)),
        };
        made.map_err(|error| self.fail(error))
    }

    pub(super) fn is_short(&self) -> bool {
        self.below_watermark.load(Ordering::Relaxed)
    }

    /// Removes a spare beyond the reserve while space is short.
    fn shed(&self) -> Result<bool, Error> {
        Ok(self.is_short() && self.remove_spare(self.options.spares_min)?)
    }

    /// Removes the last spare if there are more than `kept`.
    fn remove_spare(&self, kept: usize) -> Result<bool, Error> {
        let mut segments = lock(&self.segments);
        if segments.spares.len() <= kept {
            return Ok(false);
        }
        let Some(spare) = segments.spares.pop_back() else { return Ok(false) };
        assert_eq!(spare.id + 1, segments.next_id, "the last spare goes first");
        segments.next_id = spare.id;
        drop(segments);
        remove(&*self.volume, &segment_name(spare.id))?;
        self.sync_names()?;
        Ok(true)
    }

    /// Turns one segment that is no longer needed into a spare, or removes it.
    fn tidy(&self) -> Result<bool, Error> {
        let Options { spares_min, spares_max, .. } = self.options;
        self.tidy_up_to(if self.is_short() { spares_min } else { spares_max })
    }

    /// Like `tidy`, keeping at most this many spares.
    fn tidy_up_to(&self, spares_max: usize) -> Result<bool, Error> {
        let mut segments = lock(&self.segments);
        segments.retire(self.through.load(Ordering::Acquire), self.options.segment_bytes);
        let Some(retired) = segments.retired.pop_front() else { return Ok(false) };
        let reuse = retired.reusable && segments.spares.len() < spares_max;
        let id = segments.next_id;
        drop(segments);
        let name = segment_name(retired.id);
        let done = if reuse {
            self.make_spare(&name, id)
        } else {
            remove(&*self.volume, &name).and_then(|()| self.sync_names())
        };
        if let Err(error) = done {
            // It may still exist: removing it again is harmless.
            let retired = Retired { reusable: false, ..retired };
            lock(&self.segments).retired.push_front(retired);
            return Err(error);
        }
        Ok(true)
    }

    /// Fills a piece of the next spare, if there are too few.
    fn grow(&self, growing: &mut Growing) -> Result<bool, Error> {
        let segments = lock(&self.segments);
        let (spares, id) = (segments.spares.len(), segments.next_id);
        drop(segments);
        if spares >= self.options.spares_min && growing.file.is_none() {
            self.note(&self.no_spare, false);
            return Ok(false);
        }
        let failed = |error| Error::io("fill", &self.volume.describe(NEW_NAME), error);
        let wanted = u64::from(self.options.segment_bytes);
        let file = match growing.file.clone() {
            Some(file) => file,
            None => {
                remove(&*self.volume, NEW_NAME)?;
                // Not begun if it does not fit: the last bytes are for manifests.
                if self.measure_free_bytes()? < wanted + wanted / 16 {
                    return Err(self.no_room());
                }
                growing.filled = 0;
                let file = self.volume.create(NEW_NAME).map_err(failed)?;
                growing.file.insert(file).clone()
            }
        };
        growing.filled = write_zero_piece(&*file, growing.filled, wanted).map_err(failed)?;
        assert!(growing.filled <= wanted, "a segment has its length, and no more");
        if growing.filled == wanted {
            *growing = Growing::default();
            self.make_spare(NEW_NAME, id)?;
            self.note(&self.no_spare, false);
        }
        Ok(true)
    }

    /// Renames the file to the place after the last spare, durably.
    fn make_spare(&self, name: &str, id: u32) -> Result<(), Error> {
        let spare = segment_name(id);
        let renamed = self.volume.rename(name, &spare);
        renamed.map_err(|error| Error::io("rename", &self.volume.describe(name), error))?;
        self.sync_names()?;
        let opened = self.volume.open(&spare).and_then(|file| Ok((file.len()?, file)));
        let (len, file) =
            opened.map_err(|error| Error::io("open", &self.volume.describe(&spare), error))?;
        let mut segments = lock(&self.segments);
        assert_eq!(segments.next_id, id, "only one thread makes spares at a time");
        segments.spares.push_back(Segment { id, file, first: Sequence::MAX, len });
        segments.next_id += 1;
        segments.check();
        drop(segments);
        // A flusher that found no spare is waiting.
        self.inbox.interrupt();
        Ok(())
    }

    fn sync_names(&self) -> Result<(), Error> {
        let synced = self.volume.sync_names();
        synced.map_err(|error| Error::io("sync the directory", &self.volume.describe(""), error))
    }

    fn measure_free_bytes(&self) -> Result<u64, Error> {
        let free = self.volume.free_bytes();
        let free = free
            .map_err(|error| Error::io("measure the room of", &self.volume.describe(""), error))?;
        self.free_bytes.store(free, Ordering::Relaxed);
        Ok(free)
    }

    fn note(&self, flag: &AtomicBool, value: bool) {
        if flag.swap(value, Ordering::Relaxed) != value {
            (self.wake)();
        }
    }
}
