//! Requests of clients and their answers.

use hapax_core::{Guarantee, Outcome, Stamp, Time};
use hapax_partition::{Answered, Error, Partition};
use hapax_postgres::call::{Answer, Call};

use super::network::Address;
use super::owner::{Submitted, claim_of};
use super::work::{JobKind, Output, Turned};
use super::{Cluster, Going, wrong};
use crate::checker::brief;
use crate::op::{Held, How, Op};
use crate::planted::SimStore;
use crate::workload::{Workload, any_key};

/// Items that are asked for after an opening.
const FIRST: usize = 4;

impl Cluster {
    pub(super) fn submit_some(&mut self, at: usize, partition: u16) -> Going {
        let count = self.random.between(0, 5);
        let Some((_, instance)) = self.owned(at, partition) else { return Ok(()) };
        if !instance.is_ready() {
            return Ok(());
        }
        let Some(it) = &instance.partition else { return Ok(()) };
        let (now, is_replaced) = (it.now(), instance.is_replaced);
        let Some(side) = self.sides.get_mut(usize::from(partition)) else { return Ok(()) };
        let mut ops = match is_replaced {
            true => Vec::new(),
            false => std::mem::take(&mut side.urgent),
        };
        for _ in 0..count.max(u64::from(ops.is_empty())) {
            let checker = &mut side.checker;
            ops.extend(side.workload.next(&mut self.clients, &side.scene, checker, now));
        }
        if is_replaced {
            // Its successor sends the emits itself.
            for emit in ops.extract_if(.., |op| matches!(op, Op::Emit(_))) {
                side.workload.lost(&emit, &side.checker);
            }
        }
        self.submit(at, partition, ops)
    }

    pub(super) fn submit(&mut self, at: usize, partition: u16, ops: Vec<Op>) -> Going {
        let (_, monotonic) = self.own_time(at);
        let wall = match self.machines.get(at).and_then(|it| it.process.as_ref()) {
            Some(process) => process.wall.0 + monotonic.saturating_sub(process.wall.1) / 1_000,
            None => return Ok(()),
        };
        let random = self.random.bits();
        let Some((serial, instance)) = self.owned(at, partition) else { return Ok(()) };
        let Some(it) = instance.partition.as_ref().filter(|_| instance.is_ready()) else {
            return Ok(());
        };
        let time = instance.clock.now(Time(wall), monotonic).max(it.now());
        let (is_late, is_lost) = (instance.is_replaced, false);
        let sent = Submitted { at: time, ops: ops.iter().cloned().collect(), is_lost, is_late };
        instance.submitting = Some(sent);
        let Some(mut it) = instance.partition.take() else { return Ok(()) };
        let Some(side) = self.sides.get_mut(usize::from(partition)) else { return Ok(()) };
        if !is_late {
            if time < side.last_at {
                return wrong("the partition's time ran backwards");
            }
            side.last_at = time;
        }
        let items = side.checker.items();
        let commands: Vec<_> = ops.iter().map(|op| op.command(&side.scene, items)).collect();
        self.note(|| format!("{at} submit to {partition} late {is_late} {ops:?}"));
        self.start_job(at, serial, partition, JobKind::Turn, move || {
            let stamp = Stamp { at: time, random };
            let submitted = it.submit(stamp, commands);
            Output::Turned(it, Turned::Submitted(submitted))
        })
    }

    pub(super) fn poll(&mut self, at: usize, partition: u16) -> Going {
        let Some((serial, instance)) = self.owned(at, partition) else { return Ok(()) };
        if !instance.may_turn() {
            return Ok(());
        }
        let Some(mut it) = instance.partition.take() else { return Ok(()) };
        self.start_job(at, serial, partition, JobKind::Turn, move || {
            let polled = it.poll();
            Output::Turned(it, Turned::Polled(polled))
        })
    }

