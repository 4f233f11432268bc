//! What the model knows: a list of messages, a map of remembered keys, and nothing that has to be
//! kept in agreement with them. Everything else is found by looking through the list.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use hapax_core::*;

use crate::support::{PARTITIONS, recipe};

pub(crate) const TENANT: &str = "default";

/// What a key is compared by: the queue's name, the group where the queue deduplicates per
/// group, and the key.
pub(crate) type Scope = (String, Option<String>, String);

#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) bounds: Bounds,
    /// The data is that of 0.1.
    pub(crate) is_first: bool,
    pub(crate) at: Time,
    pub(crate) random: u64,
    /// From now on soft counts may be lower than the model's.
    pub(crate) crashed: bool,
    pub(crate) store_full: bool,
    pub(crate) epoch: u32,
    pub(crate) next_fence: u64,
    pub(crate) next_seq: Seq,
    pub(crate) next_queue: u32,
    pub(crate) next_relay: u64,
    pub(crate) queues: Vec<Queue>,
    pub(crate) messages: Vec<Message>,
    pub(crate) records: BTreeMap<Scope, KeyRecord>,
    pub(crate) receives: BTreeMap<(String, String), (Time, Vec<LeaseName>)>,
    pub(crate) relays: BTreeMap<u64, Relay>,
    /// Messages whose leases ended in the step at hand.
    pub(crate) lost: Vec<Digest>,
    /// Claims that a redrive freed in it.
    pub(crate) freed: Vec<Digest>,
    /// Every lease that was ever handed out.
    pub(crate) leases: Vec<LeaseName>,
}

#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) number: u32,
    pub(crate) name: QueueName,
    pub(crate) config: Config,
    pub(crate) version: u64,
    pub(crate) created_at: Time,
    pub(crate) paused: bool,
    pub(crate) keys_from: Seq,
    /// Until which date the retentions before applied.
    pub(crate) raised: Vec<(Time, u64)>,
    /// Messages below this are on their way out, those below `keys_from` with their keys.
    pub(crate) purge: Option<Seq>,
    pub(crate) jobs: BTreeMap<String, Job>,
    /// Only the totals; the rest is counted.
    pub(crate) totals: Stats,
    pub(crate) rate: (u64, Time),
}

#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) view: RedriveView,
    /// What makes it the redrive that it is.
    pub(crate) asked: (Select, bool, Option<u32>),
    pub(crate) error_contains: Option<String>,
    pub(crate) group: Option<String>,
    pub(crate) dead_before: Time,
    pub(crate) dead_after: Option<Time>,
    pub(crate) per_s: Option<u32>,
    pub(crate) started_at: Time,
    pub(crate) cursor: Seq,
    /// Where it names keys: those that were not looked at yet.
    pub(crate) keys: Vec<Scope>,
}

#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) queue: String,
    /// None where it came without a key.
    pub(crate) scope: Option<Scope>,
    pub(crate) digest: Digest,
    pub(crate) seq: Seq,
    pub(crate) content: Arc<Content>,
    pub(crate) fingerprint: Fingerprint,
    /// Its group, where the queue keeps groups in order.
    pub(crate) ordered: Option<String>,
    pub(crate) claim: bool,
    pub(crate) state: State,
    pub(crate) attempts: u32,
    pub(crate) generation: u32,
    pub(crate) accepted_at: Time,
    pub(crate) leased_at: Time,
    pub(crate) ttl_at: Time,
    pub(crate) error: Option<Arc<str>>,
    pub(crate) points: BTreeMap<String, Bytes>,
    pub(crate) duplicates: u64,
    pub(crate) losses: u32,
    pub(crate) settled: Option<(Fence, How, Place, Option<Time>)>,
    /// The last lease, where it ran out and nobody had another one since.
    pub(crate) lost: Option<Fence>,
    pub(crate) worker: Option<Arc<str>>,
    pub(crate) claim_id: Option<Arc<str>>,
    pub(crate) dated_ahead: Option<Time>,
    /// Without the duplicates, which are soft.
    pub(crate) history: Vec<Event>,
}

/// What the holder of a lease said that did not finish its message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum How {
    Released,
    Failed,
    Parked,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum State {
    Ready,
    Delayed { due: Time, backoff: bool },
    Leased { fence: Fence, deadline: Time, worker: Arc<str>, begun: bool },
    Parked,
    Dead { at: Time, holds: bool },
}

