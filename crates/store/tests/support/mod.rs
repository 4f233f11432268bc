//! What the tests of the store on disk share: a disk in memory that loses power, fills up, rots
//! and fails; and a store on it that the test steps.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test: what fails here fails it"
)]
#![expect(dead_code, reason = "every test binary uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use hapax_store::archive::Head;
use hapax_store::disk::{DiskStore, Options, Workers};
use hapax_store::{
    Checkpoint, Claim, Error, File, Lock, NotReplaced, RowSet, Sequence, Store, Volume,
    replace_by_rename,
};

/// What a power cut leaves or takes whole.
const SECTOR: usize = 512;

/// Numbers that look random, from a seed.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = self.0;
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ (number >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

#[derive(Clone, Debug, Default)]
struct Contents {
    now: Vec<u8>,
    synced: Vec<u8>,
    /// The sectors that the next sync writes.
    dirty: BTreeSet<usize>,
}

impl Contents {
    fn new(bytes: Vec<u8>) -> Self {
        Self { now: bytes.clone(), synced: bytes, dirty: BTreeSet::new() }
    }

    fn write(&mut self, bytes: &[u8], start: usize) {
        let end = start + bytes.len();
        self.now.resize(self.now.len().max(end), 0);
        self.now[start..end].copy_from_slice(bytes);
        self.dirty.extend(start / SECTOR..end.div_ceil(SECTOR));
    }

    fn sync(&mut self) {
        self.synced.resize(self.now.len(), 0);
        for sector in std::mem::take(&mut self.dirty) {
            let end = self.now.len().min((sector + 1) * SECTOR);
            let place = (sector * SECTOR).min(end)..end;
            self.synced[place.clone()].copy_from_slice(&self.now[place]);
        }
    }
}

#[derive(Clone, Debug, Default)]
struct State {
    names: BTreeMap<String, usize>,
    synced_names: BTreeMap<String, usize>,
    files: Vec<Contents>,
    locks: BTreeSet<String>,
    operations: u64,
    /// After this many operations everything fails.
    power_until: Option<u64>,
    bytes_max: Option<u64>,
    /// The sync with this number, counted from now on from 1, fails.
    failing_sync: Option<u64>,
    syncs_after_failure: u64,
    sync_failed: bool,
}

impl State {
    fn change(&mut self) -> io::Result<()> {
        self.operations += 1;
        match self.power_until {
            Some(until) if self.operations > until => Err(io::Error::other("the power is out")),
            _ => Ok(()),
        }
    }

    fn used(&self) -> u64 {
        self.names.values().map(|id| self.files[*id].now.len() as u64).sum()
    }
}

/// A disk in memory. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk(Arc<Mutex<State>>);

impl Disk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no test panics while it holds the disk")
    }

    pub(crate) fn operations(&self) -> u64 {
        self.state().operations
    }

    pub(crate) fn cut_power_after(&self, operations: u64) {
        let mut state = self.state();
        state.power_until = Some(state.operations + operations);
    }

    /// The disk when the power comes back: of what was not synced, each sector is there or not.
    pub(crate) fn after_power_cut(&self, random: &mut Random) -> Self {
        let old = self.state();
        // The directory is a journal of its own: all names since the last sync, or none.
        let names = if random.below(2) == 0 { &old.names } else { &old.synced_names };
        let (names, files) = (names.clone(), old.files.iter());
        let files = files.map(|file| survivor(file, random)).collect();
        let state = State { synced_names: names.clone(), names, files, ..State::default() };
        Self(Arc::new(Mutex::new(state)))
    }

    /// The disk without anything that was not synced.
    pub(crate) fn synced_only(&self) -> Self {
        let old = self.state();
        let names = old.synced_names.clone();
        let files = old.files.iter().map(|file| Contents::new(file.synced.clone()));
        let files = files.collect();
        let state = State { synced_names: names.clone(), names, files, ..State::default() };
        Self(Arc::new(Mutex::new(state)))
    }

    /// An independent copy, with all that was written and nobody's locks.
    pub(crate) fn copy(&self) -> Self {
        let mut state = self.state().clone();
        state.locks.clear();
        Self(Arc::new(Mutex::new(state)))
    }

    pub(crate) fn limit(&self, bytes: Option<u64>) {
        self.state().bytes_max = bytes;
    }

    pub(crate) fn used(&self) -> u64 {
        self.state().used()
    }

    pub(crate) fn fail_sync(&self, from_now: u64) {
        self.state().failing_sync = Some(from_now);
    }

    pub(crate) fn fail_no_sync(&self) {
        self.state().failing_sync = None;
    }

    /// Syncs and writes that were tried after the failed sync.
    pub(crate) fn tried_after_failed_sync(&self) -> u64 {
        self.state().syncs_after_failure
    }

    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        let state = self.state();
        state.files[state.names[name]].now.clone()
    }

    pub(crate) fn set_bytes(&self, name: &str, bytes: &[u8]) {
        let mut state = self.state();
        let id = state.names[name];
        state.files[id] = Contents::new(bytes.to_vec());
    }

    pub(crate) fn flip(&self, name: &str, bit: usize) {
        let mut bytes = self.bytes(name);
        bytes[bit / 8] ^= 1 << (bit % 8);
        self.set_bytes(name, &bytes);
    }

    pub(crate) fn delete(&self, name: &str) {
        let mut state = self.state();
        state.names.remove(name).expect("is there");
        state.synced_names.remove(name);
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.state().names.keys().cloned().collect()
    }

    pub(crate) fn segments(&self) -> Vec<String> {
        self.names().into_iter().filter(|name| name.ends_with(".seg")).collect()
    }

    /// Everything on it, to see whether it changed. Locks are no contents.
    pub(crate) fn snapshot(&self) -> BTreeMap<String, Vec<u8>> {
        self.names()
            .into_iter()
            .filter(|name| name != "LOCK")
            .map(|name| (name.clone(), self.bytes(&name)))
            .collect()
    }
}

