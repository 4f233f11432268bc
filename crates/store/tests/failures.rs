//! FAULTS A5 and A6: a failed sync stops the store for good; a full disk does not.
#![expect(clippy::unwrap_used, reason = "a test stops at surprises")]

mod support;

use std::sync::Arc;

use hapax_store::disk::{DiskStore, Options};
use hapax_store::{Error, Room, RowSet, Store, Volume};
use support::{Disk, Random, Stepped, content, small};

#[test]
fn a_failed_sync_stops_the_store_and_is_never_tried_again() {
    for failing in 1..6 {
        let disk = Disk::default();
        let mut store = Stepped::open(&disk, &small()).unwrap();
        store.settle().unwrap();
        disk.fail_sync(failing);
        let mut confirmed = 0;
        let mut failed = None;
        for _ in 0..10 {
            let result = store.append_next().and_then(|()| store.flush());
            match result {
                Ok(()) => confirmed = store.store.durable().unwrap(),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let failed = failed.expect("the fault happened");
        assert!(matches!(failed, Error::Io { operation: "sync", .. }), "{failed}");
        assert_eq!(confirmed, failing - 1, "the batch of the failed sync is not confirmed");
        for stopped in [
            store.store.durable().err(),
            store.store.append(store.claim.epoch, store.last + 1, b"no").err(),
            store.store.claim().err(),
            store.store.checkpointed().err(),
            store.store.close().err(),
            store.workers.step().err(),
        ] {
            let Some(Error::Stopped(cause)) = stopped else { panic!("{stopped:?}") };
            assert!(cause.contains("sync"), "{cause}");
        }
        assert_eq!(disk.tried_after_failed_sync(), 0, "no second sync");
        drop(store);
        // A restart recovers. Whether the batch of the failed sync is there, nobody knows.
        let mut store = Stepped::open(&disk, &small()).unwrap();
        assert!(store.last == confirmed || store.last == confirmed + 1);
        store.check_contents(1).unwrap();
        let last = store.last;
        drop(store);
        // What the new owner found is safe now, although the kernel took its pages for clean.
        let store = Stepped::open(&disk.synced_only(), &small()).unwrap();
        assert_eq!(store.last, last);
    }
}

#[test]
fn a_failed_sync_of_a_background_worker_stops_the_store_too() {
    let mut failures = 0;
    for failing in 1..8 {
        let disk = Disk::default();
        let mut store = Stepped::open(&disk, &small()).unwrap();
        store.settle().unwrap();
        for _ in 0..30 {
            store.append_next().unwrap();
        }
        store.flush().unwrap();
        store.checkpoint(|rows| rows.put_ordered(b"a", b"1")).unwrap();
        disk.fail_sync(failing);
        let mut failed = None;
        while failed.is_none() {
            match store
                .workers
                .checkpointer
                .step()
                .and_then(|did| Ok(did | store.workers.keeper.step()?))
            {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => failed = Some(error),
            }
        }
        if failed.is_some() {
            assert!(matches!(store.store.durable(), Err(Error::Stopped(_))));
            failures += 1;
        }
        drop(store);
        disk.fail_no_sync();
        let mut store = Stepped::open(&disk, &small()).unwrap();
        store.check_contents(store.claim.through + 1).unwrap();
        assert_eq!(store.last, 30);
    }
    assert!(failures >= 3, "the fault happened: {failures}");
}

#[test]
fn a_full_disk_leaves_the_reserve_for_settles_and_recovers_by_itself() {
    let disk = Disk::default();
    let mut store = Stepped::open(&disk, &small()).unwrap();
    store.settle().unwrap();
    assert_eq!(store.store.room(), Room::Free);
    // Not a byte more: the active segment and the spare are all there is.
    disk.limit(Some(disk.used()));
    let mut low_at = None;
    while store.last < 20 {
        store.append_next().unwrap();
        store.settle().unwrap();
        if store.store.room().is_low() && low_at.is_none() {
            low_at = Some(store.last);
        }
    }
    let low_at = low_at.expect("the reserve is in use");
    assert!(low_at < 20, "settles went on in the reserve");
    assert_eq!(store.store.durable().unwrap(), store.last);
    store.check_contents(1).unwrap();
    // A checkpoint has no room either; its rows are kept.
    store.checkpoint(|rows| rows.put_point([7; 16], 9, b"kept")).unwrap();
    store.settle().unwrap();
    assert_eq!(store.store.checkpointed().unwrap(), 0);
    assert!(store.store.room().is_low());
    disk.limit(None);
    store.settle().unwrap();
    assert_eq!(store.store.room(), Room::Free);
    assert_eq!(store.store.checkpointed().unwrap(), 20);
    let mut found = None;
    store.store.get_many(&[[7; 16]], &mut |_, value| found = Some(value.to_vec())).unwrap();
    assert_eq!(found.as_deref(), Some(b"kept".as_slice()));
}

#[test]
fn batches_beyond_the_reserve_wait_for_room_without_stopping() {
    let disk = Disk::default();
    let mut store = Stepped::open(&disk, &small()).unwrap();
    store.settle().unwrap();
    disk.limit(Some(disk.used()));
    for _ in 0..60 {
        store.append_next().unwrap();
        store.settle().unwrap();
    }
    let durable = store.store.durable().unwrap();
    assert!(durable > 10 && durable < 60, "the reserve is used up: {durable}");
    assert!(store.store.room().is_low());
    disk.limit(None);
    store.settle().unwrap();
    assert_eq!(store.store.durable().unwrap(), 60);
    assert_eq!(store.store.room(), Room::Free);
    store.check_contents(1).unwrap();
}

#[test]
fn too_little_free_space_says_so_before_it_is_too_late() {
    let disk = Disk::default();
    let mut options = small();
    options.journal.free_bytes_min = 100_000;
    let mut store = Stepped::open(&disk, &options).unwrap();
    store.settle().unwrap();
    assert_eq!(store.store.room(), Room::Free);
    disk.limit(Some(disk.used() + 99_999));
    store.settle().unwrap();
    assert!(store.store.room().is_low());
    disk.limit(Some(disk.used() + 100_000));
    store.settle().unwrap();
    assert_eq!(store.store.room(), Room::Free);
}

#[test]
fn a_batch_that_fits_no_segment_is_refused_and_the_store_goes_on() {
    let disk = Disk::default();
    let mut store = Stepped::open(&disk, &small()).unwrap();
    let max = store.store.batch_bytes_max() as usize;
    let refused = store.append(&vec![1; max + 1]).err();
    assert!(matches!(refused, Some(Error::TooLarge { .. })), "{refused:?}");
    for len in [max, max, 1, max] {
        store.append(&vec![2; len]).unwrap();
    }
    store.settle().unwrap();
    let lens: Vec<_> = store.batches(1).unwrap().iter().map(|(_, batch)| batch.len()).collect();
    assert_eq!(lens, [max, max, 1, max]);
}

#[test]
fn too_much_pending_is_flushed_by_the_owner_itself() {
    let disk = Disk::default();
    let mut options = small();
    options.journal.pending_bytes_max = 1000;
    let mut store = Stepped::open(&disk, &options).unwrap();
    for _ in 0..50 {
        store.append_next().unwrap();
    }
    assert!(store.store.durable().unwrap() > 40, "nobody stepped the flusher");
    store.settle().unwrap();
    store.check_contents(1).unwrap();
}

#[test]
fn segments_are_recycled_and_their_leftovers_never_read() {
    for seed in 0..20 {
        let mut random = Random(seed);
        let disk = Disk::default();
        let mut store = Stepped::open(&disk, &small()).unwrap();
        for round in 0..40 {
            for _ in 0..random.below(12) {
                store.append_next().unwrap();
                if random.below(3) == 0 {
                    store.flush().unwrap();
                }
            }
            if random.below(2) == 0 && store.last > store.store.checkpointed().unwrap() {
                store.checkpoint(|_| {}).unwrap();
            }
            store.settle().unwrap();
            if round % 5 == 4 {
                drop(store);
                store = Stepped::open(&disk, &small()).unwrap();
                store.check_contents(store.claim.through + 1).unwrap();
                store.settle().unwrap();
            }
            assert!(disk.segments().len() <= 12, "seed {seed}: {:?}", disk.segments());
        }
        let newest = disk.segments().pop().unwrap();
        assert!(newest.as_str() > "journal-0000000a.seg", "seed {seed}: many were used: {newest}");
        assert_eq!(content(3).len(), 159, "batches have a size worth rolling for");
    }
}

#[test]
fn a_full_disk_does_not_keep_a_new_owner_out() {
    let disk = Disk::default();
    let mut store = Stepped::open(&disk, &small()).unwrap();
    store.append_next().unwrap();
    store.settle().unwrap();
    drop(store);
    disk.limit(Some(disk.used()));
    let mut store = Stepped::open(&disk, &small()).unwrap();
    store.append_next().unwrap();
    store.settle().unwrap();
    assert_eq!(store.store.durable().unwrap(), 2);
    disk.limit(None);
    store.settle().unwrap();
    assert_eq!(store.store.room(), Room::Free);
}

/// What a crash left over is freed for a new owner before the reserve that settles need.
#[test]
fn a_new_owner_on_a_full_disk_frees_leftovers_before_its_reserve() {
    let disk = Disk::default();
    let mut options = small();
    options.archive.reserve_bytes = 0;
    let mut store = Stepped::open(&disk, &options).unwrap();
    store.append_next().unwrap();
    store.settle().unwrap();
    drop(store);
    let segments = disk.segments();
    let leftover = "run-0000000000000009";
    disk.create(leftover).unwrap().write_all_at(&[1; 4_096], 0).unwrap();
    disk.limit(Some(disk.used()));
    let has_leftover = || disk.names().iter().any(|name| name == leftover);
    let (mut store, _workers) =
        DiskStore::open(Arc::new(disk.clone()), options, Arc::new(|| {})).unwrap();
    assert!(has_leftover(), "nobody has claimed it");
    store.claim().unwrap();
    assert!(!has_leftover());
    assert_eq!(disk.segments(), segments, "the spare segments are still there");
}

/// A store whose journal went around often enough to have many spares.
fn with_many_spares(disk: &Disk, options: &Options) -> Stepped {
    let mut store = Stepped::open(disk, options).unwrap();
    for _ in 0..100 {
        store.append_next().unwrap();
    }
    store.flush().unwrap();
    store.checkpoint(|_| {}).unwrap();
    store.settle().unwrap();
    assert!(disk.segments().len() > 5, "{:?}", disk.segments());
    store
}

#[test]
fn spares_beyond_the_reserve_are_given_back_below_the_watermark() {
    let disk = Disk::default();
    let mut options = small();
    options.journal.free_bytes_min = 10_000;
    let mut store = with_many_spares(&disk, &options);
    disk.limit(Some(disk.used() + 9_000));
    store.settle().unwrap();
    assert_eq!(disk.segments().len(), 7 - 1, "one was enough");
    assert_eq!(store.store.room(), Room::Free);
    // Somebody else takes more than all of them.
    disk.limit(Some(disk.used() - 20_000));
    store.settle().unwrap();
    assert_eq!(disk.segments().len(), 2, "the one that is written, and the reserve");
    assert!(store.store.room().is_low());
    // Segments that are no longer needed are not kept either.
    disk.limit(Some(disk.used() + 9_000));
    for _ in 0..20 {
        store.append_next().unwrap();
        store.settle().unwrap();
    }
    let Room::Low(shortage) = store.store.room() else { panic!("there is little room") };
    assert!(shortage.releasable_bytes > 0 && shortage.free_bytes < 9_000, "{shortage:?}");
    store.checkpoint(|_| {}).unwrap();
    store.settle().unwrap();
    assert_eq!(disk.segments().len(), 2);
    disk.limit(None);
    for _ in 0..100 {
        store.append_next().unwrap();
    }
    store.flush().unwrap();
    store.checkpoint(|_| {}).unwrap();
    store.settle().unwrap();
    assert!(disk.segments().len() > 5, "above the watermark they are kept");
    store.check_contents(store.last).unwrap();
}

#[test]
fn a_new_owner_gets_in_where_there_is_neither_a_spare_nor_a_byte() {
    let disk = Disk::default();
    let mut store = Stepped::open(&disk, &small()).unwrap();
    store.settle().unwrap();
    disk.limit(Some(disk.used()));
    while store.store.durable().unwrap() == store.last {
        store.append_next().unwrap();
        store.settle().unwrap();
    }
    let durable = store.store.durable().unwrap();
    drop(store);
    // The owner before filled the disk, and so does somebody else, twice.
    for _ in 0..2 {
        disk.limit(Some(disk.used()));
        let mut store = Stepped::open(&disk, &small()).unwrap();
        assert_eq!(store.last, durable);
        store.settle().unwrap();
        assert!(store.store.room().is_low());
    }
    disk.limit(None);
    let mut store = Stepped::open(&disk, &small()).unwrap();
    store.append_next().unwrap();
    store.settle().unwrap();
    assert_eq!(store.store.durable().unwrap(), durable + 1);
    assert_eq!(store.store.room(), Room::Free);
}

#[test]
fn what_a_crash_left_of_a_segment_makes_room_for_a_new_owner() {
    let disk = Disk::default();
    let mut options = small();
    options.archive.reserve_bytes = 0;
    let mut store = Stepped::open(&disk, &options).unwrap();
    store.append_next().unwrap();
    store.settle().unwrap();
    drop(store);
    disk.create("journal-new.tmp").unwrap().write_all_at(&[0; 3000], 0).unwrap();
    disk.limit(Some(disk.used()));
    let store = Stepped::open(&disk, &options).unwrap();
    assert_eq!(store.last, 1);
    assert_eq!(disk.segments().len(), 2, "no spare was given up for it");
}

const ROWS: u32 = 200;
const VALUE: [u8; 4000] = [7; 4000];

/// A store with many rows, of which the newest checkpoint deletes those of `deleted`.
fn with_rows(disk: &Disk, deleted: std::ops::Range<u32>) -> Stepped {
    let mut options = small();
    options.journal.free_bytes_min = 400_000;
    let mut store = Stepped::open(disk, &options).unwrap();
    store.append_next().unwrap();
    let write = |rows: &mut RowSet| {
        for row in 0..ROWS {
            rows.put_ordered(&row.to_be_bytes(), &VALUE);
        }
        rows.put_point([7; 16], 9, b"kept");
    };
    store.flush().unwrap();
    store.checkpoint(write).unwrap();
    store.settle().unwrap();
    store.append_next().unwrap();
    store.flush().unwrap();
    store
        .checkpoint(|rows| deleted.for_each(|row| rows.delete_ordered(&row.to_be_bytes())))
        .unwrap();
    store.settle().unwrap();
    assert!(disk.used() > 800_000, "so few are no reason to merge: {}", disk.used());
    store
}

fn count_rows(store: &mut Stepped) -> u32 {
    let mut rows = 0;
    store
        .store
        .scan(&[], &[0xff; 8], &mut |_, value| {
            let Some(value) = value else { return true };
            assert_eq!(value, VALUE);
            rows += 1;
            true
        })
        .unwrap();
    let mut found = None;
    store.store.get_many(&[[7; 16]], &mut |_, value| found = Some(value.to_vec())).unwrap();
    assert_eq!(found.as_deref(), Some(b"kept".as_slice()));
    rows
}

#[test]
fn dead_rows_are_dropped_while_the_disk_is_short_of_space() {
    // What is free holds all that is merged, or not, but then what is left of it.
    for free in [390_000, 100_000] {
        let disk = Disk::default();
        let mut store = with_rows(&disk, 0..ROWS - 5);
        disk.limit(Some(disk.used() + free));
        store.settle().unwrap();
        assert!(disk.used() < 100_000, "{} with {free} free", disk.used());
        assert_eq!(store.store.room(), Room::Free);
        assert_eq!(count_rows(&mut store), 5);
    }
}

#[test]
fn a_merge_that_turns_out_too_large_is_left_off_and_not_tried_again() {
    let disk = Disk::default();
    // Rows that are not there: nothing gets smaller by it.
    let mut store = with_rows(&disk, ROWS..2 * ROWS);
    let used = disk.used();
    disk.limit(Some(used + 100_000));
    store.settle().unwrap();
    assert!(store.store.room().is_low());
    assert_eq!(count_rows(&mut store), ROWS);
    let written = store.store.archive().stats().bytes_written;
    for _ in 0..5 {
        store.settle().unwrap();
    }
    assert_eq!(store.store.archive().stats().bytes_written, written, "no second attempt");
    assert!(disk.used() < used + 20_000, "nothing is left of the attempt");
    disk.limit(None);
    store.settle().unwrap();
    assert_eq!(store.store.room(), Room::Free);
}
