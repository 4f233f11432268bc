//! Read-only views: of a key, a place, a queue.

use std::sync::Arc;

use crate::command::{Browse, KeyName, QueueName};
use crate::content::Invalid;
use crate::decision::QueueId;
use crate::ids::{Fence, Seq, Time};
use crate::limits;
use crate::machine::Machine;
use crate::message::{Message, Slot};
use crate::moves::send::is_remembered;
use crate::outcome::{KeyView, Outcome, Place, QueueView, Refusal};
use crate::places::keys::Known;
use crate::queue::Queue;
use crate::record::{End, Event, KeyRecord, What};
use crate::row::nobody;
use crate::state::event;

impl Machine {
    /// Everything about a key.
    pub(crate) fn look(&self, at: Time, key: &KeyName) -> Outcome {
        let Some(queue) = self.queues.named(&key.queue) else {
            return Outcome::Refused(Refusal::NoSuchQueue);
        };
        for digest in self.digests_of(queue, key) {
            let view = match self.keys.find(&self.messages, &digest) {
                Some(Known::Living(slot)) if self.messages.at(slot).queue == queue.id => {
                    self.living_view(self.messages.at(slot))
                }
                Some(Known::Record(record)) if is_remembered(&record, queue, at) => KeyView {
                    key: Some(Arc::clone(&key.key)),
                    digest,
                    place: place_of(&record),
                    id: record.id(self.partition),
                    deadline: None,
                    content: record.content.clone(),
                    recovery_points: Default::default(),
                    history: told(&record, false, true),
                    record: *record,
                },
                _ => continue,
            };
            return Outcome::Key(Box::new(view));
        }
        Outcome::Refused(Refusal::NoSuchKey)
    }

    /// Why an operation on a living message is refused: what the key is instead.
    pub(crate) fn not_living(&self, queue: &Queue, key: &KeyName, at: Time) -> Refusal {
        let digest = self.digest_of(queue, &key.key, key.group.as_deref());
        match self
            .keys
            .record(&self.messages, &digest)
            .filter(|record| is_remembered(record, queue, at))
        {
            Some(record) => Refusal::Invalid(Invalid::State(place_of(&record).as_str())),
            None => Refusal::NoSuchKey,
        }
    }

    /// A page of a place, oldest first, without leasing anything.
    pub(crate) fn browse(&self, _at: Time, browse: &Browse) -> Outcome {
        let Some(queue) = self.queues.named(&browse.queue) else {
            return Outcome::Refused(Refusal::NoSuchQueue);
        };
        let limit = browse.limit.clamp(1, self.bounds.browse);
        let mut slots = self.in_place(queue, browse.place, browse.cursor, limit + 1);
        // Rows may be outdated: what was read can be less than a page, and more may follow it.
        let read = self.browsed_rows(queue, browse).map(|(from, _)| from);
        let read = read.and_then(|from| self.browsed.iter().find(|(known, _)| *known == from));
        let read_to = read.map(|(_, seq)| *seq);
        slots.retain(|slot| read_to.is_none_or(|seq| self.messages.at(*slot).seq <= seq));
        let by_age = |slot: &Slot| self.messages.at(*slot).seq;
        debug_assert!(slots.is_sorted_by_key(by_age), "the next page begins behind the last one");
        let more = slots.len() > limit;
        slots.truncate(limit);
        let last = slots.last().map(|slot| self.messages.at(*slot).seq);
        let next = if more { last } else { read_to };
        let messages = slots.iter().map(|slot| self.living_view(self.messages.at(*slot)));
        Outcome::Messages { messages: messages.collect(), next }
    }

    fn in_place(
        &self,
        queue: &Queue,
        place: Place,
        cursor: Option<Seq>,
        limit: usize,
    ) -> Vec<Slot> {
        let from = cursor.map_or(0, |cursor| cursor.saturating_add(1));
        let messages = &self.messages;
        let is_ready = |seq, slot| messages.is_ready(seq, slot);
        let list = |list: &crate::places::resident::Resident| {
            list.from(from).map(|(_, slot)| slot).take(limit).collect::<Vec<_>>()
        };
        let mut slots: Vec<Slot> = match place {
            Place::Dead => return list(&queue.dead),
            Place::Parked => return list(&queue.parked),
            Place::Leased => queue.leased.iter(messages).collect(),
            Place::Delayed => queue.delayed.after(None).collect(),
            Place::Ready => {
                let groups = queue.groups.iter().filter_map(|digest| self.groups.get(digest));
                let members = groups.flat_map(|group| group.members.waiting(is_ready));
                let single = queue.ready.waiting(is_ready);
                single.chain(members).map(|(_, slot)| slot).collect()
            }
            Place::Done | Place::Discarded => Vec::new(),
        };
        slots.retain(|slot| messages.at(*slot).seq >= from);
        slots.sort_unstable_by_key(|slot| messages.at(*slot).seq);
        slots.truncate(limit);
        slots
    }

