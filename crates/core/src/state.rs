//! Moves messages between places. Every move goes through here, so that indexes, counters and
//! groups stay consistent.

use std::sync::Arc;

use crate::command::Blob;
use crate::ids::{Fence, Seq, Time};
use crate::key::{self, Digest};
use crate::limits;
use crate::machine::Machine;
use crate::message::{Message, Slot, State};
use crate::outcome::Place;
use crate::places::groups::Group;
use crate::queue::Queue;
use crate::record::{End, Event, KeyRecord, What, remember};

/// How a message ends.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) end: End,
    pub(crate) fence: Fence,
    pub(crate) worker: Arc<str>,
    pub(crate) result: Option<Blob>,
    pub(crate) error: Option<Arc<str>>,
    pub(crate) event: Option<Event>,
}

impl Ending {
    pub(crate) fn new(end: End) -> Self {
        let worker = crate::row::nobody();
        Self { end, fence: Fence(0), worker, result: None, error: None, event: None }
    }
}

pub(crate) fn event(at: Time, what: What, worker: &Arc<str>, detail: &str) -> Event {
    // The last error is kept whole beside the history.
    let end = detail.floor_char_boundary(limits::DETAIL_BYTES_MAX);
    let detail = detail.get(..end).unwrap_or(detail).into();
    Event { at, what, worker: Arc::clone(worker), detail }
}

