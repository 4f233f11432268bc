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
//! `through` to the right and releases the batches before it, in one atomic step.

use crate::{Error, PointKey, RowSet};

/// The position of a batch in its partition's journal. The first batch has sequence 1; a journal
/// without batches ends at 0.
pub type Sequence = u64;

/// Counts the owners of a partition. Every claim raises it.
pub type Epoch = u32;

/// Counts what an owner asked by [`Store::confirm`]. Question 0 is always answered.
pub type Question = u64;

/// What a new owner learns from a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The owner's number, larger than every earlier one.
    pub epoch: Epoch,
    /// The rows hold the state as of this batch.
    pub through: Sequence,
    /// The last batch of the journal; the next append is `last + 1`.
    pub last: Sequence,
    /// Whether the previous owner closed the store: it answered nobody after the last batch.
    pub closed: bool,
    /// The most bytes a batch may have: an append of more is refused as [`Error::TooLarge`].
    pub batch_bytes_max: usize,
}

/// Whether there is room for new data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Anything may be appended.
    Free,
    /// Only what shrinks the state (settles, checkpoints) may be appended: the reserve is in use or
    /// free space is below the watermark. A store leaves this state by itself once its owner takes
    /// a checkpoint that frees enough.
    Low(Shortage),
}

impl Room {
    pub fn is_low(self) -> bool {
        self != Self::Free
    }
}

/// How short of space a store is, for its owner to decide whether a checkpoint is worthwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shortage {
    /// Bytes that may still be written.
    pub free_bytes: u64,
    /// What the journal frees after a checkpoint taken now.
    pub releasable_bytes: u64,
}

/// One checkpoint to be written.
pub struct Checkpoint {
    pub epoch: Epoch,
    /// The rows of this checkpoint bring the state to this batch.
    pub through: Sequence,
    /// The partition's time. Points whose `drop_at` is not later may be dropped.
    pub at: u64,
    /// Adds the rows that changed since the previous checkpoint. Runs on the store's own thread if
    /// it has one, so that the owner does not wait for encoding and sorting.
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

/// Receives the batches that [`Store::read`] finds; `false` or an error ends the reading.
pub type EachBatch<'a> = &'a mut dyn FnMut(Sequence, &[u8]) -> Result<bool, Error>;

/// Receives the key and the value of each row that [`Store::scan`] finds, or no value if the row is
/// deleted; `false` ends the scan.
pub type EachRow<'a> = &'a mut dyn FnMut(&[u8], Option<&[u8]>) -> bool;

/// Stores the data of one partition.
///
/// `append`, `confirm` and `checkpoint` start work and return; `durable`, `confirmed` and
/// `checkpointed` report how far it has come. They may be called at any time and never block. An
/// implementation calls the `wake` it was opened with whenever one of them advances or a failure is
/// there to be seen.
///
/// An owner that was replaced is refused by `append`, `confirmed` and `checkpoint`. `durable` may
/// not know of it yet: it then reports only batches of this owner and of those before it. If
/// batches of the owner were lost it MUST learn of it and return [`Error::Fenced`]: whoever waits
/// for them asks nothing else.
///
/// After an error other than [`Error::Fenced`] or [`Error::OutOfOrder`] a store is stopped: every
/// later call fails until it is opened again, which recovers from what is on disk.
pub trait Store: Send {
    /// Takes ownership. MUST fence every older owner durably before it returns, and MUST recover
    /// first: a torn last batch is cut, anything worse is refused as [`Error::Corrupt`] with
    /// nothing changed on disk. An owner that claims again raises its epoch; where it was replaced
    /// meanwhile it MUST be refused as [`Error::Fenced`], since what it has in memory is over.
    fn claim(&mut self) -> Result<Claim, Error>;

    /// Calls `each` for every durable batch from `from` on, in order, without a gap. MUST fail if a
    /// batch from `from` to the last one is missing or damaged.
    fn read(&mut self, from: Sequence, each: EachBatch<'_>) -> Result<(), Error>;

    /// Starts making `batch` durable. MUST refuse with [`Error::Fenced`] if `epoch` is not the
    /// newest and with [`Error::OutOfOrder`] if `sequence` does not follow the last append. Several
    /// batches may be in flight; they become durable in order.
    fn append(&mut self, epoch: Epoch, sequence: Sequence, batch: &[u8]) -> Result<(), Error>;

    /// The last batch that survives a power cut now. MUST NOT retry a failed sync: what was written
    /// before it may be lost, so the store stops.
    fn durable(&mut self) -> Result<Sequence, Error>;

    /// Starts asking whether this owner is still the newest one, and returns the number of the
    /// question. An answer that was decided without an append leaves when its question is
    /// answered: an owner that was replaced without noticing would answer from a state that is
    /// over. Where nobody else can claim the partition the answer is known at once, and the
    /// question may be 0.
    fn confirm(&mut self) -> Result<Question, Error>;

    /// The last question that was answered: this owner was the newest one at some moment after it
    /// asked. MUST be [`Error::Fenced`] for an owner that was replaced before. An append that
    /// became durable answers the questions before it. Never blocks; `wake` is called when it
    /// advances.
    fn confirmed(&mut self) -> Result<Question, Error>;

    /// Starts one checkpoint; the caller waits for it in `checkpointed` before the next one. Its
    /// rows MUST NOT be seen by `claim`, `get_many` or `scan` before `through` is durable, and MUST
    /// become visible together with the new `through`, all or nothing. If the disk is full the
    /// store keeps the rows, retries by itself and reports [`Room::Low`] meanwhile.
    fn checkpoint(&mut self, checkpoint: Checkpoint) -> Result<(), Error>;

    /// Gives up the checkpoint in progress if it has found no room, as if it had never been begun,
    /// and returns true. Returns false if there is none, or if it may still go on: then it does.
    /// The store reports [`Room::Low`] until the next one finds room.
    fn abandon(&mut self) -> Result<bool, Error>;

    /// The `through` of the last checkpoint whose rows are visible.
    fn checkpointed(&mut self) -> Result<Sequence, Error>;

    /// Looks up points. Calls `found(index, value)` for each key that has a row. A caller keeps a
    /// key in one bucket only; if it does not, the row in the bucket that is dropped last MUST be
    /// found, so that all stores agree. MUST NOT return bytes that fail their checksum, nor rows of
    /// a later owner's checkpoint: an owner that was replaced gets [`Error::Fenced`], here and in
    /// `scan`.
    fn get_many(
        &mut self,
        keys: &[PointKey],
        found: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), Error>;

    /// Visits the ordered rows with `from <= key < to` in ascending order, until `each` returns
    /// false. A deleted row that the store passes over MAY be shown, without a value, and MUST be
    /// shown if there can be many in a row: a caller that must not wait long stops there.
    fn scan(&mut self, from: &[u8], to: &[u8], each: EachRow<'_>) -> Result<(), Error>;

    /// Whether there is room for new data.
    fn room(&mut self) -> Room;

    /// Waits for everything in progress, writes a seal so that the next open can tell a torn tail
    /// from a damaged one, and releases the partition. Dropping a store without it counts as a
    /// crash.
    fn close(&mut self) -> Result<(), Error>;
}
