//! Looks rows up.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::block;
use super::bounds::{ORDERED_BLOCK_BYTES, UNIT_BYTES};
use super::ordered;
use super::points::{self, Found};
use super::section::{Index, Section, prefix};
use super::state::Shared;
use crate::{EachRow, Error, PointKey};

/// Looks rows up in the newest committed view. Keeps its buffers between calls.
#[derive(Debug)]
pub struct Reader {
    shared: Arc<Shared>,
    /// Keys that the filter of the current section did not rule out.
    candidates: Vec<u32>,
    marks: Vec<Mark>,
    block: Vec<u8>,
}

/// What is known of a key so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Open,
    /// Deleted in the bucket with this number, so its older sections are skipped. Other buckets may
    /// still have it.
    DeletedIn(u32),
    Found,
}

impl Reader {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, candidates: Vec::new(), marks: Vec::new(), block: Vec::new() }
    }

    /// Looks up points; calls `found(index, value)` for each key that has a row, in any order.
    pub fn get_many(
        &mut self,
        keys: &[PointKey],
        found: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), Error> {
        assert!(u32::try_from(keys.len()).is_ok(), "a look-up has fewer than 2^32 keys");
        let view = self.shared.view();
        self.marks.clear();
        self.marks.resize(keys.len(), Mark::Open);
        // From the last bucket to be dropped to the first, as the contract has it.
        for (bucket, row) in (0..).zip(view.bucket_rows().rev()) {
            for section in row {
                self.gather_candidates(section, keys);
                if !self.candidates.is_empty() {
                    self.look_up(section, bucket, keys, found)?;
                }
            }
        }
        Ok(())
    }

    /// Visits the ordered rows with `from <= key < to` in ascending order, until `each` returns
    /// false. Deleted rows have no value.
    pub fn scan(&mut self, from: &[u8], to: &[u8], each: EachRow<'_>) -> Result<(), Error> {
        if from >= to {
            return Ok(());
        }
        let view = self.shared.view();
        let mut cursors = Vec::with_capacity(view.ordered.len());
        for section in &view.ordered {
            let meta = &section.meta;
            if meta.smallest.as_slice() < to && from <= meta.largest.as_slice() {
                cursors.push(seek(section, from)?);
            }
        }
        cursors.retain(|cursor| !cursor.ended());
        let (mut key, mut blocks) = (Vec::new(), 0);
        // The first of equal keys, which is the newest.
        while let Some(best) = cursors.iter().min_by(|a, b| a.key().cmp(b.key())) {
            if best.key() >= to {
                break;
            }
            if !each(best.key(), best.value()) {
                break;
            }
            key.clear();
            key.extend_from_slice(best.key());
            blocks += ordered::advance_all(&mut cursors, &key)?;
        }
        blocks += cursors.iter().map(ordered::Cursor::blocks).sum::<u64>();
        self.shared.counters.blocks_read.fetch_add(blocks, Ordering::Relaxed);
        Ok(())
    }

    /// One pass over all keys per section, so that the loads of different keys overlap.
    fn gather_candidates(&mut self, section: &Section, keys: &[PointKey]) {
        self.candidates.clear();
        match &section.filters {
            Some(filters) => filters.candidates(keys, &mut self.candidates),
            None => {
                let numbered = (0_u32..).zip(keys);
                let may = numbered.filter(|(_, key)| section.is_in_range(prefix(*key)));
                self.candidates.extend(may.map(|(number, _)| number));
            }
        }
    }

    fn look_up(
        &mut self,
        section: &Section,
        bucket: u32,
        keys: &[PointKey],
        found: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), Error> {
        for number in &self.candidates {
            let number = *number as usize;
            let (Some(key), Some(mark)) = (keys.get(number), self.marks.get_mut(number)) else {
                continue;
            };
            if *mark == Mark::Found || *mark == Mark::DeletedIn(bucket) {
                continue;
            }
            match look_in(&self.shared, section, key, &mut self.block)? {
                Found::Absent => {
                    if section.filters.is_some() {
                        self.shared.counters.false_positives.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Found::Deleted => *mark = Mark::DeletedIn(bucket),
                Found::Value(value) => {
                    *mark = Mark::Found;
                    found(number, value);
                }
            }
        }
        Ok(())
    }
}

/// Looks for `key` in the blocks that may have it: one, or two if a block's first key has the same
/// first half.
fn look_in<'a>(
    shared: &Shared,
    section: &Section,
    key: &PointKey,
    buffer: &'a mut Vec<u8>,
) -> Result<Found<'a>, Error> {
    let Index::Points { firsts, .. } = &section.index else { return Ok(Found::Absent) };
    let wanted = prefix(key);
    let first = firsts.partition_point(|first| *first < wanted).saturating_sub(1);
    let mut number = first;
    while firsts.get(number).is_some_and(|start| *start <= wanted) {
        let unit = read_block(section, number, buffer)?;
        shared.counters.blocks_read.fetch_add(1, Ordering::Relaxed);
        let absent = match points::find(buffer, key) {
            Some(found) => found == Found::Absent,
            None => {
                let what = "a block passes its checksum but makes no sense";
                return Err(section.run.corrupt(unit * UNIT_BYTES as u64, what));
            }
        };
        if !absent {
            return Ok(points::find(buffer, key).unwrap_or(Found::Absent));
        }
        number += 1;
    }
    Ok(Found::Absent)
}

/// Reads and checks one block; returns its unit.
fn read_block(section: &Section, number: usize, buffer: &mut Vec<u8>) -> Result<u64, Error> {
    let start = section.index.start(number).unwrap_or(0);
    let end = section.index.start(number + 1).unwrap_or(section.meta.units);
    let unit = section.meta.first_unit + start;
    let offset = unit * UNIT_BYTES as u64;
    buffer.resize((end.saturating_sub(start)) as usize * UNIT_BYTES, 0);
    section.run.read(buffer, offset)?;
    if !block::check(buffer, section.run.id, unit) {
        return Err(section.run.corrupt(offset, "a block fails its checksum"));
    }
    Ok(unit)
}

/// A cursor on the first row that is not before `from`.
fn seek(section: &Section, from: &[u8]) -> Result<ordered::Cursor, Error> {
    let number = match &section.index {
        Index::Ordered { firsts, .. } => firsts.partition_point(|first| first.as_ref() <= from),
        Index::Points { .. } => 0,
    };
    let walk = section.walk(number.saturating_sub(1), ORDERED_BLOCK_BYTES);
    let mut cursor = ordered::Cursor::new(walk)?;
    while !cursor.ended() && cursor.key() < from {
        cursor.advance()?;
    }
    Ok(cursor)
}
