//! Cases about rows and checkpoints.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Case, Harness, Owner, key, numbered};
use crate::{Error, NEVER, PointKey, RowSet};

pub(super) const CASES: &[Case] = &[
    ("a_checkpoint_shows_rows_and_position_together", a_checkpoint_shows_rows_and_position),
    ("a_checkpoint_waits_for_its_batches", a_checkpoint_waits_for_its_batches),
    ("a_checkpoint_out_of_order_is_refused", a_checkpoint_out_of_order_is_refused),
    ("a_crash_keeps_all_of_a_checkpoint_or_nothing", a_crash_keeps_all_or_nothing),
    ("the_rows_are_made_once", the_rows_are_made_once),
    ("batches_before_the_rows_are_read_or_refused", batches_before_the_rows_are_read_or_refused),
    ("points_are_found_by_their_key_alone", points_are_found_by_their_key_alone),
    ("points_are_replaced_moved_and_deleted", points_are_replaced_moved_and_deleted),
    ("a_key_in_two_buckets_is_found_in_the_later_one", a_key_in_two_buckets),
    ("points_are_not_dropped_before_their_time", points_are_not_dropped_before_their_time),
    ("a_scan_is_ordered_and_bounded", a_scan_is_ordered_and_bounded),
    ("ordered_rows_are_replaced_and_deleted", ordered_rows_are_replaced_and_deleted),
    ("many_checkpoints_add_up", many_checkpoints_add_up),
];

fn a_checkpoint_shows_rows_and_position(harness: &mut dyn Harness) {
    let mut owner = Owner::open(harness);
    owner.append_many(5);
    owner.checkpoint(7, |rows| {
        rows.put_point(key(1), NEVER, b"one");
        rows.put_ordered(b"a", b"A");
    });
    harness.settle();
    assert_eq!(owner.store.checkpointed().expect("is well"), 5);
    assert_eq!(owner.get(&[key(1)]), [Some(b"one".to_vec())]);
    assert_eq!(owner.scan(b"", b"z"), [(b"a".to_vec(), b"A".to_vec())]);
    owner.append_many(2);
    harness.settle();
    assert_eq!(owner.batches(6), numbered(6..=7));
    for crash in [false, true] {
        if crash {
            drop(owner);
            harness.crash();
        } else {
            owner.close();
        }
        owner = Owner::open(harness);
        assert_eq!((owner.through, owner.last), (5, 7));
        assert_eq!(owner.store.checkpointed().expect("is well"), 5);
        assert_eq!(owner.get(&[key(1)]), [Some(b"one".to_vec())]);
        assert_eq!(owner.batches(6), numbered(6..=7));
    }
}

fn a_checkpoint_waits_for_its_batches(harness: &mut dyn Harness) {
    let mut owner = Owner::open(harness);
    owner.append_many(3);
    harness.settle();
    owner.append_many(1);
    owner.checkpoint(0, |rows| rows.put_ordered(b"a", b"A"));
    harness.settle_without_sync();
    assert!(!owner.store.abandon().expect("is well"), "there is room for it");
    let shown = owner.scan(b"", b"z").len();
    let durable = owner.store.durable().expect("is well");
    assert!(shown == 0 || durable == 4, "rows show before their batches are durable");
    assert!(owner.store.checkpointed().expect("is well") <= durable);
    harness.settle();
    assert_eq!(owner.store.checkpointed().expect("is well"), 4);
    assert_eq!(owner.scan(b"", b"z").len(), 1);
    assert!(!owner.store.abandon().expect("is well"), "there is none");
}

fn a_checkpoint_out_of_order_is_refused(harness: &mut dyn Harness) {
    let mut owner = Owner::open(harness);
    owner.append_many(3);
    for through in [0, 4, u64::MAX] {
        let refused = owner.try_checkpoint(owner.epoch, through, 0, |_| {});
        assert!(matches!(refused, Err(Error::OutOfOrder { .. })), "{through}: {refused:?}");
    }
    owner.checkpoint(0, |_| {});
    harness.settle();
    let refused = owner.try_checkpoint(owner.epoch, 2, 0, |_| {});
    assert!(matches!(refused, Err(Error::OutOfOrder { .. })), "{refused:?}");
    owner.write(harness, 0, |_| {});
}

