//! What the archive's tests share: a disk in memory that can lose power, fill up and rot, a model
//! of the rows, and a source of numbers that prints its seed.
#![expect(
    clippy::indexing_slicing,
    clippy::expect_used,
    reason = "helpers of tests fail like tests"
)]
#![expect(dead_code, reason = "every test binary uses a part of it")]

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use hapax_store::archive::{Archive, Head, Options, Space, Step};
use hapax_store::{
    Error, File, Lock, NEVER, NotReplaced, PointKey, RowSet, Volume, replace_by_rename,
};

/// Numbers that look random.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// What of the unsynced survives a power cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Survives {
    pub(crate) names: Names,
    pub(crate) contents: bool,
}

/// Which creations, renamings and removals survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    Synced,
    All,
    /// The synced ones and the very last: file systems promise no order.
    Last,
}

pub(crate) const ALL_CUTS: [Survives; 6] = [
    Survives { names: Names::Synced, contents: false },
    Survives { names: Names::Synced, contents: true },
    Survives { names: Names::All, contents: false },
    Survives { names: Names::All, contents: true },
    Survives { names: Names::Last, contents: false },
    Survives { names: Names::Last, contents: true },
];

#[derive(Debug, Default)]
struct Disk {
    names: BTreeMap<String, usize>,
    synced_names: BTreeMap<String, usize>,
    /// What the last change of a name came to.
    last_change: Vec<(String, Option<usize>)>,
    files: Vec<Contents>,
    operations: u64,
    /// From this operation on everything fails.
    cut_at: Option<u64>,
    bytes_max: Option<u64>,
    /// The next sync fails with an I/O error.
    sync_fails: bool,
    /// The most bytes by which a file had grown when it was synced.
    synced_at_once_max: usize,
}

#[derive(Clone, Debug, Default)]
struct Contents {
    now: Vec<u8>,
    synced: Vec<u8>,
}

impl Disk {
    /// Counts a changing operation.
    fn change(&mut self) -> io::Result<()> {
        self.operations += 1;
        match self.cut_at {
            Some(at) if self.operations > at => Err(io::Error::other("the power is cut")),
            _ => Ok(()),
        }
    }

    fn used(&self) -> u64 {
        self.names.values().map(|id| self.files[*id].now.len() as u64).sum()
    }
}

/// A disk in memory. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestVolume(Arc<Mutex<Disk>>);

impl TestVolume {
    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().expect("no test panics while it holds the disk")
    }

    pub(crate) fn operations(&self) -> u64 {
        self.disk().operations
    }

    pub(crate) fn cut_after(&self, operations: u64) {
        let mut disk = self.disk();
        disk.cut_at = Some(disk.operations + operations);
    }

    /// The disk as it is found after the power comes back.
    pub(crate) fn after_cut(&self, survives: Survives) -> Self {
        let disk = self.disk();
        let mut names = match survives.names {
            Names::All => disk.names.clone(),
            Names::Synced | Names::Last => disk.synced_names.clone(),
        };
        if survives.names == Names::Last {
            for (name, file) in &disk.last_change {
                match file {
                    Some(id) => names.insert(name.clone(), *id),
                    None => names.remove(name),
                };
            }
        }
        let mut new = Disk { names: names.clone(), synced_names: names, ..Disk::default() };
        for file in &disk.files {
            let kept = if survives.contents { file.now.clone() } else { file.synced.clone() };
            new.files.push(Contents { now: kept.clone(), synced: kept });
        }
        Self(Arc::new(Mutex::new(new)))
    }

    pub(crate) fn copy(&self) -> Self {
        self.after_cut(Survives { names: Names::All, contents: true })
    }

    pub(crate) fn limit(&self, bytes: Option<u64>) {
        self.disk().bytes_max = bytes;
    }

    pub(crate) fn used(&self) -> u64 {
        self.disk().used()
    }

    pub(crate) fn synced_at_once_max(&self) -> usize {
        self.disk().synced_at_once_max
    }

    pub(crate) fn fail_next_sync(&self) {
        self.disk().sync_fails = true;
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        let disk = self.disk();
        disk.files[disk.names[name]].now.clone()
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        let mut disk = self.disk();
        let id = disk.files.len();
        disk.files.push(Contents { now: bytes.to_vec(), synced: bytes.to_vec() });
        disk.names.insert(name.to_owned(), id);
        disk.synced_names.insert(name.to_owned(), id);
    }

    pub(crate) fn flip(&self, name: &str, at: usize, mask: u8) {
        let mut disk = self.disk();
        let id = disk.names[name];
        disk.files[id].now[at] ^= mask;
    }

    /// Writes over a part of a file, as a misdirected write would.
    pub(crate) fn overwrite(&self, name: &str, at: usize, bytes: &[u8]) {
        let mut disk = self.disk();
        let id = disk.names[name];
        disk.files[id].now[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.list().expect("listing does not fail")
    }

    pub(crate) fn runs(&self) -> Vec<String> {
        self.names().into_iter().filter(|name| name.starts_with("run-")).collect()
    }
}

