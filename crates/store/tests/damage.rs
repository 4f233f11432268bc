//! FAULTS A4: a flipped bit in any kind of file never yields a changed payload; what is damaged is
//! refused or rebuilt, and a check names it.
#![expect(clippy::unwrap_used, reason = "a test: what fails here fails it")]

mod support;

use hapax_store::archive::Severity;
use hapax_store::disk::check;
use hapax_store::{Error, NEVER, Store};
use support::{Disk, Random, Stepped, small};

/// A store with rows, several segments and a spare, closed cleanly or crashed.
fn filled(close: bool) -> Disk {
    let disk = Disk::default();
    let mut store = Stepped::open(&disk, &small()).unwrap();
    for _ in 0..30 {
        store.append_next().unwrap();
    }
    store
        .checkpoint(|rows| {
            for number in 0..200_u64 {
                let digest = blake3::hash(&number.to_le_bytes());
                let key = *digest.as_bytes().first_chunk().unwrap();
                rows.put_point(key, NEVER, digest.as_bytes());
                rows.put_ordered(&number.to_be_bytes(), digest.as_bytes());
            }
        })
        .unwrap();
    store.settle().unwrap();
    for _ in 0..30 {
        store.append_next().unwrap();
        store.flush().unwrap();
    }
    store.settle().unwrap();
    if close {
        store.store.close().unwrap();
    }
    disk
}

/// Opens and compares everything; an error is a refusal.
fn read_all(disk: &Disk) -> Result<u64, Error> {
    let mut store = Stepped::open(disk, &small())?;
    store.check_contents(store.claim.through + 1)?;
    assert_eq!(store.claim.through, 30);
    for number in 0..200_u64 {
        let digest = blake3::hash(&number.to_le_bytes());
        let key = *digest.as_bytes().first_chunk().unwrap();
        let mut found = false;
        store.store.get_many(&[key], &mut |_, value| {
            assert_eq!(value, digest.as_bytes(), "a changed payload");
            found = true;
        })?;
        assert!(found, "point {number} is lost");
    }
    let mut number = 0_u64;
    store.store.scan(b"", &[0xff; 9], &mut |key, value| {
        assert_eq!(key, number.to_be_bytes());
        assert_eq!(value.unwrap(), blake3::hash(&number.to_le_bytes()).as_bytes());
        number += 1;
        true
    })?;
    assert_eq!(number, 200);
    Ok(store.last)
}

#[test]
fn a_flipped_bit_never_yields_a_changed_payload() {
    for close in [true, false] {
        let disk = filled(close);
        assert_eq!(read_all(&disk.copy()).unwrap(), 60);
        for name in disk.names() {
            let (mut refused, mut kept) = (0, 0);
            let bits = disk.bytes(&name).len() * 8;
            let mut random = Random(bits as u64);
            for _ in 0..600.min(bits) {
                let bit = random.below(bits as u64) as usize;
                let disk = disk.copy();
                disk.flip(&name, bit);
                let before = disk.snapshot();
                match read_all(&disk) {
                    Err(Error::Corrupt(_)) => {
                        refused += 1;
                        if name.ends_with(".seg") || name == "format" || name == "MANIFEST" {
                            assert_eq!(disk.snapshot(), before, "{name} bit {bit}: changed");
                        }
                    }
                    Err(Error::NewerFormat { .. }) => refused += 1,
                    // Without a seal the last batch may be taken for torn; never more.
                    Ok(last) => {
                        assert!(last == 60 || (!close && last == 59), "{name} bit {bit}: {last}");
                        kept += 1;
                    }
                    Err(error) => panic!("{name} bit {bit}: {error}"),
                }
            }
            if name == "format" || name == "MANIFEST" {
                assert_eq!(kept, 0, "every bit of {name} counts");
            }
            assert!(refused + kept > 0 || name == "LOCK", "{name}");
        }
    }
}

#[test]
fn every_bit_of_the_needed_records_counts_after_a_clean_close() {
    let disk = filled(true);
    let mut damaged = 0;
    for name in disk.segments() {
        let bytes = disk.bytes(&name);
        // Every sixth byte that is not zero; zeros fill up and pad.
        for at in (0..bytes.len()).filter(|at| bytes[*at] != 0).step_by(6) {
            let disk = disk.copy();
            disk.flip(&name, at * 8 + at % 8);
            damaged += u64::from(read_all(&disk).is_err());
        }
    }
    assert!(damaged > 500, "{damaged}");
}

#[test]
fn a_check_finds_nothing_in_a_good_store_and_names_what_is_damaged() {
    let disk = filled(true);
    let summary = check(&disk, &mut |finding| {
        assert_eq!(finding.severity, Severity::Note, "{finding:?}");
    })
    .unwrap();
    assert_eq!((summary.through, summary.last, summary.damages), (30, 60, 0));
    assert!(summary.sealed && summary.batches >= 30 && summary.archive.rows == 400);
    let before = disk.snapshot();
    for name in disk.names().iter().filter(|name| *name != "LOCK" && *name != "journal.mark") {
        let mut found = false;
        let damaged = disk.copy();
        let middle = match name.ends_with(".seg") {
            // Inside the first record of a segment in use.
            true => 70 * 8,
            false => disk.bytes(name).len() * 4,
        };
        damaged.flip(name, middle);
        let with_damage = damaged.snapshot();
        let checked = check(&damaged, &mut |finding| {
            found |= finding.severity != Severity::Note && finding.file.ends_with(name.as_str());
        });
        // Spare segments and leftovers hold nothing.
        let harmless = checked.is_ok() && read_all(&damaged.copy()).is_ok();
        assert!(found || harmless || checked.is_err(), "{name}: {checked:?}");
        assert_eq!(damaged.snapshot(), with_damage, "a check changes nothing");
    }
    assert_eq!(disk.snapshot(), before);
}

#[test]
fn a_segment_of_another_store_is_refused() {
    let disk = filled(true);
    let other = Disk::default();
    let mut options = small();
    options.identity = 8;
    let mut store = Stepped::open(&other, &options).unwrap();
    store.settle().unwrap();
    let name = "journal-00000001.seg";
    let active = disk.segments().into_iter().next_back().unwrap();
    drop(store);
    // Under its own number, as a careless copy would have it.
    disk.set_bytes(&active, &{
        let mut bytes = other.bytes(name);
        let id = u32::from_str_radix(&active[8..16], 16).unwrap();
        bytes[24..28].copy_from_slice(&id.to_le_bytes());
        let checksum = crc32c::crc32c(&[&bytes[..12], &bytes[16..64]].concat());
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        bytes
    });
    let refused = Stepped::open(&disk, &small()).err();
    assert!(
        matches!(&refused, Some(Error::Corrupt(damage)) if damage.what.contains("another store")),
        "{refused:?}"
    );
}
