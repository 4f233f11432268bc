//! The archive under faults: power cuts at every operation, rot at every byte, full disks.
#![expect(
    clippy::indexing_slicing,
    clippy::expect_used,
    reason = "helpers of tests fail like tests"
)]

use hapax_store::archive::{Archive, Severity, Space, Step, verify};
use hapax_store::{Error, NEVER, PointKey, RowSet};

mod archive_support;
use archive_support::{
    ALL_CUTS, Model, Rows, TestVolume, checkpoint, contents, expected, key, merge_all, open,
};

/// Rows in several buckets, some replaced and deleted, from number `from` on.
fn write(rows: &mut RowSet, model: &mut Model, from: u64) {
    for number in from..from + 60 {
        let drop_at = if number % 3 == 0 { NEVER } else { 1000 };
        model.put_point(rows, key(number), drop_at, vec![number as u8; number as usize % 90]);
        model.put_ordered(rows, &number.to_be_bytes(), vec![7; 60]);
    }
    for number in (0..from).step_by(7) {
        model.delete_point(rows, key(number));
        model.delete_ordered(rows, &number.to_be_bytes());
    }
}

fn keys() -> Vec<PointKey> {
    (0..1000).map(key).collect()
}

/// Nine checkpoints, so that a merge is worth it, and the rows after them.
fn filled() -> (TestVolume, Model) {
    let volume = TestVolume::default();
    let archive = open(&volume).expect("a new archive");
    let mut model = Model::default();
    for number in 0..9 {
        let mut rows = RowSet::default();
        write(&mut rows, &mut model, number * 60);
        checkpoint(&archive, rows, number + 1, 0).expect("a checkpoint");
    }
    (volume, model)
}

/// Does `work` on copies of `volume` with the power cut at every operation and demands that the
/// archive found afterwards is one of `allowed`, and that work can go on from there.
fn cut_everywhere(
    volume: &TestVolume,
    work: &dyn Fn(&Archive) -> Result<(), Error>,
    allowed: &[(u64, Rows)],
) {
    let mut seen = vec![0; allowed.len()];
    let mut cuts = 0;
    for operations in 0.. {
        let cut = volume.copy();
        let archive = open(&cut).expect("an archive that was there");
        cut.cut_after(operations);
        let ended = work(&archive).is_ok();
        for survives in ALL_CUTS {
            let found = cut.after_cut(survives);
            let archive = open(&found).unwrap_or_else(|e| panic!("{operations} {survives:?}: {e}"));
            let state = (archive.head().through, contents(&archive, &keys()).expect("rows"));
            let which = allowed.iter().position(|allowed| *allowed == state);
            let which = which.unwrap_or_else(|| panic!("a third state after {operations}"));
            seen[which] += 1;
            assert!(!ended || which + 1 == allowed.len(), "what is done stays done");
            work(&archive).expect("the work can be done again");
            let state = (archive.head().through, contents(&archive, &keys()).expect("rows"));
            assert_eq!(state, *allowed.last().expect("a state"));
            verify(&found, &mut |finding| assert_eq!(finding.severity, Severity::Note))
                .expect("verified");
        }
        cuts += 1;
        if ended {
            break;
        }
    }
    assert!(cuts > 5, "the power was cut {cuts} times");
    assert!(seen.iter().all(|times| *times > 0), "every allowed state was seen: {seen:?}");
}

#[test]
fn a_checkpoint_cut_anywhere_is_there_whole_or_not_at_all() {
    let (volume, model) = filled();
    let mut after = model.clone();
    write(&mut RowSet::default(), &mut after, 600);
    after.drop_until(1000);
    let work = |archive: &Archive| {
        let mut rows = RowSet::default();
        write(&mut rows, &mut model.clone(), 600);
        checkpoint(archive, rows, 10, 1000)
    };
    cut_everywhere(&volume, &work, &[(9, expected(&model)), (10, expected(&after))]);
}

#[test]
fn a_merge_cut_anywhere_changes_no_row() {
    let (volume, model) = filled();
    let merged = |archive: &Archive| merge_all(archive).map(|_| ());
    cut_everywhere(&volume, &merged, &[(9, expected(&model))]);
    let archive = open(&volume).expect("an archive that was there");
    assert!(merge_all(&archive).expect("merges") > 2);
    assert!(volume.runs().len() < 9, "merged inputs are removed");
}

