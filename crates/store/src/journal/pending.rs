//! Batches that wait for the flusher: one buffer, in the layout of the disk, that is swapped as a
//! whole. The owner copies a batch in under one lock; the flusher fills in the headers.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::record::{ALIGNMENT, RECORD_HEADER_LEN, record_len};
use super::{Options, limits, lock};
use crate::{Epoch, Sequence};

/// Batches one after the other, each with room for its header and padded to the alignment.
#[derive(Debug, Default)]
pub(super) struct Batches {
    pub(super) bytes: Vec<u8>,
    pub(super) frames: Vec<Frame>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    /// Where its header begins in the buffer.
    pub(super) start: usize,
    pub(super) length: u32,
    pub(super) sequence: Sequence,
    pub(super) epoch: Epoch,
}

impl Batches {
    pub(super) fn clear(&mut self) {
        self.frames.clear();
        self.bytes.clear();
        if self.bytes.capacity() > limits::PENDING_BYTES_KEPT {
            self.bytes = Vec::new();
        }
    }
}

/// The buffer in which batches wait.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    pending: Mutex<Pending>,
    woken: Condvar,
}

#[derive(Debug, Default)]
struct Pending {
    batches: Batches,
    /// The flusher's thread sleeps: pushing must wake it.
    sleeping: bool,
    interrupted: bool,
    /// The owner flushes itself: pushing wakes nobody.
    held: bool,
}

impl Pending {
    fn is_full(&self, options: &Options, length: u32) -> bool {
        let bytes = self.batches.bytes.len() as u64 + record_len(length);
        !self.batches.frames.is_empty()
            && (bytes > u64::from(options.pending_bytes_max)
                || self.batches.frames.len() >= limits::PENDING_BATCHES_MAX)
    }
}

impl Inbox {
    /// Adds a batch. False, without adding it, if too much is waiting already.
    pub(super) fn push(
        &self,
        options: &Options,
        epoch: Epoch,
        sequence: Sequence,
        length: u32,
        batch: &[u8],
    ) -> bool {
        assert_eq!(batch.len(), length as usize, "the frame is as long as its batch");
        let mut pending = lock(&self.pending);
        if pending.is_full(options, length) {
            return false;
        }
        let Batches { bytes, frames } = &mut pending.batches;
        let last = frames.last();
        assert!(last.is_none_or(|last| last.sequence + 1 == sequence), "batches come in order");
        assert!(last.is_none_or(|last| last.epoch <= epoch), "epochs never fall");
        let start = bytes.len();
        bytes.resize(start + RECORD_HEADER_LEN as usize, 0);
        bytes.extend_from_slice(batch);
        bytes.resize(start + record_len(length) as usize, 0);
        debug_assert!((bytes.len() - start).is_multiple_of(ALIGNMENT as usize));
        frames.push(Frame { start, length, sequence, epoch });
        self.wake_flusher(&mut pending);
        true
    }

    fn wake_flusher(&self, pending: &mut Pending) {
        let has_work = !pending.held && !pending.batches.frames.is_empty();
        if has_work && std::mem::take(&mut pending.sleeping) {
            self.woken.notify_one();
        }
    }

    /// Sets whether the owner flushes what it pushes itself. When it stops doing so, the flusher
    /// takes what is pending.
    pub(super) fn hold(&self, held: bool) {
        let mut pending = lock(&self.pending);
        pending.held = held;
        self.wake_flusher(&mut pending);
    }

    pub(super) fn is_full(&self, options: &Options, length: u32) -> bool {
        lock(&self.pending).is_full(options, length)
    }

    /// Swaps everything pending for `empty`.
    pub(super) fn take(&self, empty: &mut Batches) {
        assert!(empty.frames.is_empty() && empty.bytes.is_empty(), "nothing pending is lost");
        std::mem::swap(&mut lock(&self.pending).batches, empty);
    }

    /// Without a timeout: sleeps until something is pending or it is interrupted. With a timeout,
    /// for a flusher that waits for room, new batches do not wake it.
    pub(super) fn wait(&self, timeout: Option<Duration>) {
        let mut pending = lock(&self.pending);
        if let Some(timeout) = timeout {
            if !pending.interrupted {
                let waited = self.woken.wait_timeout(pending, timeout);
                pending = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        } else {
            while pending.batches.frames.is_empty() && !pending.interrupted {
                pending.sleeping = true;
                pending = self.woken.wait(pending).unwrap_or_else(PoisonError::into_inner);
            }
        }
        pending.sleeping = false;
        pending.interrupted = false;
    }

    pub(super) fn interrupt(&self) {
        lock(&self.pending).interrupted = true;
        self.woken.notify_one();
    }
}
