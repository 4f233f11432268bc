//! The end of a run: every message must end, and all answers must stay true.

use super::{Broker, Going, Whose, wrong};
use crate::op::{Op, Patience};
use crate::workload::{ROOM_EVERY, create, make_room};

/// The most rounds until everything has ended; messages of a group need two more each.
const ROUNDS: u64 = 160;

impl Broker {
    pub(super) fn drain(&mut self) -> Going {
        self.note(|| "drain".to_owned());
        self.draining = true;
        if self.fallen.is_some() {
            self.crash();
            self.start()?;
        }
        self.abandon_copy();
        self.check_waiters()?;
        self.send_waiters_away();
        self.quiet()?;
        let rounds_max = ROUNDS + 2 * self.checker.items().len() as u64;
        for round in 0..rounds_max {
            self.drain_round(round)?;
            let waiting: u64 = self.held.values().sum();
            let relays = |owner: &super::Owner| owner.partition.machine().relays().count();
            let relays: usize = self.owners.iter().map(relays).sum();
            if waiting == 0 && relays == 0 && round > 1 {
                self.tally.add("rounds to drain", round);
                return Ok(());
            }
        }
        wrong(format!("not drained after {rounds_max} rounds: {:?}", self.held))
    }

    fn drain_round(&mut self, round: u64) -> Going {
        for queue in 0..self.scene.queues.len() {
            if !self.checker.exists(0, queue) {
                let op = create(&mut self.clients, &self.checker, queue);
                self.ask(op);
                self.quiet()?; // Emits may wait for it.
            }
            if round % ROOM_EVERY == ROOM_EVERY - 1 {
                let op = make_room(&self.checker, queue);
                self.ask(op);
                self.quiet()?;
            }
            self.ask(Op::Pause { queue, paused: false });
            if round % 5 == 1 {
                let op = self.workload.redrive(queue);
                self.ask(op);
            }
            let (lease_ms, id, several, patience) = (None, None, false, Patience::None);
            for partition in 0..self.stores.len() {
                let op = Op::Receive { queue, max: 30, lease_ms, id, several, patience };
                self.push(partition, vec![op], Whose::Client);
            }
        }
        self.quiet()?;
        if round == 0 {
            while let Some(op) = self.workload.unanswered() {
                self.ask(op);
            }
        }
        let now = self.times();
        let parked: Vec<usize> = (0..self.checker.items().len())
            .filter(|item| self.checker.may_be_parked(&now, *item))
            .collect();
        for item in parked {
            let op = self.checker.resolve(item, item % 2 == 0);
            self.ask(op);
        }
        for held in self.workload.held().to_vec() {
            let op = self.workload.done(&self.scene, &mut self.checker, held);
            self.ask(op);
        }
        self.quiet()?;
        for partition in 0..self.stores.len() {
            self.look_at_queues(partition);
        }
        self.quiet()?;
        let ms = self.random.between(300, 1_500);
        self.pass(ms);
        Ok(())
    }

    /// Asks a new process for everything again.
    pub(super) fn audit(&mut self) -> Going {
        self.note(|| "audit".to_owned());
        self.look_at_all()?;
        self.settings.crash_every = 0;
        self.crash();
        self.start()?;
        self.look_at_all()?;
        let items = self.checker.items().iter().enumerate();
        let keyed = items.filter(|(_, item)| !item.is_keyless() && !item.claim);
        let again: Vec<Op> = keyed.map(|(item, _)| Op::Send { item, variant: 0 }).collect();
        for op in again {
            self.ask(op);
        }
        self.quiet()
    }

    fn look_at_all(&mut self) -> Going {
        let items = self.checker.items().iter().enumerate();
        let looks: Vec<Op> = items
            .filter(|(_, item)| !item.is_keyless())
            .map(|(item, _)| Op::Look { item })
            .collect();
        for op in looks {
            self.ask(op);
        }
        self.quiet()?;
        if let Some(unfinished) = self.checker.unfinished(&self.times()) {
            return wrong(format!("drained, and yet {unfinished}"));
        }
        match self.checker.broken_promise() {
            Some(key) => wrong(format!("the emit {key} never came to be")),
            None => Ok(()),
        }
    }
}
