//! Clients that wait for messages and for the ends of keys: none may wait for something that
//! exists.
//!
//! The code that wakes waiters is the engine's ([`hapax_partition::wait`]). When the process is
//! idle, another client requests what the waiting clients wait for: anything that it gets, they
//! should have got.

use std::collections::{BTreeMap, BTreeSet};

use hapax_core::{Command, Effect, Outcome, Time};
use hapax_partition::wait::{Served, Turn, Waiter, has_ended};

use super::{Ask, Broker, Going, Whose, wrong};
use crate::Random;
use crate::op::{Op, Patience};
use crate::planted::Bug;

/// All waiting clients.
pub(super) struct Waits {
    random: Random,
    next: u64,
    waiting: BTreeMap<u64, Waiting>,
}

struct Waiting {
    op: Op,
    turn: Turn,
    /// The partitions that it waits at.
    at: Vec<usize>,
    /// It went away, and an answer may still arrive for it.
    is_gone: bool,
}

/// The most clients that wait at once.
const WAITING_MAX: usize = 16;
/// The most rounds until everything due is done.
const DUE_ROUNDS_MAX: u32 = 1_000;

impl Waits {
    pub(super) fn new(seed: u64) -> Self {
        let random = Random::new(seed ^ 0x0077_6169_7473);
        Self { random, next: 0, waiting: BTreeMap::new() }
    }

    /// What a waiter asked for.
    pub(super) fn op(&self, waiter: &Waiter<u64>) -> Op {
        let waiting = self.waiting.get(waiter.reply());
        let Some(waiting) = waiting else { unreachable!("whoever is called waits") };
        waiting.op.clone()
    }

    /// Drops all waiters: their process is gone.
    pub(super) fn forget(&mut self) {
        self.waiting.clear();
    }

    fn patient(&self) -> impl Iterator<Item = (&u64, &Waiting)> {
        self.waiting.iter().filter(|(_, waiting)| !waiting.is_gone)
    }
}

impl Broker {
    /// Whether the client waits if there is nothing.
    pub(super) fn may_wait(&mut self, op: &Op) -> bool {
        let is_patient = match op {
            Op::Receive { patience, .. } => *patience != Patience::None,
            Op::Look { .. } => self.waits.random.one_in(2),
            _ => false,
        };
        is_patient && !self.draining && self.waits.patient().count() < WAITING_MAX
    }

    /// Adds the client at every partition that may have something for it.
    pub(super) fn wait(&mut self, op: Op) {
        let id = self.waits.next;
        self.waits.next += 1;
        let turn = Turn::default();
        let command = op.command(&self.scene, self.checker.items());
        let at = match &command {
            Command::Receive(receive) => match self.routes.of_receive(receive) {
                Some(partition) => vec![partition],
                None => (0..self.stores.len()).collect(),
            },
            _ => vec![self.route(&op)],
        };
        for partition in &at {
            let waiter = match &command {
                Command::Receive(receive) => Waiter::receive(receive.clone(), turn.clone(), id),
                Command::Look(key) => Waiter::look(key.clone(), turn.clone(), id),
                other => unreachable!("nobody waits for {other:?}"),
            };
            if let Some(owner) = self.owners.get_mut(*partition) {
                owner.inbox.push_back(Ask::Wait(op.clone(), waiter));
            }
        }
        self.note(|| format!("{id} waits at {at:?} for {op:?}"));
        self.waits.waiting.insert(id, Waiting { op, turn, at, is_gone: false });
    }

    /// The command of a waiter was carried out.
    pub(super) fn serve(
        &mut self,
        partition: usize,
        waiter: Waiter<u64>,
        ops: &[Op],
        outcomes: Vec<Outcome>,
    ) -> Going {
        let (Some(op), Some(outcome)) = (ops.first(), outcomes.into_iter().next()) else {
            return wrong("a waiter was not answered as it asked");
        };
        let id = *waiter.reply();
        let Some(owner) = self.owners.get_mut(partition) else { return Ok(()) };
        match owner.waiters.serve(waiter, outcome) {
            Served::Waits => self.tally.count("waits"),
            Served::PassedOver(queue) => {
                self.tally.count("waiters passed over");
                let others = (0..).zip(&mut self.owners).filter(|(other, _)| *other != partition);
                if self.settings.bug != Some(Bug::PassedOver) {
                    others.for_each(|(_, owner)| {
                        owner.inbox.push_back(Ask::CallAgain(queue.clone()));
                    });
                }
            }
            Served::Gone => drop(self.waits.waiting.remove(&id)),
            Served::Answer(id, outcome) => {
                let is_gone = self.waits.waiting.remove(&id).is_none_or(|waiting| waiting.is_gone);
                self.tally.count("waiters answered");
                if is_gone && matches!(op, Op::Receive { id: Some(_), .. }) {
                    // It may be requested again: nothing is released.
                    self.workload.lost(op, &self.checker);
                    return Ok(());
                }
                return self.answered(partition, op, &outcome, is_gone);
            }
        }
        Ok(())
    }

