//! Messages that were leased for a worker and not sent to it yet. Other workers cannot get them
//! meanwhile. So messages that a worker does not read for a good part of their lease are given back
//! without counting as an attempt, and so are those that are left when the stream ends. While the
//! stream's window is full the stream is not polled, so a separate task watches the time.

use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hapax_core::Delivery;
use tokio::sync::Notify;

use crate::service::Service;

/// A message is given back after this part of its lease.
const PART_OF_LEASE: u64 = 3;

pub(super) struct Unsent {
    service: Service,
    waiting: Mutex<Waiting>,
    /// Notified when a frame was full before the list was empty.
    is_left: Notify,
}

#[derive(Default)]
pub(super) struct Waiting {
    /// Number of lists so far; distinguishes this one from the previous one.
    lists: u64,
    messages: std::vec::IntoIter<Delivery>,
}

impl Waiting {
    pub(super) fn fill(&mut self, messages: Vec<Delivery>) {
        debug_assert!(self.is_empty(), "the last list comes first");
        self.lists += 1;
        self.messages = messages.into_iter();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.as_slice().is_empty()
    }

    pub(super) fn next(&mut self) -> Option<Delivery> {
        self.messages.next()
    }

    fn take(&mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.messages).collect()
    }
}

impl Unsent {
    pub(super) fn new(service: Service) -> Self {
        Self { service, waiting: Mutex::default(), is_left: Notify::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notifies that some are left which no frame had room for.
    pub(super) fn are_left(&self) {
        self.is_left.notify_one();
    }

    /// Gives everything back.
    pub(super) fn give_back(&self) {
        let messages = self.lock().take();
        self.service.engine().give_back(messages);
    }

    /// Gives back every list that makes no progress for too long, and reports how many messages
    /// those were.
    pub(super) async fn watch(&self, tell: impl Fn(usize)) -> Infallible {
        loop {
            self.is_left.notified().await;
            let Some((before, lease_ms)) = self.look() else { continue };
            tokio::time::sleep(Duration::from_millis(lease_ms / PART_OF_LEASE)).await;
            let messages = match self.look() {
                Some((now, _)) if now == before => self.lock().take(),
                _ => continue,
            };
            tell(messages.len());
            self.service.engine().give_back(messages);
        }
    }

    /// The number of the list, how much of it is left, and the lease of the next message.
    fn look(&self) -> Option<((u64, usize), u64)> {
        let waiting = self.lock();
        let left = waiting.messages.as_slice();
        Some(((waiting.lists, left.len()), left.first()?.lease_ms))
    }
}