fn a_crash_keeps_all_or_nothing(harness: &mut dyn Harness) {
    for round in 0..8_u8 {
        let mut owner = Owner::open(harness);
        let before = (owner.scan(b"", b"\xff"), owner.through);
        owner.append_many(1);
        owner.checkpoint(0, move |rows| {
            for number in 0..50_u8 {
                rows.put_ordered(&[number], &[round]);
            }
        });
        match round % 3 {
            0 => {}
            1 => harness.settle_without_sync(),
            _ => harness.settle(),
        }
        let last = owner.last;
        drop(owner);
        harness.crash();
        let mut owner = Owner::open(harness);
        let after = (owner.scan(b"", b"\xff"), owner.through);
        if after.1 == last {
            assert!(after.0.len() == 50 && after.0.iter().all(|(_, value)| *value == [round]));
        } else {
            assert_eq!(after, before);
            assert!(round % 3 != 2, "a settled checkpoint stays");
        }
        drop(owner);
        harness.crash();
    }
}

fn the_rows_are_made_once(harness: &mut dyn Harness) {
    let calls = Arc::new(AtomicU32::new(0));
    let mut owner = Owner::open(harness);
    for _ in 0..3 {
        let calls = Arc::clone(&calls);
        owner.write(harness, 0, move |_| {
            calls.fetch_add(1, Ordering::Relaxed);
        });
    }
    assert_eq!(calls.load(Ordering::Relaxed), 3);
}

fn batches_before_the_rows_are_read_or_refused(harness: &mut dyn Harness) {
    let mut owner = Owner::open(harness);
    owner.append_many(4);
    owner.checkpoint(0, |_| {});
    harness.settle();
    owner.append_many(2);
    harness.settle();
    let mut read = Vec::new();
    let result = owner.store.read(1, &mut |sequence, batch| {
        read.push((sequence, batch.to_vec()));
        Ok(true)
    });
    match result {
        Ok(()) => assert_eq!(read, numbered(1..=6)),
        Err(_) => assert_eq!(read, []),
    }
    assert_eq!(owner.batches(5), numbered(5..=6));
}

fn points_are_found_by_their_key_alone(harness: &mut dyn Harness) {
    let mut owner = Owner::open(harness);
    for round in 0..4_u64 {
        owner.write(harness, 0, move |rows| {
            for number in 0..100 {
                let value = number.to_string().repeat((number % 7) as usize);
                rows.put_point(key(round * 100 + number), 1000 + number % 3, value.as_bytes());
            }
        });
    }
    let keys: Vec<PointKey> = (0..800).map(key).collect();
    let values = owner.get(&keys);
    for (number, value) in values.iter().enumerate() {
        let in_round = number % 100;
        let expected = (number < 400).then(|| in_round.to_string().repeat(in_round % 7));
        assert_eq!(value.as_deref(), expected.as_ref().map(String::as_bytes), "key {number}");
    }
    assert_eq!(owner.get(&[]), Vec::<Option<Vec<u8>>>::new());
    assert_eq!(owner.get(&[key(1), key(1)]), vec![Some(b"1".to_vec()); 2], "asked twice");
}