#[test]
fn creating_an_archive_cut_anywhere_can_be_repeated() {
    for operations in 0..10 {
        let volume = TestVolume::default();
        volume.cut_after(operations);
        let ended = open(&volume).is_ok();
        for survives in ALL_CUTS {
            let archive = open(&volume.after_cut(survives)).expect("a new archive");
            assert_eq!((archive.head().epoch, archive.head().through), (0, 0));
        }
        assert!(ended || operations < 9, "it ends");
    }
}

#[test]
fn an_epoch_is_durable_when_it_was_committed() {
    let (volume, _) = filled();
    open(&volume).expect("an archive").commit_epoch(3).expect("an epoch");
    for survives in ALL_CUTS {
        let archive = open(&volume.after_cut(survives)).expect("an archive that was there");
        assert_eq!((archive.head().epoch, archive.head().through), (3, 9));
        let refused = archive.commit_epoch(2);
        assert!(matches!(refused, Err(Error::Fenced { held: 2, newest: 3 })), "{refused:?}");
    }
}

/// Opens, reads everything and merges; the rows, or the damage that was named.
fn read_all(volume: &TestVolume) -> Result<Rows, Error> {
    let archive = open(volume)?;
    let rows = contents(&archive, &keys())?;
    merge_all(&archive)?;
    let merged = contents(&archive, &keys())?;
    assert_eq!(rows, merged, "a merge changes no row");
    Ok(rows)
}

#[test]
fn a_flipped_bit_is_named_or_harmless_wherever_it_is() {
    let volume = TestVolume::default();
    let archive = open(&volume).expect("a new archive");
    let mut model = Model::default();
    let mut rows = RowSet::default();
    write(&mut rows, &mut model, 0);
    checkpoint(&archive, rows, 1, 0).expect("a checkpoint");
    let wanted = expected(&model);
    let (mut named, mut harmless, mut rebuilt) = (0, 0, 0);
    for name in volume.names() {
        let length = volume.read(&name).len();
        for at in 0..length {
            let damaged = volume.copy();
            damaged.flip(&name, at, 1 << (at % 8));
            let mut findings = Vec::new();
            verify(&damaged, &mut |finding| findings.push(finding)).expect("verified");
            match read_all(&damaged) {
                Ok(rows) => {
                    assert_eq!(rows, wanted, "{name} at {at}");
                    assert!(findings.iter().all(|f| f.severity == Severity::Derived));
                    harmless += 1;
                    rebuilt += u64::from(!findings.is_empty());
                }
                Err(Error::Corrupt(corruption)) => {
                    assert_eq!(corruption.file, format!("test:/{name}"), "at {at}");
                    let distance = (corruption.offset as usize).abs_diff(at);
                    assert!(distance < 16_384, "{name} at {at}: {corruption}");
                    assert!(findings.iter().any(|f| f.severity == Severity::Damage));
                    named += 1;
                }
                Err(error) => panic!("{name} at {at}: {error}"),
            }
        }
    }
    assert!(named > 10_000 && rebuilt > 100, "{named} {harmless} {rebuilt}");
    assert_eq!(harmless, rebuilt, "nothing rots without a word");
}

#[test]
fn a_file_that_is_missing_cut_or_misplaced_is_named() {
    let (volume, _) = filled();
    let runs = volume.runs();
    let cut = volume.copy();
    let bytes = cut.read(&runs[0]);
    cut.write(&runs[0], &bytes[..bytes.len() - 1]);
    let swapped = volume.copy();
    swapped.write(&runs[0], &volume.read(&runs[1]));
    let missing = TestVolume::default();
    for name in volume.names().into_iter().filter(|name| *name != runs[0]) {
        missing.write(&name, &volume.read(&name));
    }
    for damaged in [cut, swapped, missing] {
        let before = damaged.names();
        let error = read_all(&damaged).expect_err("damage");
        let Error::Corrupt(corruption) = &error else { panic!("{error}") };
        assert_eq!(corruption.file, format!("test:/{}", runs[0]));
        assert_eq!(damaged.names(), before, "nothing is deleted");
    }
}

