//! Dead and parked messages, by age: only an operator moves them.

use std::collections::BTreeMap;

use crate::ids::Seq;
use crate::message::Slot;
use crate::places::Fate;

/// The part of a list that is in memory. The rest is in the rows and loaded when needed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resident {
    resident: BTreeMap<Seq, Slot>,
}

impl Resident {
    pub(crate) fn push(&mut self, seq: Seq, slot: Slot) {
        let before = self.resident.insert(seq, slot);
        debug_assert_eq!(before, None, "a message lies here once");
    }

    pub(crate) fn leave(&mut self, seq: Seq) {
        let found = self.resident.remove(&seq);
        debug_assert!(found.is_some(), "who leaves was here");
    }

    pub(crate) fn from(&self, seq: Seq) -> impl Iterator<Item = (Seq, Slot)> {
        self.resident.range(seq..).map(|(seq, slot)| (*seq, *slot))
    }

    /// Evicts messages, the youngest first.
    pub(crate) fn evict(&mut self, mut evict: impl FnMut(Seq, Slot) -> Fate) {
        let mut gone = Vec::new();
        for (seq, slot) in self.resident.iter().rev() {
            match evict(*seq, *slot) {
                Fate::Leaves => gone.push(*seq),
                Fate::Stays | Fate::New => {}
                Fate::Stale => debug_assert!(false, "what leaves a list is taken off it"),
                Fate::Enough => break,
            }
        }
        for seq in gone {
            self.resident.remove(&seq);
        }
    }
}
