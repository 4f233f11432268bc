//! Blocks of points: 16-byte keys in ascending order, with their values.
//!
//! ```text
//!  8        9         11
//!  ┌────────┬─────────┬────────┬───────────────────┬─────────────┬──────────┐
//!  │ shared │ lengths │ prefix │ suffixes          │ lengths     │ values   │
//!  │  u8    │  u16    │ shared │ count × (16 − s)  │ varints     │          │
//!  └────────┴─────────┴────────┴───────────────────┴─────────────┴──────────┘
//! ```
//!
//! The common prefix of all keys is stored once. The keys are separate from the values, so that a
//! look-up is a binary search in a few hundred bytes. A length of 0 marks a deleted point, any
//! other is the value's length plus one.

use std::ops::Range;

use super::block;
use super::block::{HEADER_BYTES, Walk};
use super::bounds::{POINT_BLOCK_BYTES, VALUE_BYTES_MAX};
use super::bytes::{put_varint, varint, varint_len};
use crate::{Error, PointKey};

const PREFIX_AT: usize = HEADER_BYTES + 3;

/// The result of looking up a key in a block.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found<'a> {
    Absent,
    Deleted,
    Value(&'a [u8]),
}

/// Where the parts of a block begin, counted from the block.
#[derive(Clone, Copy, Debug, Default)]
struct Layout {
    count: usize,
    shared: usize,
    suffixes: usize,
    lengths: usize,
    values: usize,
}

impl Layout {
    fn of(block: &[u8]) -> Option<Self> {
        let count = block::count(block);
        let shared = usize::from(*block.get(HEADER_BYTES)?);
        let lengths_bytes = match block.get(HEADER_BYTES + 1..PREFIX_AT) {
            Some(&[a, b]) => usize::from(u16::from_le_bytes([a, b])),
            _ => return None,
        };
        let suffixes = PREFIX_AT + shared;
        let lengths = suffixes + count * 16_usize.checked_sub(shared)?;
        let values = lengths + lengths_bytes;
        (count > 0 && values <= block.len()).then_some(Self {
            count,
            shared,
            suffixes,
            lengths,
            values,
        })
    }
}

/// Looks `key` up in a block that passed its check; `None` if the block is malformed.
pub(super) fn find<'a>(block: &'a [u8], key: &PointKey) -> Option<Found<'a>> {
    let layout = Layout::of(block)?;
    let (prefix, suffix) = key.split_at_checked(layout.shared)?;
    if block.get(PREFIX_AT..layout.suffixes)? != prefix {
        return Some(Found::Absent);
    }
    let stride = suffix.len();
    let (mut low, mut high) = (0, layout.count);
    while low < high {
        let middle = usize::midpoint(low, high);
        let at = layout.suffixes + middle * stride;
        match block.get(at..at + stride)?.cmp(suffix) {
            std::cmp::Ordering::Less => low = middle + 1,
            std::cmp::Ordering::Greater => high = middle,
            std::cmp::Ordering::Equal => return value_at(block, layout, middle),
        }
    }
    Some(Found::Absent)
}

fn value_at(block: &[u8], layout: Layout, entry: usize) -> Option<Found<'_>> {
    let mut lengths = block.get(layout.lengths..layout.values)?;
    let mut start = layout.values;
    for _ in 0..entry {
        let (length, used) = varint(lengths)?;
        lengths = lengths.get(used..)?;
        start += usize::try_from(length).ok()?.saturating_sub(1);
    }
    let (length, _) = varint(lengths)?;
    let Some(length) = usize::try_from(length).ok()?.checked_sub(1) else {
        return Some(Found::Deleted);
    };
    Some(Found::Value(block.get(start..start.checked_add(length)?)?))
}

/// Collects the entries of one block.
#[derive(Debug, Default)]
pub(super) struct BlockBuilder {
    keys: Vec<u128>,
    shared: usize,
    lengths: Vec<u8>,
    values: Vec<u8>,
}

impl BlockBuilder {
    /// Whether the entry still fits; an empty block takes any.
    pub(super) fn fits(&self, key: u128, value: Option<&[u8]>) -> bool {
        let Some(&first) = self.keys.first() else { return true };
        let shared = self.shared.min(shared_bytes(first, key));
        let value_bytes = value.map_or(0, <[u8]>::len);
        let bytes = PREFIX_AT
            + shared
            + (self.keys.len() + 1) * (16 - shared)
            + self.lengths.len()
            + varint_len(value_bytes as u64 + 1)
            + self.values.len()
            + value_bytes;
        bytes <= POINT_BLOCK_BYTES
    }

