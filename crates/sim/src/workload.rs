//! The clients: producers that retry until they are answered, workers that work, fail, stall and
//! die, and operators now and then. All of them are one stream of requests, drawn from the seed.

use std::collections::VecDeque;

use hapax_core::{
    Answer, Arrival, Config, DedupScope, Delivery, Effect, OnLost, Outcome, Parent, Settled, Time,
    derive,
};

use crate::Random;
use crate::checker::Checker;
use crate::op::{EMIT, Emitted, Held, How, Op, POINTS, Patience};
use crate::scene::{Item, ItemId, QueueSpec, Scene, VARIANTS, Variant, draw_change, draw_config};

/// The state of the clients.
#[derive(Debug, Default)]
pub struct Workload {
    next_number: u64,
    next_receive: u64,
    next_claim: u64,
    next_redrive: u64,
    /// Sends without an answer, to be tried again as they were.
    unanswered: VecDeque<Op>,
    /// Leases held by workers.
    held: Vec<Held>,
    /// Leases that are over and may still be used by mistake.
    stale: VecDeque<Held>,
    /// Receives that may be repeated.
    receives: VecDeque<Op>,
    /// Emits in flight.
    relays: VecDeque<Emitted>,
}

/// The most stale leases and receives that are remembered.
const REMEMBERED_MAX: usize = 24;
/// Bodies that fill a disk.
const LARGE_BYTES: usize = 600;

impl Workload {
    /// The next requests: mostly one, sometimes several for one batch.
    pub fn next(
        &mut self,
        random: &mut Random,
        scene: &Scene,
        checker: &mut Checker,
        now: Time,
    ) -> Vec<Op> {
        if scene.changes_queues && random.one_in(60) {
            return self.change_queue(random, scene, checker);
        }
        let op = self.one(random, scene, checker, now);
        match op.queue(checker.items()) {
            // A client may create the missing queue.
            Some(queue) if !checker.exists(0, queue) && random.one_in(2) => {
                let mut ops = vec![create(random, checker, queue)];
                ops.extend(self.old_keys(random, checker, queue));
                ops.push(op);
                ops
            }
            _ => vec![op],
        }
    }

    /// Changes, deletes or recreates a queue; what is sent to it then, mostly old keys, is often in
    /// the same batch.
    fn change_queue(&self, random: &mut Random, scene: &Scene, checker: &Checker) -> Vec<Op> {
        let queue = random.index(scene.queues.len());
        let before = checker.rules(0, queue);
        let mut ops = Vec::new();
        match random.below(6) {
            0 | 1 => {
                let config = Box::new(draw_change(random, &before));
                ops.push(Op::Configure { queue, config });
            }
            2 => {
                let config = Box::new(draw_config(random, before.dedup_scope));
                ops.push(Op::Configure { queue, config });
            }
            3 => ops.push(Op::Delete { queue }),
            _ => {
                ops.push(Op::Delete { queue });
                ops.push(create(random, checker, queue));
            }
        }
        if random.one_in(2) {
            ops.extend(self.old_keys(random, checker, queue));
        }
        ops
    }

    /// Retries of keys that the queue may have known before it was recreated.
    fn old_keys(&self, random: &mut Random, checker: &Checker, queue: usize) -> Vec<Op> {
        let items = checker.items().iter().enumerate();
        let known: Vec<ItemId> = items
            .filter(|(_, item)| item.queue == queue && !item.is_keyless() && !item.claim)
            .map(|(id, _)| id)
            .collect();
        let count = random.below(5);
        let picked = (0..count).filter_map(|_| random.pick(&known).copied());
        picked.map(|item| Op::Send { item, variant: 0 }).collect()
    }

