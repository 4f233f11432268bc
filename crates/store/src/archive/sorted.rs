//! Putting a checkpoint's points in order, a piece at a time.
//!
//! The points of a bucket are dealt into some hundred piles by the first bits of their keys, which
//! takes one pass since the keys are digests; each pile is sorted when its turn to be written has
//! come. Only the first half of a key and the row's number are moved about.

use std::collections::BTreeMap;

use crate::RowSet;

/// Piles this small sort within the first-level cache.
const PILE_ROWS: usize = 256;
const PILE_BITS_MAX: u32 = 12;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    prefix: u64,
    row: u32,
}

/// The slots of each bucket, in the order of the rows.
#[derive(Debug, Default)]
pub(super) struct Buckets {
    slots: BTreeMap<u64, Vec<Slot>>,
    next: usize,
}

impl Buckets {
    /// Takes up to `count` further rows, leaving out those of buckets that are over at `at`.
    /// `false` when there are none left.
    pub(super) fn gather(&mut self, rows: &RowSet, at: u64, count: usize) -> bool {
        let mut left = rows.points.get(self.next..).unwrap_or_default();
        left = left.get(..count).unwrap_or(left);
        for same in left.chunk_by(|a, b| a.drop_at == b.drop_at) {
            let drop_at = same.first().map_or(0, |point| point.drop_at);
            if !super::is_over(drop_at, at) {
                let slots = self.slots.entry(drop_at).or_default();
                slots.reserve(same.len());
                slots.extend((self.next..).zip(same).map(|(row, point)| Slot {
                    prefix: super::section::prefix(&point.key),
                    row: row as u32,
                }));
            }
            self.next += same.len();
        }
        self.next < rows.points.len()
    }

    /// The bucket that is over first, with its slots.
    pub(super) fn pop(&mut self) -> Option<(u64, Piles)> {
        self.slots.pop_first().map(|(drop_at, slots)| (drop_at, Piles::new(slots)))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}

/// One bucket's slots, in ascending piles.
#[derive(Debug)]
pub(super) struct Piles {
    slots: Vec<Slot>,
    /// Where each pile ends.
    ends: Vec<usize>,
    next: usize,
    gathered: Vec<(u128, usize)>,
}

impl Piles {
    fn new(slots: Vec<Slot>) -> Self {
        let bits = (slots.len() / PILE_ROWS + 1).ilog2().min(PILE_BITS_MAX);
        let pile_of = |slot: &Slot| slot.prefix.checked_shr(64 - bits).unwrap_or(0) as usize;
        let mut ends = vec![0_usize; 1 << bits];
        for slot in &slots {
            if let Some(count) = ends.get_mut(pile_of(slot)) {
                *count += 1;
            }
        }
        // From counts to beginnings; dealing moves each beginning to its pile's end.
        let mut sum = 0;
        for end in &mut ends {
            let count = *end;
            *end = sum;
            sum += count;
        }
        assert_eq!(sum, slots.len(), "every slot is in one pile");
        let mut dealt = vec![Slot::default(); slots.len()];
        for slot in &slots {
            if let Some(place) = ends.get_mut(pile_of(slot)) {
                if let Some(to) = dealt.get_mut(*place) {
                    *to = *slot;
                }
                *place += 1;
            }
        }
        Self { slots: dealt, ends, next: 0, gathered: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The next pile in order: keys and the numbers of their rows. `None` after the last.
    pub(super) fn next(&mut self, rows: &RowSet) -> Option<&[(u128, usize)]> {
        let end = *self.ends.get(self.next)?;
        let start = self.next.checked_sub(1).and_then(|at| self.ends.get(at)).map_or(0, |at| *at);
        self.next += 1;
        let pile = self.slots.get_mut(start..end)?;
        pile.sort_unstable_by_key(|slot| slot.prefix);
        let key_of = |slot: &Slot| {
            rows.points.get(slot.row as usize).map_or(0, |point| u128::from_be_bytes(point.key))
        };
        self.gathered.clear();
        self.gathered.extend(pile.iter().map(|slot| (key_of(slot), slot.row as usize)));
        // The prefixes nearly always decide; where they do not, the whole keys do.
        if !self.gathered.is_sorted_by_key(|entry| entry.0) {
            self.gathered.sort_unstable_by_key(|entry| entry.0);
        }
        debug_assert!(self.gathered.is_sorted_by(|a, b| a.0 < b.0), "a key appears once");
        Some(&self.gathered)
    }
}