fn points_are_replaced_moved_and_deleted(harness: &mut dyn Harness) {
    let mut owner = Owner::open(harness);
    owner.write(harness, 0, |rows| {
        (0..4).for_each(|number| rows.put_point(key(number), 10, b"old"));
    });
    owner.write(harness, 0, |rows| {
        rows.put_point(key(1), 10, b"new");
        rows.delete_point(key(2), 10);
        rows.delete_point(key(3), 10);
        rows.put_point(key(3), 20, b"moved");
        rows.delete_point(key(9), 10);
    });
    let expected = [Some("old"), Some("new"), None, Some("moved"), None];
    let expected = expected.map(|value| value.map(|value| value.as_bytes().to_vec()));
    let keys = [key(0), key(1), key(2), key(3), key(9)];
    assert_eq!(owner.get(&keys), expected);
    owner.close();
    let mut owner = Owner::open(harness);
    assert_eq!(owner.get(&keys), expected);
    owner.write(harness, 0, |rows| rows.put_point(key(2), 10, b"again"));
    assert_eq!(owner.get(&[key(2)]), [Some(b"again".to_vec())]);
}

/// Not allowed, but if a caller does it, every store gives the same answer.
fn a_key_in_two_buckets(harness: &mut dyn Harness) {
    let mut owner = Owner::open(harness);
    for (early, late) in [(10, 20), (20, 10), (10, NEVER), (NEVER, 10)] {
        let number = early ^ late.rotate_left(7);
        for drop_at in [early, late] {
            owner.write(harness, 0, move |rows| {
                rows.put_point(key(number), drop_at, &drop_at.to_le_bytes());
            });
        }
        let expected = early.max(late).to_le_bytes().to_vec();
        assert_eq!(owner.get(&[key(number)]), [Some(expected.clone())], "{early}, then {late}");
        owner.close();
        owner = Owner::open(harness);
        assert_eq!(owner.get(&[key(number)]), [Some(expected)], "{early}, then {late}");
        owner.write(harness, 0, move |rows| rows.delete_point(key(number), early.max(late)));
        let left = early.min(late).to_le_bytes().to_vec();
        assert_eq!(owner.get(&[key(number)]), [Some(left)], "and what is left in the other one");
    }
}

fn points_are_not_dropped_before_their_time(harness: &mut dyn Harness) {
    let mut owner = Owner::open(harness);
    let buckets = [10, 20, 30, NEVER];
    owner.write(harness, 5, move |rows| {
        for drop_at in buckets {
            rows.put_point(key(drop_at), drop_at, &drop_at.to_le_bytes());
        }
    });
    for at in [9, 10, 19, 25, 30, u64::MAX - 1] {
        owner.write(harness, at, |_| {});
        for drop_at in buckets {
            let found = owner.get(&[key(drop_at)]);
            let value = Some(drop_at.to_le_bytes().to_vec());
            // An expired point may be dropped, and is unchanged if it is not.
            assert!(found == [value] || (found == [None] && drop_at <= at), "{drop_at} at {at}");
        }
    }
}

