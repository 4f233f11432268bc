//! Rows: what a checkpoint writes and look-ups find.
//!
//! There are two kinds. A *point* has a 16-byte key that is already a digest, is looked up by that
//! key alone, mostly in vain, and is dropped by time with all others of its bucket. An *ordered*
//! row has a key of any bytes and is found by scanning a range.
//!
//! Invariants, which the caller keeps:
//! - a point key has at most one row over all buckets: who moves a point to another bucket deletes
//!   it in the old one in the same checkpoint;
//! - within one row set a key of one bucket appears once.

/// A point's key: the first 16 bytes of a cryptographic digest.
pub type PointKey = [u8; 16];

/// The bucket of points that no time drops.
pub const NEVER: u64 = u64::MAX;

/// The rows of one checkpoint, in one arena, sorted in place when they are written.
#[derive(Debug, Default)]
pub struct RowSet {
    pub(crate) points: Vec<Point>,
    pub(crate) ordered: Vec<Ordered>,
    pub(crate) bytes: Vec<u8>,
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

/// A range of the arena. Deleted rows have [`Span::DELETED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// In units of [`UNIT`] bytes.
    start: u32,
    len: u32,
}

/// What the arena is addressed in: 32 bits of it are 32 GiB, more than a partition lets change
/// between two checkpoints.
const UNIT: usize = 8;

impl Span {
    pub(crate) const DELETED: Self = Self { start: u32::MAX, len: u32::MAX };
}

impl RowSet {
    pub fn reserve(&mut self, points: usize, bytes: usize) {
        self.points.reserve(points);
        self.bytes.reserve(bytes);
    }

    /// Writes a point into the bucket that is dropped at `drop_at` ([`NEVER`] for none).
    pub fn put_point(&mut self, key: PointKey, drop_at: u64, value: &[u8]) {
        let value = self.keep(value);
        self.points.push(Point { drop_at, key, value });
    }

    pub fn delete_point(&mut self, key: PointKey, drop_at: u64) {
        self.points.push(Point { drop_at, key, value: Span::DELETED });
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
        (span != Span::DELETED).then(|| slice(&self.bytes, span))
    }

    fn keep(&mut self, bytes: &[u8]) -> Span {
        self.bytes.resize(self.bytes.len().next_multiple_of(UNIT), 0);
        let start = self.bytes.len() / UNIT;
        assert!(start < u32::MAX as usize, "a checkpoint holds less than 32 GiB");
        assert!(bytes.len() < u32::MAX as usize, "a row holds less than 4 GiB");
        self.bytes.extend_from_slice(bytes);
        Span { start: start as u32, len: bytes.len() as u32 }
    }
}

fn slice(bytes: &[u8], span: Span) -> &[u8] {
    let start = span.start as usize * UNIT;
    let end = start + span.len as usize;
    debug_assert!(end <= bytes.len(), "a span lies within its arena");
    bytes.get(start..end).unwrap_or_default()
}
