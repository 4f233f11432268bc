//! FAULTS A20, its store's part: a backup taken while the store goes on is a consistent prefix.
#![expect(clippy::unwrap_used, reason = "a test: what fails here fails it")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hapax_store::disk::{self, DiskStore, backup};
use hapax_store::journal::Wake;
use hapax_store::{Checkpoint, Error, Store};
use support::{Disk, Stepped, content, small};

#[test]
fn a_backup_holds_what_was_durable_and_goes_on_as_a_store() {
    let disk = Disk::default();
    let mut store = Stepped::open(&disk, &small()).unwrap();
    for round in 0..5 {
        for _ in 0..15 {
            store.append_next().unwrap();
        }
        store.flush().unwrap();
        if round < 4 {
            store.checkpoint(move |rows| rows.put_ordered(&[round], b"row")).unwrap();
        }
        store.settle().unwrap();
        // Pending, not durable: not part of the backup.
        store.append_next().unwrap();
        let target = Disk::default();
        let mut progress = Vec::new();
        let summary =
            backup(&store.store.source(), &target, &mut |done, all| progress.push((done, all)))
                .unwrap();
        assert_eq!((summary.last, summary.damages), (store.last - 1, 0));
        assert!(summary.sealed);
        let (done, all) = *progress.last().unwrap();
        assert!(done == all && progress.is_sorted());
        let mut restored = Stepped::open(&target, &small()).unwrap();
        assert_eq!(restored.last, store.last - 1);
        assert_eq!(restored.claim.through, store.store.checkpointed().unwrap());
        restored.check_contents(restored.claim.through + 1).unwrap();
        for _ in 0..20 {
            restored.append_next().unwrap();
        }
        restored.settle().unwrap();
        restored.check_contents(restored.claim.through + 1).unwrap();
    }
}

#[test]
fn a_copy_without_its_mark_is_read_where_nothing_may_be_written() {
    let directory = tempfile::tempdir().unwrap();
    let wake: Wake = Arc::new(|| {});
    let options = disk::Options::default();
    let mut store = DiskStore::open_threaded(directory.path(), options, wake.clone()).unwrap();
    let claim = store.claim().unwrap();
    store.append(claim.epoch, claim.last + 1, b"batch").unwrap();
    store.close().unwrap();
    drop(store);
    std::fs::remove_file(directory.path().join("journal.mark")).unwrap();
    let volume = hapax_store::OsVolume::read_only(directory.path()).unwrap();
    let options = disk::Options { must_exist: true, ..disk::Options::default() };
    let (store, _workers) = DiskStore::open(Arc::new(volume), options, wake).unwrap();
    let target = Disk::default();
    let summary = backup(&store.source(), &target, &mut |_, _| {}).unwrap();
    assert_eq!((summary.last, summary.damages), (claim.last + 1, 0));
    assert!(!directory.path().join("journal.mark").exists(), "nothing was written");
}

#[test]
fn a_backup_is_refused_where_something_is_and_a_broken_off_one_does_not_open() {
    let disk = Disk::default();
    let mut store = Stepped::open(&disk, &small()).unwrap();
    for _ in 0..20 {
        store.append_next().unwrap();
    }
    store.settle().unwrap();
    store.checkpoint(|rows| rows.put_ordered(b"a", b"1")).unwrap();
    store.settle().unwrap();
    let source = store.store.source();
    assert!(backup(&source, &disk, &mut |_, _| {}).is_err());
    let whole = Disk::default();
    backup(&source, &whole, &mut |_, _| {}).unwrap();
    for operations in 0..whole.operations() {
        let target = Disk::default();
        target.cut_power_after(operations);
        backup(&source, &target, &mut |_, _| {}).unwrap_err();
        let target = target.copy();
        target.cut_power_after(u64::MAX / 2);
        let names = target.names();
        match Stepped::open(&target, &small()) {
            Err(Error::Corrupt(_)) => {}
            Ok(opened) => {
                // Nothing was copied yet, or the last sync of all was all that failed.
                let complete = names.iter().any(|name| name == "format");
                assert!(
                    opened.last == 20 && complete || !names.iter().any(|n| n.contains('-')),
                    "{operations}: {names:?}"
                );
            }
            Err(error) => panic!("{operations}: {error}"),
        }
    }
    store.store.close().unwrap();
    assert!(backup(&source, &Disk::default(), &mut |_, _| {}).is_err());
}

