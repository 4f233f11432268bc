//! The journal as the log of a store.

use super::Journal;
use crate::log::Log;
use crate::{EachBatch, Epoch, Error, Question, Sequence, Shortage, Stop};

impl Log for Journal {
    /// The lock of the directory keeps everybody else out.
    fn claim(&self, least: Epoch) -> Result<Epoch, Error> {
        self.stop().check().map(|()| least)
    }

    fn begin(&self, epoch: Epoch) -> Result<(Sequence, bool), Error> {
        self.begin(epoch)
    }

    fn read(&self, from: Sequence, each: EachBatch<'_>) -> Result<(), Error> {
        self.read(from, each)
    }

    fn append(&self, epoch: Epoch, sequence: Sequence, batch: &[u8]) -> Result<(), Error> {
        self.append(epoch, sequence, batch)
    }

    fn durable(&self) -> Result<Sequence, Error> {
        self.durable()
    }

    /// Nobody else can claim the directory while its lock is held.
    fn confirm(&self) -> Result<Question, Error> {
        self.stop().check().map(|()| 0)
    }

    fn confirmed(&self) -> Result<Question, Error> {
        self.stop().check().map(|()| 0)
    }

    fn synced(&self) -> u64 {
        self.synced().to_bits()
    }

    fn release(&self, through: Sequence) {
        self.release(through);
    }

    fn is_low(&self) -> bool {
        self.is_low()
    }

    fn shortage(&self) -> Shortage {
        self.shortage()
    }

    fn make_room(&self) -> Result<bool, Error> {
        self.make_room()
    }

    fn batch_bytes_max(&self) -> u32 {
        self.batch_bytes_max()
    }

    fn drain(&self) -> Result<(), Error> {
        self.drain()
    }

    fn close(&self, epoch: Epoch) -> Result<(), Error> {
        self.close(epoch)
    }

    fn stop(&self) -> &Stop {
        self.stop()
    }

    fn halt(&self, cause: &str) {
        self.halt(cause);
    }

    fn interrupt(&self) {
        self.interrupt();
    }
}
