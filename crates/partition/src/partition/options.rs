//! The options of a partition.

use hapax_core::{Bounds, Recipe};

/// Options of a partition.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Its number, part of every message id.
    pub partition: u16,
    /// Number of partitions of the broker: no two of them issue the same fence.
    pub partitions: u16,
    /// Memory for caches, heads of queues and what waits for a checkpoint. Filters of the store
    /// come on top, at about 2.3 bytes per remembered key.
    pub memory_bytes: usize,
    /// A checkpoint is taken after at most this much journal, which bounds recovery.
    pub journal_bytes: usize,
    /// The same in decisions, which are small where messages are leased and finished that are only
    /// in rows: recovery reads a row for each. Batches that exceed what the journal takes at once
    /// are counted in bytes alone.
    pub journal_decisions: usize,
    /// While the disk is short of space, the minimum time between checkpoints that free some.
    pub relief_ms: u64,
    /// The most batches in flight to the disk at once.
    pub batches_in_flight: usize,
    /// Seed of the hash tables; must be random.
    pub seed: u64,
    /// How keys and bodies are hashed. MUST be what the data was created with, and what commands
    /// are built with: under another recipe every key is unknown. A partition does not store it.
    pub recipe: Recipe,
    /// How much the machine does at once.
    pub bounds: Bounds,
    /// A batch that has grown beyond this is journaled before the next command is decided.
    pub batch_bytes: usize,
    /// The most bytes in flight to the disk at once, plus one batch; further batches wait.
    pub in_flight_bytes: usize,
    /// A range read stops after this many bytes and continues when needed again: its rows are
    /// loaded, and a thousand rows may be a thousand times the largest body.
    pub range_bytes: usize,
    /// Small rows that a scan skips on its way to the next needed row; beyond this it seeks.
    pub rows_passed: usize,
    /// Bytes of journal that recovery decodes at once.
    pub gather_bytes: usize,
    /// Messages evicted at once, so that callers do not wait long.
    pub evict_step: usize,
    /// Changed messages and groups that are copied at once for a checkpoint. MUST NOT be zero.
    pub copy_step: usize,
    /// The most memory for outcomes that wait to be polled and the rows read for them, plus one
    /// command; further commands are decided when they have been polled.
    pub answer_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            partition: 0,
            partitions: 1,
            memory_bytes: 256 * 1_024 * 1_024,
            journal_bytes: 256 * 1_024 * 1_024,
            journal_decisions: usize::MAX,
            relief_ms: 2_000,
            batches_in_flight: 8,
            seed: 0,
            recipe: Recipe::First,
            bounds: Bounds::default(),
            batch_bytes: 4 * 1_024 * 1_024,
            in_flight_bytes: 4 * 1_024 * 1_024,
            range_bytes: 8 * 1_024 * 1_024,
            rows_passed: 64,
            gather_bytes: 8 * 1_024 * 1_024,
            evict_step: 4_096,
            copy_step: 8_192,
            answer_bytes: 16 * 1_024 * 1_024,
        }
    }
}
