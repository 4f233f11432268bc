//! The way to a writer: a list that is swapped whole, and a thread that is woken only if it
//! sleeps.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use hapax_core::{Command, KeyName, Outcome, QueueName, Receive};
use hapax_partition::Partition;
use hapax_store::disk::DiskStore;

use super::Stopped;

/// Called once, on the writer's thread, when the outcomes are durable: it must not block.
pub(crate) type Reply = Box<dyn Replies>;

pub(crate) type Outcomes = Result<Vec<Outcome>, Stopped>;

/// Takes the outcomes of a list of commands.
pub(crate) trait Replies: Send {
    /// Sees the outcomes that came while others are still to come, again and again from the first
    /// one on. It may take large parts out of them.
    fn see(&mut self, _outcomes: &mut [Outcome]) {}

    fn call(self: Box<Self>, outcomes: Outcomes);
}

impl<F: FnOnce(Outcomes) + Send> Replies for F {
    fn call(self: Box<Self>, outcomes: Outcomes) {
        self(outcomes);
    }
}

/// What somebody wants of a partition.
pub(crate) enum Ask {
    /// The outcomes of these commands, in order.
    Commands(Vec<Command>, Reply),
    /// Messages, as soon as there are any.
    Receive(Box<Receive>, Turn, Reply),
    /// A key, as soon as its message has ended.
    Look(Box<KeyName>, Turn, Reply),
    /// To look again after those who wait for messages of a queue.
    Call(QueueName),
    /// To see the partition as it is. What is returned runs when that is durable.
    Inspect(Inspect),
    /// Hand out no more messages: who waits for some goes with nothing.
    Drain,
    /// Write down everything and end.
    Stop,
}

pub(crate) type Inspect = Box<dyn FnOnce(&Partition<DiskStore>) -> Seen + Send>;
pub(crate) type Seen = Box<dyn FnOnce() + Send>;

/// Whose turn it is to answer somebody who waits at several partitions and may give up: one at a
/// time holds it, and who finds it held is called again where the holder had nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turn(Arc<AtomicU8>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Yes,
    /// Another partition holds it, and hears of this when it gives it back.
    Held,
    /// Answered, or given up.
    Over,
}

const FREE: u8 = 0;
const HELD: u8 = 1;
const MISSED: u8 = 2;
/// Held, and whoever waited has left meanwhile.
const LEFT: u8 = 3;
const OVER: u8 = 4;

/// What came of a turn that was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    Back,
    /// Somebody else would have taken it meanwhile.
    Missed,
    /// Nobody waits any more.
    Over,
}

impl Turn {
    pub(crate) fn take(&self) -> Taken {
        let next = |state| match state {
            FREE => Some(HELD),
            HELD => Some(MISSED),
            _ => None,
        };
        match self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) {
            Ok(FREE) => Taken::Yes,
            Ok(_) | Err(MISSED) => Taken::Held,
            Err(_) => Taken::Over,
        }
    }

    /// By its holder, who had nothing.
    pub(crate) fn give_back(&self) -> Given {
        let next = |state| Some(if state == LEFT { OVER } else { FREE });
        match self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) {
            Ok(HELD) => Given::Back,
            Ok(MISSED) => Given::Missed,
            Ok(LEFT) => Given::Over,
            other => unreachable!("only its holder gives a turn back: {other:?}"),
        }
    }

    /// By its holder, who answers.
    pub(crate) fn finish(&self) {
        self.0.store(OVER, Ordering::Release);
    }

    /// By whoever waits: `false` where an answer may be on its way.
    pub(crate) fn give_up(&self) -> bool {
        self.0.compare_exchange(FREE, OVER, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// By whoever waits and goes away, whatever is on its way.
    pub(crate) fn leave(&self) {
        let next = |state| match state {
            FREE => Some(OVER),
            HELD | MISSED => Some(LEFT),
            _ => None,
        };
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
    }

    /// Whether nobody waits any more.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.0.load(Ordering::Acquire), LEFT | OVER)
    }
}

