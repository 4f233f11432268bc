//! The outgoing answers of a stream: filled by writers, emptied by the connection's task.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use futures_util::task::AtomicWaker;

/// A list that is swapped as a whole; its reader is woken once per filling.
#[derive(Debug)]
pub(super) struct Outbox<T>(Arc<Inner<T>>);

#[derive(Debug)]
struct Inner<T> {
    items: Mutex<Vec<T>>,
    waker: AtomicWaker,
}

impl<T> Outbox<T> {
    pub(super) fn push(&self, item: T) {
        let was_empty = {
            let mut items = self.0.items.lock().unwrap_or_else(PoisonError::into_inner);
            items.push(item);
            items.len() == 1
        };
        if was_empty {
            self.0.waker.wake();
        }
    }

    /// Swaps the list for an empty one. If nothing was in it, the reader is woken later.
    pub(super) fn swap(&self, empty: &mut Vec<T>, waker: &Waker) {
        debug_assert!(empty.is_empty());
        self.0.waker.register(waker);
        let mut items = self.0.items.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut *items, empty);
    }
}

impl<T> Default for Outbox<T> {
    fn default() -> Self {
        Self(Arc::new(Inner { items: Mutex::new(Vec::new()), waker: AtomicWaker::new() }))
    }
}

impl<T> Clone for Outbox<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}
