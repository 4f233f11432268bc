//! The contract of a store, for one partition.
//!
//! ```text
//!            append(1) append(2) append(3) append(4)
//!                │         │         │         │
//!  journal   ────■─────────■─────────■─────────□──▶      ■ durable   □ on its way
//!                          ▲         ▲
//!                       through   durable()
//!                          │
//!  rows      ══════════════╛   get_many, scan: the state as of `through`
//! ```
//!
//! The state of a partition is its rows plus the batches after `through`. A checkpoint moves
//! `through` to the right and lets the batches before it go, in one atomic step.

use crate::{Error, PointKey, RowSet};

/// The place of a batch in its partition's journal. The first batch has sequence 1; a journal
/// without batches ends at 0.
pub type Sequence = u64;

/// Counts the owners of a partition. Every claim raises it.
pub type Epoch = u32;

/// What a new owner learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The owner's number, larger than every earlier one.
    pub epoch: Epoch,
    /// The rows hold the state as of this batch.
    pub through: Sequence,
    /// The last batch of the journal; the next append is `last + 1`.
    pub last: Sequence,
    /// Whether the owner before closed the store: it told nobody anything after the last batch.
    pub closed: bool,
    /// The most bytes a batch may have: an append of more is refused as [`Error::TooLarge`].
    pub batch_bytes_max: usize,
}

/// Whether there is room for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Anything may be appended.
    Free,
    /// Only what shrinks the state (settles, checkpoints) may be appended: the reserve is in use
    /// or free space is below the watermark. A store leaves this state by itself.
    Low,
}

/// One checkpoint to be written.
pub struct Checkpoint {
    pub epoch: Epoch,
    /// The rows of this checkpoint bring the state to this batch.
    pub through: Sequence,
    /// The partition's time. Points whose `drop_at` is not later may be dropped.
    pub at: u64,
    /// Fills in the rows that changed since the checkpoint before. Runs on the store's own thread
    /// where it has one, so that the owner does not wait for encoding and sorting.
    pub rows: Box<dyn FnOnce(&mut RowSet) + Send>,
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checkpoint")
            .field("epoch", &self.epoch)
            .field("through", &self.through)
            .finish()
    }
}

/// Takes the batches that [`Store::read`] finds; `false` or an error ends the reading.
pub type EachBatch<'a> = &'a mut dyn FnMut(Sequence, &[u8]) -> Result<bool, Error>;

/// Keeps the bytes of one partition.
///
/// `append` and `checkpoint` start work and return; `durable` and `checkpointed` tell how far it
/// has come. Both may be called at any time and never block. An implementation calls the `wake`
/// it was opened with whenever one of the two advances or a failure is there to be seen.
///
/// After an error other than [`Error::Fenced`] or [`Error::OutOfOrder`] a store is stopped: every
/// later call fails, and only opening it anew, which recovers from what is on disk, helps.
pub trait Store: Send {
    /// Takes ownership. MUST fence every older owner durably before it returns, and MUST recover
    /// first: a torn last batch is cut, anything worse is refused as [`Error::Corrupt`] with
    /// nothing changed on disk.
    fn claim(&mut self) -> Result<Claim, Error>;

    /// Calls `each` for every durable batch from `from` on, in order, without a gap. MUST fail
    /// where a batch from `from` to the last one is missing or damaged.
    fn read(&mut self, from: Sequence, each: EachBatch<'_>) -> Result<(), Error>;

    /// Starts making `batch` durable. MUST refuse as [`Error::Fenced`] where `epoch` is not the
    /// newest and as [`Error::OutOfOrder`] where `sequence` does not follow the last append.
    /// Several batches may be under way; they become durable in order.
    fn append(&mut self, epoch: Epoch, sequence: Sequence, batch: &[u8]) -> Result<(), Error>;

    /// The last batch that will survive a power cut now. MUST NOT retry a failed sync: what was
    /// written before it is lost for all anybody knows, so the store stops.
    fn durable(&mut self) -> Result<Sequence, Error>;

    /// Starts one checkpoint; the caller waits for it in `checkpointed` before the next one.
    /// Its rows MUST NOT be seen by `claim`, `get_many` or `scan` before `through` is durable, and
    /// MUST become visible together with the new `through`, all or nothing. Where the disk is
    /// full the store keeps the rows, tries again by itself and says [`Room::Low`] meanwhile.
    fn checkpoint(&mut self, checkpoint: Checkpoint) -> Result<(), Error>;

    /// The `through` of the last checkpoint whose rows are visible.
    fn checkpointed(&mut self) -> Result<Sequence, Error>;

    /// Looks up points. Calls `found(index, value)` for each key that has a row. A caller leaves a
    /// key in one bucket only; where one did not, the row in the bucket that is dropped last MUST
    /// be found, so that all stores agree. MUST NOT return
    /// bytes that fail their checksum, nor rows of a later owner's checkpoint: an owner that was
    /// replaced gets [`Error::Fenced`], here and in `scan`.
    fn get_many(
        &mut self,
        keys: &[PointKey],
        found: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), Error>;

    /// Walks the ordered rows with `from <= key < to` in ascending order, until `each` says false.
    fn scan(
        &mut self,
        from: &[u8],
        to: &[u8],
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Error>;

    /// Whether there is room for more.
    fn room(&mut self) -> Room;

    /// Waits for everything under way, writes a seal so that the next open can tell a torn tail
    /// from a damaged one, and releases the partition. Dropping a store without it is a crash.
    fn close(&mut self) -> Result<(), Error>;
}