const AWAKE: u8 = 0;
const FOR_ANYTHING: u8 = 1;
const FOR_THE_DISK: u8 = 2;

/// Many push, the writer takes all.
#[derive(Default)]
pub(crate) struct Inbox {
    asks: Mutex<Option<Vec<Ask>>>,
    /// What the writer sleeps for, or is about to.
    sleeps: AtomicU8,
    /// The disk said something since the writer last went to sleep.
    news: AtomicBool,
    writer: OnceLock<Thread>,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self { asks: Mutex::new(Some(Vec::new())), ..Self::default() }
    }

    /// Hands an ask over, or back where the writer is gone.
    pub(crate) fn push(&self, ask: Ask) -> Result<(), Ask> {
        match &mut *self.lock() {
            Some(asks) => asks.push(ask),
            None => return Err(ask),
        }
        self.knock();
        Ok(())
    }

    /// Everything that was asked, behind what is in the list.
    pub(crate) fn take(&self, list: &mut Vec<Ask>) {
        if let Some(asks) = &mut *self.lock() {
            match list.is_empty() {
                true => std::mem::swap(asks, list),
                false => list.append(asks),
            }
        }
    }

    /// Takes no more; what is left is the writer's to answer.
    pub(crate) fn close(&self) -> Vec<Ask> {
        self.lock().take().unwrap_or_default()
    }

    fn is_empty(&self) -> bool {
        self.lock().as_ref().is_none_or(Vec::is_empty)
    }

    /// The thread that sleeps here is this one.
    pub(crate) fn belongs_to_this_thread(&self) {
        let _ = self.writer.set(std::thread::current());
    }

    /// Sleeps for so long, or until the disk has news, or somebody asks where the writer `takes`
    /// asks. May return for no reason.
    pub(crate) fn sleep(&self, takes: bool, longest: std::time::Duration) {
        let mode = if takes { FOR_ANYTHING } else { FOR_THE_DISK };
        self.sleeps.store(mode, Ordering::SeqCst);
        // What came before the line above woke nobody, so it is looked for here.
        let has_news = self.news.swap(false, Ordering::SeqCst);
        if !has_news && (!takes || self.is_empty()) {
            std::thread::park_timeout(longest);
        }
        self.sleeps.store(AWAKE, Ordering::SeqCst);
    }

    /// The disk has news: a batch is durable, a checkpoint is written.
    pub(crate) fn wake(&self) {
        self.news.store(true, Ordering::SeqCst);
        if self.sleeps.swap(AWAKE, Ordering::SeqCst) != AWAKE {
            self.unpark();
        }
    }

    /// Somebody asks: a writer that waits for its disk is left to it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_held_by_one_and_missed_by_others() {
        let turn = Turn::default();
        assert_eq!(turn.take(), Taken::Yes);
        assert!(!turn.give_up(), "an answer may be on its way");
        assert_eq!(turn.take(), Taken::Held);
        assert_eq!(turn.give_back(), Given::Missed, "somebody came by");
        assert_eq!(turn.take(), Taken::Yes);
        assert_eq!(turn.give_back(), Given::Back);
        assert!(turn.give_up());
        assert_eq!(turn.take(), Taken::Over);
        assert!(turn.is_over());
    }

    #[test]
    fn who_leaves_while_its_turn_is_held_is_not_waited_for() {
        for passed_by in [false, true] {
            let turn = Turn::default();
            assert_eq!(turn.take(), Taken::Yes);
            if passed_by {
                assert_eq!(turn.take(), Taken::Held);
            }
            turn.leave();
            assert!(turn.is_over());
            assert_eq!(turn.take(), Taken::Over);
            assert_eq!(turn.give_back(), Given::Over);
            assert_eq!(turn.take(), Taken::Over);
        }
    }
}
