//! The archive in fair weather: buckets, merges, pins, large values, filters.
#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::sync::Arc;

use hapax_store::archive::{Archive, Options, Space, Step, verify};
use hapax_store::{NEVER, RowSet};

mod archive_support;
use archive_support::{
    Model, Random, TestVolume, checkpoint, contents, expected, key, merge_all, open,
};

fn points(numbers: std::ops::Range<u64>, drop_at: u64) -> RowSet {
    let mut rows = RowSet::default();
    numbers.for_each(|number| rows.put_point(key(number), drop_at, &number.to_le_bytes()));
    rows
}

fn found(archive: &Archive, numbers: std::ops::Range<u64>) -> usize {
    let keys: Vec<_> = numbers.map(key).collect();
    contents(archive, &keys).expect("rows").0.len()
}

#[test]
fn rows_are_seen_when_the_journal_is_durable_and_not_before() {
    let volume = TestVolume::default();
    let archive = open(&volume).expect("a new archive");
    let mut job = archive.checkpoint(points(0..100, 50), 7, 0);
    for _ in 0..100 {
        assert_ne!(job.step(6).expect("a step"), Step::Done);
    }
    assert_eq!(job.step(6).expect("a step"), Step::Waiting);
    assert_eq!((archive.head().through, found(&archive, 0..100)), (0, 0));
    assert_eq!(job.step(7).expect("a step"), Step::Done);
    assert_eq!((archive.head().through, found(&archive, 0..100)), (7, 100));
}

#[test]
fn deleted_rows_are_shown_until_merges_have_removed_them() {
    let archive = open(&TestVolume::default()).expect("a new archive");
    let name = |number: u32| number.to_be_bytes();
    let mut written = RowSet::default();
    (0..1_000).for_each(|number| written.put_ordered(&name(number), b"value"));
    checkpoint(&archive, written, 1, 0).expect("a checkpoint");
    let mut deleted = RowSet::default();
    (0..999).for_each(|number| deleted.delete_ordered(&name(number)));
    checkpoint(&archive, deleted, 2, 0).expect("a checkpoint");
    // A caller that must not wait long stops among them.
    let shown = |most: usize| {
        let (mut gone, mut there) = (0, 0);
        let each = &mut |_: &[u8], value: Option<&[u8]>| {
            *(if value.is_some() { &mut there } else { &mut gone }) += 1;
            gone + there < most
        };
        archive.reader().scan(&name(0), &name(u32::MAX), each).expect("a scan");
        (gone, there)
    };
    assert_eq!(shown(10), (10, 0));
    assert_eq!(shown(usize::MAX), (999, 1));
}

#[test]
fn the_progress_of_a_checkpoint_grows_in_small_steps() {
    let volume = TestVolume::default();
    let archive = open(&volume).expect("a new archive");
    let mut rows = archive.empty_rows();
    rows.reserve(200_000, 0);
    let mut last = archive.checkpoint_progress();
    assert_eq!(last, 0.0, "nothing is done");
    for number in 0..200_000 {
        rows.put_point(key(number), 50, &number.to_le_bytes());
        let progress = archive.checkpoint_progress();
        assert!((last..last + 0.01).contains(&progress), "from {last} to {progress}");
        last = progress;
    }
    assert!(last > 0.15, "all points are added at {last}");
    (0..20_000_u32).for_each(|number| rows.put_ordered(&number.to_be_bytes(), &[7; 100]));
    let mut job = archive.checkpoint(rows, 1, 0);
    while job.step(0).expect("a step") != Step::Waiting {
        let progress = archive.checkpoint_progress();
        assert!(progress >= last, "from {last} to {progress}");
        assert!(progress - last < 0.25, "from {last} to {progress}");
        last = progress;
    }
    assert!((0.85..1.0).contains(&last), "it waits for the journal: {last}");
    assert_eq!(job.step(1).expect("a step"), Step::Done);
    assert_eq!(archive.checkpoint_progress(), 0.0, "there is none");
}

