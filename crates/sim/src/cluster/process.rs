//! Machines, the processes on them, and what they do for the partitions that they own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hapax_postgres::call::Answer;
use hapax_postgres::node::{Act, Loss, State};
use hapax_postgres::{Failure, Lane, Note, Seen, Uuid, Witnesses};

use super::jobs::{self, Reply};
use super::member::Member;
use super::network::{Address, Port};
use super::owner::Instance;
use super::{Cluster, Going, SECOND_US};
use crate::Random;
use crate::planted::Bug;

/// Lanes of a node, as in production.
pub(super) const LANES: usize = 2;
/// An idle lane asks this often how far everything is.
const LOOK_US: u64 = 60 * SECOND_US;

/// A machine, with what outlives its processes.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) name: usize,
    /// Its monotonic clock shows the true time and this.
    ahead_us: u64,
    /// Parts per million that it is faster.
    drift: u64,
    /// How far each partition was.
    pub(super) notes: Vec<Arc<Memo>>,
    pub(super) process: Option<Process>,
    pub(super) starts_at: u64,
}

impl Machine {
    pub(super) fn draw(random: &mut Random, name: usize, partitions: u16) -> Self {
        Self {
            name,
            ahead_us: random.below(1_000 * SECOND_US),
            drift: random.below(200),
            notes: (0..partitions).map(|_| Arc::default()).collect(),
            process: None,
            starts_at: random.below(2 * SECOND_US),
        }
    }

    fn freeze(&self, is_frozen: bool) {
        self.notes.iter().for_each(|note| note.is_frozen.store(is_frozen, Ordering::Relaxed));
    }

    pub(super) fn monotonic(&self, now: u64) -> u64 {
        self.ahead_us + now + now / 1_000_000 * self.drift
    }
}

/// A witness that outlives its process.
#[derive(Debug, Default)]
pub(super) struct Memo {
    text: Mutex<Option<String>>,
    /// The process was killed: what it does while it is taken apart counts for nothing.
    is_frozen: AtomicBool,
}

impl Note for Memo {
    fn read(&self) -> Option<String> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn write(&self, text: &str) -> bool {
        if !self.is_frozen.load(Ordering::Relaxed) {
            *self.text.lock().unwrap_or_else(PoisonError::into_inner) = Some(text.to_owned());
        }
        true
    }
}

#[derive(Debug)]
pub(super) struct Process {
    pub(super) serial: u64,
    pub(super) id: Uuid,
    /// None until it has registered.
    pub(super) state: Option<State>,
    pub(super) member: Member,
    pub(super) cluster: Uuid,
    pub(super) lineage: Uuid,
    pub(super) lanes: Vec<LaneOf>,
    /// What it knows of the partitions, by its appends and its heartbeats.
    pub(super) witnesses: Witnesses,
    pub(super) instances: BTreeMap<u16, Instance>,
    pub(super) opening: Option<Opening>,
    pub(super) closing: Option<Loss>,
    pub(super) paused_until: u64,
    /// What it read last.
    pub(super) seen: Seen,
    /// When that was so, and when the nodes had beaten then.
    pub(super) read: (u64, BTreeMap<Uuid, u64>),
    /// The database's clock, and its own when it read that.
    pub(super) wall: (u64, u64),
    pub(super) is_stopping: bool,
    ticked_at: u64,
    looked_at: u64,
}

#[derive(Debug)]
pub(super) struct LaneOf {
    pub(super) lane: Arc<Lane>,
    is_waiting: bool,
    not_before: u64,
}

/// The partitions that a node is opening.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) left: usize,
    pub(super) opened: BTreeMap<u16, Instance>,
    pub(super) failed: Option<Loss>,
}

impl Cluster {
    /// A process is started on a machine.
    pub(super) fn start_process(&mut self, at: usize) {
        let (serial, id) = (self.serial(), self.draw_id());
        let (cluster, lineage) = (self.network.tables.cluster, self.network.tables.lineage);
        let now = self.now_us;
        let lane = |_| LaneOf {
            lane: Arc::new(Lane::stepped(cluster, lineage, Arc::new(jobs::pass))),
            is_waiting: false,
            not_before: 0,
        };
        let Some(machine) = self.machines.get_mut(at) else { return };
        machine.freeze(false);
        let notes = machine.notes.iter().map(|note| Arc::clone(note) as Arc<dyn Note>);
        let witnesses = Witnesses::read((cluster, lineage), notes);
        machine.process = Some(Process {
            serial,
            id,
            state: None,
            member: Member::default(),
            cluster,
            lineage,
            lanes: (0..LANES).map(lane).collect(),
            witnesses,
            instances: BTreeMap::new(),
            opening: None,
            closing: None,
            paused_until: 0,
            seen: Seen::default(),
            read: (0, BTreeMap::new()),
            wall: (0, 0),
            is_stopping: false,
            ticked_at: now,
            looked_at: now,
        });
        if self.settings.bug == Some(Bug::LeftoversBeforeClaim) {
            let partitions = 0..self.sides.len() as u16;
            partitions.for_each(|it| self.network.tables.remove_unlisted(it));
        }
        self.tally.count("starts");
        self.note(|| format!("{at} starts as {}", id.as_u128() >> 32));
    }

