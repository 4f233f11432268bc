//! The options of a journal.

use super::limits;
use super::record::{RECORD_HEADER_LEN, SEGMENT_HEADER_LEN};

/// Options of a journal. Values out of bounds are clamped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The size of a segment file.
    pub segment_bytes: u32,
    /// The largest batch; never more than fits into a segment.
    pub batch_bytes_max: u32,
    /// Bytes that may wait for the flusher before `append` flushes itself.
    pub pending_bytes_max: u32,
    /// Minimum number of spare segments: the reserve when the disk is full.
    pub spares_min: usize,
    /// Number of unneeded segments kept as spares rather than removed.
    pub spares_max: usize,
    /// Watermark: below this much free space the store reports [`crate::Room::Low`].
    pub free_bytes_min: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: limits::SEGMENT_BYTES_DEFAULT,
            batch_bytes_max: limits::BATCH_BYTES_MAX_DEFAULT,
            pending_bytes_max: limits::PENDING_BYTES_MAX_DEFAULT,
            spares_min: limits::SPARES_MIN_DEFAULT,
            spares_max: limits::SPARES_MAX_DEFAULT,
            free_bytes_min: limits::FREE_BYTES_MIN_DEFAULT,
        }
    }
}

impl Options {
    /// The end of a segment that only seals may use, so that an owner can always end cleanly.
    pub(super) const SEALS_LEN: u32 = 2 * RECORD_HEADER_LEN;

    pub(super) fn bounded(&self) -> Self {
        let segment_bytes =
            self.segment_bytes.clamp(limits::SEGMENT_BYTES_MIN, limits::SEGMENT_BYTES_MAX);
        let room = segment_bytes
            - segment_bytes % super::record::ALIGNMENT
            - SEGMENT_HEADER_LEN
            - RECORD_HEADER_LEN
            - Self::SEALS_LEN;
        assert!(room > 0, "the smallest segment holds a batch");
        let spares_min = self.spares_min.clamp(1, limits::SPARES_MAX);
        Self {
            segment_bytes,
            batch_bytes_max: self.batch_bytes_max.min(room),
            pending_bytes_max: self.pending_bytes_max,
            spares_min,
            spares_max: self.spares_max.clamp(spares_min, limits::SPARES_MAX),
            free_bytes_min: self.free_bytes_min,
        }
    }
}
