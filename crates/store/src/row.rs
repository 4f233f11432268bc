//! Rows: written by checkpoints, found by look-ups.
//!
//! There are two kinds. A *point* has a 16-byte key that is already a digest, is looked up by that
//! key only, mostly without a match, and is dropped with its whole bucket when that expires. An
//! *ordered* row has a key of any bytes and is found by scanning a range.
//!
//! Invariants, which the caller keeps:
//! - a point key has at most one row over all buckets: to move a point to another bucket, delete it
//!   in the old one in the same checkpoint;
//! - within one row set a key of one bucket appears once.

use crate::progress::{self, Progress};

/// A point's key: the first 16 bytes of a cryptographic digest.
pub type PointKey = [u8; 16];

/// The bucket of points that never expire.
pub const NEVER: u64 = u64::MAX;

/// The rows of one checkpoint, in one arena, sorted in place when they are written.
#[derive(Debug, Default)]
pub struct RowSet {
    pub(crate) points: Vec<Point>,
    pub(crate) ordered: Vec<Ordered>,
    pub(crate) bytes: Vec<u8>,
    lender: Option<Box<dyn Lender>>,
    /// Where to tell how many of the expected points were added.
    progress: Progress,
    expected: usize,
}

/// Holds values that a row set refers to instead of copying them. They MUST NOT change meanwhile.
pub trait Lender: Send + Sync + std::fmt::Debug {
    fn value(&self, place: u32) -> &[u8];
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) drop_at: u64,
    pub(crate) key: PointKey,
    pub(crate) value: Span,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Ordered {
    pub(crate) key: Span,
    pub(crate) value: Span,
}

/// A range of the arena, or a value of the lender. Deleted rows have [`Span::DELETED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// In units of [`UNIT`] bytes; the lender's place if it is [`LENT`].
    start: u32,
    len: u32,
}

/// The unit of addresses: with 32 bits 32 GiB, more than can change between two checkpoints.
const UNIT: usize = 8;
/// After so many points each the progress is told.
const TOLD_ROWS: usize = 1_024;
/// Stands for the length of a lent value, which its lender knows.
const LENT: u32 = u32::MAX - 1;

impl Span {
    pub(crate) const DELETED: Self = Self { start: u32::MAX, len: u32::MAX };
}

impl RowSet {
    pub fn reserve(&mut self, points: usize, bytes: usize) {
        self.points.reserve(points);
        self.expected = points;
        self.bytes.reserve(bytes);
    }

    /// Writes a point into the bucket that is dropped at `drop_at` ([`NEVER`] for none).
    pub fn put_point(&mut self, key: PointKey, drop_at: u64, value: &[u8]) {
        let value = self.keep(value);
        self.add(Point { drop_at, key, value });
    }

    /// Sets the lender of the values put by [`RowSet::put_lent`].
    pub fn borrow_from(&mut self, lender: Box<dyn Lender>) {
        assert!(self.lender.is_none(), "a row set has one lender");
        self.lender = Some(lender);
    }

    /// Like [`RowSet::put_point`], with a value of the lender.
    pub fn put_lent(&mut self, key: PointKey, drop_at: u64, place: u32) {
        debug_assert!(self.lender.is_some(), "what is lent has a lender");
        self.add(Point { drop_at, key, value: Span { start: place, len: LENT } });
    }

    pub fn delete_point(&mut self, key: PointKey, drop_at: u64) {
        self.add(Point { drop_at, key, value: Span::DELETED });
    }

    fn add(&mut self, point: Point) {
        self.points.push(point);
        let added = self.points.len();
        if added.is_multiple_of(TOLD_ROWS) && added <= self.expected {
            self.progress.tell(progress::ADDED * added as u64 / self.expected as u64);
        }
    }

    /// Tells `progress` from now on how many rows there are.
    pub(crate) fn tell(&mut self, progress: &Progress) {
        self.progress = progress.clone();
    }

    pub fn put_ordered(&mut self, key: &[u8], value: &[u8]) {
        let key = self.keep(key);
        let value = self.keep(value);
        self.ordered.push(Ordered { key, value });
    }

    pub fn delete_ordered(&mut self, key: &[u8]) {
        let key = self.keep(key);
        self.ordered.push(Ordered { key, value: Span::DELETED });
    }

    /// Removes all rows. Their memory is kept for reuse, unless it is far too much.
    pub(crate) fn clear(&mut self) {
        clear(&mut self.points);
        clear(&mut self.ordered);
        clear(&mut self.bytes);
        self.lender = None;
        self.expected = 0;
    }

    pub fn is_empty(&self) -> bool {
        self.points.is_empty() && self.ordered.is_empty()
    }

    /// Sorts the points by bucket and key, the ordered rows by key.
    pub(crate) fn sort(&mut self) {
        self.points.sort_unstable_by_key(|point| (point.drop_at, point.key));
        let bytes = &self.bytes;
        self.ordered.sort_unstable_by(|a, b| slice(bytes, a.key).cmp(slice(bytes, b.key)));
        let place = |point: &Point| (point.drop_at, point.key);
        debug_assert!(self.points.is_sorted_by(|a, b| place(a) < place(b)), "a key appears once");
        let key = |row: &Ordered| slice(bytes, row.key);
        debug_assert!(self.ordered.is_sorted_by(|a, b| key(a) < key(b)), "a key appears once");
    }

    /// The bytes of a span; `None` for a deleted row.
    pub(crate) fn get(&self, span: Span) -> Option<&[u8]> {
        match span {
            Span::DELETED => None,
            Span { start, len: LENT } => Some(self.lender.as_ref()?.value(start)),
            span => Some(slice(&self.bytes, span)),
        }
    }

    fn keep(&mut self, bytes: &[u8]) -> Span {
        self.bytes.resize(self.bytes.len().next_multiple_of(UNIT), 0);
        let start = self.bytes.len() / UNIT;
        assert!(start < u32::MAX as usize, "a checkpoint holds less than 32 GiB");
        assert!(bytes.len() < LENT as usize, "a row holds less than 4 GiB");
        self.bytes.extend_from_slice(bytes);
        Span { start: start as u32, len: bytes.len() as u32 }
    }
}

/// Empties a list for reuse.
pub(crate) fn clear<T>(list: &mut Vec<T>) {
    if list.len() < list.capacity() / 4 {
        *list = Vec::new();
    }
    list.clear();
}

fn slice(bytes: &[u8], span: Span) -> &[u8] {
    let start = span.start as usize * UNIT;
    let end = start + span.len as usize;
    debug_assert!(end <= bytes.len(), "a span lies within its arena");
    bytes.get(start..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(rows: &mut RowSet, points: usize) {
        (0..points).for_each(|_| rows.put_point([7; 16], NEVER, b"value"));
    }

    #[test]
    fn the_progress_of_a_row_set_is_that_of_the_rows_expected_this_time() {
        let (mut rows, progress) = (RowSet::default(), Progress::default());
        rows.tell(&progress);
        rows.reserve(2 * TOLD_ROWS, 0);
        add(&mut rows, TOLD_ROWS);
        assert!((0.09..0.11).contains(&progress.get()), "half of them: {}", progress.get());
        rows.clear();
        progress.tell(0);
        add(&mut rows, TOLD_ROWS);
        assert!(progress.get() < 0.001, "nobody said how many there will be");
    }
}
