//! FAULTS A3: what is torn at the journal's end is cut, in whole batches; anything deeper is
//! refused, by file and offset, and nothing is changed.
#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test: what fails here fails it"
)]

mod support;

use hapax_store::Error;
use support::{Disk, Stepped, content, small};

/// A store with `count` batches, one sync each, whose owner crashed.
fn crashed(count: u64) -> Disk {
    let disk = Disk::default();
    let mut store = Stepped::open(&disk, &small()).unwrap();
    store.settle().unwrap();
    for _ in 0..count {
        store.append_next().unwrap();
        store.flush().unwrap();
    }
    disk
}

/// Where the record with this batch is: its segment, its first byte, the end of its payload.
fn find(disk: &Disk, sequence: u64) -> (String, usize, usize) {
    let batch = content(sequence);
    assert!(batch.len() > 30, "long enough to be found");
    for name in disk.segments() {
        let bytes = disk.bytes(&name);
        if let Some(at) = bytes.windows(batch.len()).position(|window| window == batch) {
            return (name, at - 48, at + batch.len());
        }
    }
    panic!("batch {sequence} is not on the disk");
}

/// Ways to lose the bytes from `from` to `to`, and perhaps all behind.
#[derive(Clone, Copy, Debug)]
enum Cut {
    Zeroed,
    Garbled,
    Truncated,
    ZeroedToTheEnd,
}

/// Cuts that the batches behind them prove, without the mark.
const PROVEN: [(Cut, bool); 2] = [(Cut::Zeroed, false), (Cut::Garbled, false)];

const CUTS: [Cut; 4] = [Cut::Zeroed, Cut::Garbled, Cut::Truncated, Cut::ZeroedToTheEnd];

fn cut(disk: &Disk, name: &str, how: Cut, from: usize, to: usize) -> Disk {
    let disk = disk.copy();
    let mut bytes = disk.bytes(name);
    match how {
        Cut::Zeroed => bytes[from..to].fill(0),
        Cut::Garbled => bytes[from..to].iter_mut().for_each(|byte| *byte ^= 0x5a),
        Cut::Truncated => bytes.truncate(from),
        Cut::ZeroedToTheEnd => bytes[from..].fill(0),
    }
    disk.set_bytes(name, &bytes);
    disk
}

#[test]
fn the_last_batch_cut_at_every_byte_leaves_whole_batches() {
    let disk = crashed(12);
    let (name, start, end) = find(&disk, 12);
    for how in CUTS {
        for from in start..end {
            let disk = cut(&disk, &name, how, from, end);
            let mut store = Stepped::open(&disk, &small()).unwrap();
            assert_eq!(store.last, 11, "{how:?} from byte {from}");
            store.check_contents(1).unwrap();
            // The owner goes on, and what was cut never comes back.
            store.append_next().unwrap();
            store.flush().unwrap();
            drop(store);
            let mut store = Stepped::open(&disk, &small()).unwrap();
            assert_eq!(store.last, 12);
            store.check_contents(1).unwrap();
        }
    }
}

#[test]
fn a_cut_deeper_than_the_last_batch_is_refused_by_file_and_offset() {
    let disk = crashed(12);
    for deeper in [11, 10, 2] {
        let (name, start, end) = find(&disk, deeper);
        for (how, marked) in CUTS.map(|how| (how, true)).into_iter().chain(PROVEN) {
            for from in (start..end).step_by(7) {
                let disk = cut(&disk, &name, how, from, end);
                if !marked {
                    disk.delete("journal.mark");
                }
                let before = disk.snapshot();
                let refused = Stepped::open(&disk, &small()).err();
                let Some(Error::Corrupt(damage)) = refused else {
                    panic!("{how:?} of batch {deeper} from byte {from}: {refused:?}");
                };
                assert_eq!(damage.file, format!("disk/{name}"));
                assert_eq!(damage.offset, start as u64, "{how:?} from byte {from}: {damage}");
                assert_eq!(disk.snapshot(), before, "nothing is changed");
            }
        }
    }
}

#[test]
fn a_cut_after_a_clean_close_is_refused() {
    let disk = crashed(12);
    let mut store = Stepped::open(&disk, &small()).unwrap();
    hapax_store::Store::close(&mut store.store).unwrap();
    drop(store);
    let (name, start, end) = find(&disk, 12);
    for how in CUTS {
        let disk = cut(&disk, &name, how, start + 50, end);
        let refused = Stepped::open(&disk, &small()).err();
        assert!(
            matches!(&refused, Some(Error::Corrupt(damage))
            if damage.offset == start as u64),
            "{how:?}: {refused:?}"
        );
    }
}

#[test]
fn several_batches_of_one_sync_are_cut_together_where_an_earlier_one_tore() {
    let disk = crashed(3);
    let mut store = Stepped::open(&disk, &small()).unwrap();
    for _ in 0..4 {
        store.append_next().unwrap();
    }
    store.flush().unwrap();
    drop(store);
    let (name, start, end) = find(&disk, 5);
    let disk = cut(&disk, &name, Cut::Garbled, start, end);
    let mut store = Stepped::open(&disk, &small()).unwrap();
    assert_eq!(store.last, 4, "batches 6 and 7 survived, but were never confirmed");
    store.check_contents(1).unwrap();
    // With the new owner's seal as long as batch 5 was: batch 6 would follow at its old place.
    store.append(&vec![0; content(5).len() - 48]).unwrap();
    store.flush().unwrap();
    let (after, _, _) = find(&disk, 6);
    assert_eq!(after, name, "batch 6 is still there");
    drop(store);
    let store = Stepped::open(&disk, &small()).unwrap();
    assert_eq!(store.last, 5, "what was cut is not resurrected");
}

