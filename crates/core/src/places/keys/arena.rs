//! An arena of encoded records, one after the other, in chunks.
//!
//! A record lies in one chunk, preceded by its length and digest, so the arena can be read from
//! front to back without an index. Records never move; one that is written again is marked, and
//! readers skip it. When a chunk is full a new one is begun, so growing moves nothing.

use crate::key::Digest;
use crate::places::keys::index::PLACES;

#[derive(Debug, Default)]
pub(super) struct Arena {
    /// The first `used` have records; the others are empty and kept for reuse.
    pieces: Vec<Vec<u8>>,
    used: usize,
    bytes: usize,
    /// The record that is being written.
    scratch: Vec<u8>,
}

/// Bytes of a chunk. A larger record has a chunk of its own.
const PIECE: usize = 1 << 20;
/// The unit of addresses, in bytes.
const UNIT: usize = 8;
const UNITS: u32 = (PIECE / UNIT) as u32;
/// As many chunks as can be addressed: 4 GiB, or more if records are large. A partition takes a
/// checkpoint after half a gibibyte, and refuses new messages after two and a half times as much.
pub(super) const PIECES_MAX: usize = (PLACES / UNITS) as usize;

const DIGEST: usize = 16;
/// The length and the mark, and the digest.
const HEAD: usize = 4 + DIGEST;
/// Flag in the length: the record was written again since.
const REWRITTEN: u32 = 1 << 31;

impl Arena {
    /// Appends the bytes that `encode` writes, and returns their place.
    pub(super) fn append(&mut self, digest: &Digest, encode: impl FnOnce(&mut Vec<u8>)) -> u32 {
        // Not directly into the chunk: the last record would grow it beyond its size.
        let mut record = std::mem::take(&mut self.scratch);
        record.clear();
        encode(&mut record);
        assert!(record.len() < REWRITTEN as usize, "a record is bounded by its message");
        let len = HEAD + record.len();
        let last = self.used.checked_sub(1).and_then(|last| self.pieces.get(last));
        let start = last.map_or(PIECE, Vec::len).next_multiple_of(UNIT);
        let is_begun = start + len > PIECE;
        let (start, piece) = if is_begun { (0, self.begin()) } else { (start, self.last()) };
        piece.resize(start, 0);
        piece.extend_from_slice(&(record.len() as u32).to_le_bytes());
        piece.extend_from_slice(&digest.0);
        piece.extend_from_slice(&record);
        self.bytes += len.next_multiple_of(UNIT);
        record.shrink_to(PIECE);
        self.scratch = record;
        let place = (self.used - 1) as u32 * UNITS + (start / UNIT) as u32;
        debug_assert!(self.is_of(place, digest), "a place names what was put there");
        place
    }

    fn begin(&mut self) -> &mut Vec<u8> {
        assert!(self.used < PIECES_MAX, "checkpoints come before the arena is full");
        if self.used == self.pieces.len() {
            self.pieces.push(Vec::with_capacity(PIECE));
        }
        self.used += 1;
        let piece = self.last();
        debug_assert!(piece.is_empty(), "a piece begins empty");
        piece
    }

    /// The chunk that is being filled.
    fn last(&mut self) -> &mut Vec<u8> {
        match self.used.checked_sub(1).and_then(|last| self.pieces.get_mut(last)) {
            Some(piece) => piece,
            None => no_piece(self.used),
        }
    }

    #[inline]
    fn from(&self, place: u32) -> Option<&[u8]> {
        let piece = self.pieces.get((place / UNITS) as usize)?;
        piece.get((place % UNITS) as usize * UNIT..)
    }

    /// Whether the record at that place has the digest.
    #[inline]
    pub(super) fn is_of(&self, place: u32, digest: &Digest) -> bool {
        let known = self.from(place).and_then(|bytes| bytes.get(4..HEAD));
        known == Some(&digest.0[..])
    }

    /// The bytes of a record; empty for a trace.
    pub(super) fn bytes(&self, place: u32) -> &[u8] {
        match self.from(place).and_then(split) {
            Some((_, _, bytes)) => bytes,
            None => no_piece(place as usize),
        }
    }

    /// Marks a record that is written again or must no longer be found.
    pub(super) fn rewrite(&mut self, place: u32) {
        let piece = self.pieces.get_mut((place / UNITS) as usize);
        let start = (place % UNITS) as usize * UNIT;
        let mark = piece.and_then(|piece| piece.get_mut(start + 3));
        let Some(mark) = mark else { no_piece(place as usize) };
        debug_assert!(*mark & 0x80 == 0, "a record is written again once");
        *mark |= 0x80;
    }

