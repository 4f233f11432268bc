//! The frame of a block, and walking a section block by block.
//!
//! ```text
//!  0        4       6       8
//!  ┌────────┬───────┬───────┬─────────────────────────┬─────────┐
//!  │ crc32c │ units │ count │ entries                 │ zeroes  │   units × 4096 bytes
//!  └────────┴───────┴───────┴─────────────────────────┴─────────┘
//! ```
//!
//! Invariants:
//! - the checksum covers the run's number, the block's place in the file and everything after the
//!   checksum, so that a block in the wrong place fails like one with a flipped bit;
//! - a block is a whole number of units and holds at least one entry;
//! - a block is parsed only after its checksum was verified.

use std::ops::Range;
use std::sync::Arc;

use super::bounds::{BLOCK_UNITS_MAX, READ_AHEAD_BYTES, UNIT_BYTES};
use super::run::RunFile;
use crate::Error;

pub(super) const HEADER_BYTES: usize = 8;

/// Fills in the header of the block that begins at `start` of `out`, after padding it to units.
pub(super) fn seal(out: &mut Vec<u8>, start: usize, count: usize, run: u64, unit: u64) {
    let units = (out.len() - start).div_ceil(UNIT_BYTES);
    assert!(units > 0 && units <= BLOCK_UNITS_MAX, "a block fits its unit count");
    assert!(count > 0 && count <= usize::from(u16::MAX), "a block fits its entry count");
    out.resize(start + units * UNIT_BYTES, 0);
    let Some((checksum, rest)) = out.get_mut(start..).and_then(<[u8]>::split_first_chunk_mut::<4>)
    else {
        return;
    };
    if let Some(header) = rest.first_chunk_mut::<4>() {
        let [a, b] = (units as u16).to_le_bytes();
        let [c, d] = (count as u16).to_le_bytes();
        *header = [a, b, c, d];
    }
    *checksum = digest(rest, run, unit).to_le_bytes();
    let block = out.get(start..).unwrap_or_default();
    debug_assert!(check(block, run, unit), "what is read is what was written");
    debug_assert_eq!(self::count(block), count);
}

/// Whether `block` is what was written at this place.
pub(super) fn check(block: &[u8], run: u64, unit: u64) -> bool {
    let Some((checksum, rest)) = block.split_first_chunk::<4>() else { return false };
    digest(rest, run, unit) == u32::from_le_bytes(*checksum)
        && units(block) * UNIT_BYTES == block.len()
}

fn digest(rest: &[u8], run: u64, unit: u64) -> u32 {
    let seed = crc32c::crc32c_append(crc32c::crc32c(&run.to_le_bytes()), &unit.to_le_bytes());
    crc32c::crc32c_append(seed, rest)
}

pub(super) fn units(block: &[u8]) -> usize {
    match block.get(4..6) {
        Some(&[a, b]) => usize::from(u16::from_le_bytes([a, b])),
        _ => 0,
    }
}

pub(super) fn count(block: &[u8]) -> usize {
    match block.get(6..8) {
        Some(&[a, b]) => usize::from(u16::from_le_bytes([a, b])),
        _ => 0,
    }
}

/// Reads the blocks of a section in order, many at once, and checks each.
#[derive(Debug)]
pub(super) struct Walk {
    run: Arc<RunFile>,
    next: u64,
    end: u64,
    buffer: Vec<u8>,
    buffer_unit: u64,
    read_ahead: usize,
    blocks: u64,
}

impl Walk {
    /// From unit `next` to before unit `end`. `read_ahead` is the size of the first read; it
    /// doubles from there on, because a reader that continues probably reads all.
    pub(super) fn new(run: Arc<RunFile>, next: u64, end: u64, read_ahead: usize) -> Self {
        debug_assert!(next <= end, "a walk goes forward");
        Self { run, next, end, buffer: Vec::new(), buffer_unit: next, read_ahead, blocks: 0 }
    }

    pub(super) fn run(&self) -> &RunFile {
        &self.run
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// Number of blocks returned.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The next block: its unit, and its range in `bytes`, valid until the next call.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Range<usize>)>, Error> {
        if self.next >= self.end {
            return Ok(None);
        }
        let unit = self.next;
        let offset = unit * UNIT_BYTES as u64;
        let mut wanted = 1;
        // Twice at most: the first read shows how long the block is.
        let range = loop {
            let start = usize::try_from(unit - self.buffer_unit).unwrap_or(usize::MAX);
            let held = (self.buffer.len() / UNIT_BYTES).saturating_sub(start);
            if held < wanted {
                self.read(unit, wanted)?;
                continue;
            }
            let from = start * UNIT_BYTES;
            let units = units(self.buffer.get(from..).unwrap_or_default());
            if units == 0 || units as u64 > self.end - unit {
                return Err(self.run.corrupt(offset, "a block claims an impossible length"));
            }
            if units <= held {
                break from..from + units * UNIT_BYTES;
            }
            wanted = units;
        };
        let block = self.buffer.get(range.clone()).unwrap_or_default();
        if !check(block, self.run.id, unit) {
            return Err(self.run.corrupt(offset, "a block fails its checksum"));
        }
        self.next += (range.len() / UNIT_BYTES) as u64;
        debug_assert!(self.next <= self.end, "a block ends within its section");
        self.blocks += 1;
        Ok(Some((unit, range)))
    }

    fn read(&mut self, unit: u64, wanted: usize) -> Result<(), Error> {
        let left = usize::try_from(self.end - unit).unwrap_or(usize::MAX);
        let units = (self.read_ahead / UNIT_BYTES).max(wanted).min(left);
        if units < wanted {
            let offset = unit * UNIT_BYTES as u64;
            return Err(self.run.corrupt(offset, "a block reaches past its section"));
        }
        self.buffer.resize(units * UNIT_BYTES, 0);
        self.buffer_unit = unit;
        self.read_ahead = (self.read_ahead * 2).min(READ_AHEAD_BYTES);
        self.run.read(&mut self.buffer, unit * UNIT_BYTES as u64)
    }
}
