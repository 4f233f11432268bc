//! Sorts a checkpoint's points incrementally.
//!
//! The points of a bucket are divided into piles by the first bits of their keys, which takes one
//! pass because the keys are digests. Each is sorted when it is about to be written. Only the first
//! half of a key and the row's number are moved.

use std::collections::BTreeMap;

use crate::RowSet;
use crate::row::clear;

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
    /// Empty lists of earlier checkpoints, for reuse.
    spare: Vec<Vec<Slot>>,
}

/// Lists kept for the next checkpoint: most have one or two large buckets.
const SPARE_MAX: usize = 4;

impl Buckets {
    pub(super) fn new(spare: Vec<Vec<Slot>>) -> Self {
        Self { spare, ..Self::default() }
    }

    /// The memory of all lists, for the next checkpoint.
    pub(super) fn into_spare(mut self) -> Vec<Vec<Slot>> {
        for slots in std::mem::take(&mut self.slots).into_values() {
            self.keep(slots);
        }
        self.spare
    }

    fn keep(&mut self, mut slots: Vec<Slot>) {
        clear(&mut slots);
        if slots.capacity() > 0 && self.spare.len() < SPARE_MAX {
            self.spare.push(slots);
        }
    }

    /// Takes back the lists of a bucket that is written.
    pub(super) fn reuse(&mut self, piles: Piles) {
        self.keep(piles.slots);
    }

    /// Takes up to `count` further rows, skipping those of buckets expired at `at`. `false` when
    /// none are left.
    pub(super) fn gather(&mut self, rows: &RowSet, at: u64, count: usize) -> bool {
        let mut left = rows.points.get(self.next..).unwrap_or_default();
        left = left.get(..count).unwrap_or(left);
        for same in left.chunk_by(|a, b| a.drop_at == b.drop_at) {
            let drop_at = same.first().map_or(0, |point| point.drop_at);
            if !super::is_over(drop_at, at) {
                let spare = &mut self.spare;
                let slots = self.slots.entry(drop_at);
                let slots = slots.or_insert_with(|| spare.pop().unwrap_or_default());
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

    /// The bucket that expires first, with its slots.
    pub(super) fn pop(&mut self) -> Option<(u64, Piles)> {
        let (drop_at, slots) = self.slots.pop_first()?;
        let piles = Piles::new(&slots, self.spare.pop().unwrap_or_default());
        self.keep(slots);
        Some((drop_at, piles))
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
    /// Distributes the slots into an empty list.
    fn new(slots: &[Slot], mut dealt: Vec<Slot>) -> Self {
        let bits = (slots.len() / PILE_ROWS + 1).ilog2().min(PILE_BITS_MAX);
        let pile_of = |slot: &Slot| slot.prefix.checked_shr(64 - bits).unwrap_or(0) as usize;
        let mut ends = vec![0_usize; 1 << bits];
        for slot in slots {
            if let Some(count) = ends.get_mut(pile_of(slot)) {
                *count += 1;
            }
        }
        // From counts to starts; distributing moves each start to its pile's end.
        let mut sum = 0;
        for end in &mut ends {
            let count = *end;
            *end = sum;
            sum += count;
        }
        assert_eq!(sum, slots.len(), "every slot is in one pile");
        dealt.resize(slots.len(), Slot::default());
        for slot in slots {
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

    /// The next pile in order: keys and the indexes of their rows. `None` after the last.
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
        // The prefixes nearly always decide; otherwise the whole keys do.
        if !self.gathered.is_sorted_by_key(|entry| entry.0) {
            self.gathered.sort_unstable_by_key(|entry| entry.0);
        }
        debug_assert!(self.gathered.is_sorted_by(|a, b| a.0 < b.0), "a key appears once");
        Some(&self.gathered)
    }
}