impl Machine {
    /// Puts a new message into memory and into the place its state names.
    pub(crate) fn enter(&mut self, message: Message) -> Slot {
        let (queue, size) = (message.queue, message.content.size() as u64);
        debug_assert!(message.row.is_none(), "who enters is not in the rows yet");
        debug_assert!(message.seq < self.next_seq, "numbers are given before they are used");
        let slot = self.insert_message(message);
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.stats.bytes += size;
        }
        self.report_later(queue);
        self.count_place(slot, true);
        self.index(slot);
        self.touch(slot);
        debug_assert!(self.messages.at(slot).is_changed(), "the next checkpoint writes it");
        slot
    }

    /// The slot of a living message: the one where it was `found`, if any.
    #[inline]
    pub(crate) fn living_or(&self, found: Option<Slot>, digest: &Digest) -> Option<Slot> {
        let found = found.filter(|slot| self.messages.is_of(*slot, digest));
        found.or_else(|| self.keys.living(&self.messages, digest))
    }

    /// Gives a message its slot, its key and its group, and nothing else.
    pub(crate) fn insert_message(&mut self, message: Message) -> Slot {
        let (digest, queue) = (message.digest, message.queue);
        debug_assert!(self.keys.living(&self.messages, &digest).is_none(), "one message per key");
        if let Some(digest) = &message.group {
            if self.groups.get(digest).is_none() {
                self.add_group(Group::new(*digest, queue));
            }
            if let Some(group) = self.groups.get_mut(digest) {
                group.resident += 1;
            }
        }
        let slot = self.messages.insert(message);
        self.keys.insert_living(&digest, slot);
        debug_assert_eq!(self.keys.living(&self.messages, &digest), Some(slot));
        slot
    }

    /// Removes a message from memory; the caller updates its place and counts.
    pub(crate) fn remove_message(&mut self, slot: Slot) -> Message {
        let digest = self.messages.at(slot).digest;
        self.keys.remove_living(&digest, slot);
        self.take_message(slot)
    }

    /// Like `remove_message`, but the caller updates its key too.
    fn take_message(&mut self, slot: Slot) -> Message {
        let message = self.messages.remove(slot);
        let has_group = |digest: Digest| self.groups.get(&digest).is_some();
        debug_assert!(message.group.is_none_or(has_group), "who is in memory has its group there");
        if let Some(group) = message.group.and_then(|digest| self.groups.get_mut(&digest)) {
            debug_assert!(group.resident > 0);
            group.resident -= 1;
        }
        message
    }

    /// Moves a message to another place.
    pub(crate) fn relocate(&mut self, slot: Slot, state: State) {
        self.count_place(slot, false);
        self.deindex(slot);
        let message = self.messages.at_mut(slot);
        // A dead message stays dead until it is redriven, which starts anew.
        if let (State::Dead { .. }, Some(extra)) = (&state, &mut message.extra) {
            extra.lost = None;
        }
        message.state = state;
        self.count_place(slot, true);
        self.index(slot);
        self.touch(slot);
        debug_assert!(
            self.messages.at(slot).is_changed(),
            "a move is written by the next checkpoint"
        );
    }

    /// Removes a message from its place and from memory, and writes the key's record.
    pub(crate) fn end(&mut self, at: Time, slot: Slot, ending: Ending) {
        self.count_place(slot, false);
        self.deindex(slot);
        let message = self.take_message(slot);
        self.report_later(message.queue);
        let (digest, group, row) = (message.digest, message.group, message.row);
        let queue = self.queues.get_mut(message.queue);
        assert!(queue.is_some(), "a message has its queue");
        let Some(queue) = queue else { return };
        let size = message.content.size() as u64;
        debug_assert!(size <= queue.stats.bytes, "what goes was counted when it came");
        queue.stats.bytes -= size;
        queue.dirty = true;
        if message.is_keyless() {
            self.keys.remove_living(&digest, slot);
            if row.is_some() {
                self.keys.trace(&digest);
            }
        } else {
            let record = record_of(at, message, ending, queue);
            self.keys.remember_living(&digest, slot, &record);
            // A key that a purge removed is not remembered, even if its message outlived the purge.
            if !record.is_free() && record.seq >= queue.keys_from {
                queue.count_key(record.drop_at(), true);
                self.due(Time(record.drop_at()));
            }
        }
        debug_assert!(self.keys.living(&self.messages, &digest).is_none(), "living, or remembered");
        if let Some(row) = row {
            self.keys.delete_row(row);
            self.keys.delete_point(&digest, u64::MAX);
        }
        if let Some(group) = &group {
            self.regroup(group);
        }
    }

    /// Notes that the next checkpoint must write the message.
    pub(crate) fn touch(&mut self, slot: Slot) {
        self.messages.recount(slot);
        self.messages.list_changed(slot);
    }

    /// Updates the queue's count of the message's place, and its group's counts.
    fn count_place(&mut self, slot: Slot, came: bool) {
        let message = self.messages.at(slot);
        let (place, group, state) = (message.place(), message.group, &message.state);
        let seq = message.seq;
        let (blocks, holds) = match state {
            State::Leased(_) | State::Parked => (true, false),
            State::Delayed { backoff, .. } => (*backoff, false),
            State::Dead { holds, .. } => (false, *holds),
            State::Ready => (false, false),
        };
        let Some(queue) = self.queues.get_mut(message.queue) else { return };
        queue.dirty = true;
        let count = place_count(queue, place);
        debug_assert!(came || *count > 0, "what leaves {place:?} was counted there");
        *count = if came { *count + 1 } else { count.saturating_sub(1) };
        let Some(digest) = group else { return };
        if let Some(group) = self.groups.get_mut(&digest) {
            let held_before = group.held();
            let step = |count: &mut u32| {
                debug_assert!(came || *count > 0, "who is back was out");
                *count = if came { *count + 1 } else { count.saturating_sub(1) };
            };
            if blocks {
                step(&mut group.out);
            }
            let mut held = 0;
            if holds && came {
                group.holds.insert(seq);
                held = 1;
            } else if holds {
                let was_held = group.holds.remove(&seq);
                debug_assert!(was_held, "who lets its group go held it");
                held = -isize::from(was_held);
            }
            if place == Place::Ready {
                debug_assert!(came || group.ready > 0, "who leaves the ready was among them");
                group.ready = if came { group.ready + 1 } else { group.ready.saturating_sub(1) };
            }
            // Queues of 0.1 did not count held messages.
            let held_now = (queue.stats.held + group.held()).saturating_sub(held_before);
            queue.stats.held = held_now.min(queue.stats.ready);
            self.groups.holds = self.groups.holds.saturating_add_signed(held);
        }
        self.regroup_later(&digest);
    }

    /// Adds the message to the index of its place.
    pub(crate) fn index(&mut self, slot: Slot) {
        let message = self.messages.at(slot);
        let (seq, queue_id, group, ttl_at) =
            (message.seq, message.queue, message.group, message.ttl_at);
        let deadline = message.deadline();
        let place = message.place();
        let Some(queue) = self.queues.get_mut(queue_id) else { return };
        match place {
            Place::Ready => match group {
                Some(_) => {}
                None => queue.ready.push(seq, slot),
            },
            Place::Delayed => queue.delayed.push(deadline.unwrap_or_default(), seq, slot),
            Place::Leased => queue.leased.push(&mut self.messages, slot),
            Place::Parked => queue.parked.push(seq, slot),
            Place::Dead => queue.dead.push(seq, slot),
            Place::Done | Place::Discarded => {}
        }
        let mut next_due = deadline.unwrap_or(Time::NEVER);
        if ttl_at != Time::NEVER && matches!(place, Place::Ready | Place::Delayed) {
            queue.expiring.insert((ttl_at, seq), slot);
            next_due = next_due.min(ttl_at);
        }
        self.due(next_due);
        if let Some(digest) = group {
            if place == Place::Ready
                && let Some(group) = self.groups.get_mut(&digest)
            {
                group.members.push(seq, slot);
            }
            self.regroup(&digest);
        }
    }

    /// Removes the message from the index of its place.
    pub(crate) fn deindex(&mut self, slot: Slot) {
        let message = self.messages.at(slot);
        let (seq, queue_id, group, ttl_at) =
            (message.seq, message.queue, message.group, message.ttl_at);
        let (place, deadline) = (message.place(), message.deadline());
        let Some(queue) = self.queues.get_mut(queue_id) else { return };
        if ttl_at != Time::NEVER {
            queue.expiring.remove(&(ttl_at, seq));
        }
        match place {
            Place::Ready => {
                queue.ready.leave(seq);
                if queue.has_unread() {
                    self.heads.add(queue_id); // The next one may not be in memory.
                }
            }
            Place::Delayed => queue.delayed.leave(deadline.unwrap_or_default(), seq),
            Place::Leased => queue.leased.leave(&mut self.messages, slot),
            Place::Parked => queue.parked.leave(seq),
            Place::Dead => queue.dead.leave(seq),
            Place::Done | Place::Discarded => {}
        }
        if let Some(group) = group.and_then(|digest| self.groups.get_mut(&digest)) {
            group.members.leave(seq);
            if group.members.gap().is_some() {
                self.heads.add(queue_id);
            }
        }
    }

    pub(crate) fn add_group(&mut self, group: Group) {
        if let Some(queue) = self.queues.get_mut(group.queue) {
            let is_new = queue.groups.insert(group.digest);
            debug_assert!(is_new, "a queue lists a group once");
        }
        self.groups.insert(group);
    }

    pub(crate) fn remove_group(&mut self, digest: &Digest) -> Option<Group> {
        let group = self.groups.remove(digest)?;
        if let Some(queue) = self.queues.get_mut(group.queue) {
            let was_listed = queue.groups.remove(digest);
            debug_assert!(was_listed, "a group in memory is listed in its queue");
        }
        Some(group)
    }

    /// The group changed: its row must be written again.
    fn regroup_later(&mut self, digest: &Digest) {
        self.groups.list_changed(digest);
    }

    /// Lists the group in its queue under its lead if it is deliverable. Drops it if nothing
    /// unfinished is left.
    pub(crate) fn regroup(&mut self, digest: &Digest) {
        let messages = &self.messages;
        let Some(group) = self.groups.get_mut(digest) else { return };
        let is_here = |seq, slot| messages.is_ready(seq, slot);
        group.members.trim(is_here);
        let lead = group.is_deliverable().then(|| lead(group, is_here)).flatten();
        let lead = lead.filter(|lead| *lead < group.held_from());
        let before = std::mem::replace(&mut group.lead, lead);
        let (queue_id, over) = (group.queue, group.is_over() && group.resident == 0);
        if before != lead
            && let Some(queue) = self.queues.get_mut(queue_id)
        {
            if let Some(seq) = before {
                let was_open = queue.open.remove(&(seq, *digest));
                debug_assert!(was_open, "a group with a lead is listed under it");
            }
            if let Some(seq) = lead {
                let is_new = queue.open.insert((seq, *digest));
                debug_assert!(is_new, "a group is listed once");
            }
        }
        if before != lead {
            self.regroup_later(digest);
        }
        if over && let Some(group) = self.remove_group(digest) {
            debug_assert!(group.lead.is_none(), "nothing is left to deliver");
            if group.stored {
                self.keys.trace(digest);
                self.keys.delete_point(digest, u64::MAX);
            }
            if let Some(seq) = group.lead_row {
                self.keys.delete_row(crate::row::RowKey::lead(queue_id, seq, digest));
            }
        }
    }
}

