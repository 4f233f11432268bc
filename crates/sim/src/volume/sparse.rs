//! The bytes of one file: units of 4 KiB where something was written, holes that read as zeros
//! elsewhere. Units are copied on write, so that a copy of a disk is cheap and a test can fork it
//! at every step.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Space is taken and freed in units of this many bytes.
pub(super) const UNIT: usize = 4096;

#[derive(Clone, Default)]
pub(super) struct Sparse {
    len: u64,
    units: BTreeMap<u64, Arc<[u8; UNIT]>>,
}

impl Sparse {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn allocated_units(&self) -> u64 {
        self.units.len() as u64
    }

    /// Sets the length. What lies beyond is dropped, so that growing again brings zeros.
    pub(super) fn set_len(&mut self, len: u64) {
        self.len = len;
        self.trim();
    }

    /// Raises the length, keeping what was put beyond the old one.
    pub(super) fn grow(&mut self, len: u64) {
        self.len = self.len.max(len);
    }

    /// Drops what was put beyond the length.
    pub(super) fn trim(&mut self) {
        let whole = self.len / UNIT as u64;
        let rest = (self.len % UNIT as u64) as usize;
        drop(self.units.split_off(&(whole + u64::from(rest > 0))));
        if rest > 0
            && let Some(unit) = self.units.get_mut(&whole)
            && let Some(tail) = Arc::make_mut(unit).get_mut(rest..)
        {
            tail.fill(0);
        }
    }

    /// Reads, with zeros for holes and beyond the end.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) {
        for piece in pieces(offset, buffer.len()) {
            let Some(to) = buffer.get_mut(piece.bytes.clone()) else { continue };
            match self.units.get(&piece.unit).and_then(|unit| unit.get(piece.within)) {
                Some(from) => to.copy_from_slice(from),
                None => to.fill(0),
            }
        }
    }

    /// Puts bytes at an offset without changing the length.
    pub(super) fn put(&mut self, offset: u64, bytes: &[u8]) {
        for piece in pieces(offset, bytes.len()) {
            let unit = self.units.entry(piece.unit).or_insert_with(|| Arc::new([0; UNIT]));
            if let (Some(to), Some(from)) =
                (Arc::make_mut(unit).get_mut(piece.within), bytes.get(piece.bytes))
            {
                to.copy_from_slice(from);
            }
        }
    }

    /// How many of `len` bytes from `offset` on fit with `free` more units.
    pub(super) fn fitting(&self, offset: u64, len: usize, mut free: u64) -> usize {
        for piece in pieces(offset, len) {
            if !self.units.contains_key(&piece.unit) {
                if free == 0 {
                    return piece.bytes.start;
                }
                free -= 1;
            }
        }
        len
    }
}

impl std::fmt::Debug for Sparse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sparse").field("len", &self.len).field("units", &self.units.len()).finish()
    }
}

/// The part of a range that lies in one unit.
struct Piece {
    unit: u64,
    within: Range<usize>,
    /// The range of the part in the caller's bytes.
    bytes: Range<usize>,
}

fn pieces(offset: u64, len: usize) -> impl Iterator<Item = Piece> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let start = (at % UNIT as u64) as usize;
        let count = (UNIT - start).min(len - done);
        let piece = Piece {
            unit: at / UNIT as u64,
            within: start..start + count,
            bytes: done..done + count,
        };
        done += count;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &Sparse, offset: u64, len: usize) -> Vec<u8> {
        let mut buffer = vec![0xee; len];
        bytes.read(offset, &mut buffer);
        buffer
    }

    #[test]
    fn bytes_come_back_across_units_and_holes_are_zero() {
        let mut bytes = Sparse::default();
        bytes.put(4090, b"twelve bytes");
        bytes.grow(20_000);
        assert_eq!(read(&bytes, 4090, 12), b"twelve bytes");
        assert_eq!(read(&bytes, 4088, 4), [0, 0, b't', b'w']);
        assert_eq!(read(&bytes, 15_000, 5000), vec![0; 5000]);
        assert_eq!(bytes.allocated_units(), 2);
    }

    #[test]
    fn what_was_cut_off_does_not_come_back() {
        let mut bytes = Sparse::default();
        bytes.put(0, &[7; 10_000]);
        bytes.grow(10_000);
        bytes.set_len(5000);
        bytes.set_len(10_000);
        assert_eq!(read(&bytes, 4999, 2), [7, 0]);
        assert_eq!(bytes.allocated_units(), 2);
        bytes.set_len(0);
        assert_eq!(bytes.allocated_units(), 0);
    }

    #[test]
    fn a_copy_is_not_changed_by_its_original() {
        let mut bytes = Sparse::default();
        bytes.put(0, b"before");
        let copy = bytes.clone();
        bytes.put(0, b"after!");
        assert_eq!(read(&copy, 0, 6), b"before");
    }

    #[test]
    fn only_new_units_need_room() {
        let mut bytes = Sparse::default();
        bytes.put(0, &[1; 4096]);
        assert_eq!(bytes.fitting(0, 4096, 0), 4096);
        assert_eq!(bytes.fitting(100, 4096, 0), 3996);
        assert_eq!(bytes.fitting(4000, 10_000, 1), 96 + 4096);
        assert_eq!(bytes.fitting(0, 12_288, 2), 12_288);
    }
}