    pub(super) fn cut_checkpoint(&mut self, at: usize, partition: u16) -> Going {
        let Some((serial, instance)) = self.owned(at, partition) else { return Ok(()) };
        if !instance.may_turn() {
            return Ok(());
        }
        let Some(mut it) = instance.partition.take() else { return Ok(()) };
        self.start_job(at, serial, partition, JobKind::Turn, move || {
            let cut = it.checkpoint();
            Output::Turned(it, Turned::Cut(cut))
        })
    }

    pub(super) fn turned(
        &mut self,
        to: Address,
        partition: u16,
        it: Box<Partition<SimStore>>,
        turned: Turned,
    ) -> Going {
        let Some(instance) = self.instance(to, partition) else { return Ok(()) };
        instance.partition = Some(it);
        match turned {
            Turned::Submitted(Ok(ticket)) => {
                if let Some(sent) = instance.submitting.take() {
                    instance.pending.insert(ticket, sent);
                }
                Ok(())
            }
            Turned::Polled(Ok(Some(answered))) => {
                self.answered(to, partition, answered)?;
                self.poll(to.machine, partition)
            }
            Turned::Polled(Ok(None)) | Turned::Cut(Ok(())) => Ok(()),
            Turned::Submitted(Err(error))
            | Turned::Polled(Err(error))
            | Turned::Cut(Err(error)) => {
                // What it was submitting may have been done in part.
                self.fell(to, partition, &error)
            }
        }
    }

    fn fell(&mut self, to: Address, partition: u16, error: &Error) -> Going {
        self.ended(to, partition, error)
    }

    fn answered(&mut self, to: Address, partition: u16, answered: Answered) -> Going {
        let Some(instance) = self.instance(to, partition) else { return Ok(()) };
        let is_replaced = instance.is_replaced;
        // The first batch returns emits that were on their way, and was not requested.
        let mut sent = instance.pending.remove(&answered.ticket);
        let (mut at, mut ops, mut is_told) = (Time(0), Vec::new(), false);
        if let Some(sent) = &mut sent {
            let count = answered.outcomes.len().min(sent.ops.len());
            ops = sent.ops.drain(..count).collect();
            at = sent.at;
            is_told = !sent.is_lost;
            if sent.is_late && !ops.is_empty() {
                let first = answered.outcomes.first().map(brief);
                return wrong(format!("an owner that was replaced answered: {first:?}"));
            }
        }
        if let Some(rest) = sent.filter(|_| answered.more) {
            instance.pending.insert(answered.ticket, rest);
        }
        if !is_told {
            ops.clear(); // Who asked gave up when the owner was replaced.
        }
        for (op, outcome) in ops.iter().zip(&answered.outcomes) {
            self.note(|| format!("{partition} at {} {op:?} -> {}", at.0, brief(outcome)));
            self.told(partition, at, op, outcome)?;
        }
        let Some(side) = self.sides.get_mut(usize::from(partition)) else { return Ok(()) };
        for effect in answered.effects.iter().filter(|_| !is_replaced) {
            side.workload.relay(effect, &side.scene, &mut side.checker);
        }
        Ok(())
    }

    fn told(&mut self, partition: u16, at: Time, op: &Op, outcome: &Outcome) -> Going {
        self.count(op, outcome);
        let (is_draining, clients) = (self.is_draining, &mut self.clients);
        let Some(side) = self.sides.get_mut(usize::from(partition)) else { return Ok(()) };
        side.checker.answered(0, at, op, outcome)?;
        let keyed = match op {
            Op::Send { item, .. } => {
                side.checker.items().get(*item).is_some_and(|item| !item.is_keyless())
            }
            _ => true,
        };
        side.workload.answered(clients, op, outcome, keyed);
        side.urgent.extend(Workload::relayed(op, outcome));
        match (op, outcome) {
            (Op::Receive { queue, .. }, Outcome::Received(deliveries)) => {
                if side.checker.rules(0, *queue).guarantee == Guarantee::AtMostOnce {
                    return Ok(()); // There is no lease to settle.
                }
                let is_gone = !is_draining && clients.one_in(12);
                for delivery in deliveries {
                    let item = side.checker.whose(&delivery.content)?;
                    let (name, id, generation) = (delivery.lease, delivery.id, delivery.generation);
                    if is_gone {
                        let held = Held { item, name, id, generation };
                        side.urgent.push(Op::Settle { held, how: How::Release });
                    } else if is_draining {
                        side.workload.delivered_to(false, item, delivery);
                    } else {
                        side.workload.delivered(clients, item, delivery);
                    }
                }
            }
            (Op::Show { queue }, Outcome::Queue(view)) => {
                side.shown.insert(*queue, view.stats);
            }
            (Op::Show { queue }, _) => {
                side.shown.remove(queue);
            }
            _ => {}
        }
        Ok(())
    }

