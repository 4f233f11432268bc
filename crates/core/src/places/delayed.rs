//! Delayed messages, by due time.
//!
//! Messages due soon are in memory; from `unloaded_from` on some are only in the rows. Becoming due
//! is not a decision: it follows from the time in the journal, so nothing is journaled for it.

use std::collections::BTreeMap;

use crate::ids::{Seq, Time};
use crate::message::Slot;
use crate::places::Fate;

#[derive(Clone, Debug, Default)]
pub(crate) struct Delayed {
    due: BTreeMap<(Time, Seq), Slot>,
    unloaded_from: Option<(Time, Seq)>,
}

impl Delayed {
    /// Everything is in the rows.
    pub(crate) fn unloaded() -> Self {
        Self { unloaded_from: Some((Time(0), 0)), ..Self::default() }
    }

    pub(crate) fn push(&mut self, due: Time, seq: Seq, slot: Slot) {
        let before = self.due.insert((due, seq), slot);
        debug_assert_eq!(before, None, "a message waits once");
    }

    pub(crate) fn leave(&mut self, due: Time, seq: Seq) {
        let found = self.due.remove(&(due, seq));
        debug_assert!(found.is_some(), "who waits is found under its time");
    }

    /// Messages due by `at`, earliest first. Those behind rows that must be read first are left
    /// out: a message never overtakes an earlier one because that one is not in memory.
    pub(crate) fn due_by(&self, at: Time) -> impl Iterator<Item = Slot> {
        let end = (at.plus(1), 0);
        let end = self.unloaded_from.map_or(end, |from| from.min(end));
        self.due.range(..end).map(|(_, slot)| *slot)
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let first = self.due.first_key_value().map(|((due, _), _)| *due);
        [first, self.unloaded_from.map(|(due, _)| due)].into_iter().flatten().min()
    }

    /// Where reading rows must start, if they are due by `at`. Not before those in memory are
    /// ready, because they cannot be evicted.
    pub(crate) fn unloaded_due(&self, at: Time) -> Option<(Time, Seq)> {
        let from = self.unloaded_from.filter(|(due, _)| *due <= at)?;
        self.due_by(at).next().is_none().then_some(from)
    }

    /// Whether some may be only in the rows.
    pub(crate) fn is_unloaded(&self) -> bool {
        self.unloaded_from.is_some()
    }

    /// The rows were read up to `from`; `None` where there are no more.
    pub(crate) fn advance_unloaded(&mut self, from: Option<(Time, Seq)>) {
        let goes_on = from.is_none() || from >= self.unloaded_from;
        debug_assert!(goes_on, "rows are read in the order of their times");
        self.unloaded_from = from;
    }

    pub(crate) fn after(&self, cursor: Option<(Time, Seq)>) -> impl Iterator<Item = Slot> {
        let from = cursor.map_or((Time(0), 0), |(due, seq)| (due, seq + 1));
        self.due.range(from..).map(|(_, slot)| *slot)
    }

    /// Messages with a number below this one.
    pub(crate) fn below(&self, below: Seq) -> impl Iterator<Item = Slot> {
        self.due.iter().filter(move |((_, seq), _)| *seq < below).map(|(_, slot)| *slot)
    }

    /// Evicts messages, the latest first. Keeps the first `keep` and those that are due, which
    /// would be read again at once.
    pub(crate) fn evict(
        &mut self,
        now: Time,
        keep: usize,
        mut evict: impl FnMut(Seq, Slot) -> Fate,
    ) {
        let mut gone = Vec::new();
        let most = self.due.len().saturating_sub(keep);
        let later = self.due.range((now.plus(1), 0)..);
        for ((due, seq), slot) in later.rev().take(most) {
            match evict(*seq, *slot) {
                Fate::Leaves => gone.push((*due, *seq)),
                Fate::Stays | Fate::New => {}
                Fate::Stale => debug_assert!(false, "who waits no longer is not listed"),
                Fate::Enough => break,
            }
        }
        for evicted in gone {
            self.due.remove(&evicted);
            self.unloaded_from = Some(self.unloaded_from.map_or(evicted, |from| from.min(evicted)));
        }
    }
}
