//! Messages that can be received, oldest first.
//!
//! ```text
//!   head ■■■■■■■ │ gap ░░░░░░░░░░░░ │ tail ■■■■■
//!   returned ■ ■ │  only in rows    │ sent since
//! ```
//!
//! The head is in memory. If there are too many, the middle is only in the rows and is read again
//! by scanning from `gap.from`. Messages that come back out of order (released, failed, redriven)
//! wait in `returned` under their old number.
//!
//! Invariants:
//! - head and tail ascend; gap.to <= tail;
//! - a message behind the start of the gap that was loaded by its key waits until the gap is read
//!   up to it;
//! - an entry may be stale: it counts only if its slot still holds that message in this place.

use std::collections::{BTreeMap, VecDeque};

use crate::ids::Seq;
use crate::message::Slot;
use crate::places::Fate;

#[derive(Clone, Debug, Default)]
pub(crate) struct Ready {
    head: VecDeque<Entry>,
    returned: BTreeMap<Seq, Slot>,
    gap: Option<Gap>,
    tail: VecDeque<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    seq: Seq,
    slot: Slot,
}

/// Rows with `from <= seq < to` may hold messages that are not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) from: Seq,
    pub(crate) to: Seq,
}

impl Gap {
    /// Widens a gap so that it covers `seq` too.
    pub(crate) fn cover(gap: &mut Option<Self>, seq: Seq) {
        let gap = gap.get_or_insert(Self { from: seq, to: seq + 1 });
        gap.from = gap.from.min(seq);
        gap.to = gap.to.max(seq + 1);
    }
}

impl Ready {
    /// Everything is in the rows.
    pub(crate) fn unloaded(from: Seq, to: Seq) -> Self {
        debug_assert!(from < to);
        Self { gap: Some(Gap { from, to }), ..Self::default() }
    }

    pub(crate) fn push(&mut self, seq: Seq, slot: Slot) {
        let is_last = |entries: &VecDeque<Entry>| entries.back().is_none_or(|last| last.seq < seq);
        let is_newest =
            is_last(&self.head) && is_last(&self.tail) && self.gap.is_none_or(|gap| gap.to <= seq);
        if is_newest {
            let back = if self.gap.is_some() { &mut self.tail } else { &mut self.head };
            back.push_back(Entry { seq, slot });
        } else {
            self.returned.insert(seq, slot);
        }
        debug_assert!(self.is_in_order());
    }

    /// The message is no longer in this place.
    pub(crate) fn leave(&mut self, seq: Seq) {
        if !self.returned.is_empty() {
            self.returned.remove(&seq);
        }
    }

    /// Drops stale entries from the front, so that looking at the oldest stays cheap.
    pub(crate) fn trim(&mut self, is_here: impl Fn(Seq, Slot) -> bool) {
        while let Some(front) = self.head.front()
            && !is_here(front.seq, front.slot)
        {
            self.head.pop_front();
        }
    }

