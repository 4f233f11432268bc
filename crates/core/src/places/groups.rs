//! Groups: which of them may be delivered, and what waits in each.
//!
//! A group is known to the rows by its digest as long as it has unfinished messages. Deliverable
//! groups are listed in their queue by the number of their oldest ready member, the lead.
//!
//! Invariant: a message in memory has its group in memory.

use std::collections::BTreeSet;

use hashbrown::HashTable;

use crate::codec::{BadBytes, Reader, Write};
use crate::cut::{Cuts, Mark};
use crate::decision::QueueId;
use crate::ids::Seq;
use crate::key::Digest;
use crate::list::List;
use crate::places::ready::Ready;
use crate::row::{RowKey, point};

#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) digest: Digest,
    pub(crate) queue: QueueId,
    /// Members that are leased or wait for another attempt: the others wait.
    pub(crate) out: u32,
    /// Dead members that block the younger ones. A waiting member that exceeds its time to live
    /// blocks too, so there may be several.
    pub(crate) holds: BTreeSet<Seq>,
    /// Messages in memory that belong to it, in whatever place. Not durable.
    pub(crate) resident: u32,
    /// Members that are ready, in memory or not.
    pub(crate) ready: u64,
    pub(crate) members: Ready,
    /// The number under which the queue lists it as deliverable.
    pub(crate) lead: Option<Seq>,
    /// Whether it changed and a checkpoint must write it.
    changed: Mark,
    /// Whether the rows may have a point of it. It leaves a trace when it goes.
    pub(crate) stored: bool,
    /// The number of its lead row, if it has one.
    pub(crate) lead_row: Option<Seq>,
}

impl Group {
    pub(crate) fn new(digest: Digest, queue: QueueId) -> Self {
        Self {
            digest,
            queue,
            out: 0,
            holds: BTreeSet::new(),
            ready: 0,
            resident: 0,
            members: Ready::default(),
            lead: None,
            changed: Mark::default(),
            stored: false,
            lead_row: None,
        }
    }

    pub(crate) fn is_deliverable(&self) -> bool {
        self.out == 0 && self.ready > 0
    }

    /// Members from this number on wait for a dead one.
    pub(crate) fn held_from(&self) -> Seq {
        self.holds.first().copied().unwrap_or(Seq::MAX)
    }

    /// Ready members that wait for another one: all of them if a member is out or a dead one blocks
    /// them, else all but the first.
    pub(crate) fn held(&self) -> u64 {
        let is_open = self.is_deliverable() && self.holds.is_empty();
        self.ready - u64::from(is_open)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.out == 0 && self.holds.is_empty() && self.ready == 0
    }

    /// Whether its rows have everything that memory has.
    pub(crate) fn is_evictable(&self) -> bool {
        self.resident == 0 && self.stored && !self.changed.is_set()
    }

    /// A copy for its row, without the members.
    pub(crate) fn clone_row(&self) -> Self {
        let mut row = Self::new(self.digest, self.queue);
        (row.out, row.holds, row.ready) = (self.out, self.holds.clone(), self.ready);
        (row.lead, row.lead_row) = (self.lead, self.lead_row);
        row
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(!self.is_over(), "a group without unfinished messages has no row");
        debug_assert_eq!(self.lead, self.lead_row, "its lead row is written with it");
        debug_assert!(self.lead.is_none() || self.is_deliverable(), "who is listed has its turn");
        debug_assert!(self.lead.is_none_or(|lead| lead < self.held_from()), "the held wait");
        out.u8(point::GROUP);
        out.number(self.queue.into());
        out.number(self.out.into());
        out.number(self.holds.len() as u64);
        for seq in &self.holds {
            out.number(*seq);
        }
        out.number(self.ready);
        out.optional(self.lead);
    }

    /// A group as the rows know it: none of its members is loaded.
    pub(crate) fn decode(digest: Digest, bytes: &[u8], next_seq: Seq) -> Result<Self, BadBytes> {
        let mut reader = Reader::new(bytes);
        let tag = reader.u8("group")?;
        if tag != point::GROUP {
            return Err(BadBytes::Tag("group", tag));
        }
        let mut group = Self::new(digest, reader.u32("queue")?);
        group.out = reader.u32("out")?;
        for _ in 0..reader.count("holds")? {
            group.holds.insert(reader.number("holds")?);
        }
        group.ready = reader.number("ready")?;
        group.lead = None;
        group.lead_row = reader.optional("lead")?;
        reader.end()?;
        group.stored = true;
        if group.ready > 0 {
            group.members = Ready::unloaded(group.lead_row.unwrap_or(0), next_seq);
        }
        Ok(group)
    }
}

/// Lead rows `from <= (number, group)` with `number < to` may name groups that are not in memory.
/// Many groups may share a number: those that were blocked when written have 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leads {
    pub(crate) from: (Seq, Digest),
    pub(crate) to: Seq,
}

impl Leads {
    /// Everything is in the rows so far.
    pub(crate) fn all(to: Seq) -> Self {
        Self { from: (0, Digest([0; 16])), to }
    }

    /// Widens the range to cover a group that is evicted.
    pub(crate) fn cover(leads: &mut Option<Self>, lead: (Seq, Digest)) {
        let leads = leads.get_or_insert(Self { from: lead, to: lead.0 + 1 });
        leads.from = leads.from.min(lead);
        leads.to = leads.to.max(lead.0 + 1);
    }

