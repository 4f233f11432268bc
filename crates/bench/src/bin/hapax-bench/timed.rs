//! A directory whose syncs are timed, to separate the disk's delays from ours.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use hapax_bench::disk::Syncs;
use hapax_store::archive::Head;
use hapax_store::{File, Lock, NotReplaced, OsVolume, Volume, replace_by_rename};

/// An [`OsVolume`] that records how long every sync of a journal segment takes.
#[derive(Debug)]
pub(crate) struct TimedVolume {
    inner: OsVolume,
    syncs: Arc<Mutex<Syncs>>,
}

#[derive(Debug)]
struct TimedFile {
    inner: Arc<dyn File>,
    syncs: Option<Arc<Mutex<Syncs>>>,
}

impl TimedVolume {
    pub(crate) fn create(path: &Path) -> io::Result<(Self, Arc<Mutex<Syncs>>)> {
        let syncs = Arc::new(Mutex::new(Syncs::default()));
        Ok((Self { inner: OsVolume::create(path)?, syncs: Arc::clone(&syncs) }, syncs))
    }

    fn wrap(&self, name: &str, inner: Arc<dyn File>) -> Arc<dyn File> {
        let syncs = name.starts_with("journal").then(|| Arc::clone(&self.syncs));
        Arc::new(TimedFile { inner, syncs })
    }
}

/// The syncs recorded since the last call.
pub(crate) fn take(syncs: &Mutex<Syncs>) -> Syncs {
    std::mem::take(&mut *syncs.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Volume for TimedVolume {
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(self.wrap(name, self.inner.open(name)?))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(self.wrap(name, Volume::create(&self.inner, name)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn replace(&self, name: &str, bytes: &[u8], _head: Head) -> Result<(), NotReplaced> {
        replace_by_rename(self, name, bytes)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.inner.list()
    }

    fn sync_names(&self) -> io::Result<()> {
        self.inner.sync_names()
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn Lock>> {
        self.inner.lock(name)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.inner.free_bytes()
    }

    fn describe(&self, name: &str) -> String {
        self.inner.describe(name)
    }
}

impl File for TimedFile {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.inner.read_exact_at(buffer, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.inner.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        let start = Instant::now();
        let result = self.inner.sync();
        if let Some(syncs) = &self.syncs {
            syncs.lock().unwrap_or_else(PoisonError::into_inner).record(start.elapsed());
        }
        result
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }
}
