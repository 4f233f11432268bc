//! Checkpoints: a cut, and the copying of what changed before it in steps. The store writes it.
//!
//! On a full disk a checkpoint may be larger than what is left. While it waits for space nothing
//! can be evicted, and no other one is written, however small it would be by then. So it is given
//! up when the next one would be much smaller, or when memory is full.

use hapax_core::{Digest, Records, RowKey, RowSink, Time, Usage};
use hapax_store::{Checkpoint, Lender, Room, RowSet, Store};

use super::{Error, Partition, memory, shortage};

/// What the last checkpoint was made of: about how many bytes it writes, and the journal before it.
#[derive(Debug, Default)]
pub(super) struct Made {
    bytes: usize,
    journal_bytes: usize,
    journal_decisions: usize,
}

/// A checkpoint of about so many bytes that found no space, and the space that there was. After
/// some time another one is tried nevertheless.
#[derive(Debug)]
pub(super) struct Unwritable {
    bytes: usize,
    free_bytes: u64,
    until: Time,
}

impl<S: Store> Partition<S> {
    /// Begins a checkpoint now, unless one is in progress, and copies all of it at once.
    pub fn checkpoint(&mut self) -> Result<(), Error> {
        self.unless_stopped(|partition| {
            if partition.cutting.is_none() {
                partition.cut()?;
            }
            partition.copy(usize::MAX)
        })
    }

    /// Begins a checkpoint, which [`Self::copy`] continues.
    pub(super) fn cut(&mut self) -> Result<(), Error> {
        assert!(self.cutting.is_none(), "one checkpoint at a time");
        self.is_changed = false;
        if self.store.checkpointed()? == self.appended {
            let usage = self.machine.usage();
            if usage.unwritten_bytes == 0 && !usage.keys_expired {
                return Ok(()); // Nothing changed since the last one.
            }
            // Counted duplicates and expired keys are not decisions, but take memory and disk: an
            // empty batch gives their checkpoint a position.
            self.batch.begin(self.machine.now());
            self.store.append(self.epoch, self.appended + 1, self.batch.bytes())?;
            self.appended += 1;
        }
        self.cut_of = Made {
            bytes: memory::cost(&self.machine.usage()),
            journal_bytes: self.journal_bytes,
            journal_decisions: self.journal_decisions,
        };
        self.machine.begin_checkpoint();
        self.cutting = Some(self.appended);
        self.cut_at = self.machine.now();
        self.cut_head_bytes = self.machine.usage().head_bytes();
        self.journal_bytes = 0;
        self.journal_decisions = 0;
        Ok(())
    }

    /// Copies up to `most` more of what the checkpoint in progress writes. When all of it is
    /// copied, the store gets it.
    pub(super) fn copy(&mut self, most: usize) -> Result<(), Error> {
        let Some(through) = self.cutting.filter(|_| self.machine.is_copying()) else {
            return Ok(());
        };
        let Some(snapshot) = self.machine.copy_changed(most) else { return Ok(()) };
        self.store.checkpoint(Checkpoint {
            epoch: self.epoch,
            through,
            at: self.cut_at.0,
            rows: Box::new(move |rows| {
                let (points, bytes) = snapshot.size();
                rows.reserve(points, bytes);
                snapshot.write(&mut Sink(rows));
            }),
        })?;
        Ok(())
    }
}

impl<S: Store> Partition<S> {
    /// Gives up the checkpoint in progress if it waits for space for no good.
    pub(super) fn give_up(&mut self) -> Result<(), Error> {
        let Room::Low(room) = self.room else { return Ok(()) };
        if self.cutting.is_none() || self.machine.is_copying() {
            return Ok(());
        }
        let usage = self.machine.usage();
        let bytes_max = usage.head_bytes() + usage.unwritten_bytes + usage.frozen_bytes;
        let is_smaller = bytes_max < much_smaller(self.cut_of.bytes);
        let is_in_the_way = self.is_memory_full(&usage) && self.is_bearable(&usage);
        if !(is_smaller || is_in_the_way) || !self.store.abandon()? {
            return Ok(());
        }
        self.machine.cancel_checkpoint();
        self.cutting = None;
        self.stuck_bytes = 0;
        self.is_changed = true;
        let Made { bytes, journal_bytes, journal_decisions } = std::mem::take(&mut self.cut_of);
        self.journal_bytes += journal_bytes;
        self.journal_decisions += journal_decisions;
        let until =
            self.machine.now().plus(self.options.relief_ms.saturating_mul(shortage::RARELY));
        self.unwritable = Some(Unwritable { bytes, free_bytes: room.free_bytes, until });
        Ok(())
    }

    /// Whether a checkpoint begun now would probably find no space either.
    pub(super) fn is_unwritable(&self, usage: &Usage) -> bool {
        self.unwritable_until(usage) > self.machine.now()
    }

    /// Until when no other checkpoint is begun: the last one found no space, and the next one is
    /// not much smaller, nor is there much more space. Sends are refused meanwhile, and settles
    /// make it smaller.
    pub(super) fn unwritable_until(&self, usage: &Usage) -> Time {
        let (Room::Low(room), Some(last)) = (self.room, &self.unwritable) else {
            return Time(0);
        };
        let is_as_before = memory::cost(usage) > much_smaller(last.bytes)
            && room.free_bytes.saturating_sub(last.free_bytes) < last.bytes as u64 / 4
            && self.is_bearable(usage);
        if is_as_before { last.until } else { Time(0) }
    }

    /// Whether memory can do without a checkpoint for some more time. As sends are refused, it
    /// takes little more than it does.
    fn is_bearable(&self, usage: &Usage) -> bool {
        let records = usage.unwritten_bytes + usage.frozen_bytes;
        records <= self.heads_max() * 5 / 4 && usage.head_bytes() <= self.heads_max() * 5
    }
}

/// What is worth another try: the records of small messages take less than half of what these
/// took, and each try is for nothing until it fits.
fn much_smaller(bytes: usize) -> usize {
    bytes / 3 * 2
}

/// Passes the machine's rows to the store's row set.
struct Sink<'a>(&'a mut RowSet);

#[derive(Debug)]
struct Lent(Records);

impl Lender for Lent {
    fn value(&self, place: u32) -> &[u8] {
        self.0.value(place)
    }
}

impl RowSink for Sink<'_> {
    fn borrow_from(&mut self, records: Records) {
        self.0.borrow_from(Box::new(Lent(records)));
    }

    fn put_record(&mut self, digest: &Digest, drop_at: u64, place: u32) {
        self.0.put_lent(digest.0, drop_at, place);
    }

    fn put_point(&mut self, digest: &Digest, drop_at: u64, value: &[u8]) {
        self.0.put_point(digest.0, drop_at, value);
    }

    fn delete_point(&mut self, digest: &Digest, drop_at: u64) {
        self.0.delete_point(digest.0, drop_at);
    }

    fn put_row(&mut self, key: &RowKey, value: &[u8]) {
        self.0.put_ordered(key.as_slice(), value);
    }

    fn delete_row(&mut self, key: &RowKey) {
        self.0.delete_ordered(key.as_slice());
    }
}