    /// The rows were read up to `last`; `None` if to the end.
    pub(crate) fn advance(leads: &mut Option<Self>, last: Option<(Seq, Digest)>) {
        *leads = leads.zip(last).and_then(|(leads, (seq, group))| {
            debug_assert!(leads.from <= (seq, group), "rows are read in their order");
            let from = match u128::from_be_bytes(group.0).checked_add(1) {
                Some(group) => (seq, Digest(group.to_be_bytes())),
                None => (seq + 1, Digest([0; 16])),
            };
            (from.0 < leads.to).then_some(Self { from, ..leads })
        });
    }
}

/// Groups in memory, by digest.
///
/// What belongs to a [cut](crate::cut) is copied here before it changes, whoever changes it.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    table: HashTable<Group>,
    seed: u64,
    /// Dead members that block others, in all groups.
    pub(crate) holds: usize,
    cuts: Cuts<Digest, Copied>,
}

/// The groups of a cut, as their rows show them, and what it deletes.
#[derive(Debug, Default)]
pub(crate) struct Copied {
    pub(crate) groups: List<Group>,
    pub(crate) row_deletes: List<RowKey>,
    pub(crate) point_deletes: List<Digest>,
}

impl Copied {
    fn add(&mut self, group: &mut Group) {
        let lead = group.lead.filter(|_| !group.is_over());
        let before = std::mem::replace(&mut group.lead_row, lead);
        if let Some(seq) = before.filter(|before| Some(*before) != lead) {
            self.row_deletes.push(RowKey::lead(group.queue, seq, &group.digest));
        }
        if !group.is_over() {
            group.stored = true;
            self.groups.push(group.clone_row());
        } else if group.stored {
            // In memory for the sake of a message that is dead or delayed. It stays `stored`: until
            // the checkpoint is in the rows, a look-up would find its point there.
            self.point_deletes.push(group.digest);
        }
    }
}

/// Estimated memory of a group, with its entries in its queue.
pub(crate) fn footprint(group: &Group) -> usize {
    GROUP_BYTES + group.holds.len() * HOLD_BYTES
}

const GROUP_BYTES: usize = size_of::<Group>() + 128;
const HOLD_BYTES: usize = 16;

impl Groups {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    pub(crate) fn get(&self, digest: &Digest) -> Option<&Group> {
        self.table.find(digest.spread(self.seed), |group| group.digest == *digest)
    }

    pub(crate) fn get_mut(&mut self, digest: &Digest) -> Option<&mut Group> {
        let hash = digest.spread(self.seed);
        let group = self.table.find_mut(hash, |group| group.digest == *digest)?;
        if let Some(copied) = self.cuts.copies_for(&mut group.changed) {
            copied.add(group);
        }
        Some(group)
    }

    pub(crate) fn insert(&mut self, group: Group) {
        debug_assert!(self.get(&group.digest).is_none());
        self.holds += group.holds.len();
        let seed = self.seed;
        let hash = group.digest.spread(seed);
        self.table.insert_unique(hash, group, |group| group.digest.spread(seed));
    }

    pub(crate) fn remove(&mut self, digest: &Digest) -> Option<Group> {
        self.get_mut(digest)?; // Copies it, if it belongs to a cut.
        let hash = digest.spread(self.seed);
        let found = self.table.find_entry(hash, |group| group.digest == *digest).ok()?;
        let group = found.remove().0;
        self.holds -= group.holds.len();
        Some(group)
    }

    /// Estimated memory of the groups, without their messages.
    pub(crate) fn bytes(&self) -> usize {
        self.table.len() * GROUP_BYTES + self.holds * HOLD_BYTES
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Lists the group among those that the next checkpoint must write.
    pub(crate) fn list_changed(&mut self, digest: &Digest) {
        let hash = digest.spread(self.seed);
        let group = self.table.find_mut(hash, |group| group.digest == *digest);
        let Some(group) = group else { return };
        if let Some(copied) = self.cuts.copies_for(&mut group.changed) {
            copied.add(group);
        }
        self.cuts.list(&mut group.changed, *digest);
    }

    /// How many were listed since the last cut.
    pub(crate) fn changed(&self) -> usize {
        self.cuts.changed()
    }

    /// A cut: [`Self::copy_some`] copies what has changed by now.
    pub(crate) fn begin_cut(&mut self) {
        self.cuts.begin(Copied::default());
    }

    /// Looks at `most` of those that the cut lists, and copies what was not copied yet. Returns how
    /// many it looked at: fewer than `most` if there were no more.
    pub(crate) fn copy_some(&mut self, most: usize) -> usize {
        let mut looked = 0;
        while looked < most
            && let Some(digest) = self.cuts.next_listed()
        {
            looked += 1;
            self.get_mut(&digest);
        }
        looked
    }

    /// The groups of the cut, all of which were looked at.
    pub(crate) fn end_cut(&mut self) -> Copied {
        self.cuts.end()
    }

    /// The checkpoint of the last cut is over.
    pub(crate) fn forget_cut(&mut self) {
        self.cuts.forget();
    }

    /// The checkpoint of the last cut was given up: the next one writes what it would have written.
    pub(crate) fn cancel_cut(&mut self) {
        for digest in self.cuts.take_copied().drain() {
            self.list_changed(&digest);
        }
    }

    /// Panics if a change of the group would not be written.
    pub(crate) fn check_changed(&self, group: &Group) {
        self.cuts.check(group.changed, group.digest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_of_a_cut_is_copied_before_it_goes() {
        let (mut groups, digest) = (Groups::new(7), Digest([1; 16]));
        let mut group = Group::new(digest, 3);
        group.ready = 1;
        groups.insert(group);
        groups.list_changed(&digest);
        groups.begin_cut();
        assert!(groups.remove(&digest).is_some_and(|group| group.stored));
        while groups.copy_some(1) == 1 {}
        let copied = groups.end_cut();
        assert!(copied.groups.iter().map(|group| group.digest).eq([digest]));
    }
}
