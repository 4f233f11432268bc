//! Checkpoints: a cut, and the copying of what changed before it in steps. The store writes it.

use hapax_core::{Digest, Records, RowKey, RowSink};
use hapax_store::{Checkpoint, Lender, RowSet, Store};

use super::{Error, Partition};

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
