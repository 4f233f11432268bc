//! Epochs of an owner. Fences of one epoch come to an end, so a partition that gave out half of
//! them raises its epoch while it goes on.

use hapax_core::Fence;
use hapax_store::{Room, Store};

use super::{Error, Partition};

impl<S: Store> Partition<S> {
    /// Owns the store anew, under a higher epoch. Not while something is on its way to the disk,
    /// which a new owner would be told of as if it were another's, nor while the disk is full.
    pub(super) fn raise_epoch(&mut self) -> Result<(), Error> {
        let is_quiet = self.cutting.is_none() && self.store.durable()? == self.appended;
        if is_quiet && self.store.room() != Room::Low {
            let claim = match self.store.claim() {
                Err(error) if error.is_full() => return Ok(()), // Fences are left until later.
                claim => claim?,
            };
            assert_eq!(claim.last, self.appended, "the owner before was this one");
            if claim.epoch >= Fence::EPOCHS {
                return Err(Error::Epochs(claim.epoch));
            }
            self.machine.raise_epoch(claim.epoch);
            self.epoch = claim.epoch;
        }
        Ok(())
    }

    /// Whether a fence is of this owner, under whichever of its epochs.
    pub fn gave(&self, fence: Fence) -> bool {
        fence.epoch() >= self.opened
    }
}