    pub(super) fn push(&mut self, key: u128, value: Option<&[u8]>) {
        self.shared = match self.keys.first() {
            Some(&first) => self.shared.min(shared_bytes(first, key)),
            None => 16,
        };
        debug_assert!(self.keys.last().is_none_or(|last| *last < key), "points ascend");
        self.keys.push(key);
        match value {
            Some(value) => {
                assert!(value.len() <= VALUE_BYTES_MAX, "a value is within its bound");
                put_varint(&mut self.lengths, value.len() as u64 + 1);
                self.values.extend_from_slice(value);
            }
            None => self.lengths.push(0),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Appends the block to `out` and begins an empty one. Returns its first key.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>, run: u64, unit: u64) -> u128 {
        let start = out.len();
        let first = self.keys.first().copied().unwrap_or_default();
        out.extend_from_slice(&[0; HEADER_BYTES]);
        out.push(self.shared as u8);
        out.extend_from_slice(&(self.lengths.len() as u16).to_le_bytes());
        out.extend_from_slice(first.to_be_bytes().get(..self.shared).unwrap_or_default());
        // Sixteen bytes each, partly overwritten by the next: copies of a fixed size are several
        // times cheaper than those of a computed size.
        for key in &self.keys {
            let suffix = key.checked_shl(8 * self.shared as u32).unwrap_or(0);
            out.extend_from_slice(&suffix.to_be_bytes());
            out.truncate(out.len() - self.shared);
        }
        out.extend_from_slice(&self.lengths);
        out.extend_from_slice(&self.values);
        block::seal(out, start, self.keys.len(), run, unit);
        self.keys.clear();
        self.lengths.clear();
        self.values.clear();
        first
    }
}

fn shared_bytes(a: u128, b: u128) -> usize {
    (a ^ b).leading_zeros() as usize / 8
}

/// Reads the points of a section in order. Positioned on a point, or after the last.
#[derive(Debug)]
pub(super) struct Cursor {
    walk: Walk,
    block: Range<usize>,
    unit: u64,
    layout: Layout,
    prefix: u128,
    suffix_mask: u128,
    entry: usize,
    length_at: usize,
    value_at: usize,
    key: u128,
    value: Option<Range<usize>>,
    ended: bool,
}

impl Cursor {
    /// Positioned on the first point of the walk.
    pub(super) fn new(walk: Walk) -> Result<Self, Error> {
        let mut cursor = Self {
            walk,
            block: 0..0,
            unit: 0,
            layout: Layout::default(),
            prefix: 0,
            suffix_mask: 0,
            entry: 0,
            length_at: 0,
            value_at: 0,
            key: 0,
            value: None,
            ended: false,
        };
        cursor.advance()?;
        Ok(cursor)
    }

    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    pub(super) fn key(&self) -> u128 {
        self.key
    }

    /// The value; `None` for a deleted point.
    pub(super) fn value(&self) -> Option<&[u8]> {
        self.value.clone().map(|range| self.walk.bytes().get(range).unwrap_or_default())
    }

    /// The unit of the cursor's block, and whether it is on the first entry.
    pub(super) fn place(&self) -> (u64, bool) {
        (self.unit, self.entry == 1)
    }

    pub(super) fn blocks(&self) -> u64 {
        self.walk.blocks()
    }

    /// Moves to the next point.
    pub(super) fn advance(&mut self) -> Result<(), Error> {
        if self.entry == self.layout.count && !self.next_block()? {
            self.ended = true;
            return Ok(());
        }
        match self.decode() {
            Some(()) => Ok(()),
            None => Err(self.malformed()),
        }
    }

    fn next_block(&mut self) -> Result<bool, Error> {
        let Some((unit, range)) = self.walk.next()? else { return Ok(false) };
        self.unit = unit;
        self.block = range;
        let block = self.walk.bytes().get(self.block.clone()).unwrap_or_default();
        let Some(layout) = Layout::of(block) else { return Err(self.malformed()) };
        let mut first = [0; 16];
        let prefix = block.get(PREFIX_AT..layout.suffixes).unwrap_or_default();
        for (to, from) in first.iter_mut().zip(prefix) {
            *to = *from;
        }
        self.prefix = u128::from_be_bytes(first);
        self.suffix_mask = u128::MAX.checked_shr(8 * layout.shared as u32).unwrap_or(0);
        self.layout = layout;
        self.entry = 0;
        self.length_at = layout.lengths;
        self.value_at = layout.values;
        Ok(true)
    }

    #[inline]
    fn decode(&mut self) -> Option<()> {
        let block = self.walk.bytes().get(self.block.clone())?;
        let layout = &self.layout;
        // Sixteen bytes that end with the suffix; the bytes before it are masked out.
        let end = layout.suffixes + (self.entry + 1) * (16 - layout.shared);
        let bytes = block.get(end.checked_sub(16)?..)?.first_chunk::<16>()?;
        let key = self.prefix | (u128::from_be_bytes(*bytes) & self.suffix_mask);
        let (length, used) = varint(block.get(self.length_at..layout.values)?)?;
        self.value = match usize::try_from(length).ok()?.checked_sub(1) {
            Some(length) => {
                let start = self.value_at;
                self.value_at = start.checked_add(length).filter(|end| *end <= block.len())?;
                Some(self.block.start + start..self.block.start + self.value_at)
            }
            None => None,
        };
        self.key = key;
        self.length_at += used;
        self.entry += 1;
        Some(())
    }

    fn malformed(&self) -> Error {
        let offset = self.unit * super::bounds::UNIT_BYTES as u64;
        self.walk.run().corrupt(offset, "a block passes its checksum but makes no sense")
    }
}
