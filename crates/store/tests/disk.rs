//! The store on disk keeps the contract: stepped on a disk in memory that loses what was not
//! synced, and threaded in a directory.
#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test: what fails here fails it")]

mod support;

use std::sync::{Arc, Condvar, Mutex};

use hapax_store::conformance::{self, Harness};
use hapax_store::disk::{DiskStore, Options, Source, Workers};
use hapax_store::journal::Wake;
use hapax_store::{Error, OsVolume, Store};
use support::{Disk, small};

struct SteppedHarness {
    disk: Disk,
    workers: Option<Workers>,
}

impl Harness for SteppedHarness {
    fn open(&mut self) -> Result<Box<dyn Store>, Error> {
        let opened = DiskStore::open(Arc::new(self.disk.clone()), small(), Arc::new(|| {}));
        // The last one's workers go first: they keep its lock.
        let (store, workers) = match opened {
            Err(Error::Locked { .. }) if self.workers.take().is_some() => return self.open(),
            opened => opened?,
        };
        self.workers = Some(workers);
        Ok(Box::new(store))
    }

    fn settle(&mut self) {
        while self.workers.as_mut().expect("open").step().expect("steps") {}
    }

    fn settle_without_sync(&mut self) {
        let workers = self.workers.as_mut().expect("open");
        while workers.checkpointer.step().expect("steps") | workers.keeper.step().expect("steps") {}
    }

    fn crash(&mut self) {
        self.workers = None;
        self.disk = self.disk.synced_only();
    }

    fn allows_two_owners(&self) -> bool {
        false
    }
}

#[test]
fn the_stepped_store_on_disk_keeps_the_contract() {
    conformance::run(&mut || Box::new(SteppedHarness { disk: Disk::default(), workers: None }));
}

struct ThreadedHarness {
    directory: tempfile::TempDir,
    woken: Arc<(Mutex<u64>, Condvar)>,
    source: Option<Source>,
}

impl Harness for ThreadedHarness {
    fn open(&mut self) -> Result<Box<dyn Store>, Error> {
        let woken = Arc::clone(&self.woken);
        let wake: Wake = Arc::new(move || {
            *woken.0.lock().unwrap() += 1;
            woken.1.notify_all();
        });
        let store = DiskStore::open_threaded(self.directory.path(), small(), wake)?;
        self.source = Some(store.source());
        Ok(Box::new(store))
    }

    fn settle(&mut self) {
        let source = self.source.as_ref().expect("open");
        let mut woken = self.woken.0.lock().unwrap();
        while !source.is_idle() {
            woken = self.woken.1.wait(woken).unwrap();
        }
    }

    fn crash(&mut self) {}

    fn allows_two_owners(&self) -> bool {
        false
    }
}

#[test]
fn the_threaded_store_on_disk_keeps_the_contract() {
    conformance::run(&mut || {
        Box::new(ThreadedHarness {
            directory: tempfile::tempdir().unwrap(),
            woken: Arc::default(),
            source: None,
        })
    });
}

#[test]
fn a_second_process_is_kept_out() {
    let directory = tempfile::tempdir().unwrap();
    let wake: Wake = Arc::new(|| {});
    let first = DiskStore::open_threaded(directory.path(), small(), Arc::clone(&wake)).unwrap();
    let second = OsVolume::open(directory.path()).unwrap();
    let refused = DiskStore::open(Arc::new(second), Options::default(), Arc::clone(&wake));
    let Err(Error::Locked { file }) = refused else { panic!("{refused:?}") };
    assert!(file.ends_with("LOCK"), "{file}");
    drop(first);
    DiskStore::open_threaded(directory.path(), small(), wake).unwrap();
}