    fn one(&mut self, random: &mut Random, scene: &Scene, checker: &mut Checker, now: Time) -> Op {
        if let Some(emitted) = self.relays.pop_front() {
            // Sent once: its list returns it again if needed.
            if random.one_in(2) {
                return Op::Emit(emitted);
            }
            self.relays.push_back(emitted);
        }
        match random.weighted(&[34, 20, 30, 4, 3, 2]) {
            0 => self.produce(random, scene, checker, now),
            1 => self.receive(random, scene),
            2 => self.settle(random, scene, checker),
            3 => self.claim(random, scene, checker, now),
            4 => match any_key(random, checker) {
                Some(item) => Op::Look { item },
                None => Op::Show { queue: random.index(scene.queues.len()) },
            },
            _ => self.operate(random, scene, checker),
        }
    }

    /// Takes note of an answer.
    pub fn answered(&mut self, random: &mut Random, op: &Op, outcome: &Outcome, keyed: bool) {
        match (op, outcome) {
            (Op::Send { item, .. }, Outcome::Sent(answer)) => {
                self.unanswered.retain(|waiting| !is_send_of(waiting, *item));
                let refused = matches!(answer, Answer::OverQuota { .. } | Answer::StoreFull);
                if refused && random.one_in(2) && keyed {
                    self.unanswered.push_back(op.clone());
                }
            }
            (Op::Claim { item, .. }, Outcome::Claimed(answer)) => {
                self.unanswered.retain(|waiting| !is_send_of(waiting, *item));
                if let Answer::Fresh(fresh) = answer {
                    let (name, id) = (fresh.lease, fresh.id);
                    let held = Held { item: *item, name, id, generation: 0 };
                    if !self.held.contains(&held) {
                        self.held.push(held);
                    }
                    if random.one_in(4) && matches!(op, Op::Claim { id: Some(_), .. }) {
                        self.unanswered.push_back(op.clone()); // It got no answer, and retries.
                    }
                }
            }
            (Op::Settle { held, how }, Outcome::Settled(Settled::Ok { .. })) => {
                if matches!(how, How::Done(_) | How::Fail { .. } | How::Release | How::Park { .. })
                {
                    self.drop_lease(held);
                }
            }
            // Its queue may exist, and the list of emits may be shorter, another time.
            (Op::Settle { .. }, Outcome::Settled(Settled::NoSuchQueue { .. })) => {}
            (Op::Settle { .. }, Outcome::Settled(Settled::RelayFull | Settled::Invalid(_))) => {}
            (Op::Settle { held, .. }, Outcome::Settled(_)) => self.drop_lease(held),
            _ => {}
        }
        if matches!(op, Op::Receive { id: Some(_), .. }) {
            remember(&mut self.receives, op.clone());
        }
    }

    /// A worker got this. Some die at once.
    pub fn delivered(&mut self, random: &mut Random, item: ItemId, delivery: &Delivery) {
        self.delivered_to(random.one_in(8), item, delivery);
    }

    /// A worker got this; if it dies it never settles, or far too late.
    pub fn delivered_to(&mut self, dies: bool, item: ItemId, delivery: &Delivery) {
        let (name, id, generation) = (delivery.lease, delivery.id, delivery.generation);
        let held = Held { item, name, id, generation };
        if self.held.contains(&held) {
            return;
        }
        if dies {
            remember(&mut self.stale, held);
        } else {
            self.held.push(held);
        }
    }

    /// The answer was lost. Without a key it cannot be retried.
    pub fn lost(&mut self, op: &Op, checker: &Checker) {
        let is_keyless = |item: &ItemId| checker.items().get(*item).is_none_or(Item::is_keyless);
        match op {
            Op::Send { item, .. } if is_keyless(item) => {}
            Op::Send { item, .. } | Op::Claim { item, .. } if !self.is_unanswered(*item) => {
                self.unanswered.push_back(op.clone());
            }
            Op::Receive { id: Some(_), .. } => remember(&mut self.receives, op.clone()),
            Op::Emit(emitted) => self.relays.push_back(emitted.clone()),
            _ => {}
        }
    }