fn a_scan_is_ordered_and_bounded(harness: &mut dyn Harness) {
    let mut owner = Owner::open(harness);
    let keys: [&[u8]; 8] = [b"", b"\0", b"a", b"a\0", b"ab", b"b", b"b\xff", b"c"];
    for part in [[5, 2, 7, 0], [1, 6, 4, 3]] {
        owner.write(harness, 0, move |rows| {
            for index in part {
                let key = keys.get(index).expect("an index of the keys");
                rows.put_ordered(key, &[index as u8]);
            }
        });
    }
    let indices = |rows: Vec<(Vec<u8>, Vec<u8>)>| -> Vec<u8> {
        rows.into_iter().flat_map(|(_, value)| value).collect()
    };
    assert_eq!(indices(owner.scan(b"", b"\xff")), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(indices(owner.scan(b"a", b"b")), [2, 3, 4], "from is in, to is out");
    assert_eq!(indices(owner.scan(b"aa", b"b\0")), [4, 5], "bounds need not be keys");
    assert_eq!(indices(owner.scan(b"b", b"b")), []);
    assert_eq!(indices(owner.scan(b"c", b"a")), [], "an empty range, not a panic");
    assert_eq!(indices(owner.scan(b"d", b"e")), []);
    let mut seen = 0;
    let stopped = owner.store.scan(b"", b"\xff", &mut |_, _| {
        seen += 1;
        seen < 3
    });
    stopped.expect("scans");
    assert_eq!(seen, 3, "a scan ends when it is told to");
}

fn ordered_rows_are_replaced_and_deleted(harness: &mut dyn Harness) {
    let mut owner = Owner::open(harness);
    owner.write(harness, 0, |rows| {
        (0..10).for_each(|number| rows.put_ordered(&[number], b"old"));
    });
    owner.write(harness, 0, |rows| {
        rows.delete_ordered(&[3]);
        rows.delete_ordered(&[77]);
        rows.put_ordered(&[4], b"new");
    });
    owner.write(harness, 0, |rows| rows.put_ordered(&[3], b"back"));
    owner.write(harness, 0, |rows| rows.delete_ordered(&[5]));
    owner.close();
    let mut owner = Owner::open(harness);
    let rows = owner.scan(&[2], &[7]);
    let expected: [(u8, &str); 4] = [(2, "old"), (3, "back"), (4, "new"), (6, "old")];
    let expected = expected.map(|(key, value)| (vec![key], value.as_bytes().to_vec()));
    assert_eq!(rows, expected);
}

/// The expected rows.
#[derive(Default)]
struct Model {
    points: BTreeMap<u64, (u64, Vec<u8>)>,
    ordered: BTreeMap<Vec<u8>, Vec<u8>>,
    random: u64,
}

impl Model {
    /// The next number of a fixed sequence: the same in every run.
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.random >> 33
    }

    fn change(&mut self) -> RowSet {
        let mut rows = RowSet::default();
        let mut touched = std::collections::BTreeSet::new();
        for _ in 0..self.next() % 120 {
            let (number, word) = (self.next() % 500, self.next());
            if !touched.insert(number) {
                continue;
            }
            let old = self.points.remove(&number);
            if let Some((bucket, _)) = &old {
                rows.delete_point(key(number), *bucket);
            }
            if old.is_none() || word % 3 > 0 {
                // Another bucket than before: in one row set a key of a bucket appears once.
                let bucket = old.map_or(1000, |(bucket, _)| bucket + 1);
                let value = word.to_string().repeat((word % 9) as usize).into_bytes();
                rows.put_point(key(number), bucket, &value);
                self.points.insert(number, (bucket, value));
            }
        }
        touched.clear();
        for _ in 0..self.next() % 120 {
            let (number, word) = (self.next() % 300, self.next());
            if !touched.insert(number) {
                continue;
            }
            let name = format!("row-{}", number * 7919 % 300).into_bytes();
            if word % 3 == 0 {
                rows.delete_ordered(&name);
                self.ordered.remove(&name);
            } else {
                let value = word.to_le_bytes().repeat((word % 40) as usize);
                rows.put_ordered(&name, &value);
                self.ordered.insert(name, value);
            }
        }
        rows
    }

    fn compare(&self, owner: &mut Owner) {
        let numbers: Vec<u64> = (0..500).collect();
        let keys: Vec<PointKey> = numbers.iter().copied().map(key).collect();
        for (number, value) in numbers.iter().zip(owner.get(&keys)) {
            let expected = self.points.get(number).map(|(_, value)| value.clone());
            assert_eq!(value, expected, "point {number}");
        }
        let expected: Vec<_> = self.ordered.clone().into_iter().collect();
        assert_eq!(owner.scan(b"", b"\xff"), expected);
    }
}

fn many_checkpoints_add_up(harness: &mut dyn Harness) {
    let mut model = Model { random: 42, ..Model::default() };
    let mut owner = Owner::open(harness);
    for round in 0..60 {
        let changed = model.change();
        owner.write(harness, round, move |rows| *rows = changed);
        model.compare(&mut owner);
        if round % 20 == 9 {
            owner.close();
            owner = Owner::open(harness);
            model.compare(&mut owner);
        } else if round % 20 == 19 {
            drop(owner);
            harness.crash();
            owner = Owner::open(harness);
            model.compare(&mut owner);
        }
    }
}