impl State {
    /// When its delay is over, where it has one.
    pub(crate) fn due(&self) -> Option<Time> {
        match self {
            Self::Delayed { due, .. } => Some(*due),
            _ => None,
        }
    }
}

/// How a message ended, where it did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ending {
    pub(crate) fence: Fence,
    pub(crate) worker: Option<Arc<str>>,
    pub(crate) result: Option<Blob>,
    pub(crate) error: Option<Arc<str>>,
    pub(crate) event: Option<Event>,
}

impl Job {
    /// How many it may have found by then.
    pub(crate) fn allowed(&self, at: Time) -> u64 {
        let elapsed = at.since(self.started_at) + 1_000;
        self.per_s.map_or(u64::MAX, |per_s| elapsed * u64::from(per_s) / 1_000)
    }

    pub(crate) fn matches(&self, message: &Message) -> bool {
        let State::Dead { at, .. } = message.state else { return false };
        let error = message.last_error();
        at < self.dead_before
            && self.dead_after.is_none_or(|after| at > after)
            && self.error_contains.as_ref().is_none_or(|text| error.contains(text))
            && self.group.as_deref().is_none_or(|group| message.content.group() == Some(group))
    }
}

impl Message {
    pub(crate) fn id(&self) -> MessageId {
        MessageId::new(self.accepted_at, 0, self.seq)
    }

    pub(crate) fn place(&self) -> Place {
        match self.state {
            State::Ready => Place::Ready,
            State::Delayed { .. } => Place::Delayed,
            State::Leased { .. } => Place::Leased,
            State::Parked => Place::Parked,
            State::Dead { .. } => Place::Dead,
        }
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        match self.state {
            State::Delayed { due, .. } => Some(due),
            State::Leased { deadline, .. } => Some(deadline),
            _ => None,
        }
    }

    pub(crate) fn fence(&self) -> Option<Fence> {
        match self.state {
            State::Leased { fence, .. } => Some(fence),
            _ => None,
        }
    }

    pub(crate) fn holder(&self) -> Arc<str> {
        match &self.state {
            State::Leased { worker, .. } => worker.clone(),
            _ => self.worker.clone().unwrap_or_default(),
        }
    }

    pub(crate) fn lease(&self) -> Option<LeaseName> {
        let fence = self.fence()?;
        Some(LeaseName { digest: self.digest, seq: self.seq, fence })
    }

    /// Nobody else of its group gets a turn meanwhile.
    pub(crate) fn is_out(&self) -> bool {
        matches!(
            self.state,
            State::Leased { .. } | State::Parked | State::Delayed { backoff: true, .. }
        )
    }

    pub(crate) fn holds(&self) -> bool {
        matches!(self.state, State::Dead { holds: true, .. })
    }

    /// Whether a purge of a queue below a number takes it away.
    pub(crate) fn is_purged(&self, queue: &str, below: Seq) -> bool {
        self.queue == queue && self.seq < below && self.place() != Place::Leased
    }

    pub(crate) fn is_over(&self, at: Time) -> bool {
        matches!(self.place(), Place::Ready | Place::Delayed) && self.ttl_at <= at
    }

    pub(crate) fn tell(&mut self, at: Time, what: What, worker: &Arc<str>, detail: &str) {
        self.history.push(event(at, what, worker, detail));
    }

    pub(crate) fn last_error(&self) -> Arc<str> {
        self.error.clone().unwrap_or_default()
    }

    pub(crate) fn view(&self) -> KeyView {
        let record = KeyRecord {
            end: End::Done,
            seq: self.seq,
            accepted_at: self.accepted_at,
            leased_at: self.leased_at,
            finished_at: self.accepted_at,
            expires_at: Time::NEVER,
            attempts: self.attempts,
            generation: self.generation,
            fence: self.fence().unwrap_or_default(),
            worker: match &self.state {
                State::Leased { worker, .. } => worker.clone(),
                _ => self.worker.clone().unwrap_or_default(),
            },
            fingerprint: self.fingerprint,
            duplicates: self.duplicates,
            losses: self.losses,
            error: self.error.clone(),
            result: None,
            history: self.history.clone(),
            points: Default::default(),
            content: None,
            dated_ahead: None,
        };
        KeyView {
            key: self.scope.as_ref().map(|scope| scope.2.as_str().into()),
            digest: self.digest,
            place: self.place(),
            id: self.id(),
            deadline: self.deadline(),
            content: Some(self.content.clone()),
            recovery_points: self.points.clone(),
            history: told(&record, self.claim, false),
            record,
        }
    }
}

