//! Several nodes on one database: the store on PostgreSQL as it ships, on a model of the database.
//!
//! ```text
//!   clients ──▶ node: state machine, partitions, lanes ──calls──▶ network ──▶ model
//!      ▲                    │                            ◀─replies─┘
//!      └──────answers───────┴──▶ checker of each partition
//! ```
//!
//! Nodes beat, judge each other, claim, serve, are paused, killed and started again. Replies are
//! lost, late or doubled; statements run after their sender gave up; the database stalls, crashes
//! and fails over. Only the database and the network are made up: [`model`] has the tables.
//!
//! Invariants:
//! - the checker of a partition gets answers in the order in which they were decided: when a claim
//!   is committed, whatever the owner before has not answered may have been done or not;
//! - what is asked of an owner after that is not answered by it.

mod drain;
mod fault;
mod flow;
mod jobs;
mod member;
pub mod model;
mod network;
mod owner;
mod process;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use hapax_core::{Stats, Time};
use hapax_postgres::Uuid;

use crate::Random;
use crate::checker::{Checker, Violation};
use crate::faults::Tally;
use crate::op::Op;
use crate::planted::Bug;
use crate::run::{Report, panic_text};
use crate::scene::Scene;
use crate::workload::Workload;
use jobs::Worker;
use network::Network;
use process::Machine;
use work::{Job, Output};

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    pub steps: u64,
    /// Whether anything fails.
    pub faults: bool,
    pub bug: Option<Bug>,
    pub trace: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { steps: 600, faults: true, bug: None, trace: false }
    }
}

type Going<T = ()> = Result<T, Violation>;

fn wrong<T>(text: impl Into<String>) -> Going<T> {
    Err(Violation(text.into()))
}

const TRACE_LINES_MAX: usize = 100_000;
const SECOND_US: u64 = 1_000_000;

/// Runs one seed. A panic of the code under test is a violation like any other.
pub fn run(seed: u64, settings: &Settings) -> Report {
    let mut cluster = Cluster::new(seed, settings);
    let ended = catch_unwind(AssertUnwindSafe(|| cluster.all()));
    let violation = match ended {
        Ok(ended) => ended.err(),
        Err(panic) => Some(Violation(panic_text(&*panic))),
    };
    if let Some(violation) = &violation {
        cluster.note(|| format!("VIOLATION {violation}"));
    }
    let trace = std::mem::take(&mut cluster.trace);
    let tally = std::mem::take(&mut cluster.tally);
    Report { seed, kinds: Vec::new(), tally, violation, trace }
}

struct Cluster {
    settings: Settings,
    random: Random,
    clients: Random,
    faults: Random,
    /// True time, which nobody knows.
    now_us: u64,
    network: Network,
    machines: Vec<Machine>,
    sides: Vec<Side>,
    jobs: BTreeMap<u64, Job>,
    pool: Vec<Worker<Output>>,
    next_serial: u64,
    /// When each node's last heartbeat was executed.
    beats: BTreeMap<Uuid, u64>,
    /// A state of the database that it may be set back to, with what was known then.
    copy: Option<fault::Copy>,
    /// Since when an owner relies on a history that was undone, and has not halted.
    undone_since: Option<u64>,
    /// Whether it was told that this history is durable. If only heartbeats saw what is gone,
    /// nobody need halt: its owner may append it again.
    is_undone: bool,
    /// A node that closed for another reason said that the database was set back.
    is_told_of_loss: bool,
    tally: Tally,
    trace: Vec<String>,
    is_draining: bool,
}

/// A partition as its clients see it.
#[derive(Debug)]
struct Side {
    scene: Scene,
    workload: Workload,
    checker: Checker,
    /// Requests that go with the next batch.
    urgent: Vec<Op>,
    /// How often it got an owner.
    openings: u64,
    last_at: Time,
    shown: BTreeMap<usize, Stats>,
}

impl Side {
    fn draw(random: &mut Random, number: u16, count: u16, bug: Option<Bug>) -> Self {
        let mut scene = Scene::draw(random);
        scene.partition.partition = number;
        scene.partition.partitions = count;
        scene.store.archive.reserve_bytes = 0;
        let mut checker = Checker::new(&scene.queues, 1);
        checker.receive_bytes = scene.partition.bounds.receive_bytes;
        if bug == Some(Bug::LeftoversBeforeClaim) {
            // Checkpoints all the time: a run that is being written is what the bug removes.
            scene.partition.journal_bytes = 1_024;
        }
        Self {
            scene,
            workload: Workload::default(),
            checker,
            urgent: Vec::new(),
            openings: 0,
            last_at: Time(0),
            shown: BTreeMap::new(),
        }
    }
}

