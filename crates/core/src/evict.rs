//! Eviction: messages that are in the rows may leave memory, and are loaded again when needed.
//!
//! The deadlines of leases, messages that are due, and everything that changed since the last
//! snapshot stay. Everything else can be evicted, so memory is bounded however many messages are
//! waiting, leased, parked, dead, held or loaded.
//!
//! Invariant: after [`Machine::evict`] memory is within the target, or nothing more can be evicted,
//! or the given number of messages was evicted.

use crate::decision::QueueId;
use crate::ids::Seq;
use crate::key::Digest;
use crate::machine::Machine;
use crate::message::{Message, Slot};
use crate::outcome::Place;
use crate::places::Fate;
use crate::places::groups::Leads;

impl Machine {
    /// Evicts messages and groups until those in memory take at most `target` bytes, or `most` of
    /// them were evicted. What changed since the last snapshot stays. Returns the number evicted.
    pub fn evict(&mut self, target: usize, most: usize) -> usize {
        let left = self.evict_keeping(self.bounds.refill, target, most);
        // The heads of many queues together may exceed the target.
        left + self.evict_keeping(0, target, most - left)
    }

    /// Like `evict`, keeping `keep` messages at the head of each queue as long as possible, so that
    /// a test with few messages reaches the gap behind them.
    #[doc(hidden)]
    pub fn evict_keeping(&mut self, keep: usize, target: usize, most: usize) -> usize {
        if self.is_in_checkpoint() {
            return 0;
        }
        let mut left = 0;
        let ids: Vec<_> = self.queues.iter().map(|queue| queue.id).collect();
        for id in ids {
            if self.evictable_from(target) == 0 || left >= most {
                break;
            }
            left += self.evict_from(id, keep, target, most - left);
        }
        debug_assert!(left <= most, "no more leave than may");
        left
    }

    /// Bytes by which messages and groups exceed the target.
    fn evictable_from(&self, target: usize) -> usize {
        (self.messages.bytes() + self.groups.bytes()).saturating_sub(target)
    }

    fn evict_from(&mut self, id: QueueId, keep: usize, target: usize, most: usize) -> usize {
        let mut beyond = self.evictable_from(target);
        let Some(queue) = self.queues.get_mut(id) else { return 0 };
        let messages = &self.messages;
        let mut chosen: Vec<Slot> = Vec::new();
        // It keeps its place in the rows; nothing of it stays in memory.
        let mut evict = |place: Place, seq: Seq, slot: Slot| {
            if chosen.len() >= most || beyond == 0 {
                return Fate::Enough;
            }
            let message = messages.same(seq, slot).filter(|message| message.place() == place);
            let Some(message) = message else { return Fate::Stale };
            match (message.is_changed(), message.row.is_some()) {
                (_, false) => return Fate::New,
                (true, true) => return Fate::Stays,
                (false, true) => {}
            }
            beyond = beyond.saturating_sub(message.footprint());
            chosen.push(slot);
            Fate::Leaves
        };
        queue.dead.evict(|seq, slot| evict(Place::Dead, seq, slot));
        queue.parked.evict(|seq, slot| evict(Place::Parked, seq, slot));
        queue.redrives.values_mut().for_each(|job| job.horizon = 0);
        queue.ready.evict(keep, |seq, slot| evict(Place::Ready, seq, slot));
        queue.delayed.evict(self.now, keep, |seq, slot| evict(Place::Delayed, seq, slot));
        for slot in queue.leased.iter(messages) {
            let message = messages.at(slot);
            let is_over = message.deadline() <= Some(self.now); // It would be read again at once.
            if !is_over && matches!(evict(Place::Leased, message.seq, slot), Fate::Enough) {
                break;
            }
        }
        for digest in &queue.groups {
            let group = self.groups.get_mut(digest);
            assert!(group.is_some(), "a queue lists the groups that are in memory");
            let Some(group) = group else { continue };
            let keep = usize::from(keep > 0 && group.lead.is_some());
            group.members.evict(keep, |seq, slot| evict(Place::Ready, seq, slot));
        }
        for slot in &chosen {
            self.leave_lease(id, *slot);
            let message = self.remove_message(*slot);
            self.left(id, &message);
        }
        chosen.len() + self.evict_groups(id, keep, target, most - chosen.len())
    }

