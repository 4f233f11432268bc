//! Pieces of runs on the local disk, bounded. What fails here costs a fetch and nothing else.
//!
//! One sparse file per run; which pieces are in it is known in memory only, so nothing that an
//! earlier process left is believed. Neither is what the disk returns: checksums of what was
//! written are kept in memory, one for every 4 KiB, and a piece that differs is fetched again.

use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use rustix::fs::{FallocateFlags, fallocate};

use crate::log::lock;

/// What one checksum is of; blocks of runs are multiples of it.
const PAGE_BYTES: u64 = 4_096;

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
    /// Of each page of it, while it is here.
    sums: Box<[u32]>,
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

impl Place {
    /// Returns how long it is.
    fn leave(&mut self) -> u64 {
        (self.is_here, self.sums) = (false, Box::default());
        self.length
    }
}

impl Pieces {
    fn push(&mut self, length: u64, is_here: bool) {
        let (at, is_used) = (self.bytes, AtomicBool::new(true));
        let sums = Box::default();
        self.places.push(Place { at, length, is_here, sums, is_used });
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
                let was_here = state.places.get(index).is_some_and(|place| place.is_here);
                let is_here = self.put(run.number, &mut state, index, &bytes);
                drop(state);
                match (was_here, is_here) {
                    (false, true) => self.note(run, index, length),
                    (true, false) => self.forget(length),
                    _ => {}
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
        let freed: u64 = here.map(Place::leave).sum();
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
            state.file = self.create_file(&path).ok();
        }
        let Pieces { places, file: Some(file), .. } = state else { return false };
        let Some(place) = places.get_mut(index) else { return false };
        place.is_here = file.write_all_at(bytes, place.at).is_ok();
        place.sums = match place.is_here {
            true => bytes.chunks(PAGE_BYTES as usize).map(crc32c::crc32c).collect(),
            false => Box::default(),
        };
        place.is_here
    }

    /// Also after somebody deleted the directory under a living node.
    fn create_file(&self, path: &Path) -> io::Result<fs::File> {
        let mut how = OpenOptions::new();
        how.read(true).write(true).create(true).truncate(true);
        match (how.open(path), &self.directory) {
            (Err(error), Some(directory)) if error.kind() == io::ErrorKind::NotFound => {
                hapax_store::create_private_directory(directory)?;
                how.open(path)
            }
            (opened, _) => opened,
        }
    }