impl Cluster {
    fn new(seed: u64, settings: &Settings) -> Self {
        let mut random = Random::new(seed ^ 0x0063_6c75_7374_6572);
        let (clients, mut faults) = (random.branch(), random.branch());
        let partitions = random.between(1, 3) as u16;
        let nodes = random.between(2, 3) as usize;
        let network = Network::draw(&mut faults, settings, partitions);
        let side = |number| Side::draw(&mut random, number, partitions, settings.bug);
        let sides: Vec<_> = (0..partitions).map(side).collect();
        let machine = |name| Machine::draw(&mut random, name, partitions);
        let machines = (0..nodes).map(machine).collect();
        Self {
            settings: settings.clone(),
            random,
            clients,
            faults,
            now_us: 0,
            network,
            machines,
            sides,
            jobs: BTreeMap::new(),
            pool: Vec::new(),
            next_serial: 1,
            beats: BTreeMap::new(),
            copy: None,
            undone_since: None,
            is_undone: false,
            is_told_of_loss: false,
            tally: Tally::default(),
            trace: Vec::new(),
            is_draining: false,
        }
    }

    fn all(&mut self) -> Going {
        let scenes: Vec<_> = self.sides.iter().map(|side| side.scene.clone()).collect();
        self.note(|| format!("start {scenes:?}"));
        for side in &mut self.sides {
            let created = side.scene.queues.iter().enumerate();
            let created = created.map(|(queue, spec)| Op::Configure {
                queue,
                config: Box::new(spec.config.clone()),
            });
            side.urgent.extend(created.collect::<Vec<_>>());
        }
        for _ in 0..self.settings.steps {
            self.one_step()?;
        }
        self.drain()?;
        self.audit()
    }

    fn one_step(&mut self) -> Going {
        if self.settings.faults {
            self.strike()?;
        }
        let ms = match self.random.below(24) {
            0 => self.random.between(500, 4_000),
            1..4 => self.random.between(50, 400),
            _ => self.random.below(12),
        };
        self.advance(ms)?;
        let partition = self.random.index(self.sides.len()) as u16;
        let Some(machine) = self.pick_owner(partition) else { return Ok(()) };
        match self.random.weighted(&[24, 22, 12, 5, 1]) {
            0 => self.submit_some(machine, partition),
            1 => self.poll(machine, partition),
            2 => self.step_checkpointer(machine, partition),
            3 => self.step_merger(machine, partition),
            _ => self.cut_checkpoint(machine, partition),
        }
    }

    /// Lets time pass: statements run, replies arrive, nodes beat.
    fn advance(&mut self, ms: u64) -> Going {
        let until = self.now_us + ms * 1_000;
        loop {
            self.deliver()?;
            self.turn_nodes()?;
            if self.now_us >= until {
                return Ok(());
            }
            let soon = self.now_us + 20_000;
            let next = self.network.next_at().unwrap_or(soon);
            self.now_us = next.max(self.now_us + 1).min(soon).min(until);
        }
    }

    /// A number that was not used before.
    fn serial(&mut self) -> u64 {
        self.next_serial += 1;
        self.next_serial
    }

    fn draw_id(&mut self) -> Uuid {
        let serial = self.serial();
        Uuid::from_u128(u128::from(serial) << 32)
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if self.settings.trace && self.trace.len() < TRACE_LINES_MAX {
            let at = self.now_us / 1_000;
            self.trace.push(format!("{at} {}", line()));
        }
    }

    /// The machines whose process has the partition open, and is awake.
    fn owners(&self, partition: u16) -> Vec<usize> {
        let has = |(at, machine): (usize, &Machine)| {
            let process = machine.process.as_ref()?;
            let is_awake = process.paused_until <= self.now_us;
            let instance = process.instances.get(&partition)?;
            (is_awake && instance.is_served()).then_some(at)
        };
        self.machines.iter().enumerate().filter_map(has).collect()
    }

    fn pick_owner(&mut self, partition: u16) -> Option<usize> {
        let owners = self.owners(partition);
        self.random.pick(&owners).copied()
    }

    /// Nodes that exist, by their id.
    fn living(&self) -> BTreeSet<Uuid> {
        self.machines.iter().filter_map(|it| Some(it.process.as_ref()?.id)).collect()
    }
}