#[test]
fn the_progress_of_a_checkpoint_that_starts_over_begins_anew() {
    let volume = TestVolume::default();
    let archive = open(&volume).expect("a new archive");
    let mut job = archive.checkpoint(points(0..200_000, 50), 1, 0);
    volume.limit(Some(3 << 20));
    let (mut steps, mut last) = (0, 0.0);
    let full = loop {
        match job.step(0) {
            Ok(_) => (steps, last) = (steps + 1, archive.checkpoint_progress()),
            Err(error) => break error,
        }
    };
    assert!(full.is_full() && last > 0.25, "{full} after {steps} steps, at {last}");
    volume.limit(None);
    for _ in 0..steps {
        assert!(archive.checkpoint_progress() <= last, "it has written no more than before");
        job.step(0).expect("a step");
    }
    assert_eq!(archive.checkpoint_progress(), last, "as the first time");
}

#[test]
fn runs_are_synced_in_pieces_as_they_are_written() {
    const STEP_BYTES_MAX: usize = 1 << 19;
    let volume = TestVolume::default();
    let archive = open(&volume).expect("a new archive");
    let mut job = archive.checkpoint(points(0..300_000, 50), 1, 0);
    while job.step(1).expect("a step") != Step::Done {}
    let piece = Options::default().sync_bytes as usize;
    assert!(volume.used() as usize > 4 * piece, "{} bytes are several pieces", volume.used());
    let at_once = volume.synced_at_once_max();
    assert!((1..piece + STEP_BYTES_MAX).contains(&at_once), "{at_once} bytes at once");
}

#[test]
fn a_bucket_is_dropped_when_its_time_is_over_and_others_stay() {
    let volume = TestVolume::default();
    let archive = open(&volume).expect("a new archive");
    for (through, (numbers, drop_at)) in
        (1..).zip([(0..100, 50), (100..200, 60), (200..300, NEVER), (300..400, 50)])
    {
        checkpoint(&archive, points(numbers, drop_at), through, 0).expect("a checkpoint");
    }
    checkpoint(&archive, points(400..500, 49), 5, 49).expect("a checkpoint");
    assert_eq!(found(&archive, 0..500), 400, "what is over is not even written");
    checkpoint(&archive, RowSet::default(), 6, 50).expect("a checkpoint");
    assert_eq!(found(&archive, 0..500), 200);
    assert_eq!(archive.stats().buckets_dropped, 1);
    checkpoint(&archive, RowSet::default(), 7, u64::MAX).expect("a checkpoint");
    assert_eq!(found(&archive, 0..500), 100, "what never ends is never dropped");
    merge_all(&archive).expect("removals");
    assert_eq!(volume.runs().len(), 1);
    assert_eq!(found(&open(&volume).expect("an archive"), 0..500), 100);
}

#[test]
fn a_bucket_dropped_while_it_is_merged_stays_dropped() {
    let volume = TestVolume::default();
    let archive = open(&volume).expect("a new archive");
    for through in 1..=8 {
        let from = through * 100;
        checkpoint(&archive, points(from..from + 100, 50), through, 0).expect("a checkpoint");
    }
    let mut job = archive.merge(Space::PLENTY).expect("a merge");
    job.step().expect("a step");
    checkpoint(&archive, RowSet::default(), 9, 50).expect("a checkpoint");
    while job.step().expect("a step") != Step::Done {}
    drop(job);
    assert_eq!(found(&archive, 0..2000), 0);
    merge_all(&archive).expect("removals");
    assert_eq!(volume.names(), ["MANIFEST"], "no file is left");
}