    /// An emit is to be sent to its queue.
    pub fn relay(&mut self, effect: &Effect, scene: &Scene, checker: &mut Checker) {
        let Effect::Relay(relay) = effect else { return };
        let queue = scene.queues.iter().position(|spec| spec.name == relay.emit.queue);
        let Some(emitted) = queue.and_then(|queue| checker.emitted(0, queue, relay)) else {
            return;
        };
        self.relays.retain(|known| known.id != emitted.id);
        self.relays.push_back(emitted);
    }

    /// The confirmation of an emit whose queue answered.
    pub fn relayed(op: &Op, outcome: &Outcome) -> Option<Op> {
        match (op, outcome) {
            (Op::Emit(emitted), Outcome::Sent(answer)) => {
                Some(Op::Relayed { id: emitted.id, arrival: Arrival::of(answer) })
            }
            _ => None,
        }
    }

    pub fn held(&self) -> &[Held] {
        &self.held
    }

    pub fn take_relays(&mut self) -> impl Iterator<Item = Emitted> {
        std::mem::take(&mut self.relays).into_iter()
    }

    pub fn unanswered(&mut self) -> Option<Op> {
        self.unanswered.pop_front()
    }

    pub fn redrive(&mut self, queue: usize) -> Op {
        self.next_redrive += 1;
        Op::Redrive { queue, id: self.next_redrive, items: Vec::new() }
    }

    /// Drops leases that the broker does not know any more since a copy was restored.
    pub fn forget_unknown(&mut self, checker: &Checker) {
        let is_known = |held: &Held| checker.knows_fence(held.fence());
        self.held.retain(is_known);
        self.stale.retain(is_known);
        self.relays.clear();
    }

    /// The process is gone, and with it the emits to send.
    pub fn crashed(&mut self) {
        self.relays.clear();
    }

    fn is_unanswered(&self, item: ItemId) -> bool {
        self.unanswered.iter().any(|waiting| is_send_of(waiting, item))
    }

    fn drop_lease(&mut self, held: &Held) {
        self.held.retain(|other| other != held);
        remember(&mut self.stale, *held);
    }

    fn produce(
        &mut self,
        random: &mut Random,
        scene: &Scene,
        checker: &mut Checker,
        now: Time,
    ) -> Op {
        if random.one_in(2)
            && let Some(op) = self.unanswered.pop_front()
        {
            // Kept until an answer arrives: several retries may be in flight at once.
            self.unanswered.push_back(op.clone());
            return op;
        }
        if random.one_in(4)
            && let Some(item) = any_key(random, checker)
        {
            let variant = draw_variant(random);
            return match is_claim(checker, item) {
                true => self.claim_of(random, item, variant),
                false => Op::Send { item, variant },
            };
        }
        let item = self.item(random, scene, checker, now, false);
        Op::Send { item, variant: draw_variant(random) }
    }

    /// A large message that was not sent before, to be worked on at once.
    pub fn plain_send(&mut self, random: &mut Random, scene: &Scene, checker: &mut Checker) -> Op {
        let queue = random.index(scene.queues.len());
        let config = checker.rules(0, queue);
        loop {
            self.next_number += 1;
            let item = QueueSpec::item(&config, random, queue, self.next_number, Time(0));
            let item = Item { issued_at: None, delay_ms: None, ttl_ms: None, ..item };
            if !item.claim && item.content(0, config.dedup_scope).body().len() >= LARGE_BYTES {
                return Op::Send { item: checker.add(item), variant: 0 };
            }
        }
    }

    /// A new item, which the checker knows from now on.
    fn item(
        &mut self,
        random: &mut Random,
        scene: &Scene,
        checker: &mut Checker,
        now: Time,
        claim: bool,
    ) -> ItemId {
        let queue = random.index(scene.queues.len());
        let config = checker.rules(0, queue);
        self.next_number += 1;
        loop {
            let item = QueueSpec::item(&config, random, queue, self.next_number, now);
            let cannot_claim = config.guarantee == hapax_core::Guarantee::AtMostOnce;
            if item.claim == claim || cannot_claim {
                return checker.add(item);
            }
        }
    }

