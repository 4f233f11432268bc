//! The store on disk keeps the contract: stepped on a disk in memory that loses what was not
//! synced, and threaded in a directory.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test: what fails here fails it"
)]

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

    fn lose_tail(&mut self) -> bool {
        self.workers = None;
        let last = 5_u64.to_le_bytes().repeat(20); // How the suite fills its fifth batch.
        for name in self.disk.segments() {
            let mut bytes = self.disk.bytes(&name);
            if let Some(at) = bytes.windows(last.len()).position(|window| window == last) {
                bytes[at..].fill(0);
                self.disk.set_bytes(&name, &bytes);
                return true;
            }
        }
        panic!("the last batch is not on the disk");
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

#[test]
fn d1_what_its_owner_flushes_is_durable_without_the_workers() {
    let disk = Disk::default();
    let opened = DiskStore::open(Arc::new(disk.clone()), small(), Arc::new(|| {}));
    let (mut store, workers) = opened.unwrap();
    let epoch = store.claim().unwrap().epoch;
    store.hold();
    store.append(epoch, 1, b"one").unwrap();
    assert_eq!(store.durable().unwrap(), 0, "nobody flushed it yet");
    store.flush().unwrap();
    assert_eq!(store.durable().unwrap(), 1);
    drop((store, workers));
    let disk = Arc::new(disk.synced_only());
    let (mut store, _workers) = DiskStore::open(disk, small(), Arc::new(|| {})).unwrap();
    assert_eq!(store.claim().unwrap().last, 1, "it was synced");
}

#[test]
fn what_follows_a_flush_of_the_owner_is_flushed_by_the_thread() {
    let directory = tempfile::tempdir().unwrap();
    let woken = Arc::new((Mutex::new(0_u64), Condvar::new()));
    let told = Arc::clone(&woken);
    let wake: Wake = Arc::new(move || {
        *told.0.lock().unwrap() += 1;
        told.1.notify_all();
    });
    let mut store = DiskStore::open_threaded(directory.path(), small(), wake).unwrap();
    let epoch = store.claim().unwrap().epoch;
    for sequence in [1, 3, 5] {
        store.hold();
        store.append(epoch, sequence, b"by the owner").unwrap();
        store.flush().unwrap();
        assert_eq!(store.durable().unwrap(), sequence);
        store.append(epoch, sequence + 1, b"by the thread").unwrap();
        let mut wakes = woken.0.lock().unwrap();
        while store.durable().unwrap() <= sequence {
            let (next, waited) =
                woken.1.wait_timeout(wakes, std::time::Duration::from_secs(60)).unwrap();
            assert!(!waited.timed_out(), "the thread was not woken");
            wakes = next;
        }
    }
    store.close().unwrap();
}
