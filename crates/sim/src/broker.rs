//! Several partitions in one process: the engine's routing, changes of queues and relays, stepped
//! without threads.
//!
//! ```text
//!   clients ──▶ routes ──▶ inbox of a partition ──batch──▶ partition ──▶ checker, clients
//!                 ▲                                            │
//!              changes ◀──────────── answers ──────────────────┴──▶ relays ──▶ inboxes
//! ```
//!
//! The stores are in memory, where a crash loses what was not durable; [`run`](crate::run) tests
//! disk faults, with one partition. Here the whole process ends between any two steps: of a change,
//! of the relay of an emit, of a reconciliation.

mod change;
mod copy;
mod drain;
mod flow;
mod wait;

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};

use hapax_core::{Command, Outcome, QueueName, Recipe, Time};
use hapax_partition::relay::{Confirmations, Emits};
use hapax_partition::route::Routes;
use hapax_partition::wait::{Waiter, Waiters};
use hapax_partition::{Clock, Error, Options, Partition, Ticket};
use hapax_store::memory::{self, MemoryStore};

use crate::Random;
use crate::checker::{Checker, Violation};
use crate::faults::Tally;
use crate::op::Op;
use crate::planted::Bug;
use crate::run::{Report, panic_text};
use crate::scene::{Scene, draw_steps};
use crate::workload::Workload;
use crate::world::Clocks;

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    pub steps: u64,
    /// One crash in this many steps; zero for none.
    pub crash_every: u64,
    /// One copy, and one restore, in this many steps.
    pub copy_every: u64,
    pub bug: Option<Bug>,
    pub trace: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { steps: 500, crash_every: 60, copy_every: 500, bug: None, trace: false }
    }
}

type Going = Result<(), Violation>;

fn wrong(text: impl Into<String>) -> Going {
    Err(Violation(text.into()))
}

/// Runs one seed. A panic of the code under test is a violation like any other.
pub fn run(seed: u64, settings: &Settings) -> Report {
    let mut broker = Broker::new(seed, settings);
    let ended = catch_unwind(AssertUnwindSafe(|| broker.all()));
    let violation = match ended {
        Ok(ended) => ended.err(),
        Err(panic) => Some(Violation(panic_text(&*panic))),
    };
    if let Some(violation) = &violation {
        broker.note(|| format!("VIOLATION {violation}"));
    }
    let kinds = Vec::new();
    Report { seed, kinds, tally: broker.tally, violation, trace: broker.trace }
}

struct Broker {
    settings: Settings,
    random: Random,
    clients: Random,
    scene: Scene,
    options: Options,
    stores: Vec<MemoryStore>,
    /// Empty while no process runs.
    owners: Vec<Owner>,
    routes: Routes,
    emits: Emits,
    confirmations: Confirmations,
    changes: change::Changes,
    workload: Workload,
    checker: Checker,
    tally: Tally,
    trace: Vec<String>,
    clocks: Clocks,
    /// The latest time that each partition has shown.
    seen: Vec<Time>,
    draining: bool,
    /// Messages that each partition reported to hold, by queue.
    held: BTreeMap<(usize, usize), u64>,
    /// A copy that is being taken, and the last one that was.
    copying: Option<copy::Copy>,
    copy: Option<copy::Copy>,
    /// The largest batch that the journals accept, if it is small.
    journal_takes: Option<usize>,
    /// Whether stores answer who owns them late, as over a network, or at once, as on a disk.
    is_asked: bool,
    /// Waiting clients, and what was found while they waited.
    waits: wait::Waits,
    /// A partition whose writer panicked: it does nothing any more, and the process will end.
    fallen: Option<usize>,
}

/// One partition of the process.
struct Owner {
    partition: Partition<MemoryStore>,
    clock: Clock,
    inbox: VecDeque<Ask>,
    pending: BTreeMap<Ticket, Batch>,
    waiters: Waiters<u64>,
}

/// A request to a partition.
enum Ask {
    Call(Call),
    /// A client that waits.
    Wait(Op, Waiter<u64>),
    /// Calls the receivers of a queue again.
    CallAgain(QueueName),
}

/// Commands that belong together, and the receiver of their outcomes.
struct Call {
    ops: Vec<Op>,
    commands: Vec<Command>,
    whose: Whose,
}

#[derive(Debug)]
enum Whose {
    Client,
    /// A client that may continue to wait.
    Waiter(Waiter<u64>),
    /// Looks for what a client waits for.
    Probe,
    /// A step of a change: the number of the change, and the index of the step.
    Change(u64, usize),
    /// Emits of a partition, by number in its list.
    Emits(usize, Vec<u64>),
    /// Confirmations for the list of emits.
    List,
}

/// A batch in flight.
struct Batch {
    at: Time,
    calls: VecDeque<(Vec<Op>, Whose)>,
    /// Outcomes of the first call so far.
    outcomes: Vec<Outcome>,
}

