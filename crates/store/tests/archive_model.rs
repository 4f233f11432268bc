//! The archive against a map: whatever is written, merged, dropped and reopened, look-ups find
//! what the map holds.
#![expect(
    clippy::indexing_slicing,
    clippy::expect_used,
    reason = "helpers of tests fail like tests"
)]

use hapax_store::archive::{Archive, Space, verify};
use hapax_store::{NEVER, PointKey, RowSet};

mod archive_support;
use archive_support::{
    Model, Random, TestVolume, checkpoint, contents, expected, key, merge_all, open,
};

/// Keys of which many share their first half, as digests never would.
fn keys() -> Vec<PointKey> {
    let spread = (0..1500).map(key);
    let alike = (0..300).map(|number: u64| {
        let mut alike = key(number % 3);
        alike[8..].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        alike
    });
    let ends = [[0; 16], [0xff; 16]];
    spread.chain(alike).chain(ends).collect()
}

fn value(random: &mut Random) -> Vec<u8> {
    let length = match random.below(100) {
        0 => 3000 + random.below(12_000),
        1..=5 => 0,
        6..=10 => 126 + random.below(3),
        _ => random.below(80),
    };
    (0..length).map(|_| random.next() as u8).collect()
}

fn ordered_key(random: &mut Random) -> Vec<u8> {
    let number = random.below(800);
    let mut key =
        [b"ready/".as_slice(), b"d", b"delayed/a-long-queue-name/"][number as usize % 3].to_vec();
    key.extend_from_slice(&number.to_be_bytes()[6..]);
    key.extend(std::iter::repeat_n(7, (number % 40) as usize * 5));
    key
}

/// One checkpoint of random rows; each key at most once.
fn random_rows(random: &mut Random, model: &mut Model, keys: &[PointKey], at: u64) -> RowSet {
    let mut rows = RowSet::default();
    let mut touched = std::collections::BTreeSet::new();
    for _ in 0..random.below(400) {
        let key = keys[random.below(keys.len() as u64) as usize];
        if !touched.insert(key) {
            continue;
        }
        if random.below(4) == 0 {
            model.delete_point(&mut rows, key);
        } else {
            let drop_at = match random.below(4) {
                0 => NEVER,
                _ => (at / 100 + 1 + random.below(4)) * 100,
            };
            model.put_point(&mut rows, key, drop_at, value(random));
        }
    }
    let mut touched = std::collections::BTreeSet::new();
    for _ in 0..random.below(200) {
        let key = ordered_key(random);
        if touched.insert(key.clone()) {
            match random.below(3) {
                0 => model.delete_ordered(&mut rows, &key),
                _ => model.put_ordered(&mut rows, &key, value(random)),
            }
        }
    }
    rows
}

fn check_ranges(archive: &hapax_store::archive::Archive, model: &Model, random: &mut Random) {
    let mut reader = archive.reader();
    for _ in 0..8 {
        let (from, to) = (ordered_key(random), ordered_key(random));
        let limit = 1 + random.below(30) as usize;
        let mut got = Vec::new();
        reader
            .scan(&from, &to, &mut |key, value| {
                got.extend(value.map(|value| (key.to_vec(), value.to_vec())));
                got.len() < limit
            })
            .expect("a scan");
        let wanted: Vec<_> = if from < to {
            let range = model.ordered.range(from..to);
            range.take(limit).map(|(key, value)| (key.clone(), value.clone())).collect()
        } else {
            Vec::new()
        };
        assert_eq!(got, wanted);
    }
}

/// Opens an archive as its next owner, who removes the leftovers of the ones before.
fn own(volume: &TestVolume) -> Archive {
    let archive = open(volume).expect("an archive that was there");
    archive.commit_epoch(archive.head().epoch + 1).expect("an owner");
    archive.remove_leftovers(archive.head().epoch).expect("room");
    archive
}

fn check_seed(seed: u64) {
    let mut random = Random(seed);
    let keys = keys();
    let volume = TestVolume::default();
    let mut archive = open(&volume).expect("a new archive");
    let mut model = Model::default();
    let (mut at, mut through) = (0, 0);
    for _ in 0..60 {
        match random.below(10) {
            0..=6 => {
                at += random.below(40);
                let rows = random_rows(&mut random, &mut model, &keys, at);
                through += 1 + random.below(3);
                checkpoint(&archive, rows, through, at).expect("a checkpoint");
                model.drop_until(at);
            }
            7 => {
                merge_all(&archive).expect("merges");
            }
            8 => {
                if let Some(mut job) = archive.merge(Space::PLENTY) {
                    job.step().expect("a step of a merge that is then given up");
                }
            }
            _ => archive = own(&volume),
        }
        assert_eq!(archive.head().through, through);
        assert_eq!(contents(&archive, &keys).expect("rows"), expected(&model));
        check_ranges(&archive, &model, &mut random);
    }
    merge_all(&archive).expect("merges");
    assert_eq!(contents(&archive, &keys).expect("rows"), expected(&model));
    let archive = own(&volume);
    assert_eq!(contents(&archive, &keys).expect("rows"), expected(&model));
    let summary = verify(&volume, &mut |finding| panic!("{finding:?}")).expect("verified");
    assert_eq!(summary.damages, 0);
    assert_eq!(summary.rows, archive.stats().rows);
}

#[test]
fn look_ups_find_what_was_written_whatever_happened_between() {
    for seed in 1..=12 {
        println!("seed {seed}");
        check_seed(seed);
    }
}