    fn claim(
        &mut self,
        random: &mut Random,
        scene: &Scene,
        checker: &mut Checker,
        now: Time,
    ) -> Op {
        let claims: Vec<ItemId> =
            (0..checker.items().len()).filter(|id| is_claim(checker, *id)).collect();
        let known = random.pick(&claims).copied().filter(|_| random.one_in(2));
        let item = known.unwrap_or_else(|| self.item(random, scene, checker, now, true));
        if !is_claim(checker, item) {
            return Op::Send { item, variant: 0 };
        }
        let variant = draw_variant(random);
        self.claim_of(random, item, variant)
    }

    fn claim_of(&mut self, random: &mut Random, item: ItemId, variant: Variant) -> Op {
        let id = random.one_in(2).then(|| {
            self.next_claim += 1;
            self.next_claim
        });
        Op::Claim { item, variant, lease_ms: random.between(100, 3_000), id }
    }

    fn receive(&mut self, random: &mut Random, scene: &Scene) -> Op {
        if random.one_in(8)
            && let Some(op) = self.receives.pop_back()
        {
            return op;
        }
        let id = random.one_in(4).then(|| {
            self.next_receive += 1;
            self.next_receive
        });
        Op::Receive {
            queue: random.index(scene.queues.len()),
            max: random.between(1, 6) as u32,
            lease_ms: random.one_in(4).then(|| random.between(100, 5_000)),
            id,
            several: random.one_in(5),
            patience: if random.one_in(3) { Patience::Waits } else { Patience::None },
        }
    }

    fn settle(&mut self, random: &mut Random, scene: &Scene, checker: &mut Checker) -> Op {
        let from_stale = self.held.is_empty() || random.one_in(8);
        let stale = self.stale.make_contiguous();
        let chosen = random.pick(if from_stale { stale } else { &self.held }).copied();
        let Some(held) = chosen else { return self.receive(random, scene) };
        let how = match random.weighted(&[50, 14, 8, 8, 8, 6, 4]) {
            0 => return self.done(scene, checker, held),
            1 => How::Fail {
                delay_ms: random.one_in(3).then(|| random.below(500)),
                dead: random.one_in(6),
            },
            2 => How::Release,
            3 => How::Extend { lease_ms: random.between(100, 4_000) },
            4 => How::Begin,
            6 => How::Park { dead: random.one_in(3) },
            _ => How::Save(random.pick(&POINTS).copied().unwrap_or("charged")),
        };
        Op::Settle { held, how }
    }

    /// The work is done.
    pub fn done(&mut self, scene: &Scene, checker: &mut Checker, held: Held) -> Op {
        Op::Settle { held, how: How::Done(self.emits(scene, checker, &held)) }
    }

    /// Sometimes a message has a follow-up, under a key derived from its own.
    fn emits(&mut self, scene: &Scene, checker: &mut Checker, held: &Held) -> Vec<ItemId> {
        let Some(parent) = checker.items().get(held.item).cloned() else { return Vec::new() };
        // The same follow-up for every attempt, or retries would emit different messages.
        let mut fixed = Random::new(parent.number << 8 | u64::from(held.generation));
        if parent.claim || parent.key.len() > 20 || !fixed.one_in(4) {
            return Vec::new();
        }
        let parent_key = match parent.is_keyless() {
            true => held.id.to_string(),
            false => parent.key.to_string(),
        };
        let Some(spec) = scene.queues.get(parent.queue) else { return Vec::new() };
        let per_group = spec.config.dedup_scope == DedupScope::Group;
        let origin = Parent {
            queue: &spec.name.queue,
            group: parent.group.as_deref().filter(|_| per_group),
            key: &parent_key,
            generation: held.generation,
        };
        let queue = fixed.index(scene.queues.len());
        // By its initial configuration, whatever it is now: every attempt must draw the same.
        let Some(spec) = scene.queues.get(queue) else { return Vec::new() };
        self.next_number += 1;
        let drawn = QueueSpec::item(&spec.config, &mut fixed, queue, self.next_number, Time(0));
        let is_contested = fixed.one_in(5);
        let emit = checker.add(Item {
            key: derive(&origin, EMIT).into(),
            claim: false,
            issued_at: None,
            ttl_ms: None,
            ..drawn
        });
        if is_contested && !self.is_unanswered(emit) {
            // Another client sends another message under its key, before it or after.
            self.unanswered.push_back(Op::Send { item: emit, variant: 1 });
        }
        vec![emit]
    }

