//! The end of a run: without faults somebody serves every partition, every message ends, and all
//! answers stay true.

use super::{Cluster, Going, wrong};
use crate::op::{Op, Patience};
use crate::workload::{ROOM_EVERY, create, make_room};

/// The most rounds until everything has ended.
const ROUNDS: u64 = 200;
/// Moments until somebody serves: penalties of nodes that were fenced last a minute.
const MOMENTS_MAX: u32 = 15_000;
/// Moments until a batch is answered, or its owner replaced.
const ANSWER_MAX: u32 = 5_000;
const BATCH: usize = 40;
const TICKS_MAX: u32 = 2_000;

impl Cluster {
    /// Every accepted message ends, within a bounded number of rounds.
    pub(super) fn drain(&mut self) -> Going {
        self.note(|| "drain".to_owned());
        self.heal()?;
        self.is_draining = true;
        let items: usize = self.sides.iter().map(|side| side.checker.items().len()).sum();
        let rounds_max = ROUNDS + 2 * items as u64;
        for round in 0..rounds_max {
            for partition in 0..self.sides.len() as u16 {
                self.drain_round(partition, round)?;
            }
            let ms = self.random.between(300, 1_500);
            self.advance(ms)?;
            if round > 1 && (0..self.sides.len() as u16).all(|it| self.is_drained(it)) {
                self.tally.add("rounds to drain", round);
                return Ok(());
            }
        }
        let left: Vec<_> = self.sides.iter().map(|side| &side.shown).collect();
        wrong(format!("not drained after {rounds_max} rounds: {left:?}"))
    }

    fn is_drained(&mut self, partition: u16) -> bool {
        let relays = self.relays(partition);
        let Some(side) = self.sides.get(usize::from(partition)) else { return true };
        let waiting: u64 = side.shown.values().map(hapax_core::Stats::messages).sum();
        waiting == 0 && relays == Some(0) && side.urgent.is_empty()
    }

    fn relays(&mut self, partition: u16) -> Option<usize> {
        let at = self.owners(partition).into_iter().next()?;
        let (_, instance) = self.owned(at, partition)?;
        Some(instance.partition.as_ref()?.machine().relays().count())
    }

    /// Waits until a living owner has the partition.
    fn await_owner(&mut self, partition: u16) -> Going<usize> {
        for _ in 0..MOMENTS_MAX {
            let owners = self.owners(partition);
            let is_true = |at: &usize| {
                let process = self.machines.get(*at).and_then(|it| it.process.as_ref());
                let instance = process.and_then(|process| process.instances.get(&partition));
                instance.is_some_and(|instance| !instance.is_replaced)
            };
            if let Some(at) = owners.into_iter().find(is_true) {
                return Ok(at);
            }
            self.advance(20)?;
        }
        let states: Vec<_> = self
            .machines
            .iter()
            .map(|it| it.process.as_ref().and_then(|it| Some(it.state.as_ref()?.doing())))
            .collect();
        wrong(format!("nobody serves partition {partition}: {states:?}"))
    }

    fn drain_round(&mut self, partition: u16, round: u64) -> Going {
        let at = self.await_owner(partition)?;
        let now = self.owned(at, partition).and_then(|(_, it)| Some(it.partition.as_ref()?.now()));
        let Some(now) = now else { return Ok(()) };
        let Some(side) = self.sides.get_mut(usize::from(partition)) else { return Ok(()) };
        let mut ops = std::mem::take(&mut side.urgent);
        for queue in 0..side.scene.queues.len() {
            if !side.checker.exists(0, queue) {
                // Emits may wait for it.
                ops.push(create(&mut self.clients, &side.checker, queue));
            }
            if round % ROOM_EVERY == ROOM_EVERY - 1 {
                ops.push(make_room(&side.checker, queue));
            }
            ops.push(Op::Pause { queue, paused: false });
            if round % 5 == 1 {
                ops.push(side.workload.redrive(queue));
            }
            let (lease_ms, id, several) = (None, None, false);
            let patience = Patience::None;
            ops.push(Op::Receive { queue, max: 30, lease_ms, id, several, patience });
        }
        ops.extend(side.workload.take_relays().map(Op::Emit));
        if round == 0 {
            while let Some(op) = side.workload.unanswered() {
                ops.push(op);
            }
        }
        for item in 0..side.checker.items().len() {
            if side.checker.may_be_parked(&[now], item) {
                ops.push(side.checker.resolve(item, item % 2 == 0));
            }
        }
        for held in side.workload.held().to_vec() {
            ops.push(side.workload.done(&side.scene, &mut side.checker, held));
        }
        let shows: Vec<_> = (0..side.scene.queues.len()).map(|queue| Op::Show { queue }).collect();
        self.submit_all(partition, ops)?;
        self.tick_on(partition)?;
        self.submit_all(partition, shows)
    }