    /// A piece is not here any more; others take its place in the queue.
    fn forget(&self, length: u64) {
        let mut held = lock(&self.held);
        held.bytes = held.bytes.saturating_sub(length);
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
            held.bytes = held.bytes.saturating_sub(place.leave());
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

/// Reads from the local file; false if the piece is not there, not readable, or not what was
/// written.
fn take(run: &Run, index: usize, part: &mut [u8], offset: u64) -> bool {
    let state = run.read();
    let Some(place) = state.places.get(index).filter(|place| place.is_here) else { return false };
    let Some(file) = &state.file else { return false };
    place.is_used.store(true, Ordering::Relaxed);
    let read = read_pages(file, place, part, offset);
    #[cfg(feature = "connection")]
    if let Err(error) = &read {
        let run = run.number;
        tracing::warn!(%error, run, offset, "the local cache cannot be used; a piece is fetched");
    }
    read.is_ok()
}

/// Reads a part of a piece, and the rest of the pages that it is in, all of which are verified.
fn read_pages(file: &fs::File, place: &Place, part: &mut [u8], offset: u64) -> io::Result<()> {
    let from = offset - place.at;
    let first = from / PAGE_BYTES;
    let start = first * PAGE_BYTES;
    let end = (from + part.len() as u64).next_multiple_of(PAGE_BYTES).min(place.length);
    let mut rest = Vec::new();
    let is_whole = (start, end) == (from, from + part.len() as u64);
    let pages = match is_whole {
        true => &mut *part,
        false => {
            rest.resize(usize::try_from(end - start).map_err(io::Error::other)?, 0);
            &mut rest[..]
        }
    };
    file.read_exact_at(pages, place.at + start)?;
    let found = pages.chunks(PAGE_BYTES as usize).map(crc32c::crc32c);
    let sums = place.sums.iter().skip(usize::try_from(first).map_err(io::Error::other)?);
    if !found.zip(sums).all(|(found, sum)| found == *sum) {
        return Err(io::Error::other("it returned something else than was written"));
    }
    if !is_whole {
        let from = usize::try_from(from - start).map_err(io::Error::other)?;
        let there = rest.get(from..from + part.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        part.copy_from_slice(there);
    }
    Ok(())
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

    #[test]
    fn what_is_gone_takes_no_room_from_what_is_here() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::create(directory.path(), 0, "claim", 2_000);
        let add = |number: u64| {
            let run = Arc::new(Run::new(number, &[]));
            (0..2).for_each(|piece| cache.add(&run, piece * 1_000, &[number as u8; 1_000]));
            run
        };
        let read = |run: &Arc<Run>, fetch: &dyn Fn(u64) -> io::Result<Vec<u8>>| {
            let mut bytes = [0; 2_000];
            cache.read(run, &mut bytes, 0, fetch).map(|()| bytes)
        };
        let nothing = |_| Err(io::Error::other("it is here"));
        cache.remove(&add(1));
        let run = add(2);
        assert_eq!(read(&run, &nothing).unwrap(), [2; 2_000], "a run was removed before");
        // The disk changed both pieces, and takes nothing any more.
        let path = cache.path(2).unwrap();
        fs::write(&path, [0; 2_000]).unwrap();
        run.write().file = fs::File::open(&path).ok();
        assert_eq!(read(&run, &|_| Ok(vec![2; 1_000])).unwrap(), [2; 2_000]);
        let run = add(3);
        assert_eq!(read(&run, &nothing).unwrap(), [3; 2_000], "others were given up");
    }

    #[test]
    fn a_directory_that_was_deleted_is_made_again() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("cache");
        let cache = Cache::create(&directory, 0, "claim", 1 << 20);
        let runs = [1, 2].map(|number| Arc::new(Run::new(number, &[])));
        let reads = |run: &Arc<Run>| {
            let mut bytes = [0; 100];
            let nothing = |_| Err(io::Error::other("it is here"));
            cache.read(run, &mut bytes, 200, nothing).map(|()| bytes[0])
        };
        cache.add(&runs[0], 0, &[7; 1_000]);
        fs::remove_dir_all(&directory).unwrap();
        cache.add(&runs[1], 0, &[8; 1_000]);
        assert_eq!(runs.each_ref().map(|run| reads(run).unwrap()), [7, 8]);
        // Where that fails pieces are fetched, and nothing else.
        fs::remove_dir_all(&directory).unwrap();
        fs::write(&directory, b"a file").unwrap();
        let third = Arc::new(Run::new(3, &[]));
        cache.add(&third, 0, &[9; 1_000]);
        assert!(reads(&third).is_err());
        let mut bytes = [0; 100];
        cache.read(&third, &mut bytes, 200, |_| Ok(vec![9; 1_000])).unwrap();
        assert_eq!(bytes, [9; 100]);
    }

    #[test]
    fn what_the_local_disk_changed_is_fetched_again() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::create(directory.path(), 0, "claim", 1 << 20);
        let piece = |number: u64| -> Vec<u8> {
            (0..10_000_u64).map(|at| (at * 31 / 7 + number * 101) as u8).collect()
        };
        let run = Arc::new(Run::new(7, &[]));
        (0..3).for_each(|number| cache.add(&run, run.bytes(), &piece(number)));
        let whole: Vec<u8> = (0..3).flat_map(piece).collect();
        let fetched = RefCell::new(Vec::new());
        let read = |from: usize, length: usize| {
            let mut bytes = vec![0; length];
            let fetch = |at: u64| {
                fetched.borrow_mut().push(at);
                Ok(piece(at / 10_000))
            };
            cache.read(&run, &mut bytes, from as u64, fetch).unwrap();
            assert_eq!(bytes, whole[from..from + length], "{length} bytes from {from}");
            fetched.take()
        };
        let file = cache.path(7).unwrap();
        let parts =
            [(0, 30_000), (4_096, 4_096), (9_999, 2), (18_192, 1_808), (12_345, 1), (29_999, 1)];
        for (from, length) in parts {
            assert_eq!(read(from, length), [] as [u64; 0], "all of it is here");
        }
        // Its first byte, its last one, and one in the rest of the last page of each.
        for (from, length) in parts {
            for changed in [from, from + length - 1] {
                let mut bytes = fs::read(&file).unwrap();
                bytes[changed] ^= 0x10;
                let disk = OpenOptions::new().write(true).open(&file).unwrap();
                disk.write_all_at(&bytes, 0).unwrap();
                let at = changed as u64 / 10_000 * 10_000;
                assert_eq!(read(from, length), [at], "byte {changed} of {from}, {length}");
                assert_eq!(read(from, length), [] as [u64; 0], "it is here again");
            }
        }
        // It was cut.
        let disk = OpenOptions::new().write(true).open(&file).unwrap();
        disk.set_len(15_000).unwrap();
        assert_eq!(read(0, 30_000), [10_000, 20_000]);
        assert_eq!(read(0, 30_000), [] as [u64; 0]);
    }
}
