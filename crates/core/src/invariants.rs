//! Asserts the invariants of the other files over the whole state. For tests: it visits every
//! message in memory.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::Order;
use crate::ids::{Seq, Time};
use crate::key::Digest;
use crate::machine::Machine;
use crate::message::{Message, Slot, State};
use crate::outcome::Place;
use crate::queue::Queue;

impl Machine {
    /// Panics if two parts of the state disagree.
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        for (slot, message) in self.messages.iter() {
            self.check_message(slot, message);
        }
        self.keys.check(&self.messages);
        let bytes: usize = self.messages.iter().map(|(_, message)| message.footprint()).sum();
        assert_eq!(bytes, self.messages.bytes(), "bytes in memory are counted");
        let is_counted = |(_, message): (Slot, &Message)| message.is_counted();
        assert!(self.messages.iter().all(is_counted), "histories and points are counted");
        let groups = self.queues.iter().flat_map(|queue| &queue.groups);
        let groups = groups.filter_map(|digest| self.groups.get(digest));
        let bytes: usize = groups.map(crate::places::groups::footprint).sum();
        assert_eq!(bytes, self.groups.bytes(), "groups are counted");
        let away = self.queues.iter().map(|queue| queue.leased.away().len());
        let known = self.leases_away.len();
        assert_eq!(away.sum::<usize>(), known, "leases left to the rows are known by message");
        for queue in self.queues.iter() {
            self.check_places(queue);
            self.check_stats(queue);
            self.check_groups(queue);
            self.check_timers(queue);
        }
        let by_id = self.receives.by_id.iter().map(|(id, receive)| (receive.until, *id));
        let by_end: BTreeSet<(Time, Digest)> = self.receives.by_end.keys().copied().collect();
        assert_eq!(by_id.collect::<BTreeSet<_>>(), by_end, "receives are found by id and by end");
    }

    fn check_message(&self, slot: Slot, message: &Message) {
        let digest = &message.digest;
        assert_eq!(self.keys.living(&self.messages, digest), Some(slot), "one message per key");
        assert!(!self.keys.is_written(digest), "a living key has no record: {message:?}");
        assert!(message.seq < self.next_seq, "numbers are given once");
        assert!(self.queues.get(message.queue).is_some(), "a message has its queue");
        self.messages.check_changed(slot, message);
        if let Some(lease) = message.lease() {
            assert!(lease.fence < self.next_fence(), "fences grow");
            assert!(message.attempts > 0, "a lease is an attempt");
        }
        if let Some(group) = &message.group {
            assert!(self.groups.get(group).is_some(), "a message has its group in memory");
        }
    }

    /// Every message is in the index of its place, and nothing else is.
    fn check_places(&self, queue: &Queue) {
        let is_ready = |seq, slot| self.messages.is_ready(seq, slot);
        let groups = queue.groups.iter().filter_map(|digest| self.groups.get(digest));
        let members = groups.flat_map(|group| group.members.waiting(is_ready));
        let ready = queue.ready.waiting(is_ready).chain(members).map(|(_, slot)| slot);
        let list = |place| match place {
            Place::Parked => queue.parked.from(0).map(|(_, slot)| slot).collect::<Vec<_>>(),
            _ => queue.dead.from(0).map(|(_, slot)| slot).collect(),
        };
        let indexes = [
            (Place::Ready, ready.collect()),
            (Place::Delayed, queue.delayed.after(None).collect()),
            (Place::Leased, queue.leased.iter(&self.messages).collect()),
            (Place::Parked, list(Place::Parked)),
            (Place::Dead, list(Place::Dead)),
        ];
        for (place, mut index) in indexes {
            let mut resident = self.resident(queue, place);
            index.sort_unstable();
            resident.sort_unstable();
            assert_eq!(index, resident, "the index of {place:?} holds what is there, once");
        }
        let oldest: Vec<Seq> = queue.ready.oldest(is_ready).map(|(seq, _)| seq).collect();
        assert!(oldest.is_sorted(), "the oldest come first: {oldest:?}");
    }

    fn resident(&self, queue: &Queue, place: Place) -> Vec<Slot> {
        let mine = self.messages.iter().filter(|(_, message)| message.queue == queue.id);
        mine.filter(|(_, message)| message.place() == place).map(|(slot, _)| slot).collect()
    }

    /// Counters agree with what is in memory, if nothing is only in the rows.
    fn check_stats(&self, queue: &Queue) {
        let stats = &queue.stats;
        let is_ready_here = queue.ready.gap().is_none() && queue.config.order == Order::None;
        let is_delayed_here = !queue.delayed.is_unloaded();
        for (place, count, is_all_here) in [
            (Place::Ready, stats.ready, is_ready_here),
            (Place::Delayed, stats.delayed, is_delayed_here),
            (Place::Leased, stats.leased, queue.leased.away().len() == 0),
            (Place::Parked, stats.parked, false),
            (Place::Dead, stats.dead, false),
        ] {
            let here = self.resident(queue, place).len() as u64;
            assert!(here <= count, "{here} {place:?} in memory, {count} counted");
            assert!(!is_all_here || here == count, "{here} {place:?} are all, {count} counted");
        }
        let (here, away) = (self.resident(queue, Place::Leased).len(), queue.leased.away());
        assert_eq!((here + away.len()) as u64, stats.leased, "the end of every lease is known");
        let is_here = |digest: &Digest| self.keys.living(&self.messages, digest).is_some();
        let mut away = queue.leased.away();
        assert!(!away.any(|(_, lease)| is_here(&lease.digest)), "who is away is not here");
        let mine = self.messages.iter().filter(|(_, message)| message.queue == queue.id);
        let bytes: u64 = mine.map(|(_, message)| message.content.size() as u64).sum();
        assert!(bytes <= stats.bytes, "{bytes} bytes in memory, {} counted", stats.bytes);
        assert!(stats.held <= stats.ready, "{} held of {}", stats.held, stats.ready);
        assert!(stats.messages() > 0 || stats.bytes == 0, "nothing takes no room");
        assert_eq!(queue.remembered.values().sum::<u64>(), stats.keys, "keys by bucket");
    }

    fn check_groups(&self, queue: &Queue) {
        let mut open = BTreeSet::new();
        let mut resident: BTreeMap<Digest, Vec<&Message>> = BTreeMap::new();
        for (_, message) in self.messages.iter().filter(|(_, message)| message.queue == queue.id) {
            if let Some(group) = message.group {
                resident.entry(group).or_default().push(message);
            }
        }
        for digest in &queue.groups {
            let group = self.groups.get(digest);
            assert!(group.is_some_and(|group| group.queue == queue.id), "a group has its queue");
            let Some(group) = group else { continue };
            let members = resident.remove(digest).unwrap_or_default();
            let count = |is: fn(&State) -> bool| {
                members.iter().filter(|message| is(&message.state)).count()
            };
            assert_eq!(group.resident as usize, members.len(), "members in memory are counted");
            let ready = count(|state| *state == State::Ready) as u64;
            let out = count(|state| {
                let backs_off = matches!(state, State::Delayed { backoff: true, .. });
                backs_off || matches!(state, State::Leased(_) | State::Parked)
            });
            assert!(ready <= group.ready, "{ready} ready in memory: {group:?}");
            assert!(out <= group.out as usize, "{out} out: {group:?}");
            if group.members.gap().is_none() {
                assert_eq!(ready, group.ready, "all that are ready are in memory: {group:?}");
            }
            self.groups.check_changed(group);
            open.extend(group.lead.map(|lead| (lead, *digest)));
        }
        assert_eq!(open, queue.open, "deliverable groups are listed under their lead");
        assert!(resident.is_empty(), "a message's group is its queue's: {resident:?}");
    }

    /// No timer is forgotten.
    fn check_timers(&self, queue: &Queue) {
        let mine = || self.messages.iter().filter(|(_, message)| message.queue == queue.id);
        let expiring = mine().filter(|(_, message)| {
            message.ttl_at != Time::NEVER
                && matches!(message.place(), Place::Ready | Place::Delayed)
        });
        let expiring = expiring.map(|(slot, message)| ((message.ttl_at, message.seq), slot));
        assert_eq!(expiring.collect::<BTreeMap<_, _>>(), queue.expiring, "lives with an end");
        let leases = mine().filter_map(|(_, message)| message.lease().map(|lease| lease.deadline));
        let away = || queue.leased.away().map(|(deadline, _)| deadline);
        let next = queue.leased.next_deadline(&self.messages);
        assert_eq!(leases.chain(away()).min(), next, "the lease that ends first is found first");
        let ends = mine().filter_map(|(_, message)| message.deadline()).chain(away());
        let lives = queue.expiring.keys().map(|(ttl_at, _)| *ttl_at);
        let buckets = queue.remembered.keys().map(|drop_at| Time(*drop_at));
        let receives = self.receives.by_end.keys().map(|(until, _)| *until);
        let timers = ends.chain(lives).chain(buckets).chain(receives);
        let first = timers.min().unwrap_or(Time::NEVER);
        assert!(self.next_due <= first, "a timer at {first:?}, the next at {:?}", self.next_due);
    }
}
