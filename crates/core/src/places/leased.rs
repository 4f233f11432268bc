//! Leased messages, by deadline. The deadlines are always in memory.
//!
//! Leases of one queue mostly last equally long, so their deadlines ascend: a list through the
//! messages themselves appends and unlinks in constant time. The few that do not ascend go into a
//! tree. A heap with lazy deletion would keep millions of settled leases until their deadline. When
//! memory is short a message is only in its row, and only the deadline of its lease stays here.

use std::collections::BTreeMap;

use crate::ids::{Seq, Time};
use crate::key::Digest;
use crate::message::{Links, Message, Messages, Slot};

#[derive(Clone, Debug)]
pub(crate) struct Leased {
    first: Slot,
    last: Slot,
    odd: BTreeMap<(Time, Seq), Slot>,
    /// Leases whose messages are only in the rows.
    away: BTreeMap<(Time, Seq), Away>,
}

/// A lease whose message is only in the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Away {
    pub(crate) digest: Digest,
    /// Memory that its message would take.
    pub(crate) bytes: usize,
}

/// Estimated memory of an [`Away`], with its entry in the tree and its fence.
pub(crate) const AWAY_BYTES: usize = 88;

impl Default for Leased {
    fn default() -> Self {
        let (odd, away) = (BTreeMap::new(), BTreeMap::new());
        Self { first: Slot::NONE, last: Slot::NONE, odd, away }
    }
}

impl Leased {
    /// Adds a leased message under its deadline.
    pub(crate) fn push(&mut self, messages: &mut Messages, slot: Slot) {
        let (deadline, seq) = deadline(messages, slot);
        if self.last != Slot::NONE && self::deadline(messages, self.last).0 > deadline {
            let before = self.odd.insert((deadline, seq), slot);
            debug_assert_eq!(before, None, "a lease is filed once");
            messages.at_mut(slot).links = Links { before: slot, after: slot };
            return;
        }
        messages.at_mut(slot).links = Links { before: self.last, after: Slot::NONE };
        if self.last == Slot::NONE {
            self.first = slot;
        } else {
            messages.at_mut(self.last).links.after = slot;
        }
        self.last = slot;
    }

    /// Removes the message. Its state must still be the one it was pushed with.
    pub(crate) fn leave(&mut self, messages: &mut Messages, slot: Slot) {
        let Links { before, after } = messages.at(slot).links;
        if before == slot {
            let found = self.odd.remove(&deadline(messages, slot));
            debug_assert_eq!(found, Some(slot));
            return;
        }
        if before == Slot::NONE {
            debug_assert_eq!(self.first, slot);
            self.first = after;
        } else {
            debug_assert_eq!(messages.at(before).links.after, slot, "neighbours know each other");
            messages.at_mut(before).links.after = after;
        }
        if after == Slot::NONE {
            debug_assert_eq!(self.last, slot);
            self.last = before;
        } else {
            debug_assert_eq!(messages.at(after).links.before, slot, "neighbours know each other");
            messages.at_mut(after).links.before = before;
        }
        let is_empty = self.first == Slot::NONE;
        debug_assert_eq!(is_empty, self.last == Slot::NONE, "a list has two ends, or none");
    }

    /// Keeps the deadline of a message that was evicted.
    pub(crate) fn leave_away(&mut self, message: &Message) {
        let lease = Away { digest: message.digest, bytes: message.footprint() };
        let before = self.away.insert(place(message), lease);
        debug_assert_eq!(before, None, "a lease is left to the rows once");
    }

    /// Removes the deadline of a message that was loaded again.
    pub(crate) fn come_back(&mut self, message: &Message) {
        let lease = self.away.remove(&place(message));
        debug_assert!(lease.is_some_and(|lease| lease.digest == message.digest));
    }

    /// Leases whose messages are only in the rows, by deadline.
    pub(crate) fn away(&self) -> impl ExactSizeIterator<Item = (Time, Away)> {
        self.away.iter().map(|((deadline, _), lease)| (*deadline, *lease))
    }

    pub(crate) fn next_deadline(&self, messages: &Messages) -> Option<Time> {
        let first = (self.first != Slot::NONE).then(|| deadline(messages, self.first).0);
        let odd = self.odd.first_key_value().map(|((deadline, _), _)| *deadline);
        let away = self.away().next().map(|(deadline, _)| deadline);
        [first, odd, away].into_iter().flatten().min()
    }

    /// Messages in memory whose deadline has passed.
    pub(crate) fn expired<'a>(
        &'a self,
        messages: &'a Messages,
        at: Time,
    ) -> impl Iterator<Item = Slot> + 'a {
        let list = self.list(messages).take_while(move |slot| deadline(messages, *slot).0 <= at);
        list.chain(self.odd.range(..=(at, Seq::MAX)).map(|(_, slot)| *slot))
    }

    /// Messages in memory.
    pub(crate) fn iter<'a>(&'a self, messages: &'a Messages) -> impl Iterator<Item = Slot> + 'a {
        self.list(messages).chain(self.odd.values().copied())
    }

    fn list<'a>(&'a self, messages: &'a Messages) -> impl Iterator<Item = Slot> + 'a {
        let first = (self.first != Slot::NONE).then_some(self.first);
        std::iter::successors(first, |slot| {
            let after = messages.at(*slot).links.after;
            (after != Slot::NONE).then_some(after)
        })
    }
}

fn deadline(messages: &Messages, slot: Slot) -> (Time, Seq) {
    place(messages.at(slot))
}

fn place(message: &Message) -> (Time, Seq) {
    let lease = message.lease();
    debug_assert!(lease.is_some(), "only leased messages are filed here");
    (lease.map_or(Time::NEVER, |lease| lease.deadline), message.seq)
}
