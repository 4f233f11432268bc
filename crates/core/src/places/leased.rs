//! Messages in workers' hands, by deadline. Their deadlines are always in memory.
//!
//! Leases of one queue mostly last equally long, so their deadlines ascend: a list through the
//! messages themselves appends and unlinks in constant time. The few that do not fit go into a
//! tree. A heap with lazy deletion would keep millions of settled leases until their deadline.
//! Where memory is short a message is left to its row, and of its lease only the end is known here.

use std::collections::BTreeMap;

use crate::ids::{Seq, Time};
use crate::key::Digest;
use crate::message::{Links, Message, Messages, Slot};

#[derive(Clone, Debug)]
pub(crate) struct Leased {
    first: Slot,
    last: Slot,
    odd: BTreeMap<(Time, Seq), Slot>,
    /// Those whose messages are in the rows alone.
    away: BTreeMap<(Time, Seq), Away>,
}

/// A lease whose message is in the rows alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Away {
    pub(crate) digest: Digest,
    /// How much memory its message takes.
    pub(crate) bytes: usize,
}

/// About how much memory an [`Away`] takes, with its place in the tree and its fence.
pub(crate) const AWAY_BYTES: usize = 88;

impl Default for Leased {
    fn default() -> Self {
        let (odd, away) = (BTreeMap::new(), BTreeMap::new());
        Self { first: Slot::NONE, last: Slot::NONE, odd, away }
    }
}

impl Leased {
    /// Files the message, which is leased, under its deadline.
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

    /// Takes the message out. Its state must still be the one it was pushed with.
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

    /// The message is left to its row, and no longer in the list.
    pub(crate) fn leave_away(&mut self, message: &Message) {
        let lease = Away { digest: message.digest, bytes: message.footprint() };
        let before = self.away.insert(place(message), lease);
        debug_assert_eq!(before, None, "a lease is left to the rows once");
    }

    /// The message came back from its row.
    pub(crate) fn come_back(&mut self, message: &Message) {
        let lease = self.away.remove(&place(message));
        debug_assert!(lease.is_some_and(|lease| lease.digest == message.digest));
    }

    /// Leases whose messages are in the rows alone, by their end.
    pub(crate) fn away(&self) -> impl ExactSizeIterator<Item = (Time, Away)> {
        self.away.iter().map(|((deadline, _), lease)| (*deadline, *lease))
    }

    pub(crate) fn next_deadline(&self, messages: &Messages) -> Option<Time> {
        let first = (self.first != Slot::NONE).then(|| deadline(messages, self.first).0);
        let odd = self.odd.first_key_value().map(|((deadline, _), _)| *deadline);
        let away = self.away().next().map(|(deadline, _)| deadline);
        [first, odd, away].into_iter().flatten().min()
    }

    /// Those in memory whose deadline has passed.
    pub(crate) fn expired<'a>(
        &'a self,
        messages: &'a Messages,
        at: Time,
    ) -> impl Iterator<Item = Slot> + 'a {
        let list = self.list(messages).take_while(move |slot| deadline(messages, *slot).0 <= at);
        list.chain(self.odd.range(..=(at, Seq::MAX)).map(|(_, slot)| *slot))
    }

    /// Those in memory.
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
