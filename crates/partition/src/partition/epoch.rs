//! The epochs of an owner. The fences of one epoch are limited, so a partition that has used half
//! of them raises its epoch while it runs.

use hapax_core::Fence;
use hapax_store::{Error as StoreError, Store};

use super::{Error, Partition};

impl<S: Store> Partition<S> {
    /// Claims the store again, under a higher epoch. Not while batches are in flight, which would
    /// count as another owner's, nor while the disk is full.
    pub(super) fn raise_epoch(&mut self) -> Result<(), Error> {
        let is_quiet = self.cutting.is_none() && self.store.durable()? == self.appended;
        if is_quiet && !self.store.room().is_low() {
            let claim = match self.store.claim() {
                // Fences are left for now.
                Err(error) if error.is_full() => return Ok(()),
                Err(StoreError::Unreachable { .. }) => return Ok(()),
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

    /// Whether this owner issued the fence, in any of its epochs.
    pub fn gave(&self, fence: Fence) -> bool {
        fence.epoch() >= self.opened
    }
}
