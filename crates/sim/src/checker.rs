//! The checker: compares what the clients saw with what is possible.
//!
//! It gets every answer in the order of decision, and every request whose answer was lost by a
//! crash. For each key it keeps the set of possible states of its message (`life`). It knows
//! nothing of journals, rows and machines.
//!
//! What it checks:
//! - nothing acknowledged is lost: a key that was once known stays known within its retention,
//!   unless a client had it forgotten;
//! - one message and one id per key; ids are never used twice;
//! - a stored result is returned unchanged to every later send;
//! - what is delivered is, byte for byte, what was sent;
//! - fences grow; a stale lease settles nothing; a held one is not lost before its deadline;
//! - groups are delivered in order, one unfinished at a time;
//! - attempts are counted exactly and never exceed the queue's limit;
//! - recovery points that were confirmed exist;
//! - an emit of a confirmed `done` arrives, as a message or as a dead letter.
//!
//! A request without an answer may have been done or not, and the checker allows both.

mod emit;
mod lease;
mod life;
mod lost;
mod operate;
mod queue;
mod send;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hapax_core::{
    Answer, Blob, Config, Content, DedupScope, Fence, MessageId, Outcome, Refusal, Time,
};

pub(crate) use lease::Lease;
pub(crate) use life::{Begun, Life, Places};
use queue::QueueState;

use crate::op::Op;
use crate::scene::{Item, ItemId, QueueSpec};

/// An impossible answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

pub(crate) type Checked = Result<(), Violation>;

pub(crate) fn violation<T>(text: impl Into<String>) -> Result<T, Violation> {
    Err(Violation(text.into()))
}

/// The bit of the variant that goes to another group.
const OTHER_GROUP: u8 = 1 << 3;

/// Everything that was seen.
#[derive(Clone, Debug)]
pub struct Checker {
    /// Every queue in every partition.
    queues: Vec<Vec<QueueState>>,
    /// The partition whose answer is being checked.
    here: usize,
    items: Vec<Item>,
    lives: Vec<Life>,
    /// The alternative state of an item if the broker was restored from a copy in which its queue
    /// was recreated and its key moved to another partition.
    moved: BTreeMap<ItemId, Life>,
    by_name: BTreeMap<(usize, String, String), ItemId>,
    by_number: BTreeMap<(u64, Arc<str>), ItemId>,
    ids: BTreeMap<MessageId, ItemId>,
    dates: BTreeMap<ItemId, BTreeSet<Time>>,
    /// Leases by partition and fence.
    leases: BTreeMap<(usize, Fence), Lease>,
    /// Leases that ended in a result and were forgotten when a copy was restored: the copy may have
    /// the result.
    finished: BTreeSet<(ItemId, Fence)>,
    fence_max: Vec<Fence>,
    /// The partition that issued each fence.
    fences: BTreeMap<Fence, usize>,
    /// Queues whose creation was confirmed and whose deletion was not requested since.
    kept: Vec<bool>,
    /// Receive ids that were used, and whether some answer under them was lost.
    receives: BTreeMap<u64, bool>,
    /// The same for claim ids.
    claims: BTreeMap<u64, bool>,
    emits: emit::Emits,
    /// A receive takes no further message after this many bytes.
    pub receive_bytes: usize,
    /// The disk is or was full: sends may be refused.
    pub may_be_full: bool,
    /// Bytes were damaged undetectably: only payloads are checked.
    pub damaged: bool,
}

impl Checker {
    pub fn new(queues: &[QueueSpec], partitions: usize) -> Self {
        let states = queues.iter().map(|spec| QueueState::new(spec.config.clone()));
        Self {
            queues: vec![states.collect(); partitions],
            here: 0,
            items: Vec::new(),
            lives: Vec::new(),
            by_name: BTreeMap::new(),
            by_number: BTreeMap::new(),
            ids: BTreeMap::new(),
            dates: BTreeMap::new(),
            leases: BTreeMap::new(),
            finished: BTreeSet::new(),
            moved: BTreeMap::new(),
            fence_max: vec![Fence(0); partitions],
            fences: BTreeMap::new(),
            claims: BTreeMap::new(),
            emits: emit::Emits::default(),
            kept: vec![false; queues.len()],
            receives: BTreeMap::new(),
            receive_bytes: usize::MAX,
            may_be_full: false,
            damaged: false,
        }
    }