#[test]
fn a_window_that_tore_across_two_segments_is_cut_in_both() {
    for torn in ["header", "first", "last"] {
        let disk = Disk::default();
        let mut store = Stepped::open(&disk, &small()).unwrap();
        store.settle().unwrap();
        // All in one window: 3,400 bytes go into the first segment, the others into the second.
        store.append(&[1; 3400]).unwrap();
        store.flush().unwrap();
        for number in 2..6 {
            store.append(&[number; 300]).unwrap();
        }
        store.flush().unwrap();
        drop(store);
        assert_eq!(disk.segments()[1], "journal-00000002.seg");
        let find = |number: u8| {
            let bytes = disk.bytes("journal-00000002.seg");
            bytes.windows(300).position(|window| window == [number; 300]).unwrap()
        };
        let (at, last) = match torn {
            "header" => (20, 2),
            "first" => (find(3), 2),
            _ => (find(5), 4),
        };
        disk.flip("journal-00000002.seg", at * 8);
        let mut store = Stepped::open(&disk, &small()).unwrap();
        assert_eq!(store.last, last, "{torn}");
        for number in last as u8 + 1..12 {
            store.append(&[number; 300]).unwrap();
            store.flush().unwrap();
        }
        drop(store);
        let mut store = Stepped::open(&disk, &small()).unwrap();
        let batches = store.batches(2).unwrap();
        assert_eq!(batches.len(), 10, "{torn}");
        assert!(batches.iter().all(|(sequence, batch)| *batch == [*sequence as u8; 300]));
    }
}

#[test]
fn a_missing_segment_is_refused() {
    let disk = crashed(62);
    let segments = disk.segments();
    assert!(segments.len() > 3, "{segments:?}");
    let (last, _, _) = find(&disk, 62);
    for name in segments.iter().take_while(|name| **name <= last) {
        let disk = disk.copy();
        disk.delete(name);
        let before = disk.snapshot();
        let refused = Stepped::open(&disk, &small()).err();
        assert!(matches!(refused, Some(Error::Corrupt(_))), "{name}: {refused:?}");
        assert_eq!(disk.snapshot(), before);
    }
}

#[test]
fn d4_a_journal_set_back_as_a_whole_to_before_its_last_owner_is_refused() {
    let disk = crashed(5);
    let journal = |disk: &Disk| -> Vec<(String, Vec<u8>)> {
        let names = disk.segments().into_iter().chain(["journal.mark".to_owned()]);
        names.map(|name| (name.clone(), disk.bytes(&name))).collect()
    };
    let before = journal(&disk);
    let mut store = Stepped::open(&disk, &small()).unwrap();
    store.append_next().unwrap();
    store.flush().unwrap();
    drop(store);
    // Segments and mark of the time before: intact, and they agree.
    let is_new = |name: &String| before.iter().all(|(known, _)| known != name);
    disk.segments().iter().filter(|name| is_new(name)).for_each(|name| disk.delete(name));
    before.iter().for_each(|(name, bytes)| disk.set_bytes(name, bytes));
    let snapshot = disk.snapshot();
    let refused = Stepped::open(&disk, &small()).err();
    assert!(matches!(refused, Some(Error::Corrupt(_))), "{refused:?}");
    assert_eq!(disk.snapshot(), snapshot, "nothing was changed");
}

#[test]
fn an_empty_journal_beside_a_manifest_is_refused() {
    let disk = crashed(5);
    for name in disk.segments() {
        disk.delete(&name);
    }
    for with_marker in [true, false] {
        if !with_marker {
            disk.delete("format");
        }
        let before = disk.snapshot();
        let refused = Stepped::open(&disk, &small()).err();
        assert!(matches!(refused, Some(Error::Corrupt(_))), "never an empty broker: {refused:?}");
        assert_eq!(disk.snapshot(), before);
    }
}

#[test]
fn a_missing_manifest_or_marker_is_refused() {
    for name in ["MANIFEST", "format"] {
        let disk = crashed(5);
        disk.delete(name);
        let before = disk.snapshot();
        let refused = Stepped::open(&disk, &small()).err();
        assert!(matches!(refused, Some(Error::Corrupt(_))), "{name}: {refused:?}");
        assert_eq!(disk.snapshot(), before);
    }
}

#[test]
fn a_newer_format_is_refused_untouched() {
    let disk = crashed(5);
    // The versions, with checksums that fit.
    let mut marker = disk.bytes("format");
    marker[8] = 9;
    let checksum = crc32c::crc32c(&marker[..20]);
    marker[20..24].copy_from_slice(&checksum.to_le_bytes());
    let mut segment = disk.bytes("journal-00000001.seg");
    segment[8] = 9;
    let checksum = crc32c::crc32c(&[&segment[..12], &segment[16..64]].concat());
    segment[12..16].copy_from_slice(&checksum.to_le_bytes());
    for (name, bytes) in [("format", marker), ("journal-00000001.seg", segment)] {
        let disk = disk.copy();
        disk.set_bytes(name, &bytes);
        let before = disk.snapshot();
        let refused = Stepped::open(&disk, &small()).err();
        assert!(
            matches!(&refused, Some(Error::NewerFormat { file, found: 9, known: 1 })
            if file.ends_with(name)),
            "{refused:?}"
        );
        assert_eq!(disk.snapshot(), before);
    }
}