#[test]
fn backups_during_appends_checkpoints_and_recycling_are_consistent() {
    let directory = tempfile::tempdir().unwrap();
    let wake: Wake = Arc::new(|| {});
    let mut store = DiskStore::open_threaded(directory.path(), small(), wake).unwrap();
    let epoch = store.claim().unwrap().epoch;
    let source = store.source();
    let done = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&done);
    let backups = std::thread::spawn(move || {
        let mut count = 0;
        let mut last = 0;
        // At least one after the last append.
        while count == 0
            || !std::mem::replace(&mut last, u64::from(ended.load(Ordering::Acquire))).eq(&1)
        {
            let target = Disk::default();
            let summary = backup(&source, &target, &mut |_, _| {}).unwrap();
            let mut restored = Stepped::open(&target, &small()).unwrap();
            assert_eq!(restored.last, summary.last);
            restored.check_contents(restored.claim.through + 1).unwrap();
            let mut rows = 0;
            restored
                .store
                .scan(b"", b"\xff", &mut |_, value| {
                    rows = u64::from_le_bytes(value.unwrap().try_into().unwrap());
                    true
                })
                .unwrap();
            assert_eq!(rows, restored.claim.through, "rows and position belong together");
            count += 1;
        }
        count
    });
    for sequence in 1..=3000 {
        store.append(epoch, sequence, &content(sequence)).unwrap();
        let visible = store.checkpointed().unwrap();
        if sequence % 100 == 0 {
            let refused = store.checkpoint(Checkpoint {
                epoch,
                through: sequence,
                at: 0,
                rows: Box::new(move |rows| rows.put_ordered(b"row", &sequence.to_le_bytes())),
            });
            assert!(matches!(refused, Ok(()) | Err(Error::OutOfOrder { .. })), "{visible}");
        }
    }
    done.store(true, Ordering::Release);
    assert!(backups.join().unwrap() > 0);
    store.close().unwrap();
}

/// Opens a copy as a broker does: above an epoch that grows with the time.
fn open_copy(disk: &Disk, least: hapax_store::Epoch) -> hapax_store::Epoch {
    let options = disk::Options { lineage: Some(least), ..small() };
    let store = Stepped::open(disk, &options).unwrap();
    store.claim.epoch
}

fn copy_of(disk: &Disk) -> Disk {
    let store = Stepped::open(disk, &small()).unwrap();
    let target = Disk::default();
    backup(&store.store.source(), &target, &mut |_, _| {}).unwrap();
    target
}

#[test]
fn a_copy_that_is_opened_later_has_the_higher_epoch_also_where_it_is_the_older_one() {
    let original = Disk::default();
    let (old, older) = (copy_of(&original), copy_of(&original));
    let first = open_copy(&old, 1_000);
    assert_eq!(first, 1_000);
    // A copy of the copy, and then one from before it.
    let second = open_copy(&copy_of(&old), 1_010);
    let third = open_copy(&older, 1_011);
    assert!(first < second && second < third, "{first} {second} {third}");
}

#[test]
fn a_copy_that_is_ahead_of_the_time_is_raised_by_a_large_step() {
    let original = Disk::default();
    let copy = copy_of(&original);
    assert_eq!(open_copy(&copy, 50), 50);
    let ahead = open_copy(&copy_of(&copy), 50);
    assert!(ahead > 4_000, "{ahead}");
}