pub(crate) fn event(at: Time, what: What, worker: &Arc<str>, detail: &str) -> Event {
    Event { at, what, worker: worker.clone(), detail: detail.into() }
}

/// The incidents, and what is told from the record's times, in order.
pub(crate) fn told(record: &KeyRecord, claim: bool, ended: bool) -> Vec<Event> {
    let nobody: Arc<str> = "".into();
    let first = if claim { What::Claimed } else { What::Sent };
    let mut events = vec![event(record.accepted_at, first, &nobody, "")];
    if record.attempts > 0 && !claim {
        events.push(event(record.leased_at, What::Leased, &record.worker, ""));
    }
    events.extend(record.history.iter().cloned());
    if ended && record.end == End::Done {
        events.push(event(record.finished_at, What::Done, &record.worker, ""));
    }
    events.sort_by_key(|event| event.at);
    events
}

impl Model {
    pub(crate) fn recipe(&self) -> Recipe {
        if self.is_first { Recipe::First } else { recipe() }
    }

    pub(crate) fn digest(&self, (queue, group, key): &Scope) -> Digest {
        let queue = QueueName::new(TENANT, queue).expect("a name");
        self.recipe().key(&queue, group.as_deref(), key)
    }

    pub(crate) fn new(at: Time, bounds: Bounds) -> Self {
        Self { at, bounds, epoch: 1, next_seq: 1, ..Self::default() }
    }

    /// The process died: what was leased stays leased, what was soft may be gone.
    pub(crate) fn crash(&mut self) {
        self.crashed = true;
        self.store_full = false;
        self.epoch += 1;
        self.next_fence = 0;
    }

    pub(crate) fn queue(&self, name: &str) -> Option<&Queue> {
        self.queues.iter().find(|queue| &*queue.name.queue == name)
    }

    pub(crate) fn queue_mut(&mut self, name: &str) -> &mut Queue {
        let found = self.queues.iter_mut().find(|queue| &*queue.name.queue == name);
        found.expect("the queue exists")
    }

    pub(crate) fn scope(queue: &Queue, key: &str, group: Option<&str>) -> Scope {
        let group = group.filter(|_| queue.config.dedup_scope == DedupScope::Group);
        (queue.name.queue.to_string(), group.map(Into::into), key.into())
    }

    pub(crate) fn living(&self, scope: &Scope) -> Option<usize> {
        self.messages.iter().position(|message| message.scope.as_ref() == Some(scope))
    }

    /// A message by its key, or by its id where it came without one.
    pub(crate) fn named(&self, queue: &Queue, name: &KeyName) -> Option<usize> {
        let scope = Self::scope(queue, &name.key, name.group.as_deref());
        self.living(&scope).or_else(|| {
            self.messages.iter().position(|message| {
                message.scope.is_none()
                    && *message.queue == *queue.name.queue
                    && message.id().to_string() == *name.key
            })
        })
    }

    /// A record that still speaks for its key.
    pub(crate) fn remembered(&self, queue: &Queue, scope: &Scope) -> Option<&KeyRecord> {
        self.records.get(scope).filter(|record| {
            !record.is_free() && record.expires_at > self.at && record.seq >= queue.keys_from
        })
    }

    pub(crate) fn take_fence(&mut self) -> Fence {
        let counter = self.next_fence * u64::from(PARTITIONS);
        self.next_fence += 1;
        Fence::new(self.epoch, counter)
    }