    /// The broker was restored from a copy taken `then`. What clients were answered since may be
    /// undone; fences continue, and payloads are the same.
    pub fn set_back(&mut self, then: &Self) {
        self.lives.clone_from(&then.lives);
        self.lives.resize_with(self.items.len(), Life::unknown);
        self.moved.clone_from(&then.moved);
        self.ids.clone_from(&then.ids);
        let done = self
            .leases
            .iter()
            .filter_map(|((_, fence), lease)| lease.finished().map(|item| (item, *fence)));
        self.finished.extend(done);
        self.leases.clone_from(&then.leases);
        self.queues.clone_from(&then.queues);
        self.receives.values_mut().for_each(|lost| *lost = true);
        self.claims.values_mut().for_each(|lost| *lost = true);
        self.emits.clone_from(&then.emits);
        self.kept.clone_from(&then.kept);
    }

    /// Makes an item known before it is sent. A derived key may be known already.
    pub fn add(&mut self, item: Item) -> ItemId {
        let name = (item.queue, self.scope(&item), item.key.to_string());
        if !item.is_keyless()
            && let Some(known) = self.by_name.get(&name)
        {
            return *known;
        }
        let id = self.items.len();
        self.by_name.insert(name, id);
        self.by_number.insert((item.number, Arc::clone(&item.key)), id);
        self.items.push(item);
        self.lives.push(Life::unknown());
        id
    }

    /// Dates an emit by its parent's end. A parent whose queue was recreated ends again, and the
    /// clocks of partitions differ.
    pub fn date(&mut self, item: ItemId, at: Time) {
        self.dates.entry(item).or_default().insert(at);
        if let Some(item) = self.items.get_mut(item) {
            item.issued_at.get_or_insert(at);
        }
    }

    /// The issue times of the item, as far as known.
    fn dates(&self, item: ItemId) -> Vec<Time> {
        let own = self.item(item).issued_at.into_iter();
        own.chain(self.dates.get(&item).into_iter().flatten().copied()).collect()
    }

    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// Checks an answer.
    pub fn answered(&mut self, partition: usize, at: Time, op: &Op, outcome: &Outcome) -> Checked {
        self.here = partition;
        if self.damaged {
            return self.check_payloads(op, outcome);
        }
        let checked = self.check_queue(op, outcome).and_then(|()| match (op, outcome) {
            _ if is_no_such_queue(outcome) => Ok(()),
            (Op::Send { item, variant }, Outcome::Sent(answer)) => {
                self.sent(at, *item, *variant, answer)
            }
            (Op::Emit(emitted), Outcome::Sent(answer)) => self.handed_over(at, emitted, answer),
            (Op::Claim { .. }, Outcome::Claimed(answer)) => self.claimed(at, op, answer),
            (Op::Receive { .. }, Outcome::Received(deliveries)) => {
                self.received(at, op, deliveries)
            }
            (Op::Settle { held, how }, Outcome::Settled(settled)) => {
                self.settled(at, held, how, settled)
            }
            _ => self.operated(at, op, outcome),
        });
        checked
            .map_err(|Violation(text)| Violation(format!("{text}\n  {op:?}\n  {}", brief(outcome))))
    }

    /// Checks the answer against whether the queue can exist.
    fn check_queue(&mut self, op: &Op, outcome: &Outcome) -> Checked {
        let Some(queue) = op.queue(&self.items) else { return Ok(()) };
        match op {
            Op::Configure { .. } | Op::Follow { .. } | Op::Settle { .. } => Ok(()),
            _ if is_no_such_queue(outcome) => self.no_such_queue(queue),
            Op::Delete { .. } | Op::Show { .. } => Ok(()),
            _ => self.exists_here(queue),
        }
    }

