//! The contract of a log: batches in the order in which they were appended.
//!
//! A [`Joined`](crate::joined::Joined) store puts a log beside an archive of rows, and keeps the
//! two in step. The log decides who owns the partition where several processes may try; the
//! archive's manifest follows. [`Journal`](crate::journal::Journal) is the log on a disk.

use crate::{EachBatch, Epoch, Error, Question, Sequence, Shortage, Stop};

/// Batches of one partition. Shared by its owner and the workers of its store.
///
/// After an error other than a refusal a log is stopped, and its store with it: [`Log::stop`].
pub trait Log: Send + Sync + 'static {
    /// Takes ownership, and returns the epoch, which is at least `least`. MUST fence every older
    /// owner durably before it returns where another process could be one. A log that is locked by
    /// this process takes `least`, and the manifest remembers it. An owner that claims again may
    /// append with its epoch before until [`Log::begin`]: there may be no room for the manifest,
    /// and then it goes on as it was.
    fn claim(&self, least: Epoch) -> Result<Epoch, Error>;

    /// Starts an owner's batches, when the manifest has its epoch: what the last owner left torn is
    /// cut. Returns the last batch, and whether the last owner closed the log after it.
    fn begin(&self, epoch: Epoch) -> Result<(Sequence, bool), Error>;

    /// Calls `each` for every durable batch from `from` on, in order, without a gap.
    fn read(&self, from: Sequence, each: EachBatch<'_>) -> Result<(), Error>;

    /// Starts making a batch durable. The caller keeps epochs and sequences in order.
    fn append(&self, epoch: Epoch, sequence: Sequence, batch: &[u8]) -> Result<(), Error>;

    /// The last batch that will survive a power cut now. MUST NOT report what was not acknowledged.
    fn durable(&self) -> Result<Sequence, Error>;

    /// Starts asking whether the owner is still the newest: see
    /// [`Store::confirm`](crate::Store::confirm).
    fn confirm(&self) -> Result<Question, Error>;

    /// The last question that was answered.
    fn confirmed(&self) -> Result<Question, Error>;

    /// How far the log is durable, in its own terms, for the manifest to remember: a log that ends
    /// earlier is not the one that the rows were written beside.
    fn synced(&self) -> u64;

    /// The rows hold everything up to `through`: older batches may go.
    fn release(&self, through: Sequence);

    /// Whether there is little room for more batches. Asked for every batch: it costs nothing.
    fn is_low(&self) -> bool;

    /// How little, where there is.
    fn shortage(&self) -> Shortage;

    /// Gives up space for something smaller that matters more. False where there is none to give.
    fn make_room(&self) -> Result<bool, Error>;

    /// The most bytes a batch may have.
    fn batch_bytes_max(&self) -> u32;

    /// Makes everything durable that was appended. Blocks.
    fn drain(&self) -> Result<(), Error>;

    /// Makes everything durable, ends ownership in good order, and stops. Blocks.
    fn close(&self, epoch: Epoch) -> Result<(), Error>;

    /// Why the log stopped, and the means to stop it.
    fn stop(&self) -> &Stop;

    /// Stops as it is, and waits for work under way to end.
    fn halt(&self, cause: &str);

    /// Wakes the log's own threads, so that they look around.
    fn interrupt(&self);
}