    /// Takes a message away, and remembers its key.
    pub(crate) fn end(&mut self, index: usize, end: End, ending: Ending) {
        let message = self.messages.remove(index);
        let Some(scope) = message.scope else { return };
        let config = &self.queue(&message.queue).expect("its queue").config;
        // By the date of its operation a retry is refused: until then its key is remembered.
        let dated = date(message.content.key(), self.at).max(message.dated_ahead);
        let from = dated.map_or(self.at, |dated| dated.max(self.at));
        let expires_at = match end {
            End::Freed if message.points.is_empty() => self.at.plus(limits::FREED_MS),
            _ => config.retention_ms.map_or(Time::NEVER, |retention| from.plus(retention)),
        };
        let keeps = config.keep_bodies && end == End::Done && !message.claim;
        let mut history = message.history;
        history.extend(ending.event);
        let record = KeyRecord {
            end,
            seq: message.seq,
            accepted_at: message.accepted_at,
            leased_at: message.leased_at,
            finished_at: self.at,
            expires_at,
            attempts: message.attempts,
            generation: message.generation,
            fence: ending.fence,
            worker: ending.worker.or(message.worker).unwrap_or_default(),
            fingerprint: message.fingerprint,
            duplicates: message.duplicates,
            losses: message.losses,
            error: ending.error.or(message.error),
            result: ending.result,
            history,
            points: if end == End::Freed { message.points } else { Default::default() },
            content: keeps.then_some(message.content),
            dated_ahead: message.dated_ahead.filter(|dated| *dated > self.at),
        };
        self.records.insert(scope, record);
    }

    pub(crate) fn stats(&self, queue: &Queue) -> Stats {
        let name = &*queue.name.queue;
        let mine = || self.messages.iter().filter(|message| message.queue == name);
        let count = |place| mine().filter(|message| message.place() == place).count() as u64;
        let keys = self.records.iter().filter(|(scope, record)| {
            scope.0 == name
                && !record.is_free()
                && record.seq >= queue.keys_from
                && record.drop_at() > self.at.0
        });
        Stats {
            ready: count(Place::Ready),
            held: self.held(name),
            delayed: count(Place::Delayed),
            leased: count(Place::Leased),
            parked: count(Place::Parked),
            dead: count(Place::Dead),
            keys: keys.count() as u64,
            bytes: mine().map(|message| message.content.size() as u64).sum(),
            ..queue.totals
        }
    }

    /// How many ready messages wait for another one of their group: all where one is out or holds
    /// the others, else all but the first.
    fn held(&self, queue: &str) -> u64 {
        let mine = || self.messages.iter().filter(|message| message.queue == queue);
        let groups: BTreeSet<&String> =
            mine().filter_map(|message| message.ordered.as_ref()).collect();
        let held = groups.into_iter().map(|group| {
            let members = || mine().filter(|message| message.ordered.as_ref() == Some(group));
            let ready = members().filter(|message| message.state == State::Ready).count() as u64;
            let is_shut = members().any(|message| message.is_out() || message.holds());
            if is_shut { ready } else { ready.saturating_sub(1) }
        });
        held.sum()
    }

    /// The ready messages that may be handed out now, one list for each message without a group
    /// and for each group, in the order of their heads.
    pub(crate) fn deliverable(&self, queue: &str) -> Vec<Vec<usize>> {
        let mut ready: Vec<usize> = (0..self.messages.len())
            .filter(|index| {
                let message = &self.messages[*index];
                message.queue == queue && message.state == State::Ready
            })
            .collect();
        ready.sort_by_key(|index| self.messages[*index].seq);
        let mut lists: Vec<Vec<usize>> = Vec::new();
        for index in ready {
            let message = &self.messages[index];
            let group = || {
                self.messages
                    .iter()
                    .filter(|other| other.queue == queue && other.ordered == message.ordered)
            };
            if message.ordered.is_none() {
                lists.push(vec![index]);
                continue;
            }
            if group().any(Message::is_out)
                || group().any(|other| other.holds() && other.seq < message.seq)
            {
                continue;
            }
            let same = |list: &&mut Vec<usize>| {
                list.first().is_some_and(|head| self.messages[*head].ordered == message.ordered)
            };
            match lists.iter_mut().find(same) {
                Some(list) => list.push(index),
                None => lists.push(vec![index]),
            }
        }
        lists
    }

    pub(crate) fn show(&self, queue: &Queue) -> QueueView {
        let first = self.deliverable(&queue.name.queue).first().map(|list| list[0]);
        QueueView {
            number: queue.number,
            config: queue.config.clone(),
            version: queue.version,
            created_at: queue.created_at,
            paused: queue.paused,
            stats: self.stats(queue),
            oldest_ready_at: first.map(|index| self.messages[index].accepted_at),
        }
    }
}