    /// What is known to be unfinished, if anything: where, and how much.
    pub fn unfinished(&mut self, now: &[Time]) -> Option<String> {
        for item in 0..self.items.len() {
            let home = self.lives.get(item).and_then(|life| life.home).unwrap_or(0);
            let Some(at) = now.get(home).copied() else { continue };
            self.here = home;
            let (life, spec, _) = self.passed(at, item);
            if !life.places.may_be(Places::ENDED.or(Places::ABSENT)) {
                return Some(format!("{} is {}", spec.key, life.places));
            }
        }
        None
    }

    /// The request by which an operator resolves the item.
    pub fn resolve(&self, item: ItemId, done: bool) -> Op {
        let id = self.lives.get(item).and_then(|life| life.id);
        let is_keyless = self.items.get(item).is_some_and(Item::is_keyless);
        Op::Resolve { item, done, id: id.filter(|_| is_keyless) }
    }

    /// Whether the message may be waiting for an operator.
    pub fn may_be_parked(&mut self, now: &[Time], item: ItemId) -> bool {
        let home = self.lives.get(item).and_then(|life| life.home).unwrap_or(0);
        let Some(at) = now.get(home).copied() else { return false };
        self.here = home;
        self.passed(at, item).0.places.may_be(Places::PARKED)
    }

    /// The life of an item after the passing of time, with the item and its configuration.
    fn passed(&mut self, at: Time, item: ItemId) -> (&mut Life, &Item, &Config) {
        let (Some(life), Some(spec)) = (self.lives.get_mut(item), self.items.get(item)) else {
            unreachable!("items are added before they are named")
        };
        let queues = self.queues.get(self.here);
        let Some(queue) = queues.and_then(|queues| queues.get(spec.queue)) else {
            unreachable!("names are fixed")
        };
        life.pass(at, spec, &queue.config);
        (life, spec, &queue.config)
    }

    fn item(&self, item: ItemId) -> &Item {
        let Some(spec) = self.items.get(item) else { unreachable!("items are added first") };
        spec
    }

    fn config(&self, queue: usize) -> &Config {
        &self.state(queue).config
    }

    fn scope(&self, item: &Item) -> String {
        let grouped = self.config(item.queue).dedup_scope == DedupScope::Group;
        item.group.as_deref().filter(|_| grouped).unwrap_or_default().to_owned()
    }

    /// The item that a payload belongs to.
    pub(crate) fn whose(&self, content: &Content) -> Result<ItemId, Violation> {
        let number = content.headers().find(|(name, _)| *name == "number");
        let number = number.and_then(|(_, number)| number.parse().ok());
        let key: Arc<str> = content.key().into();
        match number.and_then(|number| self.by_number.get(&(number, key))) {
            Some(item) => Ok(*item),
            None => violation(format!("{:?} was delivered and never sent", content.key())),
        }
    }

    /// Which variants of the item have this payload, as bits.
    fn variants_of(&self, item: ItemId, content: &Content) -> Result<u8, Violation> {
        let spec = self.item(item);
        let scope = self.config(spec.queue).dedup_scope;
        let mut variants = 0;
        for variant in 0..crate::scene::VARIANTS {
            if *spec.content(variant, scope) == *content {
                variants |= 1 << variant;
            }
        }
        if variants == 0 {
            return violation(format!("the payload of {} is not what was sent", spec.key));
        }
        Ok(variants)
    }

    /// Checks only payloads, after undetectable damage.
    fn check_payloads(&mut self, op: &Op, outcome: &Outcome) -> Checked {
        if let (Op::Receive { .. }, Outcome::Received(deliveries)) = (op, outcome) {
            for delivery in deliveries {
                let item = self.whose(&delivery.content)?;
                self.variants_of(item, &delivery.content)?;
            }
        }
        Ok(())
    }

    /// Checks the id of the message under the key.
    fn check_id(&mut self, item: ItemId, id: MessageId) -> Checked {
        let owner = self.ids.get(&id).copied();
        let (Some(life), Some(spec)) = (self.lives.get_mut(item), self.items.get(item)) else {
            unreachable!("items are added before they are named")
        };
        if life.id == Some(id) {
            life.may_be_new = false;
            return Ok(());
        }
        if let Some(known) = life.id
            && !life.may_be_new
        {
            return violation(format!("{} has two ids: {known} and {id}", spec.key));
        }
        if owner.is_some() {
            return violation(format!("the id {id} of {} was used before", spec.key));
        }
        if let Some(old) = life.id.replace(id) {
            life.past.insert(old, life.result.take());
            life.generation = 0;
        }
        life.may_be_new = false;
        self.ids.insert(id, item);
        Ok(())
    }

