//! The end of a run: without faults every message must end, and all answers must stay true.

use hapax_store::disk;

use super::{Going, Run, wrong};
use crate::op::{Op, Patience};
use crate::workload::{ROOM_EVERY, create, make_room};
use crate::world::Step;

/// The most rounds until everything has ended: delays, leases and backoffs are all shorter.
/// Messages of a group need two more each, one after the other.
const ROUNDS: u64 = 160;
/// The most steps until the workers are idle.
const WORK_MAX: u32 = 20_000;
/// The most ticks until everything due at one time is done.
const TICKS_MAX: u32 = 2_000;
const BATCH: usize = 40;
/// Retries of a full disk before time passes.
const TRIES_MAX: u64 = 4;

impl Run {
    /// Every accepted message ends, within a bounded number of rounds.
    pub(super) fn drain(&mut self) -> Going<()> {
        self.note(|| "drain".to_owned());
        self.heal();
        self.free();
        let lost = self.world.bury();
        self.lose(&lost);
        self.draining = true;
        self.drain_rounds()
    }

    pub(super) fn drain_rounds(&mut self) -> Going<()> {
        let rounds_max = ROUNDS + 2 * self.checker.items().len() as u64;
        let mut left = String::new();
        for round in 0..rounds_max {
            self.drain_round(round)?;
            let waiting = self.shown.values().map(hapax_core::Stats::messages).sum::<u64>();
            let relays = self.world.relays();
            if waiting == 0 && relays == 0 && self.urgent.is_empty() && round > 1 {
                self.tally.add("rounds to drain", round);
                return Ok(());
            }
            left = format!("{waiting} messages and {relays} emits: {:?}", self.shown);
        }
        let disk = self.describe_disk();
        wrong(format!("not drained after {rounds_max} rounds: {left}; {disk}"))
    }

    fn drain_round(&mut self, round: u64) -> Going<()> {
        let now = self.world.now();
        let mut ops = std::mem::take(&mut self.urgent);
        for queue in 0..self.scene.queues.len() {
            if !self.checker.exists(0, queue) {
                // Emits may wait for it.
                ops.push(create(&mut self.clients, &self.checker, queue));
            }
            if round % ROOM_EVERY == ROOM_EVERY - 1 {
                ops.push(make_room(&self.checker, queue));
            }
            ops.push(Op::Pause { queue, paused: false });
            if round % 5 == 1 {
                ops.push(self.workload.redrive(queue));
            }
            let (lease_ms, id, several) = (None, None, false);
            let patience = Patience::None;
            ops.push(Op::Receive { queue, max: 30, lease_ms, id, several, patience });
        }
        ops.extend(self.workload.take_relays().map(Op::Emit));
        if round == 0 {
            while let Some(op) = self.workload.unanswered() {
                ops.push(op);
            }
        }
        for item in 0..self.checker.items().len() {
            if self.checker.may_be_parked(&[now], item) {
                ops.push(self.checker.resolve(item, item % 2 == 0));
            }
        }
        let held = self.workload.held().to_vec();
        for held in held {
            ops.push(self.workload.done(&self.scene, &mut self.checker, held));
        }
        self.submit_all(ops)?;
        self.tick_on()?;
        let shows = (0..self.scene.queues.len()).map(|queue| Op::Show { queue }).collect();
        self.submit_all(shows)?;
        let ms = self.random.between(300, 1_500);
        self.world.pass(ms);
        Ok(())
    }

    /// Submits empty batches while something is due, as the writer does.
    pub(super) fn tick_on(&mut self) -> Going<()> {
        for _ in 0..TICKS_MAX {
            let due = self.world.next_deadline().filter(|due| *due <= self.world.now());
            if due.is_none() || self.world.is_busy() {
                return Ok(());
            }
            self.submit(Vec::new())?;
            self.settle()?;
        }
        wrong(format!("something is due at {:?} after every tick", self.world.now()))
    }

    /// Submits in batches and waits for every answer.
    pub(super) fn submit_all(&mut self, ops: Vec<Op>) -> Going<()> {
        for batch in ops.chunks(BATCH) {
            self.submit(batch.to_vec())?;
            self.settle()?;
        }
        Ok(())
    }

    /// Lets the workers finish, unless they wait for room, and takes all answers.
    pub(super) fn settle(&mut self) -> Going<()> {
        let without_room = |run: &Self| run.world.disk.counters().writes_without_room;
        let tries_max = without_room(self) + TRIES_MAX;
        for _ in 0..WORK_MAX {
            if without_room(self) > tries_max {
                return Ok(());
            }
            let mut worked = false;
            for step in [Step::Flusher, Step::Checkpointer, Step::Keeper, Step::Merger] {
                let stepped = self.world.step(step);
                worked |= self.excuse(stepped)?.unwrap_or(false);
            }
            self.poll()?;
            if !worked && !self.world.is_waiting() {
                return Ok(());
            }
        }
        wrong("the workers do not come to an end")
    }

    /// Asks a new process for everything again.
    pub(super) fn audit(&mut self) -> Going<()> {
        self.note(|| "audit".to_owned());
        self.look_at_all()?;
        self.restart_in_good_order()?;
        self.look_at_all()?;
        let items = self.checker.items().iter().enumerate();
        let keyed = items.filter(|(_, item)| !item.is_keyless() && !item.claim);
        let again = keyed.map(|(item, _)| Op::Send { item, variant: 0 }).collect();
        self.submit_all(again)?;
        if let Err(error) = self.world.close() {
            return wrong(format!("the last close failed: {error}"));
        }
        self.forget_unanswered(false);
        if self.kinds.contains(&crate::faults::Kind::Takeover) || self.rotten.is_some() {
            return Ok(());
        }
        let mut findings = Vec::new();
        let volume = self.world.disk.mount();
        match disk::check(&*volume, &mut |finding| findings.push(format!("{finding:?}"))) {
            Ok(summary) if summary.damages == 0 => Ok(()),
            Ok(_) => wrong(format!("the directory is damaged: {findings:?}")),
            Err(error) => wrong(format!("the directory cannot be checked: {error}")),
        }
    }

    fn look_at_all(&mut self) -> Going<()> {
        let items = self.checker.items().iter().enumerate();
        let looks = items.filter(|(_, item)| !item.is_keyless());
        let looks = looks.map(|(item, _)| Op::Look { item }).collect();
        self.submit_all(looks)?;
        if let Some(unfinished) = self.checker.unfinished(&[self.world.now()]) {
            return wrong(format!("drained, and yet {unfinished}"));
        }
        match self.checker.broken_promise() {
            Some(key) => wrong(format!("the emit {key} never came to be")),
            None => Ok(()),
        }
    }
}