    /// Submits empty batches while something is due, as the writer does.
    fn tick_on(&mut self, partition: u16) -> Going {
        for _ in 0..TICKS_MAX {
            let at = self.await_owner(partition)?;
            let Some((_, instance)) = self.owned(at, partition) else { return Ok(()) };
            let Some(it) = &instance.partition else { return Ok(()) };
            let is_due = it.next_deadline().is_some_and(|due| due <= it.now());
            if !is_due || it.is_busy() {
                return Ok(());
            }
            self.settle(at, partition)?;
            self.submit(at, partition, Vec::new())?;
            self.settle(at, partition)?;
        }
        wrong("something is due after every tick")
    }

    /// Submits in batches and waits for every answer. What an owner does not answer any more is
    /// asked again in a later round. If another owner takes over meanwhile, it is asked first what
    /// it knows, and what the earlier one would have done about its emits ended with it.
    pub(super) fn submit_all(&mut self, partition: u16, ops: Vec<Op>) -> Going {
        let first = self.openings(partition);
        let mut last = first;
        for batch in ops.chunks(BATCH) {
            let at = self.await_owner(partition)?;
            self.settle(at, partition)?;
            let at = self.await_owner(partition)?;
            let Some(side) = self.sides.get_mut(usize::from(partition)) else { return Ok(()) };
            let mut asked = Vec::new();
            if side.openings != last {
                last = side.openings;
                asked.append(&mut side.urgent);
            }
            let is_left = |op: &&Op| last == first || !op.is_of_owner();
            asked.extend(batch.iter().filter(is_left).cloned());
            self.submit(at, partition, asked)?;
            self.settle(at, partition)?;
        }
        Ok(())
    }

    /// How often the partition got an owner.
    fn openings(&self, partition: u16) -> u64 {
        self.sides.get(usize::from(partition)).map_or(0, |side| side.openings)
    }

    fn settle(&mut self, at: usize, partition: u16) -> Going {
        for _ in 0..ANSWER_MAX {
            for _ in 0..3 {
                self.step_checkpointer(at, partition)?;
                self.step_merger(at, partition)?;
            }
            self.poll(at, partition)?;
            self.advance(4)?;
            let Some((_, instance)) = self.owned(at, partition) else { return Ok(()) };
            let is_idle = instance.submitting.is_none()
                && instance.pending.is_empty()
                && instance.partition.as_ref().is_some_and(|it| !it.is_waiting());
            if (is_idle && instance.is_ready()) || instance.has_ended || instance.is_replaced {
                return Ok(());
            }
        }
        wrong(format!("partition {partition} does not answer"))
    }

    /// Asks another node for everything again.
    pub(super) fn audit(&mut self) -> Going {
        self.note(|| "audit".to_owned());
        for partition in 0..self.sides.len() as u16 {
            self.look_at_all(partition)?;
        }
        let servers: Vec<usize> = self.owners(0);
        for at in servers {
            match self.random.one_in(2) {
                true => self.stop_process(at)?,
                false => self.kill(at),
            }
        }
        self.advance(100)?;
        for partition in 0..self.sides.len() as u16 {
            self.await_owner(partition)?;
            self.look_at_all(partition)?;
        }
        Ok(())
    }

    fn look_at_all(&mut self, partition: u16) -> Going {
        let number = usize::from(partition);
        let Some(side) = self.sides.get_mut(number) else { return Ok(()) };
        let mut ops: Vec<_> =
            (0..side.scene.queues.len()).map(|queue| Op::Show { queue }).collect();
        let items = side.checker.items().iter().enumerate();
        let keyed = items.filter(|(_, item)| !item.is_keyless());
        ops.extend(keyed.map(|(item, _)| Op::Look { item }));
        self.submit_all(partition, ops)?;
        let at = self.await_owner(partition)?;
        let now = self.owned(at, partition).and_then(|(_, it)| Some(it.partition.as_ref()?.now()));
        let (Some(now), Some(side)) = (now, self.sides.get_mut(number)) else { return Ok(()) };
        if let Some(unfinished) = side.checker.unfinished(&[now]) {
            return wrong(format!("drained, and yet {unfinished}"));
        }
        match side.checker.broken_promise() {
            Some(key) => wrong(format!("the emit {key} never came to be")),
            None => Ok(()),
        }
    }
}