const TRACE_LINES_MAX: usize = 100_000;
/// The largest batch of a small journal: more than any single command of a run decides.
const JOURNAL_TAKES: usize = 16 * 1_024;

impl Broker {
    fn new(seed: u64, settings: &Settings) -> Self {
        let mut random = Random::new(seed ^ 0x6272_6f6b_6572);
        let clients = random.branch();
        let mut scene = Scene::draw(&mut random);
        scene.changes_queues = true;
        let count = random.between(1, 4) as usize;
        let options = Options {
            memory_bytes: scene.partition.memory_bytes,
            journal_bytes: scene.partition.journal_bytes,
            batches_in_flight: scene.partition.batches_in_flight,
            recipe: scene.partition.recipe,
            ..draw_steps(&mut random)
        };
        let journal_takes = random.one_in(3).then_some(JOURNAL_TAKES);
        let mut checker = Checker::new(&scene.queues, count);
        checker.receive_bytes = options.bounds.receive_bytes;
        Self {
            settings: settings.clone(),
            random,
            clients,
            options,
            stores: (0..count).map(|_| MemoryStore::default()).collect(),
            owners: Vec::new(),
            routes: Routes::new(count, options.recipe),
            emits: Emits::closed(),
            confirmations: Confirmations::open(),
            changes: change::Changes::default(),
            workload: Workload::default(),
            checker,
            tally: Tally::default(),
            trace: Vec::new(),
            clocks: Clocks { wall_ms: 1_700_000_000_000, monotonic_us: 1 },
            seen: vec![Time(0); count],
            draining: false,
            held: BTreeMap::new(),
            copying: None,
            copy: None,
            fallen: None,
            waits: wait::Waits::new(seed),
            journal_takes,
            is_asked: !seed.is_multiple_of(2),
            scene,
        }
    }

    fn all(&mut self) -> Going {
        let (scene, options) = (self.scene.clone(), self.options);
        self.note(|| format!("start {} {scene:?} {options:?}", scene.queues.len()));
        self.start()?;
        let created =
            self.scene.queues.iter().enumerate().map(|(queue, spec)| Op::Configure {
                queue,
                config: Box::new(spec.config.clone()),
            });
        for op in created.collect::<Vec<_>>() {
            self.ask(op);
        }
        for _ in 0..self.settings.steps {
            self.one_step()?;
        }
        self.drain()?;
        self.audit()
    }

    fn one_step(&mut self) -> Going {
        let crash_every = self.settings.crash_every;
        if crash_every > 0 && self.random.one_in(crash_every) {
            if self.fallen.is_none() && self.random.one_in(3) {
                self.fall();
            } else {
                self.crash();
                return self.start();
            }
        }
        if self.fallen.is_some() && self.random.one_in(8) {
            self.crash();
            return self.start();
        }
        match self.random.below(self.settings.copy_every) {
            0 => self.begin_copy(),
            1 => return self.restore(),
            _ if self.copying.is_some() && self.random.one_in(16) => self.copy_next(),
            _ => {}
        }
        self.leave()?;
        let partition = self.random.index(self.stores.len());
        match self.random.weighted(&[20, 24, 20, 20, 8, 2]) {
            0 => {
                let now = self.now(partition);
                let ops =
                    self.workload.next(&mut self.clients, &self.scene, &mut self.checker, now);
                for op in ops {
                    self.ask(op);
                }
                Ok(())
            }
            1 => self.decide(partition),
            2 => self.sync(partition),
            3 => self.poll(partition),
            4 => {
                let ms = match self.random.below(20) {
                    0 => self.random.between(1_000, 20_000),
                    1..4 => self.random.between(50, 800),
                    _ => self.random.below(10),
                };
                self.pass(ms);
                Ok(())
            }
            _ => match self.owners.get_mut(partition) {
                Some(_) if self.fallen == Some(partition) => Ok(()),
                Some(owner) => owner.partition.checkpoint().map_err(failed),
                None => Ok(()),
            },
        }
    }

    fn pass(&mut self, ms: u64) {
        self.clocks.wall_ms += ms;
        self.clocks.monotonic_us += ms * 1_000;
    }

    fn now(&self, partition: usize) -> Time {
        let owner = self.owners.get(partition);
        owner.map_or(Time(self.clocks.wall_ms), |owner| owner.partition.now())
    }

    fn times(&self) -> Vec<Time> {
        (0..self.stores.len()).map(|partition| self.now(partition)).collect()
    }

