//! Messages that wait for their time, by due time.
//!
//! Those due soon are in memory; from `unloaded_from` on some are in the rows alone. What becomes
//! due is no decision: it follows from the time written in the journal, so nothing is journaled
//! for it.

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
    /// Everything is in the rows so far.
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

    /// Those whose time has come by `at`, the earliest first. Where rows must be read before them
    /// they wait: nobody overtakes an earlier one because that one is not in memory.
    pub(crate) fn due_by(&self, at: Time) -> impl Iterator<Item = Slot> {
        let end = (at.plus(1), 0);
        let end = self.unloaded_from.map_or(end, |from| from.min(end));
        self.due.range(..end).map(|(_, slot)| *slot)
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let first = self.due.first_key_value().map(|((due, _), _)| *due);
        [first, self.unloaded_from.map(|(due, _)| due)].into_iter().flatten().min()
    }

    /// From when on rows must be read, where that time has come. Not before those in memory are
    /// ready: they cannot leave it.
    pub(crate) fn unloaded_due(&self, at: Time) -> Option<(Time, Seq)> {
        let from = self.unloaded_from.filter(|(due, _)| *due <= at)?;
        self.due_by(at).next().is_none().then_some(from)
    }

    /// Whether some may be in the rows alone.
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

    /// Leaves messages to the rows, the latest first. Keeps the first `keep`, and those whose time
    /// has come: they are about to be ready, and would be read again at once.
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