    /// The records that were not written again, in order: place, digest and bytes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, Digest, &[u8])> {
        let pieces = (0u32..).zip(self.pieces.iter().take(self.used));
        pieces.flat_map(|(number, piece)| {
            let mut at = 0;
            std::iter::from_fn(move || {
                loop {
                    let (head, digest, bytes) = piece.get(at..).and_then(split)?;
                    let place = number * UNITS + (at / UNIT) as u32;
                    at = (at + HEAD + bytes.len()).next_multiple_of(UNIT);
                    if head & REWRITTEN == 0 {
                        return Some((place, digest, bytes));
                    }
                }
            })
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Bytes of all records, including those written again.
    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it is close to the most it can address, so that nothing new should be accepted.
    pub(super) fn is_crowded(&self) -> bool {
        self.used > PIECES_MAX / 2
    }

    #[cfg(test)]
    pub(super) fn crowd(&mut self) {
        self.used = PIECES_MAX / 2 + 1;
    }

    /// Drops all records, keeping memory for `bytes`.
    pub(super) fn clear(&mut self, bytes: usize) {
        self.pieces.truncate(bytes.div_ceil(PIECE));
        for piece in &mut self.pieces {
            piece.clear();
            piece.shrink_to(PIECE);
        }
        self.used = 0;
        self.bytes = 0;
    }
}

/// The length with its mark, the digest, and the bytes of the record that begins here.
#[inline]
fn split(bytes: &[u8]) -> Option<(u32, Digest, &[u8])> {
    let (head, rest) = bytes.split_at_checked(HEAD)?;
    let length = u32::from_le_bytes(*head.first_chunk()?);
    let digest = Digest(*head.last_chunk()?);
    Some((length, digest, rest.get(..(length & !REWRITTEN) as usize)?))
}

#[cold]
#[expect(clippy::panic, reason = "a place that names no record is a bug, not an input")]
fn no_piece(place: usize) -> ! {
    panic!("there is no record at {place}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(number: u8) -> Digest {
        Digest([number; 16])
    }

    fn append(arena: &mut Arena, number: u8, len: usize) -> u32 {
        arena.append(&digest(number), |out| out.resize(out.len() + len, number))
    }

    #[test]
    fn records_of_any_size_are_read_in_the_order_in_which_they_were_written() {
        let mut arena = Arena::default();
        let lens = [0, 1, 60, PIECE - 200, 100, 3 * PIECE, 0, 7, PIECE - HEAD, 5, PIECE, 1];
        for _ in 0..2 {
            assert!(arena.is_empty() && arena.iter().next().is_none());
            let places: Vec<u32> =
                (0..).zip(lens).map(|(number, len)| append(&mut arena, number, len)).collect();
            let all: Vec<(u32, Digest, usize)> =
                arena.iter().map(|(place, digest, bytes)| (place, digest, bytes.len())).collect();
            let expected = (0..).zip(lens).zip(&places);
            let expected = expected.map(|((number, len), place)| (*place, digest(number), len));
            assert_eq!(all, expected.collect::<Vec<_>>());
            for ((number, len), place) in (0u8..).zip(lens).zip(&places) {
                assert!(arena.is_of(*place, &digest(number)));
                assert!(!arena.is_of(*place, &digest(number + 1)));
                assert_eq!(arena.bytes(*place), vec![number; len]);
            }
            let bytes = lens.iter().map(|len| (HEAD + len).next_multiple_of(UNIT));
            assert_eq!(arena.len(), bytes.sum::<usize>());
            arena.clear(2 * PIECE);
            assert!(arena.pieces.len() == 2);
            assert!(arena.pieces.iter().all(|piece| piece.capacity() <= 2 * PIECE));
        }
    }

    #[test]
    fn k11_digests_are_compared_whole() {
        let mut arena = Arena::default();
        let place = append(&mut arena, 7, 10);
        for at in 0..DIGEST {
            let mut other = digest(7);
            other.0[at] ^= 1;
            assert!(!arena.is_of(place, &other), "byte {at}");
        }
    }

    #[test]
    fn a_record_that_is_written_again_is_passed_over() {
        let mut arena = Arena::default();
        let places: Vec<u32> = (0..5).map(|number| append(&mut arena, number, 10)).collect();
        arena.rewrite(places[0]);
        arena.rewrite(places[3]);
        let left: Vec<Digest> = arena.iter().map(|(_, digest, _)| digest).collect();
        assert_eq!(left, [digest(1), digest(2), digest(4)]);
        assert_eq!(arena.bytes(places[3]), [3; 10], "it is there as long as somebody asks");
    }
}