    pub(crate) fn show(&self, name: &QueueName) -> Outcome {
        let Some(queue) = self.queues.named(name) else {
            return Outcome::Refused(Refusal::NoSuchQueue);
        };
        Outcome::Queue(Box::new(self.queue_view(queue)))
    }

    fn queue_view(&self, queue: &Queue) -> QueueView {
        let messages = &self.messages;
        let is_ready = |seq, slot| messages.is_ready(seq, slot);
        let single = queue.ready.oldest(is_ready).map(|(_, slot)| slot).next();
        let group = queue.open.first().and_then(|(_, digest)| self.groups.get(digest));
        let member =
            group.and_then(|group| group.members.oldest(is_ready).map(|(_, slot)| slot).next());
        let oldest = [single, member].into_iter().flatten();
        QueueView {
            number: queue.id,
            config: queue.config.clone(),
            version: queue.version,
            created_at: queue.created_at,
            paused: queue.paused,
            stats: queue.stats,
            oldest_ready_at: oldest.map(|slot| messages.at(slot).accepted_at).min(),
        }
    }

    /// The queues that take messages, in the order in which they were created.
    pub fn queues(&self) -> impl Iterator<Item = (&QueueName, QueueView)> {
        let queues = self.queues.iter().filter(|queue| !queue.is_deleted());
        queues.map(|queue| (&queue.name, self.queue_view(queue)))
    }

    /// How many messages of a queue are ready.
    pub fn ready(&self, id: QueueId) -> u64 {
        self.queues.get(id).map_or(0, |queue| queue.stats.ready)
    }

    /// How many messages of a queue are ready, by its name.
    pub fn ready_in(&self, queue: &QueueName) -> u64 {
        self.queues.named(queue).map_or(0, |queue| queue.stats.ready)
    }

    fn living_view(&self, message: &Message) -> KeyView {
        let extra = message.extra.clone().map(|extra| *extra).unwrap_or_default();
        let lease = message.lease();
        let record = KeyRecord {
            end: End::Done,
            seq: message.seq,
            accepted_at: message.accepted_at,
            leased_at: message.leased_at,
            finished_at: message.accepted_at,
            expires_at: Time::NEVER,
            attempts: message.attempts,
            generation: message.generation,
            fence: lease.map_or(Fence(0), |lease| lease.fence),
            worker: lease.map(|lease| lease.worker.clone()).or(extra.worker).unwrap_or_else(nobody),
            fingerprint: message.fingerprint,
            duplicates: extra.duplicates,
            losses: extra.losses,
            error: extra.error,
            result: None,
            history: extra.history,
            points: Default::default(),
            content: None,
            dated_ahead: None,
        };
        let key = message.content.key();
        KeyView {
            key: (!key.is_empty()).then(|| key.into()),
            digest: message.digest,
            place: message.place(),
            id: message.id(self.partition),
            deadline: message.deadline(),
            content: Some(Arc::clone(&message.content)),
            recovery_points: extra.points,
            history: told(&record, message.claim, false),
            record,
        }
    }
}

/// The history; events without incident are derived from the record.
fn told(record: &KeyRecord, claim: bool, ended: bool) -> Vec<Event> {
    let mut history = Vec::with_capacity(record.history.len() + 3);
    let first = if claim { What::Claimed } else { What::Sent };
    history.push(event(record.accepted_at, first, &nobody(), ""));
    if record.attempts > 0 && !claim {
        // The last lease. Release 0.1 kept the time of the first one.
        history.push(event(record.leased_at, What::Leased, &record.worker, ""));
    }
    history.extend(record.history.iter().cloned());
    if ended && record.end == End::Done {
        history.push(event(record.finished_at, What::Done, &record.worker, ""));
    }
    history.sort_by_key(|event| event.at);
    let surplus = history.len().saturating_sub(limits::HISTORY_MAX);
    history.drain(..surplus);
    history
}

/// Where a message is that has ended and is remembered.
fn place_of(record: &KeyRecord) -> Place {
    debug_assert!(!record.is_free(), "the message of a free key is nowhere");
    if record.end == End::Done { Place::Done } else { Place::Discarded }
}
