//! Changes of queues over all partitions: one at a time for each queue, completed whatever their
//! callers do.

use std::collections::VecDeque;

use hapax_core::{Command, Outcome, Purge, QueueName};
use hapax_partition::change::{Change, Changed, Known, Running, reconcile, routes};

use super::{Broker, Going, Whose, wrong};
use crate::op::Op;
use crate::planted::Bug;

/// Changes in progress or waiting.
#[derive(Debug, Default)]
pub(super) struct Changes {
    next: u64,
    running: Vec<Ongoing>,
    waiting: VecDeque<Op>,
}

#[derive(Debug)]
struct Ongoing {
    id: u64,
    op: Op,
    queue: usize,
    running: Running,
    /// The answers to its steps so far.
    answers: Vec<Option<Vec<Outcome>>>,
}

/// The most rounds of reconciliation of a start.
const ROUNDS_MAX: u32 = 8;

impl Changes {
    pub(super) fn is_any(&self) -> bool {
        !self.running.is_empty() || !self.waiting.is_empty()
    }
}

impl Broker {
    pub(super) fn change(&mut self, op: Op) {
        self.changes.waiting.push_back(op);
        self.begin_changes();
    }

    /// Begins waiting changes, unless one of the same queue is in progress.
    fn begin_changes(&mut self) {
        for op in std::mem::take(&mut self.changes.waiting) {
            let Some(queue) = op.queue(self.checker.items()) else { continue };
            let is_taken = |ongoing: &Ongoing| ongoing.queue == queue;
            let waits = |waiting: &Op| waiting.queue(self.checker.items()) == Some(queue);
            if self.changes.running.iter().any(is_taken) || self.changes.waiting.iter().any(waits) {
                self.tally.count("changes that waited for another");
                self.changes.waiting.push_back(op);
                continue;
            }
            self.begin(queue, op);
        }
    }

    fn begin(&mut self, queue: usize, op: Op) {
        if matches!(op, Op::Delete { .. }) {
            self.checker.keep(queue, false);
        }
        let change = match op.command(&self.scene, self.checker.items()) {
            Command::Configure(configure) => Change::Configure(*configure),
            Command::Delete(queue) => Change::Delete(queue),
            Command::Pause(queue) => Change::Pause(queue),
            Command::Resume(queue) => Change::Resume(queue),
            Command::Purge(Purge { queue, keys }) => Change::Purge(Purge { queue, keys }),
            other => unreachable!("no change: {other:?}"),
        };
        let mut unused =
            hapax_partition::route::Routes::new(self.stores.len(), self.options.recipe);
        let known = match self.settings.bug {
            Some(Bug::SpreadLate) => &mut unused,
            _ => &mut self.routes,
        };
        let running = Running::begin(change, known);
        self.tally.count("changes begun");
        let id = self.changes.next;
        self.changes.next += 1;
        let ongoing = Ongoing { id, op, queue, running, answers: Vec::new() };
        self.changes.running.push(ongoing);
        self.go_on(id);
    }

    /// Sends the next steps of a change to their partitions; false if there are none.
    fn go_on(&mut self, id: u64) -> bool {
        let found = self.changes.running.iter_mut().find(|ongoing| ongoing.id == id);
        let Some(ongoing) = found else { return false };
        let Some(steps) = ongoing.running.next() else { return false };
        ongoing.answers = vec![None; steps.len()];
        for (place, step) in steps.into_iter().enumerate() {
            let ops = step.commands.iter().map(|command| self.op_of(command)).collect();
            let whose = Whose::Change(id, place);
            self.push_commands(step.partition, ops, step.commands, whose);
        }
        true
    }

    /// A step of a change was carried out.
    pub(super) fn changed(&mut self, id: u64, step: usize, outcomes: Vec<Outcome>) -> Going {
        let ways = &mut self.routes;
        let found = self.changes.running.iter_mut().find(|ongoing| ongoing.id == id);
        let Some(ongoing) = found else { return wrong("a step of a change that is over") };
        if let Some(answer) = ongoing.answers.get_mut(step) {
            *answer = Some(outcomes);
        }
        if ongoing.answers.iter().any(Option::is_none) {
            return Ok(());
        }
        let answers = std::mem::take(&mut ongoing.answers);
        ongoing.running.done(answers.into_iter().flatten().collect(), ways);
        let is_follower_forgotten = self.settings.bug == Some(Bug::FollowerNotTold);
        if is_follower_forgotten || !self.go_on(id) {
            self.end(id)?;
        }
        self.begin_changes();
        Ok(())
    }

