//! Routes requests to their partitions, and answers back.

use std::collections::BTreeMap;

use hapax_core::{Arrival, Command, Effect, Outcome, Relay, Report, Stamp, Time};
use hapax_partition::relay;

use super::{Ask, Batch, Broker, Call, Going, Whose, failed, wrong};
use crate::checker::brief;
use crate::op::{Held, How, Op};
use crate::planted::Bug;

/// The most calls in one batch.
const CALLS_MAX: u64 = 8;
/// The most rounds until a process is idle.
const ROUNDS_MAX: u32 = 10_000;

impl Broker {
    /// Handles a client's request: begins a change of a queue, or sends it to its partition.
    pub(super) fn ask(&mut self, op: Op) {
        match op {
            Op::Configure { .. } | Op::Delete { .. } | Op::Pause { .. } | Op::Purge { .. } => {
                self.change(op);
            }
            Op::Redrive { .. } => {
                for partition in 0..self.stores.len() {
                    self.push(partition, vec![op.clone()], Whose::Client);
                }
            }
            op if self.may_wait(&op) => self.wait(op),
            op => {
                let partition = self.route(&op);
                self.push(partition, vec![op], Whose::Client);
            }
        }
    }

    pub(super) fn route(&mut self, op: &Op) -> usize {
        let turn = self.random.index(self.stores.len());
        let routes = &self.routes;
        if let Op::Settle { held: Held { id, .. }, .. } | Op::Resolve { id: Some(id), .. } = op {
            return usize::from(id.partition());
        }
        match op.command(&self.scene, self.checker.items()) {
            Command::Send(send) => routes.of_new(&send.queue, send.digest, &send.content, || turn),
            Command::Claim(claim) => {
                routes.of_new(&claim.queue, claim.digest, &claim.content, || turn)
            }
            Command::Receive(receive) => routes.of_receive(&receive).unwrap_or(turn),
            Command::Look(key) | Command::Forget(key) | Command::Discard(key) => {
                routes.of_key(&key).next().unwrap_or(0)
            }
            Command::Resolve(resolve) => routes.of_key(&resolve.key).next().unwrap_or(0),
            Command::Replay(replay) => routes.of_key(&replay.key).next().unwrap_or(0),
            _ => turn,
        }
    }

    pub(super) fn push(&mut self, partition: usize, ops: Vec<Op>, whose: Whose) {
        let items = self.checker.items();
        let commands = ops.iter().map(|op| op.command(&self.scene, items)).collect();
        self.push_commands(partition, ops, commands, whose);
    }

    pub(super) fn push_commands(
        &mut self,
        partition: usize,
        ops: Vec<Op>,
        commands: Vec<Command>,
        whose: Whose,
    ) {
        if let Some(owner) = self.owners.get_mut(partition) {
            owner.inbox.push_back(Ask::Call(Call { ops, commands, whose }));
        }
    }

    /// Lets a partition decide its inbox, several calls in one batch.
    pub(super) fn decide(&mut self, partition: usize) -> Going {
        if self.fallen == Some(partition) {
            return Ok(());
        }
        let most = self.random.between(1, CALLS_MAX) as usize;
        let (clocks, random) = (self.clocks, self.random.bits());
        let Some(owner) = self.owners.get_mut(partition) else { return Ok(()) };
        if owner.partition.is_busy() {
            return Ok(());
        }
        let count = most.min(owner.inbox.len());
        let asks: Vec<Ask> = owner.inbox.drain(..count).collect();
        let now = owner.clock.now(Time(clocks.wall_ms), clocks.monotonic_us);
        let at = now.max(owner.partition.now());
        let mut commands = Vec::new();
        let mut batch = Batch { at, calls: Default::default(), outcomes: Vec::new() };
        // As in the writer: called waiters come first.
        for waiter in owner.waiters.take_called() {
            let op = self.waits.op(&waiter);
            commands.push(waiter.command());
            batch.calls.push_back((vec![op], Whose::Waiter(waiter)));
        }
        for ask in asks {
            match ask {
                Ask::Call(mut call) => {
                    commands.append(&mut call.commands);
                    batch.calls.push_back((call.ops, call.whose));
                }
                Ask::Wait(op, waiter) => {
                    if let Some(waiter) = owner.waiters.admit(waiter) {
                        commands.push(waiter.command());
                        batch.calls.push_back((vec![op], Whose::Waiter(waiter)));
                    }
                }
                Ask::CallAgain(queue) => {
                    owner.waiters.call_again(&queue, owner.partition.machine());
                }
            }
        }
        let ops: Vec<Op> = batch.calls.iter().flat_map(|(ops, _)| ops.clone()).collect();
        let ticket = owner.partition.submit(Stamp { at, random }, commands).map_err(failed)?;
        owner.pending.insert(ticket, batch);
        let reports = owner.partition.take_reports();
        if random.is_multiple_of(8) {
            owner.partition.machine().check_invariants();
            owner.partition.check_memory();
        }
        self.report(&reports);
        self.note_asked(partition, at, &ops);
        if !ops.is_empty() {
            self.note(|| format!("{partition} decides {ops:?}"));
        }
        Ok(())
    }

