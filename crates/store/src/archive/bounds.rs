//! Every bound of the archive, in one place.

/// Blocks begin at multiples of this and are multiples of it long.
pub(super) const UNIT_BYTES: usize = 4096;
/// A block of points ends before it exceeds this, unless one entry alone does.
pub(super) const POINT_BLOCK_BYTES: usize = UNIT_BYTES;
/// Ordered rows are read in sequence, so that their blocks may be larger and waste less.
pub(super) const ORDERED_BLOCK_BYTES: usize = 4 * UNIT_BYTES;
/// A block counts its units in 16 bits.
pub(super) const BLOCK_UNITS_MAX: usize = u16::MAX as usize;
pub(super) const VALUE_BYTES_MAX: usize = 64 << 20;
pub(super) const ORDERED_KEY_BYTES_MAX: usize = 1024;

/// The most that one step of a job writes, apart from large values. It stays in the cache between
/// encoding and writing.
pub(super) const STEP_BYTES: usize = 256 << 10;
/// Rows that one step of a job handles while it sorts or merges.
pub(super) const STEP_ROWS: usize = 16 << 10;
/// Bytes read at once when an input is read from end to end.
pub(super) const READ_AHEAD_BYTES: usize = 128 << 10;

/// The mean size of a filter's shards is at most this. Building one takes a few milliseconds and
/// stays within the second-level cache.
pub(super) const SHARD_ROWS: u64 = 128 << 10;
/// A shard with more keys than this, because the keys are not digests, answers "maybe" instead.
pub(super) const SHARD_ROWS_MAX: usize = 1 << 20;
pub(super) const SHARD_BITS_MAX: u32 = 20;

/// One merge reads at most this many sections.
pub(super) const MERGE_INPUTS_MAX: usize = 16;
/// A merge whose inputs have more rows than this together is not begun: its filter is held in
/// memory until it is written.
pub(super) const MERGE_ROWS_MAX: u64 = 512 << 20;
/// The smallest tier of sizes; each further one is the fan-in times larger.
pub(super) const TIER_BYTES: u64 = 64 << 10;
/// Sections of points, beyond one per bucket, that a look-up may have to search.
pub(super) const LOOKUP_SECTIONS: usize = 16;
/// Fewer deleted rows than this are no reason to rewrite a bucket.
pub(super) const DELETED_ROWS_MIN: u64 = 1024;
/// Dead bytes in files that still hold live sections: tolerated up to this plus an eighth.
pub(super) const DEAD_BYTES_MIN: u64 = 64 << 20;
/// A merge that probably does not fit is tried at least once in this many runs.
pub(super) const GUESS_RUNS_MAX: u64 = 256;
/// The largest valid manifest.
pub(super) const MANIFEST_BYTES_MAX: u64 = 64 << 20;

// Relations between the bounds.
const _: () = assert!(POINT_BLOCK_BYTES.is_multiple_of(UNIT_BYTES));
const _: () = assert!(ORDERED_BLOCK_BYTES.is_multiple_of(UNIT_BYTES));
const _: () = assert!(VALUE_BYTES_MAX < BLOCK_UNITS_MAX * UNIT_BYTES, "one entry fits a block");
const _: () = assert!(ORDERED_KEY_BYTES_MAX <= u16::MAX as usize, "a section keeps its ends");
const _: () = assert!(READ_AHEAD_BYTES.is_multiple_of(UNIT_BYTES));
const _: () = assert!(SHARD_ROWS < SHARD_ROWS_MAX as u64, "digests never crowd a shard");
