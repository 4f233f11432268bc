//! The queue of requests to a writer: a list that is taken as a whole, and a thread that is woken
//! only if it sleeps.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use hapax_core::{Command, Outcome, QueueName};
use hapax_partition::Partition;
use hapax_partition::wait::Waiter;

use super::{AnyStore, Stopped};

/// Called once, on the writer's thread, when the outcomes are durable: it must not block.
pub(crate) type Reply = Box<dyn Replies>;

pub(crate) type Outcomes = Result<Vec<Outcome>, Stopped>;

/// Takes the outcomes of a list of commands.
pub(crate) trait Replies: Send {
    /// Sees the outcomes so far while others are pending, each time from the first one on. It may
    /// take large parts out of them.
    fn see(&mut self, _outcomes: &mut [Outcome]) {}

    fn call(self: Box<Self>, outcomes: Outcomes);
}

impl<F: FnOnce(Outcomes) + Send> Replies for F {
    fn call(self: Box<Self>, outcomes: Outcomes) {
        self(outcomes);
    }
}

/// A request to a partition.
pub(crate) enum Ask {
    /// The outcomes of these commands, in order.
    Commands(Vec<Command>, Reply),
    /// Messages, as soon as there are any, or a key, as soon as its message has ended.
    Wait(Box<Waiter<Reply>>),
    /// Wakes the waiters for messages of a queue.
    CallAgain(QueueName),
    /// Reads the state of the partition. The returned closure runs when that state is durable.
    Inspect(Inspect),
    /// Delivers no more messages: waiting receivers get nothing.
    Drain,
    /// Writes everything to disk and ends.
    Stop,
}

pub(crate) type Inspect = Box<dyn FnOnce(&Partition<AnyStore>) -> Seen + Send>;
pub(crate) type Seen = Box<dyn FnOnce() + Send>;

const AWAKE: u8 = 0;
const FOR_ANYTHING: u8 = 1;
const FOR_THE_DISK: u8 = 2;

/// Many threads push; the writer takes all.
#[derive(Default)]
pub(crate) struct Inbox {
    asks: Mutex<Option<Vec<Ask>>>,
    /// What the writer sleeps for, or is about to.
    sleeps: AtomicU8,
    /// The store reported something since the writer last went to sleep.
    news: AtomicBool,
    writer: OnceLock<Thread>,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self { asks: Mutex::new(Some(Vec::new())), ..Self::default() }
    }

    /// Adds a request, or returns it if the writer is gone.
    pub(crate) fn push(&self, ask: Ask) -> Result<(), Ask> {
        match &mut *self.lock() {
            Some(asks) => asks.push(ask),
            None => return Err(ask),
        }
        self.knock();
        Ok(())
    }

    /// Moves all requests into an empty list.
    pub(crate) fn take(&self, list: &mut Vec<Ask>) {
        debug_assert!(list.is_empty(), "what was taken before is dealt with");
        if let Some(asks) = &mut *self.lock() {
            std::mem::swap(asks, list);
        }
    }

    /// Accepts no more; the writer answers what is left.
    pub(crate) fn close(&self) -> Vec<Ask> {
        self.lock().take().unwrap_or_default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().as_ref().is_none_or(Vec::is_empty)
    }

    /// Sets the current thread as the one that sleeps here.
    pub(crate) fn belongs_to_this_thread(&self) {
        let _ = self.writer.set(std::thread::current());
    }

    /// Sleeps for at most `longest`, until the store has news, or until a request arrives if the
    /// writer `takes` requests. May return for no reason.
    pub(crate) fn sleep(&self, takes: bool, longest: std::time::Duration) {
        let mode = if takes { FOR_ANYTHING } else { FOR_THE_DISK };
        self.sleeps.store(mode, Ordering::SeqCst);
        // What arrived before the line above woke nobody, so it is checked here.
        let has_news = self.news.swap(false, Ordering::SeqCst);
        if !has_news && (!takes || self.is_empty()) {
            std::thread::park_timeout(longest);
        }
        self.sleeps.store(AWAKE, Ordering::SeqCst);
    }

    /// The store has news: a batch is durable, or a checkpoint is written.
    pub(crate) fn wake(&self) {
        self.news.store(true, Ordering::SeqCst);
        if self.sleeps.swap(AWAKE, Ordering::SeqCst) != AWAKE {
            self.unpark();
        }
    }

    /// Wakes the writer for a request, unless it waits for its disk.
    fn knock(&self) {
        let (from, to) = (FOR_ANYTHING, AWAKE);
        if self.sleeps.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.unpark();
        }
    }

    fn unpark(&self) {
        if let Some(writer) = self.writer.get() {
            writer.unpark();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<Ask>>> {
        // A push cannot panic half-way: the list is whole.
        self.asks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").finish_non_exhaustive()
    }
}