    /// Reports to all other partitions what one of them holds.
    fn report(&mut self, reports: &[Report]) {
        for report in reports {
            for (number, owner) in self.owners.iter_mut().enumerate() {
                if number != usize::from(report.partition) {
                    owner.partition.hear(report);
                }
            }
        }
    }

    /// Makes decided batches durable.
    pub(super) fn sync(&mut self, partition: usize) -> Going {
        match self.stores.get(partition).map(|store| store.settle()) {
            Some(Err(error)) => Err(failed(error.into())),
            _ => Ok(()),
        }
    }

    /// Delivers the answers that are durable.
    pub(super) fn poll(&mut self, partition: usize) -> Going {
        while self.fallen != Some(partition) {
            let Some(owner) = self.owners.get_mut(partition) else { return Ok(()) };
            let Some(answered) = owner.partition.poll().map_err(failed)? else { return Ok(()) };
            let mut told = Vec::new();
            // The first batch only returns relays, and was not requested.
            if let Some(mut batch) = owner.pending.remove(&answered.ticket) {
                batch.outcomes.extend(answered.outcomes);
                while let Some((ops, _)) = batch.calls.front()
                    && (ops.len() <= batch.outcomes.len())
                    && let Some((ops, whose)) = batch.calls.pop_front()
                {
                    let rest = batch.outcomes.split_off(ops.len());
                    let outcomes = std::mem::replace(&mut batch.outcomes, rest);
                    told.push((batch.at, ops, outcomes, whose));
                }
                if answered.more {
                    owner.pending.insert(answered.ticket, batch);
                } else if !batch.calls.is_empty() || !batch.outcomes.is_empty() {
                    return wrong("a batch was not answered as it was asked");
                }
            }
            for (at, ops, outcomes, whose) in told {
                self.told(partition, at, &ops, outcomes, whose)?;
            }
            self.call_waiters(partition, &answered.effects);
            self.relay(partition, answered.effects);
        }
        Ok(())
    }

    fn told(
        &mut self,
        partition: usize,
        at: Time,
        ops: &[Op],
        outcomes: Vec<Outcome>,
        whose: Whose,
    ) -> Going {
        for (op, outcome) in ops.iter().zip(&outcomes) {
            self.note(|| format!("{partition} at {} {op:?} -> {}", at.0, brief(outcome)));
            self.checker.answered(partition, at, op, outcome)?;
            self.note_answered(partition, at, op, outcome);
            self.tally.count("answers");
            if matches!(whose, Whose::Client | Whose::Probe) {
                let is_gone = !self.draining && self.clients.one_in(12);
                self.answered(partition, op, outcome, is_gone)?;
            }
        }
        match whose {
            Whose::Client | Whose::List => Ok(()),
            Whose::Waiter(waiter) => self.serve(partition, waiter, ops, outcomes),
            Whose::Probe => self.probed(ops, &outcomes),
            Whose::Change(id, step) => self.changed(id, step, outcomes),
            Whose::Emits(from, ids) => {
                self.confirm(from, ids, outcomes);
                Ok(())
            }
        }
    }

    /// Answers a client, unless it has gone away meanwhile.
    pub(super) fn answered(
        &mut self,
        partition: usize,
        op: &Op,
        outcome: &Outcome,
        is_gone: bool,
    ) -> Going {
        let keyed = match op {
            Op::Send { item, .. } => {
                self.checker.items().get(*item).is_some_and(|item| !item.is_keyless())
            }
            _ => true,
        };
        self.workload.answered(&mut self.clients, op, outcome, keyed);
        match (op, outcome) {
            (Op::Receive { queue, .. }, Outcome::Received(deliveries)) => {
                let rules = self.checker.rules(partition, *queue);
                if rules.guarantee == hapax_core::Guarantee::AtMostOnce {
                    return Ok(());
                }
                for delivery in deliveries {
                    let item = self.checker.whose(&delivery.content)?;
                    self.tally.count("deliveries");
                    match (is_gone, self.draining) {
                        (true, _) => {
                            let (name, id) = (delivery.lease, delivery.id);
                            let held = Held { item, name, id, generation: delivery.generation };
                            self.ask(Op::Settle { held, how: How::Release });
                        }
                        (_, true) => self.workload.delivered_to(false, item, delivery),
                        _ => self.workload.delivered(&mut self.clients, item, delivery),
                    }
                }
            }
            (Op::Show { queue }, Outcome::Queue(view)) => {
                self.held.insert((partition, *queue), view.stats.messages());
            }
            (Op::Show { queue }, _) => {
                self.held.remove(&(partition, *queue));
            }
            _ => {}
        }
        Ok(())
    }

