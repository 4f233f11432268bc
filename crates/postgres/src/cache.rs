//! Pieces of runs on the local disk, bounded. What fails here costs a fetch and nothing else.
//!
//! One sparse file per run; which pieces are in it is known in memory only, so nothing that an
//! earlier process left is believed.

use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use rustix::fs::{FallocateFlags, fallocate};

use crate::log::lock;

/// A run and its pieces.
#[derive(Debug)]
pub(crate) struct Run {
    number: u64,
    state: RwLock<Pieces>,
}

#[derive(Debug, Default)]
struct Pieces {
    /// In order, without a gap.
    places: Vec<Place>,
    bytes: u64,
    file: Option<fs::File>,
}

#[derive(Debug)]
struct Place {
    at: u64,
    length: u64,
    is_here: bool,
    /// Read since it was last considered for removal.
    is_used: AtomicBool,
}

impl Run {
    pub(crate) fn new(number: u64, places: &[(u64, u64)]) -> Self {
        let run = Self { number, state: RwLock::default() };
        let mut state = run.write();
        for (at, length) in places {
            // A gap is damage: reads beyond it fail as if the run ended there.
            if *at == state.bytes {
                state.push(*length, false);
            }
        }
        drop(state);
        run
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.read().bytes
    }

    fn read(&self) -> RwLockReadGuard<'_, Pieces> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Pieces> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pieces {
    fn push(&mut self, length: u64, is_here: bool) {
        let (at, is_used) = (self.bytes, AtomicBool::new(true));
        self.places.push(Place { at, length, is_here, is_used });
        self.bytes += length;
    }

    fn index(&self, offset: u64) -> Option<usize> {
        let after = self.places.partition_point(|place| place.at <= offset);
        let index = after.checked_sub(1)?;
        self.places.get(index).filter(|place| offset < place.at + place.length).map(|_| index)
    }
}

/// The cache of one partition.
#[derive(Debug)]
pub(crate) struct Cache {
    /// None where nothing is kept.
    directory: Option<PathBuf>,
    bytes_max: u64,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    bytes: u64,
    /// The oldest first.
    pieces: VecDeque<(Weak<Run>, usize)>,
}

impl Cache {
    /// Begins with nothing; directories that earlier owners left are removed.
    pub(crate) fn create(parent: &Path, partition: u16, name: &str, bytes_max: u64) -> Self {
        let prefix = format!("partition-{partition:04}-");
        for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let directory = parent.join(format!("{prefix}{name}"));
        let _ = fs::create_dir_all(&directory);
        Self { directory: Some(directory), bytes_max, held: Mutex::default() }
    }

    /// Keeps nothing: every piece is fetched when it is read.
    pub(crate) fn none() -> Self {
        Self { directory: None, bytes_max: 0, held: Mutex::default() }
    }

    /// Adds a piece at the end of a run, and keeps it.
    pub(crate) fn add(&self, run: &Arc<Run>, at: u64, bytes: &[u8]) {
        let mut state = run.write();
        assert_eq!(at, state.bytes, "runs grow at their end");
        let index = state.places.len();
        state.push(bytes.len() as u64, false);
        let kept = self.put(run.number, &mut state, index, bytes);
        drop(state);
        if kept {
            self.note(run, index, bytes.len() as u64);
        }
    }

    /// Reads a part of a run; `fetch` gets the piece at an offset where it is not here.
    pub(crate) fn read(
        &self,
        run: &Arc<Run>,
        mut buffer: &mut [u8],
        mut offset: u64,
        fetch: impl Fn(u64) -> io::Result<Vec<u8>>,
    ) -> io::Result<()> {
        while !buffer.is_empty() {
            let (index, at, length) = {
                let state = run.read();
                let index = state.index(offset).ok_or(io::ErrorKind::UnexpectedEof)?;
                let place = state.places.get(index).ok_or(io::ErrorKind::UnexpectedEof)?;
                (index, place.at, place.length)
            };
            let count = usize::try_from(at + length - offset)
                .map_or(buffer.len(), |left| left.min(buffer.len()));
            let (part, rest) = buffer.split_at_mut(count);
            if !take(run, index, part, offset) {
                let bytes = fetch(at)?;
                let from = usize::try_from(offset - at).map_err(io::Error::other)?;
                let there = bytes.get(from..from + count).ok_or(io::ErrorKind::UnexpectedEof)?;
                part.copy_from_slice(there);
                let mut state = run.write();
                let is_new = state.places.get(index).is_some_and(|place| !place.is_here);
                let kept = is_new && self.put(run.number, &mut state, index, &bytes);
                drop(state);
                if kept {
                    self.note(run, index, length);
                }
            }
            offset += count as u64;
            buffer = rest;
        }
        Ok(())
    }

