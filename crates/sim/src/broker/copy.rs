//! Copies of all partitions, one after the other, while the broker runs; and restores of them.

use hapax_core::{Answer, Outcome, Time};
use hapax_partition::change::copied;
use hapax_store::memory::MemoryStore;

use super::{Broker, Going};
use crate::checker::Checker;
use crate::op::Op;
use crate::planted::Bug;

/// A copy, and what is known of it.
pub(super) struct Copy {
    /// By partition; `None` if it is still to be copied.
    stores: Vec<Option<MemoryStore>>,
    /// Partitions that are still to be copied.
    left: Vec<usize>,
    /// What was seen before it was begun. All of it is in the copy.
    before: Box<Checker>,
    /// Requests not answered by then, or made since: each may be in it.
    perhaps: Vec<Asked>,
}

/// A request that a partition decided.
struct Asked {
    partition: usize,
    at: Time,
    op: Op,
    is_answered: bool,
}

impl Asked {
    fn new(partition: usize, at: Time, op: Op) -> Self {
        Self { partition, at, op, is_answered: false }
    }
}

impl Broker {
    /// Begins to copy, as the engine does: from now on no list drops an emit.
    pub(super) fn begin_copy(&mut self) {
        if self.copying.is_some() {
            return;
        }
        self.note(|| "a copy begins".to_owned());
        if self.settings.bug != Some(Bug::ConfirmedWhileCopied) {
            self.confirmations.hold();
        }
        let mut perhaps = Vec::new();
        for (partition, owner) in self.owners.iter().enumerate() {
            for batch in owner.pending.values() {
                let ops = batch.calls.iter().flat_map(|(ops, _)| ops.iter().cloned());
                perhaps.extend(ops.map(|op| Asked::new(partition, batch.at, op)));
            }
        }
        let count = self.stores.len();
        let left = match self.settings.bug {
            Some(Bug::LeaderCopiedFirst) => (0..count).collect(),
            _ => copied(count).collect(),
        };
        let (stores, before) = (vec![None; count], Box::new(self.checker.clone()));
        self.copying = Some(Copy { stores, left, before, perhaps });
    }

    /// What a partition decides before it is copied may be in the copy.
    pub(super) fn note_asked(&mut self, partition: usize, at: Time, ops: &[Op]) {
        if let Some(copy) = self.copying.as_mut().filter(|copy| copy.left.contains(&partition)) {
            let asked = ops.iter().map(|op| Asked::new(partition, at, op.clone()));
            copy.perhaps.extend(asked);
        }
    }

    /// A request was answered. One without a queue did nothing, and is in no copy: otherwise a key
    /// that one partition refused and another accepted, while its queue was recreated, would be
    /// looked for in the wrong one.
    pub(super) fn note_answered(&mut self, partition: usize, at: Time, op: &Op, outcome: &Outcome) {
        for copy in self.copying.iter_mut().chain(&mut self.copy) {
            // Answers come in the order in which a partition decided.
            let is_same = |asked: &Asked| {
                let is_open = asked.partition == partition && !asked.is_answered;
                is_open && asked.at == at && asked.op == *op
            };
            let Some(place) = copy.perhaps.iter().position(is_same) else { continue };
            if matches!(
                outcome,
                Outcome::Sent(Answer::NoSuchQueue) | Outcome::Claimed(Answer::NoSuchQueue)
            ) {
                copy.perhaps.remove(place);
            } else if let Some(asked) = copy.perhaps.get_mut(place) {
                asked.is_answered = true;
            }
        }
    }

    /// Copies the next partition.
    pub(super) fn copy_next(&mut self) {
        let Some(copy) = &mut self.copying else { return };
        if !copy.left.is_empty() {
            let partition = copy.left.remove(0);
            let store = self.stores.get(partition).map(MemoryStore::copy);
            if let Some(place) = copy.stores.get_mut(partition) {
                *place = store;
            }
            self.note(|| format!("{partition} is copied"));
            return;
        }
        self.copy = self.copying.take();
        self.tally.count("copies");
        self.let_go();
    }

    /// Abandons the copy: it is incomplete.
    pub(super) fn abandon_copy(&mut self) {
        self.copying = None;
        self.let_go();
    }

    fn let_go(&mut self) {
        for (to, commands) in self.confirmations.let_go() {
            self.tell_list(to, commands);
        }
    }

    /// Replaces the lost machine by the copy.
    pub(super) fn restore(&mut self) -> Going {
        let Some(Copy { stores, before, perhaps, .. }) = self.copy.take() else { return Ok(()) };
        self.note(|| "restore".to_owned());
        self.tally.count("restores");
        self.crash();
        self.stores = stores.into_iter().flatten().collect();
        self.checker.set_back(&before);
        for Asked { partition, at, op, .. } in &perhaps {
            if let Op::Delete { queue } = op {
                self.checker.keep(*queue, false);
            }
            self.checker.perhaps_copied(*partition, *at, op);
        }
        self.workload.forget_unknown(&self.checker);
        self.start()?;
        for item in self.checker.moved() {
            let partition = self.route(&Op::Look { item });
            self.checker.routed(item, partition);
        }
        Ok(())
    }
}