    fn operate(&mut self, random: &mut Random, scene: &Scene, checker: &Checker) -> Op {
        let queue = random.index(scene.queues.len());
        let Some(item) = any_key(random, checker) else { return Op::Show { queue } };
        match random.weighted(&[6, 4, 6, 8, 8, 4, 3, 1]) {
            0 => Op::Forget { item },
            1 if !is_claim(checker, item) => Op::Replay { item, variant: 0 },
            2 => Op::Discard { item },
            3 => checker.resolve(item, random.one_in(2)),
            4 => {
                let of_queue = checker.items().get(item).map_or(queue, |item| item.queue);
                // Sometimes under a used id: a retry, or another redrive.
                self.next_redrive += u64::from(!random.one_in(8));
                let items = if random.one_in(2) { vec![item] } else { Vec::new() };
                Op::Redrive { queue: of_queue, id: self.next_redrive, items }
            }
            5 => Op::Purge { queue, keys: random.one_in(2) },
            6 => Op::Pause { queue, paused: random.one_in(3) },
            _ => Op::Show { queue },
        }
    }
}

/// Lifts the limits of a queue. Without it a queue full of messages that emit to itself could not
/// be drained once the list of emits is full, nor messages whose emits are larger than their queue
/// allows.
pub(crate) fn make_room(checker: &Checker, queue: usize) -> Op {
    let rules = checker.rules(0, queue);
    let max_body_bytes = Config::default().max_body_bytes;
    let config = Config { max_messages: None, max_bytes: None, max_body_bytes, ..rules };
    Op::Configure { queue, config: Box::new(config) }
}

/// Lets messages end only when they are worked on.
pub(crate) fn make_plain(checker: &Checker, queue: usize) -> Op {
    let plain = Config {
        max_messages: None,
        max_bytes: None,
        max_body_bytes: Config::default().max_body_bytes,
        lease_ms: 3_600_000,
        max_attempts: 1_000,
        delay_ms: 0,
        ttl_ms: None,
        on_lost: OnLost::Redeliver,
        ..checker.rules(0, queue)
    };
    Op::Configure { queue, config: Box::new(plain) }
}

/// Rounds between lifting quotas during a drain.
pub(crate) const ROOM_EVERY: u64 = 40;

/// Creates a missing queue, with a new configuration.
pub(crate) fn create(random: &mut Random, checker: &Checker, queue: usize) -> Op {
    let dedup_scope = checker.rules(0, queue).dedup_scope;
    Op::Configure { queue, config: Box::new(draw_config(random, dedup_scope)) }
}

fn draw_variant(random: &mut Random) -> Variant {
    if random.one_in(8) { random.below(VARIANTS.into()) as Variant } else { 0 }
}

fn is_send_of(op: &Op, item: ItemId) -> bool {
    matches!(op, Op::Send { item: other, .. } | Op::Claim { item: other, .. } if *other == item)
}

fn is_claim(checker: &Checker, item: ItemId) -> bool {
    checker.items().get(item).is_some_and(|item| item.claim)
}

/// An item with a key, preferably a recent one.
pub(crate) fn any_key(random: &mut Random, checker: &Checker) -> Option<ItemId> {
    let items = checker.items();
    let from = if random.share(2, 3) { items.len().saturating_sub(30) } else { 0 };
    let keyed: Vec<ItemId> = (from..items.len())
        .filter(|id| items.get(*id).is_some_and(|item| !item.is_keyless()))
        .collect();
    random.pick(&keyed).copied()
}

fn remember<T>(list: &mut VecDeque<T>, entry: T) {
    if list.len() >= REMEMBERED_MAX {
        list.pop_front();
    }
    list.push_back(entry);
}