impl Volume for TestVolume {
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        match self.disk().names.get(name) {
            Some(id) => Ok(Arc::new(TestFile { disk: self.clone(), id: *id })),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let mut disk = self.disk();
        disk.change()?;
        if disk.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let id = disk.files.len();
        disk.files.push(Contents::default());
        disk.names.insert(name.to_owned(), id);
        disk.last_change = vec![(name.to_owned(), Some(id))];
        Ok(Arc::new(TestFile { disk: self.clone(), id }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut disk = self.disk();
        disk.change()?;
        let id = disk.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        disk.names.insert(to.to_owned(), id);
        disk.last_change = vec![(from.to_owned(), None), (to.to_owned(), Some(id))];
        Ok(())
    }

    fn replace(&self, name: &str, bytes: &[u8], _head: Head) -> Result<(), NotReplaced> {
        replace_by_rename(self, name, bytes)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut disk = self.disk();
        disk.change()?;
        disk.last_change = vec![(name.to_owned(), None)];
        disk.names.remove(name).map(|_| ()).ok_or(io::ErrorKind::NotFound.into())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.disk().names.keys().cloned().collect())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut disk = self.disk();
        disk.change()?;
        disk.synced_names = disk.names.clone();
        disk.last_change.clear();
        Ok(())
    }

    fn lock(&self, _name: &str) -> io::Result<Box<dyn Lock>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn describe(&self, name: &str) -> String {
        format!("test:/{name}")
    }
}

#[derive(Debug)]
struct TestFile {
    disk: TestVolume,
    id: usize,
}

impl File for TestFile {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let disk = self.disk.disk();
        let start = offset as usize;
        match disk.files[self.id].now.get(start..start + buffer.len()) {
            Some(bytes) => buffer.copy_from_slice(bytes),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        Ok(())
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut disk = self.disk.disk();
        disk.change()?;
        let end = offset as usize + bytes.len();
        let grows = end.saturating_sub(disk.files[self.id].now.len()) as u64;
        if disk.bytes_max.is_some_and(|max| disk.used() + grows > max) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let now = &mut disk.files[self.id].now;
        now.resize(end.max(now.len()), 0);
        now[offset as usize..end].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut disk = self.disk.disk();
        disk.change()?;
        if std::mem::take(&mut disk.sync_fails) {
            return Err(io::Error::other("the device is gone"));
        }
        let file = &mut disk.files[self.id];
        let grown = file.now.len().saturating_sub(file.synced.len());
        file.synced = file.now.clone();
        disk.synced_at_once_max = disk.synced_at_once_max.max(grown);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.disk().files[self.id].now.len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut disk = self.disk.disk();
        disk.change()?;
        disk.files[self.id].now.resize(len as usize, 0);
        Ok(())
    }
}

/// What the rows should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Model {
    pub(crate) points: BTreeMap<PointKey, (u64, Vec<u8>)>,
    pub(crate) ordered: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Model {
    pub(crate) fn put_point(
        &mut self,
        rows: &mut RowSet,
        key: PointKey,
        drop_at: u64,
        value: Vec<u8>,
    ) {
        if let Some((old, _)) = self.points.get(&key)
            && *old != drop_at
        {
            rows.delete_point(key, *old);
        }
        rows.put_point(key, drop_at, &value);
        self.points.insert(key, (drop_at, value));
    }

    pub(crate) fn delete_point(&mut self, rows: &mut RowSet, key: PointKey) {
        if let Some((drop_at, _)) = self.points.remove(&key) {
            rows.delete_point(key, drop_at);
        }
    }

    pub(crate) fn put_ordered(&mut self, rows: &mut RowSet, key: &[u8], value: Vec<u8>) {
        rows.put_ordered(key, &value);
        self.ordered.insert(key.to_vec(), value);
    }

    pub(crate) fn delete_ordered(&mut self, rows: &mut RowSet, key: &[u8]) {
        rows.delete_ordered(key);
        self.ordered.remove(key);
    }

    pub(crate) fn drop_until(&mut self, at: u64) {
        self.points.retain(|_, (drop_at, _)| *drop_at > at || *drop_at == NEVER);
    }
}

pub(crate) fn open(volume: &TestVolume) -> Result<Archive, Error> {
    let options = Options { reserve_bytes: 0, ..Options::default() };
    Archive::open(Arc::new(volume.clone()), options)
}

pub(crate) fn checkpoint(
    archive: &Archive,
    rows: RowSet,
    through: u64,
    at: u64,
) -> Result<(), Error> {
    let mut job = archive.checkpoint(rows, through, at);
    while job.step(through)? != Step::Done {}
    Ok(())
}

/// Merges until nothing is worth it any more; how many jobs that took.
pub(crate) fn merge_all(archive: &Archive) -> Result<u64, Error> {
    let mut jobs = 0;
    while let Some(mut job) = archive.merge(Space::PLENTY) {
        while job.step()? != Step::Done {}
        jobs += 1;
        assert!(jobs < 10_000, "merging comes to an end");
    }
    Ok(jobs)
}

/// Every row there is, found by looking up `keys` and by scanning.
pub(crate) fn contents(archive: &Archive, keys: &[PointKey]) -> Result<Rows, Error> {
    let mut reader = archive.reader();
    let mut points = BTreeMap::new();
    reader.get_many(keys, &mut |number, value| {
        assert!(points.insert(keys[number], value.to_vec()).is_none(), "a key is found once");
    })?;
    let mut ordered = BTreeMap::new();
    reader.scan(&[], &[0xff; 300], &mut |key, value| {
        ordered.extend(value.map(|value| (key.to_vec(), value.to_vec())));
        true
    })?;
    Ok((points, ordered))
}

pub(crate) type Rows = (BTreeMap<PointKey, Vec<u8>>, BTreeMap<Vec<u8>, Vec<u8>>);

pub(crate) fn expected(model: &Model) -> Rows {
    let points = model.points.iter().map(|(key, (_, value))| (*key, value.clone())).collect();
    (points, model.ordered.clone())
}

/// A key like a digest.
pub(crate) fn key(number: u64) -> PointKey {
    let mut random = Random(number);
    let mut key = [0; 16];
    key[..8].copy_from_slice(&random.next().to_be_bytes());
    key[8..].copy_from_slice(&random.next().to_be_bytes());
    key
}
