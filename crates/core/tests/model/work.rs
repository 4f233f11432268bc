//! Receives and settles, and what time does to leases.

use std::sync::Arc;

use bytes::Bytes;
use hapax_core::*;

use super::keys::check_for;
use super::state::*;

pub(crate) const OVER: &str = "its time to live was over";
pub(crate) const LOST: &str = "its lease was lost";

impl Model {
    pub(crate) fn receive(&mut self, receive: &Receive) -> Outcome {
        let Some(queue) = self.queue(&receive.queue.queue).cloned() else {
            return Outcome::Refused(Refusal::NoSuchQueue);
        };
        let lease_ms = receive.lease_ms.unwrap_or(queue.config.lease_ms);
        if lease_ms < limits::LEASE_MS_MIN {
            return Outcome::Refused(Refusal::Invalid(Invalid::LeaseLength(lease_ms)));
        }
        let name = queue.name.queue.to_string();
        let id = receive.receive_id.as_ref().map(|id| (name.clone(), id.to_string()));
        if let Some((until, leases)) = id.as_ref().and_then(|id| self.receives.get(id))
            && *until > self.at
        {
            let held = leases.iter().filter_map(|lease| {
                let held = self.messages.iter().find(|held| held.lease() == Some(*lease))?;
                Some(delivery(held, self.at))
            });
            let held: Vec<Delivery> = held.collect();
            if !held.is_empty() {
                return Outcome::Received(held);
            }
        }
        if queue.paused {
            return Outcome::Received(Vec::new());
        }
        let taken = self.take(&queue, receive);
        let deliveries = self.hand_out(&queue, &taken, self.at.plus(lease_ms), &receive.worker);
        if let Some(id) = id.filter(|_| !deliveries.is_empty()) {
            let until = self.at.plus(limits::RECEIVE_ID_MS);
            let leases = deliveries.iter().map(|delivery| delivery.lease).collect();
            self.receives.insert(id, (until, leases));
        }
        Outcome::Received(deliveries)
    }

    /// The oldest that may be handed out. Those whose time to live is over die instead.
    fn take(&mut self, queue: &Queue, receive: &Receive) -> Vec<usize> {
        let purged_below = queue.purge.unwrap_or(0);
        let parks = queue.config.on_group_dead == OnGroupDead::Park;
        let max = receive.max as usize;
        let (mut taken, mut bytes) = (Vec::new(), 0);
        for list in self.deliverable(&queue.name.queue) {
            if taken.len() >= max || bytes >= self.bounds.receive_bytes {
                break;
            }
            let most = if receive.several_per_group { max } else { taken.len() + 1 };
            for index in list {
                if self.messages[index].is_over(self.at) {
                    self.die_of_age(index);
                    if parks {
                        break;
                    }
                } else if self.messages[index].seq >= purged_below {
                    taken.push(index);
                    bytes += self.messages[index].content.size();
                }
                if taken.len() >= most || bytes >= self.bounds.receive_bytes {
                    break;
                }
            }
        }
        taken
    }

