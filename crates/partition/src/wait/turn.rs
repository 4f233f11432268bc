//! Decides which partition serves a caller that waits at several partitions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The right to answer a caller that waits at several partitions and may give up. One partition at
/// a time holds it; one that finds it held is called again if the holder had nothing.
#[derive(Clone, Debug, Default)]
pub struct Turn(Arc<AtomicU8>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    Yes,
    /// Another partition holds it, and learns of this when it gives it back.
    Held,
    /// Answered, or given up.
    Over,
}

const FREE: u8 = 0;
const HELD: u8 = 1;
const MISSED: u8 = 2;
/// Held, and the caller has left meanwhile.
const LEFT: u8 = 3;
const OVER: u8 = 4;

/// The result of giving a turn back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    Back,
    /// Another partition wanted it meanwhile.
    Missed,
    /// The caller no longer waits.
    Over,
}

impl Turn {
    pub fn take(&self) -> Taken {
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

    /// Called by its holder that had nothing.
    pub fn give_back(&self) -> Given {
        let next = |state| Some(if state == LEFT { OVER } else { FREE });
        match self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) {
            Ok(HELD) => Given::Back,
            Ok(MISSED) => Given::Missed,
            Ok(LEFT) => Given::Over,
            other => unreachable!("only its holder gives a turn back: {other:?}"),
        }
    }

    /// Called by its holder that answers.
    pub fn finish(&self) {
        self.0.store(OVER, Ordering::Release);
    }

    /// Called by the waiting caller: `false` if an answer may be on its way.
    pub fn give_up(&self) -> bool {
        self.0.compare_exchange(FREE, OVER, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Called by a caller that goes away, whatever is on its way.
    pub fn leave(&self) {
        let next = |state| match state {
            FREE => Some(OVER),
            HELD | MISSED => Some(LEFT),
            _ => None,
        };
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
    }

    /// Whether the wait is over.
    pub fn is_over(&self) -> bool {
        matches!(self.0.load(Ordering::Acquire), LEFT | OVER)
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
