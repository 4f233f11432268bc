//! The owner's side of the store on disk: the [`Store`] contract.

use std::sync::atomic::Ordering;

use super::{DiskStore, Shared, lock};
use crate::{Checkpoint, Claim, EachBatch, Epoch, Error, PointKey, Room, Sequence, Store};

/// How far the epochs of a copy are ahead of those it was copied with, where the least epoch that
/// was asked for is behind them.
const LINEAGE_STEP: Epoch = 4_096;

impl Store for DiskStore {
    fn claim(&mut self) -> Result<Claim, Error> {
        let shared = &self.shared;
        shared.journal.stop().check()?;
        let _ownership = lock(&shared.ownership);
        // An older owner's checkpoint is refused like its appends.
        shared.abandon_checkpoint();
        let epoch = shared.next_epoch();
        shared.commit_epoch(epoch).map_err(|error| match self.epoch {
            // An owner goes on as it is, and may try again.
            Some(_) if error.is_full() => error,
            _ => shared.fail(error),
        })?;
        let (last, closed) = shared.journal.begin(epoch).map_err(|error| shared.fail(error))?;
        shared.note_seal(epoch)?;
        let head = shared.archive.head();
        assert_eq!(head.epoch, epoch, "the manifest has the epoch before any record");
        assert!(head.through <= last, "the journal goes as far as the rows");
        assert!(self.epoch.is_none_or(|before| before < epoch), "every claim raises the epoch");
        self.epoch = Some(epoch);
        self.last = last;
        let batch_bytes_max = shared.journal.batch_bytes_max() as usize;
        Ok(Claim { epoch, through: head.through, last, closed, batch_bytes_max })
    }

    fn read(&mut self, from: Sequence, each: EachBatch<'_>) -> Result<(), Error> {
        let read = self.shared.journal.read(from, each);
        self.shared.unless_refused(read)
    }

    fn append(&mut self, epoch: Epoch, sequence: Sequence, batch: &[u8]) -> Result<(), Error> {
        self.shared.journal.stop().check()?;
        self.refuse_other_epochs(epoch)?;
        if sequence != self.last + 1 {
            return Err(Error::OutOfOrder { got: sequence, last: self.last });
        }
        let appended = self.shared.journal.append(epoch, sequence, batch);
        self.shared.unless_refused(appended)?;
        self.last = sequence;
        Ok(())
    }

    fn durable(&mut self) -> Result<Sequence, Error> {
        self.shared.journal.durable()
    }

    fn checkpoint(&mut self, checkpoint: Checkpoint) -> Result<(), Error> {
        let shared = &self.shared;
        shared.journal.stop().check()?;
        self.refuse_other_epochs(checkpoint.epoch)?;
        let visible = shared.checkpointed.load(Ordering::Acquire);
        let under_way = shared.under_way.load(Ordering::Acquire);
        let through = checkpoint.through;
        if under_way != 0 || through <= visible || through > self.last {
            let last = under_way.max(visible);
            return Err(Error::OutOfOrder { got: through, last });
        }
        shared.under_way.store(through, Ordering::Release);
        let before = lock(&shared.slot).replace(checkpoint);
        assert!(before.is_none(), "one checkpoint at a time");
        shared.signals.background.raise();
        Ok(())
    }

    fn checkpointed(&mut self) -> Result<Sequence, Error> {
        self.shared.journal.stop().check()?;
        Ok(self.shared.checkpointed.load(Ordering::Acquire))
    }

    fn get_many(
        &mut self,
        keys: &[PointKey],
        found: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), Error> {
        self.shared.journal.stop().check()?;
        self.reader.get_many(keys, found).map_err(|error| self.shared.fail(error))
    }

    fn scan(
        &mut self,
        from: &[u8],
        to: &[u8],
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Error> {
        self.shared.journal.stop().check()?;
        self.reader.scan(from, to, each).map_err(|error| self.shared.fail(error))
    }

    fn room(&mut self) -> Room {
        self.shared.room()
    }

    fn close(&mut self) -> Result<(), Error> {
        let shared = &self.shared;
        let closed = shared.finish().and_then(|()| match self.epoch {
            Some(epoch) => shared.journal.close(epoch),
            None => Ok(()),
        });
        shared.journal.halt("it was closed");
        shared.interrupt();
        // Steps under way end here; later ones find the store stopped.
        shared.abandon_checkpoint();
        *lock(&shared.merge) = None;
        self.threads = None;
        *lock(&shared.lock) = None;
        closed
    }
}

impl DiskStore {
    fn refuse_other_epochs(&self, held: Epoch) -> Result<(), Error> {
        match self.epoch {
            Some(epoch) if epoch == held => Ok(()),
            _ => Err(Error::Fenced { held, newest: self.shared.archive.head().epoch }),
        }
    }
}

impl Shared {
    /// The epoch of the next owner. The first owner of a copy leaves room for all who owned the
    /// original since the copy was made: their epochs must not be given again.
    fn next_epoch(&self) -> Epoch {
        let newest = self.archive.head().epoch;
        match lock(&self.lineage).take() {
            // Not further than that: the next copy, perhaps an older one, is to be above this.
            Some(least) if least > newest => least,
            Some(_) => newest + LINEAGE_STEP,
            None => newest + 1,
        }
    }

    /// Completes what the owner started, as far as there is room for it.
    fn finish(&self) -> Result<(), Error> {
        self.journal.drain()?;
        while self.step_checkpoint()? {}
        Ok(())
    }

    /// A full disk must not keep an owner out: it has acks to write, and room to make.
    fn commit_epoch(&self, epoch: Epoch) -> Result<(), Error> {
        loop {
            match self.archive.commit_epoch(epoch) {
                Err(error) if error.is_full() && self.journal.give_up_spare()? => {}
                committed => return committed,
            }
        }
    }

    /// Writes down how far the owner's seal is, so that a journal from before it is refused. Where
    /// there is no room, the next checkpoint does.
    fn note_seal(&self, epoch: Epoch) -> Result<(), Error> {
        self.archive.note_synced(self.journal.synced().to_bits());
        match self.archive.commit_epoch(epoch) {
            Err(error) if !error.is_full() => Err(self.fail(error)),
            _ => Ok(()),
        }
    }

    fn abandon_checkpoint(&self) {
        let mut job = lock(&self.checkpoint);
        *job = None;
        *lock(&self.slot) = None;
        self.under_way.store(0, Ordering::Release);
    }

    /// Stops the store for every error but a refusal.
    fn unless_refused<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        result.map_err(|error| match error {
            Error::Fenced { .. } | Error::OutOfOrder { .. } | Error::TooLarge { .. } => error,
            other => self.fail(other),
        })
    }
}