    pub(crate) fn remove(&self, run: &Arc<Run>) {
        let mut state = run.write();
        let here = state.places.iter_mut().filter(|place| place.is_here);
        let freed: u64 = here
            .map(|place| {
                place.is_here = false;
                place.length
            })
            .sum();
        state.file = None;
        drop(state);
        let mut held = lock(&self.held);
        held.bytes = held.bytes.saturating_sub(freed);
        held.pieces.retain(|(of, _)| !std::ptr::eq(of.as_ptr(), Arc::as_ptr(run)));
        if let Some(path) = self.path(run.number) {
            let _ = fs::remove_file(path);
        }
    }

    fn path(&self, run: u64) -> Option<PathBuf> {
        Some(self.directory.as_ref()?.join(format!("{run:016x}")))
    }

    /// Writes a piece to the run's file. False if that fails: there may be no room.
    fn put(&self, run: u64, state: &mut Pieces, index: usize, bytes: &[u8]) -> bool {
        let Some(path) = self.path(run) else { return false };
        if state.file.is_none() {
            let opened =
                OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path);
            state.file = opened.ok();
        }
        let Pieces { places, file: Some(file), .. } = state else { return false };
        let Some(place) = places.get_mut(index) else { return false };
        place.is_here = file.write_all_at(bytes, place.at).is_ok();
        place.is_here
    }

    /// Counts a piece, and removes others that were not read lately where there are too many.
    fn note(&self, run: &Arc<Run>, index: usize, length: u64) {
        let mut held = lock(&self.held);
        held.bytes += length;
        held.pieces.push_back((Arc::downgrade(run), index));
        let mut tries = 2 * held.pieces.len();
        while held.bytes > self.bytes_max && tries > 0 {
            tries -= 1;
            let Some((weak, index)) = held.pieces.pop_front() else { return };
            let Some(run) = weak.upgrade() else { continue };
            let mut state = run.write();
            let Pieces { places, file, .. } = &mut *state;
            let Some(place) = places.get_mut(index).filter(|place| place.is_here) else { continue };
            if place.is_used.swap(false, Ordering::Relaxed) {
                held.pieces.push_back((weak, index));
                continue;
            }
            place.is_here = false;
            held.bytes = held.bytes.saturating_sub(place.length);
            if let Some(file) = file {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                // Where the file system has no holes the bytes stay until the run goes.
                let _ = fallocate(&*file, flags, place.at, place.length);
            }
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        if let Some(directory) = &self.directory {
            let _ = fs::remove_dir_all(directory);
        }
    }
}

/// Reads from the local file; false if the piece is not there, or not readable.
fn take(run: &Run, index: usize, part: &mut [u8], offset: u64) -> bool {
    let state = run.read();
    let Some(place) = state.places.get(index).filter(|place| place.is_here) else { return false };
    place.is_used.store(true, Ordering::Relaxed);
    state.file.as_ref().is_some_and(|file| file.read_exact_at(part, offset).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn what_had_to_go_is_fetched_again_and_the_rest_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::create(directory.path(), 0, "claim", 2_000);
        let run = Arc::new(Run::new(7, &[]));
        let piece = |number: u8| vec![number; 1_000];
        for number in 1..=4 {
            cache.add(&run, run.bytes(), &piece(number));
        }
        let fetched = RefCell::new(Vec::new());
        let read = |number: u8| {
            let mut bytes = piece(0);
            let at = u64::from(number - 1) * 1_000;
            let fetch = |at: u64| {
                fetched.borrow_mut().push(at);
                Ok(piece((at / 1_000) as u8 + 1))
            };
            cache.read(&run, &mut bytes, at, fetch).unwrap();
            assert_eq!(bytes, piece(number), "piece {number}");
        };
        (1..=4).for_each(read);
        let first = fetched.take();
        assert!((2..=4).contains(&first.len()), "two of four are kept: {first:?}");
        read(4);
        assert_eq!(fetched.take(), [] as [u64; 0], "the last is here");
    }
}