    /// The oldest messages in memory, in order. Those behind the gap wait until it is read.
    pub(crate) fn oldest<'a>(
        &'a self,
        is_here: impl Fn(Seq, Slot) -> bool + 'a,
    ) -> impl Iterator<Item = (Seq, Slot)> + 'a {
        let unloaded_from = self.unloaded_from();
        self.merged(is_here).take_while(move |(seq, _)| *seq < unloaded_from)
    }

    /// The number from which there may be others in the rows.
    fn unloaded_from(&self) -> Seq {
        self.gap.map_or(Seq::MAX, |gap| gap.from)
    }

    fn merged<'a>(
        &'a self,
        is_here: impl Fn(Seq, Slot) -> bool + 'a,
    ) -> impl Iterator<Item = (Seq, Slot)> + 'a {
        let mut head = self.head.iter().map(|entry| (entry.seq, entry.slot)).peekable();
        let mut returned = self.returned.iter().map(|(seq, slot)| (*seq, *slot)).peekable();
        let merged = std::iter::from_fn(move || match (head.peek(), returned.peek()) {
            (Some(a), Some(b)) if a.0 == b.0 => {
                head.next();
                returned.next()
            }
            (Some(a), Some(b)) if b.0 < a.0 => returned.next(),
            (Some(_), _) => head.next(),
            (None, _) => returned.next(),
        });
        merged.filter(move |(seq, slot)| is_here(*seq, *slot))
    }

    /// Everything in memory, in front of the gap and behind it.
    pub(crate) fn waiting<'a>(
        &'a self,
        is_here: impl Fn(Seq, Slot) -> bool + Copy + 'a,
    ) -> impl Iterator<Item = (Seq, Slot)> + 'a {
        // A message that left the tail and returned is in both, with a valid old entry.
        let tail = self.tail.iter().filter(|entry| !self.returned.contains_key(&entry.seq));
        let tail = tail.map(|entry| (entry.seq, entry.slot));
        self.merged(is_here).chain(tail.filter(move |(seq, slot)| is_here(*seq, *slot)))
    }

    /// Like [`Self::waiting`], those with a number below this one: the younger are not looked at.
    pub(crate) fn waiting_below<'a>(
        &'a self,
        below: Seq,
        is_here: impl Fn(Seq, Slot) -> bool + Copy + 'a,
    ) -> impl Iterator<Item = (Seq, Slot)> + 'a {
        let is_below = move |entry: &(Seq, Slot)| entry.0 < below;
        let tail = self.tail.iter().map(|entry| (entry.seq, entry.slot)).take_while(is_below);
        let tail = tail.filter(|(seq, _)| !self.returned.contains_key(seq));
        let tail = tail.filter(move |(seq, slot)| is_here(*seq, *slot));
        self.merged(is_here).take_while(is_below).chain(tail)
    }

    pub(crate) fn gap(&self) -> Option<Gap> {
        self.gap
    }

    /// Whether there are `count` messages in front of the gap. Stale entries do not count: a
    /// receive that counted them would find nothing and not read further.
    pub(crate) fn has_in_front(
        &self,
        count: usize,
        is_here: impl Fn(Seq, Slot) -> bool,
        size: impl Fn(Slot) -> usize,
        bytes_max: usize,
    ) -> bool {
        let (mut found, mut bytes) = (0, 0);
        self.oldest(is_here).any(|(_, slot)| {
            found += 1;
            bytes += size(slot);
            found >= count || bytes >= bytes_max
        })
    }

    /// The gap was read up to `from`; its messages have been pushed by `admit`.
    pub(crate) fn advance_gap(&mut self, from: Seq) {
        let Some(gap) = &mut self.gap else { return };
        debug_assert!(from >= gap.from);
        gap.from = from;
        if gap.from >= gap.to {
            self.gap = None;
            let ends = self.head.back().zip(self.tail.front());
            debug_assert!(ends.is_none_or(|(a, b)| a.seq < b.seq), "the tail follows the head");
            self.head.append(&mut self.tail);
        }
        debug_assert!(self.is_in_order());
    }

    /// A message read from the gap, in order.
    pub(crate) fn admit(&mut self, seq: Seq, slot: Slot) {
        if self.head.back().is_none_or(|last| last.seq < seq) {
            self.returned.remove(&seq); // An older slot of it would hide this one.
            self.head.push_back(Entry { seq, slot });
        } else {
            self.returned.insert(seq, slot);
        }
        debug_assert!(self.is_in_order());
    }

    /// Evicts messages: the oldest behind the gap, then the youngest in front of it except the
    /// first `keep`.
    pub(crate) fn evict(&mut self, keep: usize, mut evict: impl FnMut(Seq, Slot) -> Fate) {
        self.evict_tail(&mut evict);
        self.evict_front(keep, &mut evict);
        if self.gap.is_none() {
            self.head.append(&mut self.tail); // Nothing left in front of them.
        }
        debug_assert!(self.is_in_order());
    }

    fn evict_tail(&mut self, evict: &mut impl FnMut(Seq, Slot) -> Fate) {
        while self.gap.is_some()
            && let Some(entry) = self.tail.front().copied()
        {
            match evict(entry.seq, entry.slot) {
                Fate::Leaves => {
                    self.forget(entry);
                    Gap::cover(&mut self.gap, entry.seq);
                }
                Fate::Stale => {}
                Fate::Stays => {
                    self.returned.insert(entry.seq, entry.slot);
                }
                Fate::New | Fate::Enough => break,
            }
            self.tail.pop_front();
        }
    }

    fn evict_front(&mut self, keep: usize, evict: &mut impl FnMut(Seq, Slot) -> Fate) {
        let mut below = Seq::MAX;
        while self.head.len() + self.returned.len() > keep {
            let head = self.head.back().copied();
            let returned = self.returned.range(..below).next_back();
            let returned = returned.map(|(seq, slot)| Entry { seq: *seq, slot: *slot });
            let is_head =
                head.is_some_and(|head| returned.is_none_or(|other| head.seq >= other.seq));
            let Some(entry) = (if is_head { head } else { returned }) else { break };
            match evict(entry.seq, entry.slot) {
                Fate::Leaves => {
                    self.take_out(entry, is_head);
                    self.forget(entry);
                    Gap::cover(&mut self.gap, entry.seq);
                }
                Fate::Stale => self.take_out(entry, is_head),
                // Moves behind the gap that older ones may open: nothing is between them.
                Fate::New if is_head && self.gap.is_none() => {
                    self.head.pop_back();
                    self.tail.push_front(entry);
                }
                Fate::New | Fate::Stays => {
                    if is_head {
                        self.head.pop_back();
                        self.returned.insert(entry.seq, entry.slot);
                    }
                    below = entry.seq;
                }
                Fate::Enough => break,
            }
        }
    }

    fn take_out(&mut self, entry: Entry, is_head: bool) {
        if is_head {
            self.head.pop_back();
        } else {
            self.returned.remove(&entry.seq);
        }
    }

    /// An evicted message may have another entry, from when it was returned.
    fn forget(&mut self, entry: Entry) {
        if self.returned.get(&entry.seq) == Some(&entry.slot) {
            self.returned.remove(&entry.seq);
        }
    }

    fn is_in_order(&self) -> bool {
        let ascends = |entries: &VecDeque<Entry>| {
            entries.iter().zip(entries.iter().skip(1)).take(8).all(|(a, b)| a.seq < b.seq)
        };
        let fits =
            self.gap.is_none_or(|gap| self.tail.front().is_none_or(|first| gap.to <= first.seq));
        ascends(&self.head) && ascends(&self.tail) && fits
    }
}