fn survivor(file: &Contents, random: &mut Random) -> Contents {
    let len = if random.below(2) == 0 { file.now.len() } else { file.synced.len() };
    let mut bytes = vec![0; len];
    for start in (0..len).step_by(SECTOR) {
        let end = len.min(start + SECTOR);
        let of = if random.below(2) == 0 { &file.now } else { &file.synced };
        let of = of.get(start..end.min(of.len())).unwrap_or_default();
        bytes[start..start + of.len()].copy_from_slice(of);
    }
    Contents::new(bytes)
}

impl Volume for Disk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        match self.state().names.get(name) {
            Some(id) => Ok(Arc::new(DiskFile { disk: self.clone(), id: *id })),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let mut state = self.state();
        state.change()?;
        if state.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let id = state.files.len();
        state.files.push(Contents::default());
        state.names.insert(name.to_owned(), id);
        Ok(Arc::new(DiskFile { disk: self.clone(), id }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.change()?;
        let id = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.names.insert(to.to_owned(), id);
        Ok(())
    }

    fn replace(&self, name: &str, bytes: &[u8], _head: Head) -> Result<(), NotReplaced> {
        replace_by_rename(self, name, bytes)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.change()?;
        state.names.remove(name).map(|_| ()).ok_or(io::ErrorKind::NotFound.into())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.names())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.state();
        state.change()?;
        state.synced_names = state.names.clone();
        Ok(())
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn Lock>> {
        match self.state().locks.insert(name.to_owned()) {
            true => Ok(Box::new(Locked { disk: self.clone(), name: name.to_owned() })),
            false => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let state = self.state();
        Ok(state.bytes_max.map_or(u64::MAX, |max| max.saturating_sub(state.used())))
    }

    fn describe(&self, name: &str) -> String {
        format!("disk/{name}")
    }
}

#[derive(Debug)]
struct Locked {
    disk: Disk,
    name: String,
}

impl Lock for Locked {}

impl Drop for Locked {
    fn drop(&mut self) {
        self.disk.state().locks.remove(&self.name);
    }
}

#[derive(Debug)]
struct DiskFile {
    disk: Disk,
    id: usize,
}

impl File for DiskFile {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let state = self.disk.state();
        let bytes = state.files[self.id].now.get(offset as usize..).unwrap_or_default();
        let bytes = bytes.get(..buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.change()?;
        let end = offset as usize + bytes.len();
        let growth = end.saturating_sub(state.files[self.id].now.len()) as u64;
        if state.bytes_max.is_some_and(|max| growth > 0 && state.used() + growth > max) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        state.files[self.id].write(bytes, offset as usize);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        state.change()?;
        state.syncs_after_failure += u64::from(state.sync_failed);
        match &mut state.failing_sync {
            Some(1) => {
                // As Linux does it: the pages count as clean, and the next sync succeeds without
                // writing them.
                state.files[self.id].dirty.clear();
                state.failing_sync = None;
                state.sync_failed = true;
                return Err(io::Error::other("the sync failed"));
            }
            Some(left) => *left -= 1,
            None => {}
        }
        state.files[self.id].sync();
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.state().files[self.id].now.len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.change()?;
        state.files[self.id].now.resize(len as usize, 0);
        Ok(())
    }
}

/// Small segments, so that a few batches roll over.
pub(crate) fn small() -> Options {
    let mut options = Options { identity: 7, ..Options::default() };
    options.journal.segment_bytes = 4096;
    options.journal.free_bytes_min = 0;
    options.archive.reserve_bytes = 4096;
    options
}

/// A claimed store that the test steps.
pub(crate) struct Stepped {
    pub(crate) store: DiskStore,
    pub(crate) workers: Workers,
    pub(crate) claim: Claim,
    pub(crate) last: Sequence,
}

impl Stepped {
    pub(crate) fn open(disk: &Disk, options: &Options) -> Result<Self, Error> {
        let (mut store, workers) =
            DiskStore::open(Arc::new(disk.clone()), options.clone(), Arc::new(|| {}))?;
        let claim = store.claim()?;
        Ok(Self { store, workers, claim, last: claim.last })
    }

    pub(crate) fn append(&mut self, batch: &[u8]) -> Result<(), Error> {
        self.store.append(self.claim.epoch, self.last + 1, batch)?;
        self.last += 1;
        Ok(())
    }

    /// Appends the batch that has this sequence in [`content`].
    pub(crate) fn append_next(&mut self) -> Result<(), Error> {
        self.append(&content(self.last + 1))
    }

    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        while self.workers.flusher.step()? {}
        Ok(())
    }

    pub(crate) fn settle(&mut self) -> Result<(), Error> {
        while self.workers.step()? {}
        Ok(())
    }

    pub(crate) fn checkpoint(
        &mut self,
        rows: impl FnOnce(&mut RowSet) + Send + 'static,
    ) -> Result<(), Error> {
        self.store.checkpoint(Checkpoint {
            epoch: self.claim.epoch,
            through: self.last,
            at: 0,
            rows: Box::new(rows),
        })
    }

    pub(crate) fn batches(&mut self, from: Sequence) -> Result<Vec<(Sequence, Vec<u8>)>, Error> {
        let mut batches = Vec::new();
        self.store.read(from, &mut |sequence, batch| {
            batches.push((sequence, batch.to_vec()));
            Ok(true)
        })?;
        Ok(batches)
    }

    /// Whether all batches from `from` to the last are those of [`content`].
    pub(crate) fn check_contents(&mut self, from: Sequence) -> Result<(), Error> {
        let batches = self.batches(from)?;
        assert_eq!(batches.len() as u64, (self.last + 1).saturating_sub(from));
        for (place, (sequence, batch)) in batches.iter().enumerate() {
            assert_eq!(*sequence, from + place as u64);
            assert_eq!(*batch, content(*sequence), "batch {sequence}");
        }
        Ok(())
    }
}

/// What a test appends as this batch.
pub(crate) fn content(sequence: Sequence) -> Vec<u8> {
    let mut random = Random(sequence);
    (0..sequence * 53 % 400).map(|_| random.next() as u8).collect()
}