    /// Keeps the deadline of a lease whose message is about to be evicted.
    fn leave_lease(&mut self, id: QueueId, slot: Slot) {
        let Some(queue) = self.queues.get_mut(id) else { return };
        if let Some(fence) = self.messages.at(slot).lease().map(|lease| lease.fence) {
            queue.leased.leave(&mut self.messages, slot);
            let message = self.messages.at(slot);
            queue.leased.leave_away(message);
            self.leases_away.insert(message.seq, fence);
        }
    }

    /// A message was evicted: updates the jobs and groups that depend on what is in memory.
    fn left(&mut self, id: QueueId, message: &Message) {
        if let Some(queue) = self.queues.get_mut(id) {
            queue.expiring.remove(&(message.ttl_at, message.seq));
            queue.purge_again(message);
        }
        let group = message.group.and_then(|digest| self.groups.get(&digest));
        let over = group.filter(|group| group.is_over() && group.resident == 0);
        if let Some(digest) = over.map(|group| group.digest) {
            self.regroup(&digest); // It was in memory only because of the message.
        }
    }

    /// Evicts groups and their ready members: deliverable groups beyond the first `keep`, the last
    /// first, then groups that are not deliverable.
    fn evict_groups(&mut self, id: QueueId, keep: usize, target: usize, most: usize) -> usize {
        let Some(queue) = self.queues.get(id) else { return 0 };
        let open = queue.open.iter().skip(keep).map(|(_, digest)| *digest);
        let is_closed =
            |digest: &&Digest| self.groups.get(digest).is_some_and(|group| group.lead.is_none());
        let closed = queue.groups.iter().filter(is_closed).copied();
        let candidates: Vec<Digest> = closed.chain(open).collect();
        let mut left = 0;
        for digest in candidates.iter().rev() {
            if left >= most || self.evictable_from(target) == 0 {
                break;
            }
            left += self.evict_members(id, digest) + usize::from(self.evict_group(id, digest));
        }
        left.min(most)
    }

    /// Evicts the ready members of one group.
    fn evict_members(&mut self, id: QueueId, digest: &Digest) -> usize {
        let Some(group) = self.groups.get_mut(digest) else { return 0 };
        let messages = &self.messages;
        let mut chosen: Vec<Slot> = Vec::new();
        group.members.evict(0, |seq, slot| {
            let message =
                messages.same(seq, slot).filter(|message| message.place() == Place::Ready);
            let Some(message) = message else { return Fate::Stale };
            match (message.is_changed(), message.row.is_some()) {
                (_, false) => Fate::New,
                (true, true) => Fate::Stays,
                (false, true) => {
                    chosen.push(slot);
                    Fate::Leaves
                }
            }
        });
        for slot in &chosen {
            let message = self.remove_message(*slot);
            self.left(id, &message);
        }
        chosen.len()
    }

    /// Evicts a group if its row is up to date.
    fn evict_group(&mut self, id: QueueId, digest: &Digest) -> bool {
        let Some(group) = self.groups.get(digest).filter(|group| group.is_evictable()) else {
            return false;
        };
        let lead = group.lead;
        debug_assert_eq!(lead, group.lead_row, "a group that did not change has its lead row");
        self.remove_group(digest);
        if let (Some(lead), Some(queue)) = (lead, self.queues.get_mut(id)) {
            queue.open.remove(&(lead, *digest));
            Leads::cover(&mut queue.leads, (lead, *digest));
        }
        true
    }

    /// Bytes of messages and groups that could be evicted now. For tests: it visits all of them.
    #[doc(hidden)]
    pub fn evictable_bytes(&self) -> usize {
        let messages = self.messages.iter().filter(|(_, message)| {
            let is_due = message.deadline().is_some_and(|deadline| deadline <= self.now);
            !message.is_changed() && message.row.is_some() && !is_due
        });
        let groups = self.queues.iter().flat_map(|queue| &queue.groups);
        let groups = groups.filter_map(|digest| self.groups.get(digest));
        let groups = groups.filter(|group| group.is_evictable());
        messages.map(|(_, message)| message.footprint()).sum::<usize>()
            + groups.map(crate::places::groups::footprint).sum::<usize>()
    }
}