    /// The time by which a node judges, and its monotonic clock in microseconds.
    pub(super) fn own_time(&self, at: usize) -> (Duration, u64) {
        let Some(machine) = self.machines.get(at) else { return (Duration::ZERO, 0) };
        let monotonic = machine.monotonic(self.now_us);
        if self.settings.bug == Some(Bug::DatabaseClock) {
            let wall = machine.process.as_ref().map_or((0, 0), |process| process.wall);
            let ms = wall.0 + monotonic.saturating_sub(wall.1) / 1_000;
            return (Duration::from_millis(ms), monotonic);
        }
        (Duration::from_micros(monotonic), monotonic)
    }

    /// What every process does all the time.
    pub(super) fn turn_nodes(&mut self) -> Going {
        for at in 0..self.machines.len() {
            let Some(machine) = self.machines.get(at) else { continue };
            match &machine.process {
                None if machine.starts_at <= self.now_us => self.start_process(at),
                Some(process) if process.paused_until <= self.now_us => {
                    self.turn_lanes(at);
                    self.turn_member(at)?;
                    self.turn_closing(at)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn turn_lanes(&mut self, at: usize) {
        let now = self.now_us;
        let Some(process) = self.machines.get_mut(at).and_then(|it| it.process.as_mut()) else {
            return;
        };
        let (is_tick, is_look) =
            (process.ticked_at + SECOND_US <= now, process.looked_at + LOOK_US <= now);
        process.ticked_at = if is_tick { now } else { process.ticked_at };
        process.looked_at = if is_look { now } else { process.looked_at };
        let serial = process.serial;
        let mut calls = Vec::new();
        for (number, of) in process.lanes.iter_mut().enumerate() {
            if is_tick {
                of.lane.tick();
            }
            if is_look {
                of.lane.look();
            }
            if !of.is_waiting
                && of.not_before <= now
                && let Some(call) = of.lane.next_call()
            {
                of.is_waiting = true;
                calls.push((call, number));
            }
        }
        for (call, number) in calls {
            let from = Address { machine: at, process: serial, port: Port::Lane(number) };
            self.network.send(now, call, from);
        }
    }

    pub(super) fn check_owners(&mut self, at: usize) {
        let process = self.machines.get(at).and_then(|it| it.process.as_ref());
        process.into_iter().flat_map(|it| &it.lanes).for_each(|of| of.lane.look());
    }

    pub(super) fn process(&mut self, to: Address) -> Option<&mut Process> {
        let process = self.machines.get_mut(to.machine)?.process.as_mut()?;
        (process.serial == to.process).then_some(process)
    }

    pub(super) fn lane_answered(
        &mut self,
        to: Address,
        lane: usize,
        outcome: Result<Answer, Failure>,
        is_again: bool,
    ) -> Going {
        let pause = self.random.between(10_000, 500_000);
        let now = self.now_us;
        let Some(process) = self.process(to) else { return Ok(()) };
        let Some(of) = process.lanes.get_mut(lane) else { return Ok(()) };
        if is_again && of.is_waiting {
            return Ok(()); // A connection tells whose reply it is.
        }
        if !is_again {
            of.is_waiting = false;
        }
        of.not_before = if outcome.is_err() { now + pause } else { now };
        of.lane.answered(outcome);
        Ok(())
    }

    /// Does what the state machine of a node decided.
    pub(super) fn act(&mut self, at: usize, acts: Vec<Act>) -> Going {
        for act in acts {
            self.note(|| format!("{at} {act:?}"));
            match act {
                Act::Open { epochs } => {
                    self.check_claim(at)?;
                    self.open_all(at, &epochs)?;
                }
                Act::Close(loss) => {
                    self.check_owners(at);
                    let process = self.machines.get_mut(at).and_then(|it| it.process.as_mut());
                    let Some(process) = process else { continue };
                    process.closing = Some(loss);
                }
                Act::Suspend => self.tally.count("nodes cut off"),
                Act::Resume => self.check_owners(at),
                Act::Forget(id, heartbeat) => self.forget_node(at, id, heartbeat),
            }
        }
        Ok(())
    }

    /// A node is stopped in good order.
    pub(super) fn stop_process(&mut self, at: usize) -> Going {
        let Some(process) = self.machines.get_mut(at).and_then(|it| it.process.as_mut()) else {
            return Ok(());
        };
        let Some(state) = &mut process.state else { return Ok(()) };
        if process.opening.is_some() || process.closing.is_some() || process.is_stopping {
            return Ok(());
        }
        process.is_stopping = true;
        let acts = state.stop();
        self.note(|| format!("{at} stops"));
        self.tally.count("stops");
        if acts.is_empty() {
            self.leave(at);
            return Ok(());
        }
        self.act(at, acts)
    }

    /// The process ends at once. What it sent runs all the same.
    pub(super) fn kill(&mut self, at: usize) {
        let Some(machine) = self.machines.get_mut(at) else { return };
        machine.freeze(true);
        let Some(process) = machine.process.take() else { return };
        machine.starts_at = self.now_us + self.random.between(SECOND_US / 4, 6 * SECOND_US);
        self.note(|| format!("{at} is killed"));
        self.tally.count("kills");
        let numbers: Vec<u64> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.process == process.serial)
            .map(|(number, _)| *number)
            .collect();
        for number in numbers {
            if let Some(job) = self.jobs.remove(&number) {
                job.worker.resume(Reply::Kill);
                self.pool.push(job.worker);
            }
        }
        for (partition, instance) in process.instances {
            self.lose(partition, instance.submitting.into_iter());
            self.lose(partition, instance.pending.into_values());
        }
    }
}