    /// Starts a process: every partition recovers, is shown to the checker, and is reconciled with
    /// the leader before any request is served.
    fn start(&mut self) -> Going {
        self.lose_a_store();
        self.change_recipe();
        let (bug, journal_takes) = (self.settings.bug, self.journal_takes);
        let asked = self.is_asked;
        let faults =
            memory::Faults { held: true, asked, keeps_deleted: true, ..memory::Faults::default() };
        for (number, store) in self.stores.iter().enumerate() {
            store.set_faults(memory::Faults { batch_bytes_max: journal_takes, ..faults });
            let options = Options {
                partition: number as u16,
                partitions: match bug {
                    Some(Bug::FencesShared) => number as u16 + 1,
                    _ => self.stores.len() as u16,
                },
                seed: self.random.bits(),
                ..self.options
            };
            let partition = Partition::open(store.another(), options).map_err(failed)?;
            if bug == Some(Bug::JournalTakesLess) {
                let batch_bytes_max = Some(JOURNAL_TAKES / 8);
                store.set_faults(memory::Faults { batch_bytes_max, ..faults });
            }
            let seen = self.seen.get(number).copied().unwrap_or(Time(0));
            self.clocks.wall_ms = self.clocks.wall_ms.max(seen.0);
            let wall = Time(self.clocks.wall_ms);
            let clock = Clock::start(partition.now(), wall, self.clocks.monotonic_us);
            let (inbox, pending, waiters) = (VecDeque::new(), BTreeMap::new(), Waiters::default());
            self.owners.push(Owner { partition, clock, inbox, pending, waiters });
        }
        self.routes = Routes::new(self.stores.len(), self.options.recipe);
        // As in the engine: the routes of all partitions, the leader first.
        for owner in &self.owners {
            for (name, view) in owner.partition.machine().queues() {
                self.routes.enter(name, &view.config);
            }
        }
        self.changes = change::Changes::default();
        self.emits = match bug {
            Some(Bug::EmitsLeaveEarly) => Emits::open(),
            _ => Emits::closed(),
        };
        self.confirmations = Confirmations::open();
        for partition in 0..self.stores.len() {
            self.look_at_queues(partition);
        }
        self.quiet()?;
        self.reconcile()
    }

    /// The planted bug: the directory of a partition is missing and replaced by an empty one.
    fn lose_a_store(&mut self) {
        if self.settings.bug == Some(Bug::StoreMadeAnew) && self.random.one_in(4) {
            let partition = self.random.index(self.stores.len());
            if let Some(store) = self.stores.get_mut(partition) {
                *store = MemoryStore::default();
            }
        }
    }

    fn change_recipe(&mut self) {
        if self.settings.bug == Some(Bug::RecipeChanged) {
            let recipe = match self.options.recipe {
                Recipe::First => Recipe::second(&[1; 32]),
                Recipe::Second(_) => Recipe::First,
            };
            (self.options.recipe, self.scene.partition.recipe) = (recipe, recipe);
        }
    }

    fn look_at_queues(&mut self, partition: usize) {
        for queue in 0..self.scene.queues.len() {
            self.push(partition, vec![Op::Show { queue }], Whose::Client);
        }
    }

    /// The writer of a partition panics. It answers nothing any more; the others continue until the
    /// process ends.
    fn fall(&mut self) {
        let partition = self.random.index(self.stores.len());
        self.note(|| format!("{partition} falls"));
        self.tally.count("writers that panicked");
        self.fallen = Some(partition);
    }

    /// The process ends: killed, by a power cut, or because a writer panicked. What was not
    /// answered may have been done or not.
    fn crash(&mut self) {
        self.fallen = None;
        self.copying = None;
        self.note(|| "crash".to_owned());
        self.tally.count("crashes of all partitions");
        if self.changes.is_any() {
            self.tally.count("crashes during a change");
        }
        for (number, owner) in std::mem::take(&mut self.owners).into_iter().enumerate() {
            if let Some(seen) = self.seen.get_mut(number) {
                *seen = owner.partition.now().max(*seen);
            }
            // Clients do not retry the engine's own requests: that would hide a lost emit.
            let is_client = |whose: &Whose| matches!(whose, Whose::Client | Whose::Waiter(_));
            for batch in owner.pending.into_values() {
                for (ops, whose) in &batch.calls {
                    for op in ops {
                        self.note(|| format!("lost by {number} {op:?}"));
                        self.checker.lost(number, batch.at, op);
                        if is_client(whose) {
                            self.workload.lost(op, &self.checker);
                        }
                    }
                }
            }
            // The rest was never decided.
            for ask in &owner.inbox {
                match ask {
                    Ask::Call(call) if is_client(&call.whose) => {
                        call.ops.iter().for_each(|op| self.workload.lost(op, &self.checker));
                    }
                    Ask::Wait(op, _) => self.workload.lost(op, &self.checker),
                    Ask::Call(_) | Ask::CallAgain(_) => {}
                }
            }
        }
        for store in &mut self.stores {
            *store = store.crash();
        }
        self.workload.crashed();
        self.waits.forget();
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if self.settings.trace && self.trace.len() < TRACE_LINES_MAX {
            self.trace.push(line());
        }
    }
}

fn failed(error: Error) -> Violation {
    Violation(format!("a partition failed without a fault: {error}"))
}
