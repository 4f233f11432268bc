//! A joined store whose log and whose volume are shared with other owners, as in a database.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use super::*;
use crate::archive::{self, Head};
use crate::{EachBatch, File, NotReplaced, OsVolume, Question, Shortage, Stop, Store};
use crate::{replace_by_rename, volume};

/// What happened to the log and the volume, in order.
type Events = Arc<Mutex<Vec<String>>>;

/// How the next replacement of the manifest fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Fenced,
    Full,
    Unknown,
}

/// A log that others may claim.
struct SharedLog {
    events: Events,
    newest: AtomicU32,
    held: AtomicU32,
    last: AtomicU64,
    stop: Stop,
}

impl SharedLog {
    fn check(&self) -> Result<(), Error> {
        self.stop.check()?;
        let (held, newest) =
            (self.held.load(Ordering::Relaxed), self.newest.load(Ordering::Relaxed));
        if held < newest { Err(Error::Fenced { held, newest }) } else { Ok(()) }
    }
}

impl Log for SharedLog {
    fn claim(&self, least: Epoch) -> Result<Epoch, Error> {
        let held = self.held.load(Ordering::Relaxed);
        if held > 0 {
            self.check()?;
        }
        lock(&self.events).push(format!("claim {least}"));
        self.newest.store(least, Ordering::Relaxed);
        self.held.store(least, Ordering::Relaxed);
        Ok(least)
    }

    fn begin(&self, epoch: Epoch) -> Result<(Sequence, bool), Error> {
        lock(&self.events).push(format!("begin {epoch}"));
        Ok((self.last.load(Ordering::Relaxed), false))
    }

    fn read(&self, _from: Sequence, _each: EachBatch<'_>) -> Result<(), Error> {
        self.check()
    }

    fn append(&self, _epoch: Epoch, sequence: Sequence, _batch: &[u8]) -> Result<(), Error> {
        self.check()?;
        self.last.store(sequence, Ordering::Relaxed);
        Ok(())
    }

    fn durable(&self) -> Result<Sequence, Error> {
        self.stop.check().map(|()| self.last.load(Ordering::Relaxed))
    }

    fn confirm(&self) -> Result<Question, Error> {
        self.stop.check().map(|()| 1)
    }

    fn confirmed(&self) -> Result<Question, Error> {
        self.check().map(|()| 1)
    }

    fn synced(&self) -> u64 {
        0
    }

    fn release(&self, through: Sequence) {
        lock(&self.events).push(format!("release {through}"));
    }

    fn is_low(&self) -> bool {
        false
    }

    fn shortage(&self) -> Shortage {
        Shortage::default()
    }

    fn make_room(&self) -> Result<bool, Error> {
        Ok(false)
    }

    fn batch_bytes_max(&self) -> u32 {
        1_024
    }

    fn drain(&self) -> Result<(), Error> {
        self.check()
    }

    fn close(&self, _epoch: Epoch) -> Result<(), Error> {
        self.check()
    }

    fn stop(&self) -> &Stop {
        &self.stop
    }

    fn halt(&self, cause: &str) {
        self.stop.fail(cause);
    }

    fn interrupt(&self) {}
}

/// A directory whose manifest others may replace.
#[derive(Debug)]
struct SharedVolume {
    files: OsVolume,
    events: Events,
    faults: Mutex<Vec<Fault>>,
    /// No run can be written.
    has_no_room: AtomicBool,
}

impl Volume for SharedVolume {
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.files.open(name)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        if name.starts_with("run-") && self.has_no_room.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.files.create(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.files.rename(from, to)
    }