    /// Checks that a stored result is one of those given, and stays the same.
    fn check_result(&mut self, item: ItemId, result: &Option<Blob>) -> Checked {
        let (Some(life), Some(spec)) = (self.lives.get_mut(item), self.items.get(item)) else {
            unreachable!("items are added before they are named")
        };
        match &life.result {
            Some(known) if known == result => Ok(()),
            Some(known) => violation(format!(
                "the stored result of {} changed from {known:?} to {result:?}",
                spec.key
            )),
            None if life.results.contains(result) => {
                life.result = Some(result.clone());
                Ok(())
            }
            None => violation(format!("{} is done with a result nobody gave", spec.key)),
        }
    }

    /// Narrows the places of an item.
    fn narrow(&mut self, at: Time, item: ItemId, to: Places) -> Checked {
        let (life, spec, _) = self.passed(at, item);
        let name = spec.key.clone();
        life.narrow(at, to).map_err(|known| {
            Violation(format!("{name} is said to be {to} at {}, and is {known}", at.0))
        })
    }

    /// Checks a group: in order, one unfinished at a time.
    fn check_group(&mut self, at: Time, item: ItemId, together: &BTreeSet<ItemId>) -> Checked {
        use hapax_core::{OnGroupDead, Order};
        let spec = self.item(item);
        let (queue, group, key) = (spec.queue, spec.group.clone(), spec.key.clone());
        let config = self.config(queue);
        if config.order != Order::Group || group.is_none() {
            return Ok(());
        }
        let holds = config.on_group_dead == OnGroupDead::Park && self.state(queue).always_held();
        let Some(life) = self.lives.get(item) else { return Ok(()) };
        if life.variants & OTHER_GROUP != 0 {
            return Ok(());
        }
        let id = life.id;
        for other in self.homed(queue) {
            if other == item || together.contains(&other) || self.item(other).group != group {
                continue;
            }
            let (life, spec, _) = self.passed(at, other);
            if life.variants & OTHER_GROUP != 0 {
                continue; // It may have gone to another group.
            }
            let mut free = Places::ENDED.or(Places::ABSENT);
            if life.sender_delays {
                free.add(Places::DELAYED);
            }
            let is_older = life.id.is_some_and(|other| Some(other) < id) && !life.may_be_new;
            if !is_older {
                free.add(Places::READY);
            }
            if !holds || !is_older {
                free.add(Places::DEAD); // A dead message only blocks younger ones.
            }
            if !life.places.may_be(free) {
                return violation(format!(
                    "{key} was delivered while {} of its group is {}",
                    spec.key, life.places
                ));
            }
        }
        Ok(())
    }
}

/// Whether the answer is that the queue does not exist.
fn is_no_such_queue(outcome: &Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Sent(Answer::NoSuchQueue)
            | Outcome::Claimed(Answer::NoSuchQueue)
            | Outcome::Refused(Refusal::NoSuchQueue)
    )
}

/// An outcome without its payloads.
pub(crate) fn brief(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Received(deliveries) => {
            let told = deliveries.iter().map(|delivery| {
                let (key, group) = (delivery.content.key(), delivery.content.group());
                let (fence, attempt) = (delivery.lease.fence.0, delivery.attempt);
                let (id, deadline) = (delivery.id, delivery.deadline.0);
                format!("{key} {group:?} {id} fence {fence} attempt {attempt} until {deadline}")
            });
            format!("Received({})", told.collect::<Vec<_>>().join(", "))
        }
        Outcome::Key(view) => format!(
            "Key({:?} {} {} attempts {} until {:?})",
            view.key,
            view.place.as_str(),
            view.id,
            view.record.attempts,
            view.deadline
        ),
        _ => format!("{outcome:?}"),
    }
}