    fn count(&mut self, op: &Op, outcome: &Outcome) {
        use hapax_core::{Answer, Settled};
        self.tally.count("answers");
        let what = match outcome {
            Outcome::Sent(Answer::Accepted { .. }) => "accepted",
            Outcome::Sent(answer) | Outcome::Claimed(answer) if answer.is_replay() => {
                "duplicates answered"
            }
            Outcome::Claimed(Answer::Fresh(_)) => "claims",
            Outcome::Received(deliveries) => {
                self.tally.add("deliveries", deliveries.len() as u64);
                return;
            }
            Outcome::Settled(Settled::Ok { .. }) if is_done(op) => "done",
            Outcome::Settled(Settled::LeaseLost { .. }) => "leases lost",
            _ => return,
        };
        self.tally.count(what);
    }

    /// Requests whose answers will not come.
    pub(super) fn lose(&mut self, partition: u16, lost: impl Iterator<Item = Submitted>) {
        for sent in lost.filter(|sent| !sent.is_lost) {
            for op in &sent.ops {
                self.note(|| format!("{partition} lost {op:?}"));
                self.tally.count("answers lost");
                let Some(side) = self.sides.get_mut(usize::from(partition)) else { continue };
                if !sent.is_late {
                    side.checker.lost(0, sent.at, op);
                }
                side.workload.lost(op, &side.checker);
            }
        }
    }

    /// Looks at some items when a partition has an owner again; the queues first, because the rest
    /// is checked against them.
    pub(super) fn ask_first(&mut self, partition: usize) {
        let Some(side) = self.sides.get_mut(partition) else { return };
        // The new owner returns the emits that are on their way.
        side.openings += 1;
        side.workload.crashed();
        side.urgent.retain(|op| !op.is_of_owner() && !matches!(op, Op::Receive { .. }));
        let mut looks: Vec<Op> =
            (0..side.scene.queues.len()).map(|queue| Op::Show { queue }).collect();
        for _ in 0..FIRST {
            let item = any_key(&mut self.clients, &side.checker);
            looks.extend(item.map(|item| Op::Look { item }));
        }
        looks.append(&mut side.urgent);
        side.urgent = looks;
    }

    /// A statement was executed: what follows for who owned what.
    pub(super) fn executed(&mut self, call: &Call, from: Address, answer: &Answer) -> Going {
        if let (Some((partition, claim)), Answer::Claimed(Some(_))) = (claim_of(call), answer) {
            self.claimed(partition, claim, from);
        }
        if let (Call::Heartbeat { id, .. }, Answer::Heartbeat(Some(_))) = (call, answer) {
            self.beats.insert(*id, self.now_us);
        }
        if let Call::Members = call {
            let read = (self.now_us, self.beats.clone());
            if let Some(process) = self.process(from) {
                process.read = read;
            }
        }
        if let (Call::Swap { .. }, Answer::Changed(1)) = (call, answer) {
            self.tally.count("manifests replaced");
        }
        Ok(())
    }
}

fn is_done(op: &Op) -> bool {
    matches!(op, Op::Settle { how: How::Done(_), .. })
}