#[test]
fn a_pin_keeps_its_files_and_is_a_whole_backup() {
    let volume = TestVolume::default();
    let archive = open(&volume).expect("a new archive");
    for through in 1..=8 {
        let from = through * 100;
        checkpoint(&archive, points(from..from + 100, 50), through, 0).expect("a checkpoint");
    }
    let pinned = archive.pin();
    checkpoint(&archive, points(900..1000, 70), 9, 50).expect("a checkpoint");
    merge_all(&archive).expect("merges");
    assert_eq!(found(&archive, 0..2000), 100);
    let backup = TestVolume::default();
    for (name, bytes) in pinned.files() {
        let copy = volume.read(&name);
        assert_eq!(copy.len() as u64, bytes);
        backup.write(&name, &copy);
    }
    let (name, manifest) = pinned.manifest();
    backup.write(name, manifest);
    let restored = open(&backup).expect("a backup");
    assert_eq!(restored.head(), pinned.head());
    assert_eq!(found(&restored, 0..2000), 800);
    drop(pinned);
    merge_all(&archive).expect("removals");
    assert_eq!(volume.runs().len(), 1, "after the pin the files go");
}

#[test]
fn values_of_megabytes_come_back() {
    let volume = TestVolume::default();
    let archive = open(&volume).expect("a new archive");
    let mut model = Model::default();
    let mut random = Random(7);
    for round in 0..9 {
        let mut rows = RowSet::default();
        for number in 0..40 {
            let length = match number % 8 {
                0 => random.below(2 << 20),
                1 => 4070 + random.below(40),
                2 => 16_350 + random.below(40),
                _ => random.below(6000),
            };
            let value = vec![(round * 40 + number) as u8; length as usize];
            model.put_point(&mut rows, key(round * 30 + number), NEVER, value.clone());
            model.put_ordered(&mut rows, &(round * 30 + number).to_be_bytes(), value);
        }
        checkpoint(&archive, rows, round + 1, 0).expect("a checkpoint");
    }
    let keys: Vec<_> = (0..400).map(key).collect();
    assert!(contents(&archive, &keys).expect("rows") == expected(&model));
    merge_all(&archive).expect("merges");
    assert!(contents(&archive, &keys).expect("rows") == expected(&model));
    let archive = open(&volume).expect("an archive that was there");
    assert!(contents(&archive, &keys).expect("rows") == expected(&model));
}

#[test]
fn a_new_key_reads_no_block_and_an_old_one_at_most_two() {
    let volume = TestVolume::default();
    let archive = open(&volume).expect("a new archive");
    for through in 1..=12 {
        let from = through * 20_000;
        checkpoint(&archive, points(from..from + 20_000, 50), through, 0).expect("a checkpoint");
        merge_all(&archive).expect("merges");
    }
    for archive in [archive, open(&volume).expect("an archive that was there")] {
        let before = archive.stats();
        assert_eq!(found(&archive, 10_000_000..10_100_000), 0);
        let after = archive.stats();
        let read = after.blocks_read - before.blocks_read;
        assert!(read <= 100, "{read} blocks for 100 thousand new keys");
        assert_eq!(read, after.false_positives - before.false_positives);
        assert_eq!(found(&archive, 50_000..60_000), 10_000);
        let read = archive.stats().blocks_read - after.blocks_read;
        assert!(read <= 10_000 + 10_000 / 20, "{read} blocks for 10 thousand old keys");
    }
}

#[test]
fn without_memory_for_filters_every_answer_is_still_right() {
    let volume = TestVolume::default();
    let options = Options { filter_bytes_max: 5000, ..Options::default() };
    let archive = Archive::open(Arc::new(volume.clone()), options).expect("a new archive");
    for through in 1..=10 {
        let from = through * 1000;
        checkpoint(&archive, points(from..from + 1000, 50), through, 0).expect("a checkpoint");
        assert!(archive.stats().filter_bytes <= 5000);
    }
    merge_all(&archive).expect("merges");
    let reopened = Archive::open(Arc::new(volume), options).expect("an archive that was there");
    for archive in [archive, reopened] {
        assert!(archive.stats().filter_bytes <= 5000);
        assert_eq!(found(&archive, 0..20_000), 10_000);
    }
}