#[test]
fn a_whole_block_in_the_wrong_place_is_named() {
    let volume = TestVolume::default();
    let archive = open(&volume).expect("a new archive");
    for through in 1..=2 {
        let mut rows = RowSet::default();
        (0..200).for_each(|number| rows.put_point(key(number), NEVER, &[through as u8; 50]));
        checkpoint(&archive, rows, through, 0).expect("a checkpoint");
    }
    let runs = volume.runs();
    let (old, new) = (volume.read(&runs[0]), volume.read(&runs[1]));
    assert_eq!(old.len(), new.len(), "the two runs are alike");
    let stale = volume.copy();
    stale.overwrite(&runs[1], 4096, &old[4096..8192]);
    let shifted = volume.copy();
    shifted.overwrite(&runs[1], 4096, &new[..4096]);
    for damaged in [stale, shifted] {
        let error = read_all(&damaged).expect_err("damage");
        let Error::Corrupt(corruption) = &error else { panic!("{error}") };
        assert_eq!(
            (corruption.file.as_str(), corruption.offset),
            (&*format!("test:/{}", runs[1]), 4096)
        );
    }
}

#[test]
fn runs_without_a_manifest_are_no_empty_archive() {
    let (volume, _) = filled();
    let lost = TestVolume::default();
    for name in volume.runs() {
        lost.write(&name, &volume.read(&name));
    }
    let error = open(&lost).expect_err("damage");
    assert!(matches!(&error, Error::Corrupt(c) if c.file == "test:/MANIFEST"), "{error}");
    assert_eq!(lost.names(), volume.runs(), "nothing was touched");
    let summary = verify(&lost, &mut |_| {}).expect("verified");
    assert_eq!(summary.damages, 1);
}

#[test]
fn a_newer_format_is_refused_and_left_alone() {
    let (volume, _) = filled();
    let mut manifest = volume.read("MANIFEST");
    manifest[8] = 3;
    let checksum = crc32c::crc32c(&manifest[..16]).to_le_bytes();
    manifest[16..20].copy_from_slice(&checksum);
    volume.write("MANIFEST", &manifest);
    volume.write("run-00000000000000ff", b"of the newer release");
    let before = volume.names();
    let error = open(&volume).expect_err("a refusal");
    assert!(matches!(error, Error::NewerFormat { found: 3, known: 2, .. }), "{error}");
    assert_eq!(volume.names(), before);
}

#[test]
fn leftovers_are_removed_and_files_of_others_are_not() {
    let (volume, model) = filled();
    let before = volume.names();
    for name in ["run-00000000000000aa", "MANIFEST.tmp"] {
        volume.write(name, b"half");
    }
    for name in ["run-aa", "journal-1", "run-00000000000000AB", "manifest"] {
        volume.write(name, b"not ours");
    }
    let left = volume.names();
    let archive = open(&volume).expect("an archive that was there");
    assert_eq!(contents(&archive, &keys()).expect("rows"), expected(&model));
    assert_eq!(volume.names(), left, "nothing is removed before the claim");
    archive.commit_epoch(archive.head().epoch + 1).expect("an owner");
    archive.remove_leftovers(archive.head().epoch).expect("room");
    let mut after = volume.names();
    after.retain(|name| volume.read(name) != b"not ours");
    assert_eq!(after, before);
    assert_eq!(volume.names().len(), before.len() + 4);
}

/// Two owners that race may both see one directory of runs: each writes under names of its own,
/// and removes what earlier ones left alone.
#[test]
fn an_owner_neither_writes_nor_removes_the_runs_of_a_later_one() {
    let (volume, _) = filled();
    let old = volume.names();
    assert!(old.contains(&"run-0000000000000001".to_owned()), "release 0.1 counts from 1: {old:?}");
    let archive = open(&volume).expect("an archive that was there");
    archive.commit_epoch(7).expect("an owner");
    for name in ["run-0000070000000009", "run-0000080000000001"] {
        volume.write(name, b"of this owner, or of a later one");
    }
    volume.write("run-0000060000000001", b"of an earlier owner");
    archive.remove_leftovers(archive.head().epoch).expect("room");
    let has = |name: &str| volume.names().iter().any(|other| other == name);
    assert!(has("run-0000070000000009") && has("run-0000080000000001"));
    assert!(!has("run-0000060000000001"));
    let mut rows = RowSet::default();
    rows.put_point(key(5_000_000), NEVER, b"new");
    checkpoint(&archive, rows, archive.head().through + 1, 0).expect("a checkpoint");
    assert!(has("run-0000070000000000"), "{:?}", volume.names());
    drop(archive);
    // The next owner's numbers are above all that are there, named or not.
    let archive = open(&volume).expect("an archive that was there");
    archive.commit_epoch(8).expect("an owner");
    let mut rows = RowSet::default();
    rows.put_point(key(5_000_001), NEVER, b"newer");
    checkpoint(&archive, rows, archive.head().through + 1, 0).expect("a checkpoint");
    assert!(has("run-0000080000000002"), "{:?}", volume.names());
}

