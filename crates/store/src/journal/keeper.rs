//! The keeper: sees to it that there is a spare segment before one is needed, and lets go of those
//! that are no longer.
//!
//! A new segment is filled with zeros and synced piece by piece under another name, then gets its
//! place in the row. Overwriting such a file, or an old one under a new name, syncs in about half
//! the time of a growing file, and cannot fail for want of room. A device without room for the
//! next spare means [`crate::Room::Low`]: those there are remain as the reserve.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::record::segment_name;
use super::recover::Segment;
use super::segments::Retired;
use super::{Core, limits, lock, remove};
use crate::{Error, File, Sequence};

/// The name of a segment while it is filled.
const NEW_NAME: &str = "journal-new.tmp";

/// Makes, renames and removes segments, when stepped.
#[derive(Debug)]
pub struct Keeper {
    pub(super) core: Arc<Core>,
}

impl Keeper {
    /// A bounded piece of work. False where there was nothing to do, or no room to do it.
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
    let len = (end - start).min(limits::FILL_BYTES);
    file.write_all_at(&vec![0; len as usize], start)?;
    file.sync()?;
    Ok(start + len)
}

impl Core {
    /// One step of the keeper, on whichever thread.
    pub(super) fn keep(&self) -> Result<bool, Error> {
        let mut growing = lock(&self.growing);
        self.stop.check()?;
        let kept = match self.tidy().and_then(|did| Ok(did || self.grow(&mut growing)?)) {
            Err(error) if error.is_full() => {
                *growing = Growing::default();
                remove(&*self.volume, NEW_NAME).map_err(|error| self.fail(error))?;
                self.note(&self.no_spare, true);
                Ok(false)
            }
            kept => kept,
        };
        drop(growing);
        let kept = kept.and_then(|did| self.watch_free_bytes().map(|()| did));
        kept.map_err(|error| self.fail(error))
    }

    /// The next spare for the flusher. Where the keeper did not keep pace, the work is done here.
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

    /// Removes the last spare, to make room for what is smaller and matters more. False where
    /// there is none.
    pub(super) fn give_up_spare(&self) -> Result<bool, Error> {
        let _growing = lock(&self.growing);
        let mut segments = lock(&self.segments);
        let Some(spare) = segments.spares.pop_back() else { return Ok(false) };
        assert_eq!(spare.id + 1, segments.next_id, "the last spare goes first");
        segments.next_id = spare.id;
        drop(segments);
        let removed =
            remove(&*self.volume, &segment_name(spare.id)).and_then(|()| self.sync_names());
        removed.map_err(|error| self.fail(error))?;
        Ok(true)
    }

    /// Turns one segment that is no longer needed into a spare, or removes it.
    fn tidy(&self) -> Result<bool, Error> {
        let mut segments = lock(&self.segments);
        segments.retire(self.through.load(Ordering::Acquire), self.options.segment_bytes);
        let Some(retired) = segments.retired.pop_front() else { return Ok(false) };
        let reuse = retired.reusable && segments.spares.len() < self.options.spares_max;
        let id = segments.next_id;
        drop(segments);
        let name = segment_name(retired.id);
        let done = if reuse {
            self.make_spare(&name, id)
        } else {
            remove(&*self.volume, &name).and_then(|()| self.sync_names())
        };
        if let Err(error) = done {
            // Still there as far as anybody knows: removing it again does no harm.
            let retired = Retired { reusable: false, ..retired };
            lock(&self.segments).retired.push_front(retired);
            return Err(error);
        }
        Ok(true)
    }

    /// Fills a piece of the next spare, where there are not enough.
    fn grow(&self, growing: &mut Growing) -> Result<bool, Error> {
        let segments = lock(&self.segments);
        let (spares, id) = (segments.spares.len(), segments.next_id);
        drop(segments);
        if spares >= self.options.spares_min && growing.file.is_none() {
            self.note(&self.no_spare, false);
            return Ok(false);
        }
        let failed = |error| Error::io("fill", &self.volume.describe(NEW_NAME), error);
        let file = match growing.file.clone() {
            Some(file) => file,
            None => {
                remove(&*self.volume, NEW_NAME)?;
                growing.filled = 0;
                let file = self.volume.create(NEW_NAME).map_err(failed)?;
                growing.file.insert(file).clone()
            }
        };
        let wanted = u64::from(self.options.segment_bytes);
        growing.filled = write_zero_piece(&*file, growing.filled, wanted).map_err(failed)?;
        assert!(growing.filled <= wanted, "a segment has its length, and no more");
        if growing.filled == wanted {
            *growing = Growing::default();
            self.make_spare(NEW_NAME, id)?;
            self.note(&self.no_spare, false);
        }
        Ok(true)
    }

    /// Gives the file its place after the last spare, durably.
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

    fn watch_free_bytes(&self) -> Result<(), Error> {
        let free = self.volume.free_bytes();
        let free = free
            .map_err(|error| Error::io("measure the room of", &self.volume.describe(""), error))?;
        self.note(&self.below_watermark, free < self.options.free_bytes_min);
        Ok(())
    }

    fn note(&self, flag: &AtomicBool, value: bool) {
        if flag.swap(value, Ordering::Relaxed) != value {
            (self.wake)();
        }
    }
}