#[test]
fn many_buckets_take_one_file_per_checkpoint_and_few_sections_each() {
    let volume = TestVolume::default();
    let archive = open(&volume).expect("a new archive");
    let mut written = 0;
    for through in 1..=40 {
        let mut rows = RowSet::default();
        for number in 0..100 {
            rows.put_point(key(through * 100 + number), 1000 + number, b"value");
        }
        written += 100;
        let before = volume.operations();
        checkpoint(&archive, rows, through, 0).expect("a checkpoint");
        let operations = volume.operations() - before;
        assert!(operations <= 12, "{operations} operations for one checkpoint");
        merge_all(&archive).expect("merges");
        let stats = archive.stats();
        assert!(stats.point_sections <= stats.buckets + 16, "{stats:?}");
        assert!(!archive.behind());
    }
    assert_eq!(found(&archive, 100..100 + 40 * 100), written);
}

#[test]
fn deleted_rows_leave_no_trace_once_merged() {
    let volume = TestVolume::default();
    let archive = open(&volume).expect("a new archive");
    for (through, step) in (1..).zip(0..20_u64) {
        let mut rows = RowSet::default();
        for number in step * 500..(step + 1) * 500 {
            rows.put_point(key(number), NEVER, b"value");
            rows.put_ordered(&number.to_be_bytes(), &[1; 100]);
            if let Some(old) = number.checked_sub(1000) {
                rows.delete_point(key(old), NEVER);
                rows.delete_ordered(&old.to_be_bytes());
            }
        }
        checkpoint(&archive, rows, through, 0).expect("a checkpoint");
        merge_all(&archive).expect("merges");
    }
    assert_eq!(found(&archive, 0..10_000), 1000);
    let rows = archive.stats().rows;
    assert!(rows <= 3 * (1000 + 1000) + 4 * 1024, "{rows} rows are kept for 2000");
    let mut rows = RowSet::default();
    for number in 9000..10_000_u64 {
        rows.delete_point(key(number), NEVER);
        rows.delete_ordered(&number.to_be_bytes());
    }
    checkpoint(&archive, rows, 21, 0).expect("a checkpoint");
    let (points, ordered) = contents(&archive, &[]).expect("rows");
    assert!(points.is_empty() && ordered.is_empty());
    verify(&volume, &mut |finding| panic!("{finding:?}")).expect("verified");
}

#[test]
fn a_reader_on_another_thread_always_sees_one_whole_checkpoint() {
    let volume = TestVolume::default();
    let archive = open(&volume).expect("a new archive");
    let keys: Vec<_> = (0..500).map(key).collect();
    let mut reader = archive.reader();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = stop.clone();
    let watcher = std::thread::spawn(move || {
        let mut looks = 0;
        let mut last = 0;
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) || looks == 0 {
            let mut values = Vec::new();
            reader.get_many(&keys, &mut |_, value| values.push(value[0])).expect("rows");
            assert!(values.is_empty() || values.len() == keys.len(), "all or nothing");
            assert!(values.windows(2).all(|pair| pair[0] == pair[1]), "of one checkpoint");
            let now = values.first().copied().unwrap_or(0);
            assert!(now >= last, "time does not run backwards");
            last = now;
            looks += 1;
        }
        looks
    });
    let merger = archive.clone();
    for through in 1..=60 {
        let mut rows = RowSet::default();
        (0..500).for_each(|number| rows.put_point(key(number), NEVER, &[through as u8]));
        let mut job = archive.checkpoint(rows, through, 0);
        let merges = merger.clone();
        let merging = std::thread::spawn(move || merge_all(&merges).expect("merges"));
        while job.step(through).expect("a step") != Step::Done {}
        merging.join().expect("merges");
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(watcher.join().expect("a watcher") > 0);
}