/// The oldest ready member in memory, or the number from which the rows must be read.
fn lead(group: &Group, is_here: impl Fn(Seq, Slot) -> bool) -> Option<Seq> {
    let resident = group.members.oldest(is_here).next().map(|(seq, _)| seq);
    let unloaded = group.members.gap().map(|gap| gap.from);
    match (resident, unloaded) {
        (Some(resident), Some(unloaded)) => Some(resident.min(unloaded)),
        (resident, unloaded) => resident.or(unloaded),
    }
}

pub(crate) fn place_count(queue: &mut Queue, place: Place) -> &mut u64 {
    match place {
        Place::Ready => &mut queue.stats.ready,
        Place::Delayed => &mut queue.stats.delayed,
        Place::Leased => &mut queue.stats.leased,
        Place::Parked => &mut queue.stats.parked,
        _ => &mut queue.stats.dead,
    }
}

fn record_of(at: Time, message: Message, ending: Ending, queue: &Queue) -> KeyRecord {
    let extra = message.extra.map(|extra| *extra).unwrap_or_default();
    let mut history = extra.history;
    debug_assert!(at >= message.accepted_at, "nothing ends before it came");
    debug_assert!(ending.end == End::Done || ending.result.is_none(), "only the done have results");
    if let Some(event) = ending.event {
        remember(&mut history, event);
    }
    let expires_at = match (ending.end, queue.config.retention_ms) {
        // Longer if it saved something for the next claim.
        (End::Freed, _) if extra.points.is_empty() => at.plus(limits::FREED_MS),
        (_, None) => Time::NEVER,
        // A retry is refused as too old by the date of its operation: until then the key must be
        // known.
        (_, Some(retention)) => {
            let dated = key::date(message.content.key_bytes(), at).max(extra.dated_ahead);
            dated.map_or(at, |dated| dated.max(at)).plus(retention)
        }
    };
    let keeps = queue.config.keep_bodies && ending.end == End::Done && !message.claim;
    KeyRecord {
        end: ending.end,
        seq: message.seq,
        accepted_at: message.accepted_at,
        leased_at: message.leased_at,
        finished_at: at,
        expires_at,
        attempts: message.attempts,
        generation: message.generation,
        fence: ending.fence,
        worker: if ending.worker.is_empty() {
            extra.worker.unwrap_or_default()
        } else {
            ending.worker
        },
        fingerprint: message.fingerprint,
        duplicates: extra.duplicates,
        losses: extra.losses,
        error: ending.error.or(extra.error),
        result: ending.result,
        history,
        points: if ending.end == End::Freed { extra.points } else { Default::default() },
        content: keeps.then_some(message.content),
        dated_ahead: extra.dated_ahead.filter(|dated| *dated > at),
    }
}