    fn replace(&self, name: &str, bytes: &[u8], head: Head) -> Result<(), NotReplaced> {
        let label = self.describe(name);
        match lock(&self.faults).pop() {
            Some(Fault::Fenced) => {
                let (held, newest) = (head.epoch, head.epoch + 1);
                return Err(NotReplaced::Unchanged(Error::Fenced { held, newest }));
            }
            Some(Fault::Full) => {
                let full = io::ErrorKind::StorageFull.into();
                return Err(NotReplaced::Unchanged(Error::io("write", &label, full)));
            }
            Some(Fault::Unknown) => {
                let lost = io::ErrorKind::TimedOut.into();
                return Err(NotReplaced::Unknown(Error::io("replace", &label, lost)));
            }
            None => {}
        }
        lock(&self.events).push(format!("manifest {}", head.epoch));
        replace_by_rename(&self.files, name, bytes)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        lock(&self.events).push(format!("remove {name}"));
        self.files.remove(name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.files.list()
    }

    fn sync_names(&self) -> io::Result<()> {
        self.files.sync_names()
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn volume::Lock>> {
        self.files.lock(name)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.files.free_bytes()
    }

    fn describe(&self, name: &str) -> String {
        self.files.describe(name)
    }
}

const LEFTOVER: &str = "run-0000010000000005";

/// A store that the owner of epoch 1 left, with a run that it did not complete.
struct Scene {
    store: Joined<SharedLog>,
    volume: Arc<SharedVolume>,
    events: Events,
    _directory: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let events = Events::default();
        let volume = Arc::new(SharedVolume {
            files: OsVolume::create(directory.path()).unwrap(),
            events: Arc::clone(&events),
            faults: Mutex::default(),
            has_no_room: AtomicBool::default(),
        });
        let options = archive::Options { reserve_bytes: 0, ..archive::Options::default() };
        Archive::open(volume.clone(), options).unwrap().commit_epoch(1).unwrap();
        std::fs::write(directory.path().join(LEFTOVER), b"not complete").unwrap();
        let store = Self::open(&volume);
        Self { store, volume, events, _directory: directory }
    }

    fn open(volume: &Arc<SharedVolume>) -> Joined<SharedLog> {
        let options = archive::Options { reserve_bytes: 0, ..archive::Options::default() };
        let archive = Archive::open(volume.clone(), options).unwrap();
        let events = Arc::clone(&volume.events);
        let log = SharedLog {
            events: Arc::clone(&events),
            newest: AtomicU32::new(archive.head().epoch),
            held: AtomicU32::new(0),
            last: AtomicU64::new(archive.head().through),
            stop: Stop::default(),
        };
        let parts = Parts {
            volume: volume.clone(),
            archive,
            log,
            wake: Arc::new(|| {}),
            signals: Arc::default(),
            lock: None,
            lineage: None,
        };
        lock(&events).clear();
        Joined::new(parts).unwrap()
    }

    /// What happened since this was asked last.
    fn events(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.events))
    }

    fn fail_manifest(&self, fault: Fault) {
        lock(&self.volume.faults).push(fault);
    }

    /// Another process claims the partition.
    fn replace_owner(&self) {
        self.store.shared.log.newest.fetch_add(1, Ordering::Relaxed);
    }

    fn has(&self, name: &str) -> bool {
        self.volume.list().unwrap().iter().any(|other| other == name)
    }

    fn append(&mut self, epoch: Epoch) -> Result<(), Error> {
        let sequence = self.store.last + 1;
        self.store.append(epoch, sequence, b"a batch")
    }

    /// Writes a checkpoint to its end, or to its failure.
    fn checkpoint(&mut self, epoch: Epoch) -> Result<(), Error> {
        let (through, at) = (self.store.last, 0);
        let rows = Box::new(|rows: &mut crate::RowSet| rows.put_ordered(b"key", b"value"));
        self.store.checkpoint(Checkpoint { epoch, through, at, rows })?;
        let mut checkpointer = self.store.checkpointer();
        while checkpointer.step()? {}
        Ok(())
    }
}

fn is_fenced<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Fenced { .. }))
}

#[test]
fn a_claim_is_the_logs_first_then_in_the_manifest_and_leftovers_go_last() {
    let mut scene = Scene::new();
    assert!(!scene.store.merger().step().unwrap(), "nothing is merged before the claim");
    assert_eq!(scene.events(), [""; 0], "opening changes nothing");
    let epoch = scene.store.claim().unwrap().epoch;
    assert_eq!(epoch, 2);
    let leftover = format!("remove {LEFTOVER}");
    let wanted = ["claim 2", "manifest 2", "begin 2", "manifest 2", &leftover];
    assert_eq!(scene.events(), wanted);
    scene.append(epoch).unwrap();
    scene.checkpoint(epoch).unwrap();
    assert!(scene.has("run-0000020000000000"), "{:?}", scene.volume.list());
}

#[test]
fn a_claim_that_the_log_refuses_changes_nothing() {
    let mut scene = Scene::new();
    let epoch = scene.store.claim().unwrap().epoch;
    scene.append(epoch).unwrap();
    scene.replace_owner();
    std::fs::write(scene._directory.path().join(LEFTOVER), b"of somebody else").unwrap();
    scene.events();
    assert!(is_fenced(&scene.store.claim()));
    assert!(is_fenced(&scene.append(epoch)));
    assert!(is_fenced(&scene.store.confirmed()));
    assert_eq!(scene.events(), [""; 0], "neither the manifest nor a run");
    assert!(scene.has(LEFTOVER));
}