    /// Applies the effects of a batch to the waiters.
    pub(super) fn call_waiters(&mut self, partition: usize, effects: &[Effect]) {
        let bug = self.settings.bug;
        let Some(owner) = self.owners.get_mut(partition) else { return };
        for effect in effects {
            match effect {
                Effect::Wake(_) if bug == Some(Bug::WakeLost) && self.waits.random.one_in(10) => {}
                Effect::Wake(queue) => owner.waiters.wake(*queue, owner.partition.machine()),
                Effect::Ended { .. }
                    if bug == Some(Bug::EndLost) && self.waits.random.one_in(10) => {}
                Effect::Ended { digest } => owner.waiters.ended(digest),
                Effect::Relay(_) | Effect::Lost { .. } => {}
            }
        }
    }

    /// A waiter gives up or goes away; now and then all waiters are checked.
    pub(super) fn leave(&mut self) -> Going {
        if self.waits.random.one_in(60) {
            return self.check_waiters();
        }
        if !self.waits.random.one_in(50) {
            return Ok(());
        }
        let patient: Vec<u64> = self.waits.patient().map(|(id, _)| *id).collect();
        let Some(id) = self.waits.random.pick(&patient).copied() else { return Ok(()) };
        let gives_up = self.waits.random.one_in(2);
        let Some(waiting) = self.waits.waiting.get_mut(&id) else { return Ok(()) };
        // A client that gives up still waits for an answer that is on its way.
        waiting.is_gone = !gives_up || waiting.turn.give_up();
        if !gives_up {
            waiting.turn.leave();
        }
        self.tally.count("waiters that left");
        Ok(())
    }

    /// Runs until idle, and requests what the waiters wait for.
    pub(super) fn check_waiters(&mut self) -> Going {
        if self.fallen.is_some() {
            return Ok(());
        }
        self.come_to_rest()?;
        let mut receives = BTreeSet::new();
        let mut looks = BTreeSet::new();
        for (_, Waiting { op, at, .. }) in self.waits.patient() {
            match op {
                Op::Receive { queue, .. } => receives.extend(at.iter().map(|at| (*at, *queue))),
                Op::Look { item } => looks.extend(at.iter().map(|at| (*at, *item))),
                other => unreachable!("nobody waits for {other:?}"),
            }
        }
        self.tally.add("queues that somebody waits for", receives.len() as u64);
        self.tally.add("keys that somebody waits for", looks.len() as u64);
        for (partition, queue) in receives {
            let (lease_ms, id, several, patience) = (None, None, false, Patience::None);
            let op = Op::Receive { queue, max: 1, lease_ms, id, several, patience };
            self.push(partition, vec![op], Whose::Probe);
        }
        for (partition, item) in looks {
            self.push(partition, vec![Op::Look { item }], Whose::Probe);
        }
        self.quiet()
    }

    /// Checks what a later client got.
    pub(super) fn probed(&self, ops: &[Op], outcomes: &[Outcome]) -> Going {
        match (ops, outcomes) {
            ([Op::Receive { .. }], [Outcome::Received(messages)]) if !messages.is_empty() => {
                wrong("somebody waits beside messages that are ready")
            }
            ([Op::Look { .. }], [Outcome::Key(view)]) if has_ended(view.place) => {
                wrong("somebody waits for the end of a key that has ended")
            }
            ([Op::Look { .. }], [Outcome::Refused(_)]) => {
                wrong("somebody waits for the end of a key that is gone")
            }
            _ => Ok(()),
        }
    }

    /// Runs until every request is answered and nothing is due.
    fn come_to_rest(&mut self) -> Going {
        for _ in 0..DUE_ROUNDS_MAX {
            self.quiet()?;
            let clocks = self.clocks;
            let is_behind = self.owners.iter_mut().any(|owner| {
                let now = owner.clock.now(Time(clocks.wall_ms), clocks.monotonic_us);
                let due = owner.partition.next_deadline();
                owner.partition.now() < now || due.is_some_and(|due| due <= now)
            });
            if !is_behind {
                return Ok(());
            }
        }
        wrong("what is due stays due")
    }

    /// Ends the wait of all receivers, as at the end of a process.
    pub(super) fn send_waiters_away(&mut self) {
        for owner in &mut self.owners {
            for id in owner.waiters.drain() {
                self.waits.waiting.remove(&id);
            }
        }
    }
}
