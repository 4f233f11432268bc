//! Blocks of ordered rows: keys of any bytes in ascending order, with their values.
//!
//! An entry is three varints (bytes shared with the key before it, further bytes of the key,
//! length of the value plus one or 0 for a deleted row), the rest of the key, the value. The first
//! entry of a block shares nothing.

use std::ops::Range;

use super::block;
use super::block::{HEADER_BYTES, Walk};
use super::bounds::{ORDERED_BLOCK_BYTES, ORDERED_KEY_BYTES_MAX, UNIT_BYTES, VALUE_BYTES_MAX};
use super::bytes::{Decoder, put_varint};
use crate::Error;

/// Collects the entries of one block.
#[derive(Debug, Default)]
pub(super) struct BlockBuilder {
    first: Vec<u8>,
    last: Vec<u8>,
    entries: Vec<u8>,
    count: usize,
}

impl BlockBuilder {
    /// Whether the entry still fits; an empty block takes any. Computed as if nothing were shared.
    pub(super) fn fits(&self, key: &[u8], value: Option<&[u8]>) -> bool {
        let bytes = HEADER_BYTES + self.entries.len() + key.len() + value.map_or(0, <[u8]>::len);
        self.count == 0 || bytes + 12 <= ORDERED_BLOCK_BYTES
    }

    pub(super) fn push(&mut self, key: &[u8], value: Option<&[u8]>) {
        assert!(key.len() <= ORDERED_KEY_BYTES_MAX, "a key is within its bound");
        assert!(value.is_none_or(|value| value.len() <= VALUE_BYTES_MAX), "so is a value");
        let shared = match self.count {
            0 => {
                self.first.clear();
                self.first.extend_from_slice(key);
                0
            }
            _ => self.last.iter().zip(key).take_while(|(a, b)| a == b).count(),
        };
        debug_assert!(self.count == 0 || self.last.as_slice() < key, "rows ascend");
        let rest = key.get(shared..).unwrap_or_default();
        put_varint(&mut self.entries, shared as u64);
        put_varint(&mut self.entries, rest.len() as u64);
        put_varint(&mut self.entries, value.map_or(0, |value| value.len() as u64 + 1));
        self.entries.extend_from_slice(rest);
        self.entries.extend_from_slice(value.unwrap_or_default());
        self.last.truncate(shared);
        self.last.extend_from_slice(rest);
        debug_assert_eq!(self.last, key, "the next one shares with this one");
        self.count += 1;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Appends the block to `out` and begins an empty one. Returns its first key.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>, run: u64, unit: u64) -> Box<[u8]> {
        let start = out.len();
        out.extend_from_slice(&[0; HEADER_BYTES]);
        out.extend_from_slice(&self.entries);
        block::seal(out, start, self.count, run, unit);
        self.entries.clear();
        self.count = 0;
        self.first.as_slice().into()
    }
}

/// Reads the rows of a section in order. Positioned on a row, or after the last.
#[derive(Debug)]
pub(super) struct Cursor {
    walk: Walk,
    unit: u64,
    /// The unread part of the block, within the walk's bytes.
    rest: Range<usize>,
    left: usize,
    first: bool,
    key: Vec<u8>,
    value: Option<Range<usize>>,
    ended: bool,
}

impl Cursor {
    /// Positioned on the first row of the walk.
    pub(super) fn new(walk: Walk) -> Result<Self, Error> {
        let mut cursor = Self {
            walk,
            unit: 0,
            rest: 0..0,
            left: 0,
            first: false,
            key: Vec::new(),
            value: None,
            ended: false,
        };
        cursor.advance()?;
        Ok(cursor)
    }

    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    /// The value; `None` for a deleted row.
    pub(super) fn value(&self) -> Option<&[u8]> {
        self.value.clone().map(|range| self.walk.bytes().get(range).unwrap_or_default())
    }

    /// The unit of the cursor's block, and whether it is on the first entry.
    pub(super) fn place(&self) -> (u64, bool) {
        (self.unit, self.first)
    }

    pub(super) fn blocks(&self) -> u64 {
        self.walk.blocks()
    }

    /// Moves to the next row.
    pub(super) fn advance(&mut self) -> Result<(), Error> {
        self.first = self.left == 0;
        if self.first {
            let Some((unit, range)) = self.walk.next()? else {
                self.ended = true;
                return Ok(());
            };
            let block = self.walk.bytes().get(range.clone()).unwrap_or_default();
            self.unit = unit;
            self.left = block::count(block);
            self.rest = range.start + HEADER_BYTES..range.end;
            self.key.clear();
        }
        match self.decode() {
            Some(()) => Ok(()),
            None => {
                let offset = self.unit * UNIT_BYTES as u64;
                let what = "a block passes its checksum but makes no sense";
                Err(self.walk.run().corrupt(offset, what))
            }
        }
    }

    fn decode(&mut self) -> Option<()> {
        let mut decoder = Decoder::new(self.walk.bytes().get(self.rest.clone())?);
        let shared = usize::try_from(decoder.varint()?).ok()?;
        let rest = usize::try_from(decoder.varint()?).ok()?;
        let length = usize::try_from(decoder.varint()?).ok()?;
        let rest = decoder.take(rest)?;
        let value_at = self.rest.end - decoder.len();
        self.value = match length.checked_sub(1) {
            Some(length) => {
                decoder.take(length)?;
                Some(value_at..value_at + length)
            }
            None => None,
        };
        if shared > self.key.len() {
            return None;
        }
        self.key.truncate(shared);
        self.key.extend_from_slice(rest);
        self.rest.start = self.rest.end - decoder.len();
        self.left = self.left.checked_sub(1)?;
        Some(())
    }
}

/// Moves every cursor on `key` to its next row and removes those that ended. Returns how many
/// blocks the removed ones had read.
pub(super) fn advance_all(cursors: &mut Vec<Cursor>, key: &[u8]) -> Result<u64, Error> {
    let (mut ended, mut blocks) = (false, 0);
    for cursor in cursors.iter_mut().filter(|cursor| cursor.key == key) {
        cursor.advance()?;
        if cursor.ended {
            ended = true;
            blocks += cursor.blocks();
        }
    }
    if ended {
        cursors.retain(|cursor| !cursor.ended);
    }
    Ok(blocks)
}
