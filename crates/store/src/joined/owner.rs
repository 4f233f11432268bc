//! The owner's side of the store: the [`Store`] contract.

use std::sync::atomic::Ordering;

use super::{Joined, Shared, lock, try_lock};
use crate::log::Log;
use crate::{
    Checkpoint, Claim, EachBatch, EachRow, Epoch, Error, PointKey, Question, Room, Sequence, Store,
};

/// How far the epochs of a copy are raised above those it was copied with, if the requested minimum
/// is lower.
const LINEAGE_STEP: Epoch = 4_096;

impl<L: Log> Store for Joined<L> {
    fn claim(&mut self) -> Result<Claim, Error> {
        let shared = &self.shared;
        shared.log.stop().check()?;
        let _ownership = lock(&shared.ownership);
        // An older owner's checkpoint is refused like its appends.
        shared.abandon_checkpoint();
        let epoch = shared.log.claim(shared.next_epoch())?;
        shared.commit_epoch(epoch).map_err(|error| match self.epoch {
            // The current owner continues, and may try again.
            Some(_) if error.is_full() => error,
            _ => shared.fail(error),
        })?;
        let (last, closed) = shared.log.begin(epoch).map_err(|error| shared.fail(error))?;
        shared.note_seal(epoch)?;
        if !shared.owned.load(Ordering::Acquire) {
            shared.archive.remove_leftovers(epoch).map_err(|error| shared.fail(error))?;
            shared.owned.store(true, Ordering::Release);
            shared.signals.merge.raise();
        }
        let head = shared.archive.head();
        assert_eq!(head.epoch, epoch, "the manifest has the epoch before any record");
        assert!(head.through <= last, "the journal goes as far as the rows");
        assert!(self.epoch.is_none_or(|before| before < epoch), "every claim raises the epoch");
        self.epoch = Some(epoch);
        self.last = last;
        let batch_bytes_max = shared.log.batch_bytes_max() as usize;
        Ok(Claim { epoch, through: head.through, last, closed, batch_bytes_max })
    }

    fn read(&mut self, from: Sequence, each: EachBatch<'_>) -> Result<(), Error> {
        let read = self.shared.log.read(from, each);
        self.shared.unless_refused(read)
    }

    fn append(&mut self, epoch: Epoch, sequence: Sequence, batch: &[u8]) -> Result<(), Error> {
        self.shared.log.stop().check()?;
        self.refuse_other_epochs(epoch)?;
        if sequence != self.last + 1 {
            return Err(Error::OutOfOrder { got: sequence, last: self.last });
        }
        let appended = self.shared.log.append(epoch, sequence, batch);
        self.shared.unless_refused(appended)?;
        self.last = sequence;
        Ok(())
    }

    fn durable(&mut self) -> Result<Sequence, Error> {
        self.shared.log.durable()
    }

    fn confirm(&mut self) -> Result<Question, Error> {
        self.shared.log.confirm()
    }

    fn confirmed(&mut self) -> Result<Question, Error> {
        self.shared.log.confirmed()
    }

    fn checkpoint(&mut self, checkpoint: Checkpoint) -> Result<(), Error> {
        let shared = &self.shared;
        shared.log.stop().check()?;
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

    fn abandon(&mut self) -> Result<bool, Error> {
        let shared = &self.shared;
        shared.log.stop().check()?;
        // While the worker is at it, it goes on: the owner does not wait for the volume.
        let Some(mut job) = try_lock(&shared.checkpoint) else { return Ok(false) };
        if !job.as_mut().is_some_and(|(begun, _)| begun.abandon()) {
            return Ok(false);
        }
        *job = None;
        shared.under_way.store(0, Ordering::Release);
        // The next one that is begun tells whether there is room again.
        shared.note_full(&shared.checkpoint_full, true);
        Ok(true)
    }

    fn checkpointed(&mut self) -> Result<Sequence, Error> {
        self.shared.log.stop().check()?;
        Ok(self.shared.checkpointed.load(Ordering::Acquire))
    }

    fn get_many(
        &mut self,
        keys: &[PointKey],
        found: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), Error> {
        self.shared.log.stop().check()?;
        self.reader.get_many(keys, found).map_err(|error| self.shared.fail(error))
    }

    fn scan(&mut self, from: &[u8], to: &[u8], each: EachRow<'_>) -> Result<(), Error> {
        self.shared.log.stop().check()?;
        self.reader.scan(from, to, each).map_err(|error| self.shared.fail(error))
    }

    fn room(&mut self) -> Room {
        self.shared.room()
    }

    fn close(&mut self) -> Result<(), Error> {
        let shared = &self.shared;
        let closed = shared.finish().and_then(|()| match self.epoch {
            Some(epoch) => shared.log.close(epoch),
            None => Ok(()),
        });
        shared.log.halt("it was closed");
        shared.interrupt();
        // Steps in progress end here; later ones find the store stopped.
        shared.abandon_checkpoint();
        *lock(&shared.merge) = None;
        self.threads = None;
        *lock(&shared.lock) = None;
        closed
    }
}

impl<L: Log> Joined<L> {
    fn refuse_other_epochs(&self, held: Epoch) -> Result<(), Error> {
        match self.epoch {
            Some(epoch) if epoch == held => Ok(()),
            _ => Err(Error::Fenced { held, newest: self.shared.archive.head().epoch }),
        }
    }
}

impl<L: Log> Shared<L> {
    /// The epoch of the next owner. The first owner of a copy skips the epochs that owners of the
    /// original may have had since: they must not be reused.
    fn next_epoch(&self) -> Epoch {
        let newest = self.archive.head().epoch;
        match lock(&self.lineage).take() {
            // No further: the next copy, perhaps an older one, must be above this.
            Some(least) if least > newest => least,
            Some(_) => newest + LINEAGE_STEP,
            None => newest + 1,
        }
    }

    /// Completes what the owner started, as far as there is room.
    fn finish(&self) -> Result<(), Error> {
        self.log.drain()?;
        while self.step_checkpoint()? {}
        Ok(())
    }

    /// Commits the epoch. A full disk must not lock an owner out: it has settles to write and space
    /// to free.
    fn commit_epoch(&self, epoch: Epoch) -> Result<(), Error> {
        loop {
            match self.archive.commit_epoch(epoch) {
                Err(error) if error.is_full() && self.make_room(epoch)? => {}
                committed => return committed,
            }
        }
    }

    /// Frees space for the manifest: leftovers first, which nobody needs. An owner that claims
    /// again has no leftovers, but may be writing runs that the manifest does not list yet.
    fn make_room(&self, epoch: Epoch) -> Result<bool, Error> {
        let is_new = !self.owned.load(Ordering::Acquire);
        Ok((is_new && self.archive.remove_leftovers(epoch)?) || self.log.make_room()?)
    }

    /// Records the position of the owner's seal, so that a journal from before it is refused. If
    /// there is no room, the next checkpoint does.
    fn note_seal(&self, epoch: Epoch) -> Result<(), Error> {
        self.archive.note_synced(self.log.synced());
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

    /// Stops the store on every error except a refusal.
    fn unless_refused<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        result.map_err(|error| match error {
            Error::Fenced { .. } | Error::OutOfOrder { .. } | Error::TooLarge { .. } => error,
            other => self.fail(other),
        })
    }
}