    /// Answers the caller of a change: every partition has it.
    fn end(&mut self, id: u64) -> Going {
        let found = self.changes.running.iter().position(|ongoing| ongoing.id == id);
        let Some(place) = found else { return Ok(()) };
        let Ongoing { op, queue, running, .. } = self.changes.running.remove(place);
        if self.settings.bug == Some(Bug::SpreadLate)
            && let Op::Configure { config, .. } = &op
            && let Some(spec) = self.scene.queues.get(queue)
        {
            self.routes.enter(&spec.name, config);
        }
        let result = match self.settings.bug {
            Some(Bug::FollowerNotTold) => Ok(Changed::Done),
            _ => running.end(),
        };
        self.note(|| format!("changed {op:?} -> {result:?}"));
        if result.is_err() {
            return Ok(());
        }
        self.tally.count("changes done");
        let all = 0..self.stores.len();
        match &op {
            Op::Configure { config, .. } => {
                let differs = |partition: &usize| {
                    let is_there = self.checker.exists(*partition, queue);
                    !is_there || self.checker.rules(*partition, queue) != **config
                };
                if let Some(partition) = all.clone().find(differs) {
                    return wrong(format!("partition {partition} has not heard of {op:?}"));
                }
                self.checker.keep(queue, true);
            }
            Op::Delete { .. } => {
                if let Some(partition) = all.clone().find(|at| self.checker.exists(*at, queue)) {
                    return wrong(format!("partition {partition} has not heard of {op:?}"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Reconciles all partitions with the leader, as a start does.
    pub(super) fn reconcile(&mut self) -> Going {
        for _ in 0..ROUNDS_MAX {
            let known = self.owners.iter().map(|owner| Known::of(owner.partition.machine()));
            let known: Vec<Known> = known.collect();
            let steps = match reconcile(&known) {
                Ok(steps) => steps,
                Err(behind) => return wrong(behind.to_string()),
            };
            if steps.is_empty() {
                self.routes = routes(&known, self.options.recipe);
                for (from, relays) in self.emits.let_go() {
                    self.hand_over(from, relays);
                }
                return Ok(());
            }
            self.tally.count("reconciliations");
            for step in steps {
                let ops = step.commands.iter().map(|command| self.op_of(command)).collect();
                self.push_commands(step.partition, ops, step.commands, Whose::Client);
            }
            self.quiet()?;
            if self.settings.crash_every > 0 && self.random.one_in(12) {
                self.tally.count("crashes during a reconciliation");
                self.crash();
                return self.start();
            }
        }
        wrong("the partitions do not agree")
    }

    /// A step of a change as the checker understands it.
    fn op_of(&self, command: &Command) -> Op {
        let place = |name: &QueueName| {
            let found = self.scene.queues.iter().position(|spec| spec.name == *name);
            let Some(queue) = found else { unreachable!("a change of a queue of the scene") };
            queue
        };
        match command {
            Command::Configure(configure) => Op::Configure {
                queue: place(&configure.queue),
                config: Box::new(configure.config.clone()),
            },
            Command::Follow(follow) => {
                Op::Follow { queue: place(&follow.queue), config: Box::new(follow.config.clone()) }
            }
            Command::Show(queue) => Op::Show { queue: place(queue) },
            Command::Delete(queue) => Op::Delete { queue: place(queue) },
            Command::Pause(queue) => Op::Pause { queue: place(queue), paused: true },
            Command::Resume(queue) => Op::Pause { queue: place(queue), paused: false },
            Command::Purge(purge) => Op::Purge { queue: place(&purge.queue), keys: purge.keys },
            other => unreachable!("no step of a change: {other:?}"),
        }
    }
}