#[test]
fn a_checkpoint_on_a_full_disk_waits_for_room() {
    let (volume, mut model) = filled();
    let archive = open(&volume).expect("an archive that was there");
    let before = expected(&model);
    for room in [0, 100, 5000, 20_000] {
        volume.limit(Some(volume.used() + room));
        let mut rows = RowSet::default();
        let from = 1000 + room;
        for number in from..from + 1000 {
            model.put_point(&mut rows, key(number), NEVER, vec![1; 50]);
        }
        let through = archive.head().through + 1;
        let mut job = archive.checkpoint(rows, through, 0);
        let (used, mut refusals) = (volume.used(), 0);
        while refusals < 3 {
            match job.step(through) {
                Ok(Step::Done) => panic!("there was no room"),
                Ok(_) => {}
                Err(error) => {
                    assert!(error.is_full(), "{error}");
                    assert_eq!(volume.used(), used, "what was written is removed");
                    refusals += 1;
                }
            }
        }
        assert_eq!(contents(&archive, &keys()).expect("rows"), before);
        volume.limit(None);
        while job.step(through).expect("room") != Step::Done {}
        assert_eq!(archive.head().through, through);
        let written: Vec<_> = (from..from + 1000).map(key).collect();
        let (found, _) = contents(&archive, &written).expect("rows");
        assert_eq!(found.len(), 1000);
    }
}

#[test]
fn a_merge_on_a_full_disk_holds_back_no_checkpoint() {
    let volume = TestVolume::default();
    let archive = open(&volume).expect("a new archive");
    let mut model = Model::default();
    for number in 0..30 {
        let mut rows = RowSet::default();
        write(&mut rows, &mut model, number * 30);
        checkpoint(&archive, rows, number + 1, 0).expect("a checkpoint");
    }
    assert!(archive.behind());
    volume.limit(Some(volume.used()));
    let mut job = archive.merge(Space::PLENTY).expect("a merge");
    assert!(archive.merge(Space::PLENTY).is_none(), "one merge at a time");
    let error = loop {
        match job.step() {
            Ok(step) => assert_ne!(step, Step::Done),
            Err(error) => break error,
        }
    };
    assert!(error.is_full(), "{error}");
    assert!(!archive.behind());
    volume.limit(None);
    while job.step().expect("room") != Step::Done {}
    drop(job);
    merge_all(&archive).expect("merges");
    assert!(!archive.behind());
    assert_eq!(contents(&archive, &keys()).expect("rows"), expected(&model));
}

#[test]
fn a_failed_sync_stops_the_job_for_good() {
    let (volume, model) = filled();
    let archive = open(&volume).expect("an archive that was there");
    let mut rows = RowSet::default();
    write(&mut rows, &mut model.clone(), 600);
    let mut job = archive.checkpoint(rows, 10, 0);
    volume.fail_next_sync();
    let error = loop {
        if let Err(error) = job.step(10) {
            break error;
        }
    };
    assert!(matches!(error, Error::Io { operation: "sync", .. }), "{error}");
    assert!(matches!(job.step(10), Err(Error::Stopped(_))), "no second sync taken for success");
    assert_eq!(archive.head().through, 9);
    volume.fail_next_sync();
    archive.commit_epoch(4).expect_err("a failed sync");
    assert!(matches!(archive.commit_epoch(4), Err(Error::Stopped(_))));
    let archive = open(&volume).expect("an archive that was there");
    assert_eq!(contents(&archive, &keys()).expect("rows"), expected(&model));
}