#[test]
fn a_manifest_that_is_not_replaced_after_the_log_was_claimed_ends_the_claim() {
    for fault in [Fault::Fenced, Fault::Full, Fault::Unknown] {
        let mut scene = Scene::new();
        scene.fail_manifest(fault);
        if fault == Fault::Full {
            scene.fail_manifest(fault); // Once more, when the leftovers are gone.
        }
        let refused = scene.store.claim();
        assert_eq!(is_fenced(&refused), fault == Fault::Fenced, "{fault:?}: {refused:?}");
        let is_full = matches!(&refused, Err(error) if error.is_full());
        assert_eq!(is_full, fault == Fault::Full, "{fault:?}: {refused:?}");
        let events = scene.events();
        assert!(!events.iter().any(|event| event.starts_with("begin")), "{fault:?}: {events:?}");
        assert_eq!(scene.has(LEFTOVER), fault != Fault::Full, "only for room");
        // It stays so: nothing is appended without an owner, and who was fenced is told so.
        for refused in [scene.append(2), scene.store.claim().map(|_| ())] {
            assert!(refused.is_err(), "{fault:?}");
            assert_eq!(is_fenced(&refused), fault == Fault::Fenced, "{fault:?}: {refused:?}");
        }
    }
}

#[test]
fn what_fails_after_an_owner_was_replaced_is_told_as_that() {
    let closed = || Error::Stopped("a connection was closed".to_owned());
    let mut scene = Scene::new();
    scene.store.claim().unwrap();
    scene.store.shared.log.stop().fail_by(&Error::Fenced { held: 1, newest: 2 });
    let told = scene.store.shared.fail(closed());
    assert!(matches!(told, Error::Fenced { held: 1, newest: 2 }), "{told:?}");
    let mut scene = Scene::new();
    scene.store.claim().unwrap();
    let told = scene.store.shared.fail(closed());
    assert!(matches!(told, Error::Stopped(_)), "{told:?}");
}

#[test]
fn an_owner_that_finds_no_room_to_claim_again_continues_as_it_was() {
    let mut scene = Scene::new();
    let epoch = scene.store.claim().unwrap().epoch;
    std::fs::write(scene._directory.path().join(LEFTOVER), b"a run that is being written").unwrap();
    scene.fail_manifest(Fault::Full);
    let refused = scene.store.claim();
    assert!(matches!(&refused, Err(error) if error.is_full()), "{refused:?}");
    assert!(scene.has(LEFTOVER), "an owner that writes runs removes none");
    scene.append(epoch).unwrap();
    scene.checkpoint(epoch).unwrap();
    assert!(scene.has("run-0000020000000000"), "a run of its own epoch: {:?}", scene.volume.list());
    let again = scene.store.claim().unwrap().epoch;
    assert!(again > epoch);
    scene.append(again).unwrap();
    assert!(is_fenced(&scene.append(epoch)), "the epoch before is over");
}

#[test]
fn a_checkpoint_of_a_replaced_owner_fences_its_store_for_good() {
    let mut scene = Scene::new();
    let epoch = scene.store.claim().unwrap().epoch;
    scene.append(epoch).unwrap();
    scene.events();
    scene.fail_manifest(Fault::Fenced);
    assert!(is_fenced(&scene.checkpoint(epoch)));
    assert_eq!(scene.events(), [""; 0], "no batch is released for rows that nobody sees");
    assert!(is_fenced(&scene.store.durable()), "and does not merely stop");
    assert!(is_fenced(&scene.store.confirm()));
    assert!(is_fenced(&scene.append(epoch)));
    assert!(is_fenced(&scene.store.claim()));
    assert!(is_fenced(&scene.store.close()));
}

#[test]
fn nothing_is_merged_before_the_claim() {
    let mut scene = Scene::new();
    let epoch = scene.store.claim().unwrap().epoch;
    for _ in 0..2 * archive::Options::default().merge_fan_in {
        scene.append(epoch).unwrap();
        scene.checkpoint(epoch).unwrap();
    }
    scene.store = Scene::open(&scene.volume);
    assert!(!scene.store.merger().step().unwrap());
    assert_eq!(scene.events(), [""; 0]);
    scene.store.claim().unwrap();
    assert!(scene.store.merger().step().unwrap(), "there was something to merge");
}

#[test]
fn a_checkpoint_that_finds_no_room_is_told_of_and_goes_on_when_there_is_some() {
    let mut scene = Scene::new();
    let epoch = scene.store.claim().unwrap().epoch;
    scene.append(epoch).unwrap();
    scene.fail_manifest(Fault::Full);
    scene.checkpoint(epoch).unwrap();
    assert!(scene.store.room().is_low(), "nothing new is accepted meanwhile");
    assert_eq!(scene.store.checkpointed().unwrap(), 0);
    let mut checkpointer = scene.store.checkpointer();
    while checkpointer.step().unwrap() {}
    assert_eq!(scene.store.checkpointed().unwrap(), 1);
    assert_eq!(scene.store.room(), Room::Free);
}

