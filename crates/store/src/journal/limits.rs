//! Every bound of the journal.

/// Small segments are for tests: each one costs a file.
pub(crate) const SEGMENT_BYTES_MIN: u32 = 4 << 10;
/// Offsets in a segment are 32 bits, and recovery reads the last segment to its end.
pub(crate) const SEGMENT_BYTES_MAX: u32 = 1 << 30;
pub(crate) const SEGMENT_BYTES_DEFAULT: u32 = 64 << 20;

pub(crate) const BATCH_BYTES_MAX_DEFAULT: u32 = 32 << 20;
/// Bytes and batches that may wait for the flusher before the owner flushes itself.
pub(crate) const PENDING_BYTES_MAX_DEFAULT: u32 = 32 << 20;
pub(crate) const PENDING_BATCHES_MAX: usize = 4096;
/// A buffer larger than this is freed after use.
pub(crate) const PENDING_BYTES_KEPT: usize = 4 << 20;

pub(crate) const SPARES_MIN_DEFAULT: usize = 1;
pub(crate) const SPARES_MAX_DEFAULT: usize = 6;
pub(crate) const SPARES_MAX: usize = 64;

pub(crate) const FREE_BYTES_MIN_DEFAULT: u64 = 256 << 20;

/// Bytes of a new segment that are filled and synced at a time: small enough not to delay the
/// flusher's sync on the same device.
pub(crate) const FILL_BYTES: u64 = 1 << 20;
/// Bytes read at a time.
pub(crate) const WINDOW_BYTES: u64 = 1 << 20;

// Relations between the bounds.
const _: () = assert!(SEGMENT_BYTES_MIN <= SEGMENT_BYTES_DEFAULT);
const _: () = assert!(SEGMENT_BYTES_DEFAULT <= SEGMENT_BYTES_MAX);
const _: () = assert!(BATCH_BYTES_MAX_DEFAULT < SEGMENT_BYTES_DEFAULT, "the largest batch fits");
const _: () = assert!(0 < SPARES_MIN_DEFAULT && SPARES_MIN_DEFAULT <= SPARES_MAX_DEFAULT);
const _: () = assert!(SPARES_MAX_DEFAULT <= SPARES_MAX);