    /// Sends emits to the partitions of their queues.
    fn relay(&mut self, from: usize, effects: Vec<Effect>) {
        let relays: Vec<Relay> = effects
            .into_iter()
            .filter_map(|effect| match effect {
                Effect::Relay(relay) => Some(*relay),
                _ => None,
            })
            .collect();
        if relays.is_empty() {
            return;
        }
        if let Some(relays) = self.emits.pass(from, relays) {
            self.hand_over(from, relays);
        }
    }

    pub(super) fn hand_over(&mut self, from: usize, relays: Vec<Relay>) {
        let mut handed = BTreeMap::new();
        for relay in &relays {
            let queue = self.scene.queues.iter().position(|spec| spec.name == relay.emit.queue);
            let emitted = queue.and_then(|queue| self.checker.emitted(from, queue, relay));
            let Some(emitted) = emitted else { unreachable!("an emit is known before it is sent") };
            if emitted.refused.is_some() {
                self.tally.count("dead letters handed over");
            }
            handed.insert(relay.id, Op::Emit(emitted));
        }
        let turn = self.random.index(self.stores.len());
        for part in relay::hand_over(relays, &self.routes, || turn) {
            let ops: Vec<Op> = part.tags.iter().filter_map(|id| handed.get(id).cloned()).collect();
            self.tally.add("emits handed over", ops.len() as u64);
            if part.partition != from {
                self.tally.add("emits to another partition", ops.len() as u64);
            }
            if self.settings.bug == Some(Bug::RelayConfirmedEarly) {
                let arrival = Arrival::Arrived;
                let early = part.tags.iter();
                let early = early.map(|id| Command::Relayed { id: *id, arrival: arrival.clone() });
                let early = early.collect();
                self.tell_list(from, early);
            }
            let whose = Whose::Emits(from, part.tags);
            self.push_commands(part.partition, ops, part.commands, whose);
        }
    }

    fn confirm(&mut self, from: usize, ids: Vec<u64>, outcomes: Vec<Outcome>) {
        let mut confirmed = relay::confirm(ids, outcomes);
        if self.settings.bug == Some(Bug::RefusedDropped) {
            for command in &mut confirmed.commands {
                if let Command::Relayed { arrival: arrival @ Arrival::Refused(_), .. } = command {
                    *arrival = Arrival::Arrived;
                }
            }
        }
        if self.settings.bug == Some(Bug::RefusedTwice) {
            let is_refused = |command: &&Command| {
                matches!(command, Command::Relayed { arrival: Arrival::Refused(_), .. })
            };
            let again: Vec<_> = confirmed.commands.iter().filter(is_refused).cloned().collect();
            confirmed.commands.extend(again);
        }
        if let Some(commands) = self.confirmations.pass(from, confirmed.commands) {
            self.tell_list(from, commands);
        }
    }

    pub(super) fn tell_list(&mut self, from: usize, commands: Vec<Command>) {
        let ops = commands.iter().map(|command| match command {
            Command::Relayed { id, arrival } => Op::Relayed { id: *id, arrival: arrival.clone() },
            _ => unreachable!("a list of emits hears nothing else"),
        });
        let ops = ops.collect();
        self.push_commands(from, ops, commands, Whose::List);
    }

    /// Runs until every request is answered.
    pub(super) fn quiet(&mut self) -> Going {
        for _ in 0..ROUNDS_MAX {
            for partition in 0..self.stores.len() {
                self.decide(partition)?;
                self.sync(partition)?;
                self.poll(partition)?;
            }
            let is_idle = |owner: &super::Owner| {
                owner.inbox.is_empty()
                    && owner.pending.is_empty()
                    && !owner.partition.is_waiting()
                    && !owner.waiters.has_called()
            };
            if self.owners.iter().all(is_idle) && !self.changes.is_any() {
                return Ok(());
            }
        }
        wrong("the process does not come to rest")
    }
}