#[test]
fn a_checkpoint_is_given_up_only_if_it_found_no_room_and_is_not_complete() {
    let mut scene = Scene::new();
    let epoch = scene.store.claim().unwrap().epoch;
    scene.append(epoch).unwrap();
    assert!(!scene.store.abandon().unwrap(), "there is none");
    scene.fail_manifest(Fault::Full);
    scene.checkpoint(epoch).unwrap();
    assert!(!scene.store.abandon().unwrap(), "only its manifest is left");
    let mut checkpointer = scene.store.checkpointer();
    while checkpointer.step().unwrap() {}
    assert_eq!(scene.store.checkpointed().unwrap(), 1);
}

#[test]
fn a_checkpoint_that_found_no_room_is_given_up_and_another_one_is_written() {
    let mut scene = Scene::new();
    let epoch = scene.store.claim().unwrap().epoch;
    scene.append(epoch).unwrap();
    scene.volume.has_no_room.store(true, Ordering::Relaxed);
    scene.checkpoint(epoch).unwrap();
    assert!(scene.store.room().is_low());
    assert!(scene.store.abandon().unwrap());
    assert!(!scene.store.abandon().unwrap(), "once");
    assert!(scene.store.room().is_low(), "until the next one finds room");
    assert!(scene.store.is_idle() && !scene.store.checkpointer().step().unwrap());
    scene.append(epoch).unwrap();
    scene.volume.has_no_room.store(false, Ordering::Relaxed);
    scene.checkpoint(epoch).unwrap();
    assert_eq!(scene.store.checkpointed().unwrap(), 2);
    assert_eq!(scene.store.room(), Room::Free);
}

/// The owner would wait for a disk, or for a database.
#[test]
fn a_checkpoint_is_not_given_up_while_its_worker_is_at_it() {
    let mut scene = Scene::new();
    let epoch = scene.store.claim().unwrap().epoch;
    scene.append(epoch).unwrap();
    scene.volume.has_no_room.store(true, Ordering::Relaxed);
    scene.checkpoint(epoch).unwrap();
    let shared = Arc::clone(&scene.store.shared);
    let working = lock(&shared.checkpoint);
    assert!(!scene.store.abandon().unwrap(), "it has returned, at least");
    drop(working);
    assert!(scene.store.abandon().unwrap());
}

/// Its file would take the space that is short until the next start.
#[test]
fn a_checkpoint_that_has_begun_a_run_again_is_not_given_up() {
    let mut scene = Scene::new();
    let epoch = scene.store.claim().unwrap().epoch;
    scene.append(epoch).unwrap();
    scene.volume.has_no_room.store(true, Ordering::Relaxed);
    scene.checkpoint(epoch).unwrap();
    scene.volume.has_no_room.store(false, Ordering::Relaxed);
    let is_writing = |volume: &SharedVolume| {
        let names = volume.files.list().unwrap();
        names.iter().any(|name| name.starts_with("run-"))
    };
    let mut checkpointer = scene.store.checkpointer();
    while !is_writing(&scene.volume) {
        assert!(checkpointer.step().unwrap(), "there is room again");
    }
    assert!(!scene.store.abandon().unwrap());
    while checkpointer.step().unwrap() {}
    assert_eq!(scene.store.checkpointed().unwrap(), 1);
}

#[test]
fn the_merger_looks_again_while_there_is_little_room() {
    for is_low in [true, false] {
        let mut scene = Scene::new();
        scene.store.claim().unwrap();
        let (shared, checkpointer) = (&scene.store.shared, scene.store.checkpointer());
        shared.note_full(&shared.checkpoint_full, is_low);
        shared.signals.merge.take();
        let mut rounds = 0;
        let keep = || {
            rounds += 1;
            shared.signals.background.raise(); // It does not sleep.
            if rounds == 3 { Err(Error::Stopped("enough".to_owned())) } else { Ok(false) }
        };
        // It lowers the priority of its thread.
        let ended = std::thread::scope(|scope| {
            scope.spawn(|| threads::checkpoint(keep, checkpointer, shared)).join().unwrap()
        });
        assert!(matches!(ended, Err(Error::Stopped(why)) if why == "enough"));
        assert_eq!(shared.signals.merge.take(), is_low, "which merge fits depends on the room");
    }
}