    fn hand_out(
        &mut self,
        queue: &Queue,
        taken: &[usize],
        deadline: Time,
        worker: &Arc<str>,
    ) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        for index in taken {
            let (at, fence) = (self.at, self.take_fence());
            let message = &mut self.messages[*index];
            message.leased_at = at;
            message.attempts += 1;
            message.state = State::Leased { fence, deadline, worker: worker.clone(), begun: false };
            message.lost = None;
            deliveries.push(delivery(message, self.at));
        }
        self.leases.extend(deliveries.iter().map(|delivery| delivery.lease));
        if queue.config.guarantee == Guarantee::AtMostOnce {
            self.queue_mut(&queue.name.queue).totals.done_total += taken.len() as u64;
            for delivery in &deliveries {
                let mut all = self.messages.iter();
                let index = all.position(|message| message.seq == delivery.lease.seq);
                let (fence, worker) = (delivery.lease.fence, Some(worker.clone()));
                let ending = Ending { fence, worker, ..Ending::default() };
                self.end(index.expect("just handed out"), End::Done, ending);
            }
        }
        deliveries
    }

    pub(crate) fn settle(&mut self, settle: &Settle) -> Outcome {
        Outcome::Settled(self.settled(settle))
    }

    fn settled(&mut self, settle: &Settle) -> Settled {
        let name = settle.lease;
        let ok = |place, deadline| Settled::Ok { place, deadline };
        let lost = |place, result| Settled::LeaseLost { place, result };
        let living = self.messages.iter().position(|message| message.digest == name.digest);
        let Some(index) = living else {
            let mut records = self.records.iter();
            let found = records.find(|(scope, _)| self.digest(scope) == name.digest);
            let found = found.map(|(_, record)| record);
            // A key past its time is unknown, also to its own worker.
            let Some(record) = found.filter(|record| record.expires_at > self.at) else {
                return lost(None, None);
            };
            let is_same = record.fence == name.fence && record.seq == name.seq;
            return match (record.end, &settle.verb) {
                (End::Done, Verb::Done { .. }) if is_same => ok(Place::Done, None),
                (End::Freed, Verb::Release | Verb::Fail { .. } | Verb::Park { .. }) if is_same => {
                    ok(Place::Discarded, None)
                }
                (End::Done, _) => lost(Some(Place::Done), record.result.clone()),
                (End::Discarded, _) => lost(Some(Place::Discarded), None),
                _ => lost(None, None),
            };
        };
        let message = &self.messages[index];
        let how = match settle.verb {
            Verb::Fail { .. } => Some(How::Failed),
            Verb::Release => Some(How::Released),
            Verb::Park { .. } => Some(How::Parked),
            _ => None,
        };
        // Only `done` ends the doubt about what is parked.
        let is_done = matches!(settle.verb, Verb::Done { .. });
        let ends = is_done || how.is_some() && message.place() != Place::Parked;
        let late = message.lost == Some(name.fence)
            && message.seq == name.seq
            && matches!(message.place(), Place::Ready | Place::Delayed | Place::Parked);
        if message.lease() != Some(name) && !(ends && late) {
            let again = message.settled.filter(|settled| {
                settled.0 == name.fence && message.seq == name.seq && how == Some(settled.1)
            });
            return match again {
                Some((_, _, place, deadline)) => ok(place, deadline),
                None => lost(Some(message.place()), None),
            };
        }
        match &settle.verb {
            Verb::Done { result, emits } => self.done(index, name.fence, result, emits),
            Verb::Fail { error, delay_ms, dead } => {
                self.fail(index, name.fence, error, *delay_ms, *dead)
            }
            Verb::Release => self.release(index, name.fence),
            Verb::Park { error, delay_ms, dead } => {
                self.park(index, name.fence, error, *delay_ms, *dead)
            }
            Verb::Extend { lease_ms } => self.extend(index, *lease_ms),
            Verb::Begin => self.begin(index),
            Verb::Save { name, data } => self.save(index, name, data),
        }
    }

    fn done(
        &mut self,
        index: usize,
        fence: Fence,
        result: &Option<Blob>,
        emits: &[Emit],
    ) -> Settled {
        let message = self.messages[index].clone();
        let queue = self.queue(&message.queue).expect("its queue");
        let max = queue.config.max_body_bytes;
        let per_group = queue.config.dedup_scope == DedupScope::Group;
        let bytes = result.as_ref().map_or(0, |result| result.body.len() as u64);
        if bytes > max {
            return Settled::Invalid(Invalid::BodyTooLarge { bytes, max });
        }
        let mut keyed = Vec::new();
        for (place, emit) in emits.iter().enumerate() {
            let Some(target) = self.queue(&emit.queue.queue) else {
                return Settled::NoSuchQueue { emit: place };
            };
            let mut emit = emit.clone();
            if emit.content.key().is_empty() {
                let id = message.id().to_string();
                let parent = Parent {
                    queue: &message.queue,
                    group: message.content.group().filter(|_| per_group),
                    key: message.scope.as_ref().map_or(&id, |scope| &scope.2),
                    generation: message.generation,
                };
                let key = derive(&parent, &emit.name);
                let content = Content::builder(&key).build(emit.content.body());
                emit.content = content.expect("a derived key is a key");
            }
            if let Err(Answer::Invalid(invalid)) = check_for(target, &emit.content) {
                return Settled::Invalid(invalid);
            }
            keyed.push(emit);
        }
        for second in 0..keyed.len() {
            let same = |first: &usize| {
                keyed[*first].queue == keyed[second].queue
                    && keyed[*first].content.key() == keyed[second].content.key()
            };
            if let Some(first) = (0..second).find(same) {
                return Settled::Invalid(Invalid::SameEmits(first, second));
            }
        }
        for emit in keyed {
            let (id, issued_at) = (self.next_relay, self.at);
            let within = *emit.queue.queue == *message.queue;
            let relay = Relay { id, emit, within, issued_at, attempts: 0, refused: None };
            self.relays.insert(id, relay);
            self.next_relay += 1;
        }
        self.queue_mut(&message.queue).totals.done_total += 1;
        let worker = Some(message.holder());
        let ending = Ending { fence, worker, result: result.clone(), ..Ending::default() };
        self.end(index, End::Done, ending);
        Settled::Ok { place: Place::Done, deadline: None }
    }

    fn fail(
        &mut self,
        index: usize,
        fence: Fence,
        error: &str,
        delay_ms: Option<u64>,
        dead: bool,
    ) -> Settled {
        let next = self.failed(index, delay_ms, dead);
        let at = self.at;
        let message = &mut self.messages[index];
        let (worker, name) = (message.holder(), message.queue.clone());
        message.tell(at, What::Failed, &worker, error);
        message.error = Some(error.into());
        message.worker = Some(worker);
        self.queue_mut(&name).totals.failed_total += 1;
        self.leave_lease(index, fence, How::Failed, next)
    }

    fn failed(&self, index: usize, delay_ms: Option<u64>, dead: bool) -> Next {
        match (dead, self.messages[index].claim) {
            (true, _) => Next::Dead,
            (false, true) => Next::Freed,
            (false, false) => self.after_failure(index, delay_ms),
        }
    }

    fn park(
        &mut self,
        index: usize,
        fence: Fence,
        error: &str,
        delay_ms: Option<u64>,
        dead: bool,
    ) -> Settled {
        let at = self.at;
        let message = &self.messages[index];
        let begun = matches!(message.state, State::Leased { begun: true, .. });
        let parks = self.queue(&message.queue).expect("its queue").config.on_lost == OnLost::Park;
        let next = if begun && parks { Next::Parked } else { self.failed(index, delay_ms, dead) };
        let message = &mut self.messages[index];
        let (worker, name) = (message.holder(), message.queue.clone());
        message.error = Some(error.into());
        message.worker = Some(worker.clone());
        if next != Next::Parked {
            message.tell(at, What::Failed, &worker, error);
            self.queue_mut(&name).totals.failed_total += 1;
        }
        let settled = self.leave_lease(index, fence, How::Parked, next);
        if next == Next::Parked {
            self.messages[index].lost = Some(fence);
        }
        settled
    }

    fn release(&mut self, index: usize, fence: Fence) -> Settled {
        let message = &mut self.messages[index];
        message.attempts -= 1;
        let next = if message.claim { Next::Freed } else { Next::Ready };
        self.leave_lease(index, fence, How::Released, next)
    }

    fn leave_lease(&mut self, index: usize, fence: Fence, how: How, next: Next) -> Settled {
        let (place, deadline) = match next {
            Next::Ready => (Place::Ready, None),
            Next::Delayed(due) => (Place::Delayed, Some(due)),
            Next::Dead => (Place::Dead, None),
            Next::Parked => (Place::Parked, None),
            Next::Freed => (Place::Discarded, None),
        };
        let message = &mut self.messages[index];
        message.settled = Some((fence, how, place, deadline));
        message.lost = None;
        self.go(index, fence, next);
        Settled::Ok { place, deadline }
    }

    pub(crate) fn go(&mut self, index: usize, fence: Fence, next: Next) {
        let (at, nobody) = (self.at, "".into());
        let queue = self.queue(&self.messages[index].queue).expect("its queue");
        let parks = queue.config.on_group_dead == OnGroupDead::Park;
        let message = &mut self.messages[index];
        let error = message.last_error();
        message.state = match next {
            Next::Ready => State::Ready,
            Next::Delayed(due) => State::Delayed { due, backoff: true },
            Next::Parked => {
                message.tell(at, What::Parked, &nobody, &error);
                State::Parked
            }
            Next::Dead => {
                message.tell(at, What::Dead, &nobody, &error);
                message.lost = None;
                State::Dead { at, holds: parks && message.ordered.is_some() }
            }
            Next::Freed => return self.free(index, fence),
        };
    }

    /// A claim is over without an answer.
    fn free(&mut self, index: usize, fence: Fence) {
        let worker = self.messages[index].holder();
        let freed = Some(event(self.at, What::Freed, &worker, ""));
        let ending = Ending { fence, worker: Some(worker), event: freed, ..Ending::default() };
        self.end(index, End::Freed, ending);
    }

    fn extend(&mut self, index: usize, lease_ms: Option<u64>) -> Settled {
        let at = self.at;
        let queue = self.queue(&self.messages[index].queue).expect("its queue");
        let lease_ms = lease_ms.unwrap_or(queue.config.lease_ms);
        if lease_ms < limits::LEASE_MS_MIN {
            return Settled::Invalid(Invalid::LeaseLength(lease_ms));
        }
        if let State::Leased { deadline, .. } = &mut self.messages[index].state {
            *deadline = at.plus(lease_ms);
        }
        Settled::Ok { place: Place::Leased, deadline: self.messages[index].deadline() }
    }

    fn begin(&mut self, index: usize) -> Settled {
        let at = self.at;
        let message = &mut self.messages[index];
        let worker = message.holder();
        let over = message.deadline().is_some_and(|deadline| deadline <= at);
        if let State::Leased { begun, .. } = &mut message.state
            && !*begun
        {
            if over {
                return Settled::LeaseLost { place: Some(Place::Leased), result: None };
            }
            *begun = true;
            message.tell(at, What::Begun, &worker, "");
        }
        Settled::Ok { place: Place::Leased, deadline: message.deadline() }
    }

    fn save(&mut self, index: usize, name: &str, data: &Bytes) -> Settled {
        let at = self.at;
        if name.is_empty() {
            return Settled::Invalid(Invalid::PointName);
        }
        let message = &mut self.messages[index];
        let mut points = message.points.clone();
        let before = points.insert(name.into(), data.clone());
        let bytes: usize = points.iter().map(|(name, data)| name.len() + data.len()).sum();
        if points.len() > limits::RECOVERY_POINTS_MAX || bytes > limits::RECOVERY_POINTS_BYTES_MAX {
            return Settled::Invalid(Invalid::Points);
        }
        message.points = points;
        if before.as_ref() != Some(data) {
            let worker = message.holder();
            message.tell(at, What::Saved, &worker, name);
        }
        Settled::Ok { place: Place::Leased, deadline: message.deadline() }
    }

    pub(crate) fn after_failure(&self, index: usize, delay_ms: Option<u64>) -> Next {
        let message = &self.messages[index];
        let config = &self.queue(&message.queue).expect("its queue").config;
        if message.attempts >= config.max_attempts || message.ttl_at <= self.at {
            return Next::Dead;
        }
        let (min, max) = (config.backoff_min_ms, config.backoff_max_ms);
        let delay = delay_ms
            .unwrap_or_else(|| backoff(min, max, message.attempts, self.random, message.seq));
        assert!(delay_ms.is_some() || (min..=max).contains(&delay), "full jitter has bounds");
        Next::Delayed(self.at.plus(delay))
    }
}

pub(crate) fn delivery(message: &Message, at: Time) -> Delivery {
    let deadline = message.deadline().unwrap_or_default();
    Delivery {
        lease: message.lease().expect("it is leased"),
        id: message.id(),
        attempt: message.attempts,
        generation: message.generation,
        content: message.content.clone(),
        accepted_at: message.accepted_at,
        deadline,
        lease_ms: deadline.since(at),
        recovery_points: message.points.clone(),
    }
}

/// Exponential with full jitter: the documented formula, with the random part given.
fn backoff(min: u64, max: u64, attempts: u32, random: u64, seq: Seq) -> u64 {
    let ceiling = (min.max(1) << (attempts - 1)).clamp(min, max);
    let mut mixed = random.wrapping_add(seq.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    min + mixed % (ceiling - min + 1)
}
