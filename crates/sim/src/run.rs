//! One run: everything from one seed, the same every time.
//!
//! A run has three parts: steps with faults, a drain without faults in which every message must
//! end, and an audit that asks a new process for everything again.

mod backup;
mod drain;
mod full;
mod strike;
mod wait;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use hapax_core::{Answer, Guarantee, Outcome, Settled, Stats, Time};
use hapax_partition::Error;

use crate::Random;
use crate::checker::{Checker, Violation, brief};
use crate::faults::{Choice, Kind, Tally};
use crate::op::{Held, How, Op};
use crate::planted::Bug;
use crate::scene::Scene;
use crate::volume::{Counters, Flip};
use crate::workload::{Workload, any_key};
use crate::world::{AnsweredBatch, Step, Submitted, World};

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    pub steps: u64,
    pub faults: Choice,
    /// One fault in this many steps.
    pub fault_every: u64,
    /// One copy, and one restore, in this many steps.
    pub copy_every: u64,
    pub bug: Option<Bug>,
    /// Keep a line for everything that happens.
    pub trace: bool,
}

impl Default for Settings {
    fn default() -> Self {
        let (fault_every, copy_every) = (40, 1_200);
        Self { steps: 600, faults: Choice::Drawn, fault_every, copy_every, bug: None, trace: false }
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Report {
    pub seed: u64,
    pub kinds: Vec<Kind>,
    pub tally: Tally,
    pub violation: Option<Violation>,
    pub trace: Vec<String>,
}

/// Why a run ended early.
#[derive(Debug)]
enum Ended {
    Violation(Violation),
    /// Damage was found and reported: the expected end.
    Refused,
}

impl From<Violation> for Ended {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

type Going<T> = Result<T, Ended>;

fn wrong<T>(text: impl Into<String>) -> Going<T> {
    Err(Ended::Violation(Violation(text.into())))
}

/// Runs one seed. A panic of the code under test is a violation like any other.
pub fn run(seed: u64, settings: &Settings) -> Report {
    let mut run = Run::new(seed, settings);
    let ended = catch_unwind(AssertUnwindSafe(|| run.all()));
    let violation = match ended {
        Ok(Ok(()) | Err(Ended::Refused)) => None,
        Ok(Err(Ended::Violation(violation))) => Some(violation),
        Err(panic) => Some(Violation(panic_text(&*panic))),
    };
    run.tally.add_disk(&run.world.disk.counters());
    if let Some(violation) = &violation {
        run.note(|| format!("VIOLATION {violation}"));
    }
    let mut trace = run.trace;
    trace.extend(run.world.disk.trace().lines);
    Report { seed, kinds: run.kinds, tally: run.tally, violation, trace }
}

/// The message of a panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panicked: {}", text.unwrap_or("without a word"))
}

struct Run {
    settings: Settings,
    kinds: Vec<Kind>,
    /// Draws the order of events; clients and faults have their own streams.
    random: Random,
    clients: Random,
    faults: Random,
    scene: Scene,
    world: World,
    workload: Workload,
    checker: Checker,
    tally: Tally,
    trace: Vec<String>,
    step: u64,
    /// Requests that go with the next batch.
    urgent: Vec<Op>,
    /// The disk's counters when the process was started.
    at_open: Counters,
    /// When the full disk is freed.
    freed_at: Option<u64>,
    /// A flipped bit that the store has not read yet.
    rotten: Option<Flip>,
    struck: bool,
    /// Nothing fails any more, neither disks nor workers.
    draining: bool,
    /// The monotonic clock and the partition's time of the last batch of this process.
    last_stamp: Option<(u64, Time)>,
    last_at: Time,
    shown: BTreeMap<usize, Stats>,
    waiters: wait::Waiters,
    /// A copy that may be restored.
    copy: Option<backup::Copy>,
    /// Requests since a copy was begun, while it is taken.
    asked: Option<Vec<(Time, Op)>>,
}

/// The most lines of a trace.
const TRACE_LINES_MAX: usize = 200_000;
/// Items that are checked after a restart.
const WITNESSES: u64 = 12;
/// The most failed starts in a row.
const OPENS_MAX: u32 = 12;

impl Run {
    fn new(seed: u64, settings: &Settings) -> Self {
        let mut random = Random::new(seed);
        let (clients, mut faults) = (random.branch(), random.branch());
        let kinds = settings.faults.draw(&mut faults);
        let mut scene = Scene::draw(&mut random);
        let receive_bytes = scene.partition.bounds.receive_bytes;
        if settings.bug == Some(Bug::ReceiveUnbounded) {
            scene.partition.bounds.receive_bytes = usize::MAX;
        }
        if settings.bug == Some(Bug::NoRelief) {
            scene.partition.relief_ms = u64::MAX;
        }
        let memory = kinds.contains(&Kind::Takeover);
        let world = World::new(scene.clone(), &mut random, memory, settings.bug);
        if settings.trace {
            world.disk.record(TRACE_LINES_MAX);
        }
        let mut checker = Checker::new(&scene.queues, 1);
        checker.receive_bytes = receive_bytes;
        Self {
            settings: settings.clone(),
            kinds,
            random,
            clients,
            faults,
            scene,
            world,
            workload: Workload::default(),
            checker,
            tally: Tally::default(),
            trace: Vec::new(),
            step: 0,
            urgent: Vec::new(),
            at_open: Counters::default(),
            freed_at: None,
            rotten: None,
            struck: false,
            draining: false,
            last_stamp: None,
            last_at: Time(0),
            shown: BTreeMap::new(),
            waiters: wait::Waiters::default(),
            copy: None,
            asked: None,
        }
    }

    fn all(&mut self) -> Going<()> {
        self.note(|| "start".to_owned());
        let scene = self.scene.clone();
        self.note(|| format!("{scene:?}"));
        self.reopen()?;
        let created = self.scene.queues.iter().enumerate();
        let created = created
            .map(|(queue, spec)| Op::Configure { queue, config: Box::new(spec.config.clone()) });
        self.urgent.extend(created.collect::<Vec<_>>());
        let created = std::mem::take(&mut self.urgent);
        self.submit_all(created)?;
        while self.step < self.settings.steps {
            self.step += 1;
            self.one_step()?;
        }
        if self.checker.damaged {
            return Ok(());
        }
        self.drain()?;
        self.fill_by_sends()?;
        self.audit()
    }

    fn one_step(&mut self) -> Going<()> {
        if !self.kinds.is_empty() && self.faults.one_in(self.settings.fault_every) {
            self.strike()?;
        }
        if self.freed_at.is_some_and(|freed| freed <= self.step) {
            self.free();
        }
        match self.random.below(self.settings.copy_every) {
            0 => self.back_up()?,
            1 => self.restore()?,
            _ => {}
        }
        self.ordinary_step()
    }

    fn ordinary_step(&mut self) -> Going<()> {
        match self.random.weighted(&[20, 14, 16, 5, 10, 5, 8, 1, 2]) {
            0 => self.submit_some(),
            1 => self.poll(),
            2 => self.work(Step::Flusher),
            3 => self.work(Step::Keeper),
            4 => self.work(Step::Checkpointer),
            5 => self.work(Step::Merger),
            6 => {
                let ms = match self.random.below(20) {
                    0 => self.random.between(1_000, 20_000),
                    1..4 => self.random.between(50, 800),
                    _ => self.random.below(10),
                };
                self.world.pass(ms);
                Ok(())
            }
            7 => {
                let cut = self.world.checkpoint();
                self.excuse(cut).map(drop)
            }
            _ => self.use_zombie(),
        }?;
        self.notice_damage();
        Ok(())
    }

    fn submit_some(&mut self) -> Going<()> {
        if self.world.is_busy() {
            return Ok(());
        }
        let mut ops = std::mem::take(&mut self.urgent);
        let now = self.world.now();
        for _ in 0..self.random.between(u64::from(ops.is_empty()), 6) {
            ops.extend(self.workload.next(&mut self.clients, &self.scene, &mut self.checker, now));
        }
        self.submit(ops)
    }

    fn submit(&mut self, ops: Vec<Op>) -> Going<()> {
        let serial = self.world.submitted();
        self.note(|| format!("submit {serial} {ops:?}"));
        let items = self.checker.items();
        if let Some(asked) = &mut self.asked {
            let at = self.world.now();
            asked.extend(ops.iter().map(|op| (at, op.clone())));
        }
        let submitted = self.world.submit(&mut self.random, ops, items, false);
        if submitted.is_ok() {
            self.check_time()?;
            if self.random.one_in(8) {
                let evicts = self.random.one_in(2);
                self.world.check_invariants(evicts);
            }
        }
        self.excuse(submitted).map(drop)
    }

    /// Checks that time never runs backwards, and within a process follows the monotonic clock.
    fn check_time(&mut self) -> Going<()> {
        let (monotonic, at) = (self.world.clocks().monotonic_us, self.world.stamped());
        if at < self.last_at {
            return wrong("the partition's time ran backwards");
        }
        self.last_at = at;
        if let Some((before, then)) = self.last_stamp.replace((monotonic, at)) {
            let elapsed = (monotonic - before) as i64;
            let moved = at.since(then) as i64 * 1_000;
            if (moved - elapsed).abs() > elapsed / 1_000 + 2_000 {
                return wrong(format!("time moved by {moved} µs in {elapsed} µs"));
            }
        }
        Ok(())
    }

    fn poll(&mut self) -> Going<()> {
        loop {
            let polled = self.world.poll(false);
            match self.excuse(polled)?.flatten() {
                Some(told) => self.told(told)?,
                None => return Ok(()),
            }
        }
    }

    fn work(&mut self, step: Step) -> Going<()> {
        let before = self.world.checkpointed();
        let stepped = self.world.step(step);
        if before.is_some() && self.world.checkpointed() > before {
            self.tally.count("checkpoints");
        }
        if step == Step::Merger && matches!(stepped, Ok(true)) {
            self.tally.count("steps of merges");
        }
        self.excuse(stepped).map(drop)
    }

    fn told(&mut self, told: AnsweredBatch) -> Going<()> {
        for (op, outcome) in &told.answers {
            self.note(|| format!("at {} {op:?} -> {}", told.at.0, brief(outcome)));
            self.count(op, outcome);
            self.checker.answered(0, told.at, op, outcome)?;
            let keyed = match op {
                Op::Send { item, .. } => {
                    self.checker.items().get(*item).is_some_and(|item| !item.is_keyless())
                }
                _ => true,
            };
            self.workload.answered(&mut self.clients, op, outcome, keyed);
            if !told.zombie {
                self.urgent.extend(Workload::relayed(op, outcome));
            }
            match (op, outcome) {
                (Op::Receive { queue, .. }, Outcome::Received(deliveries)) => {
                    if self.checker.rules(0, *queue).guarantee == Guarantee::AtMostOnce {
                        continue; // There is no lease to settle.
                    }
                    let is_gone = !self.draining && self.clients.one_in(12);
                    for delivery in deliveries {
                        let item = self.checker.whose(&delivery.content)?;
                        if is_gone {
                            // The caller went away: the engine releases the messages.
                            self.tally.count("messages given back");
                            self.urgent.push(give_back(item, delivery));
                            continue;
                        }
                        match self.draining {
                            true => self.workload.delivered_to(false, item, delivery),
                            false => self.workload.delivered(&mut self.clients, item, delivery),
                        }
                    }
                }
                (Op::Show { queue }, Outcome::Queue(view)) => {
                    self.shown.insert(*queue, view.stats);
                }
                (Op::Show { queue }, _) => {
                    self.shown.remove(queue);
                }
                _ => {}
            }
        }
        // The successor of a zombie sends the same emits.
        for effect in told.effects.iter().filter(|_| !told.zombie) {
            self.workload.relay(effect, &self.scene, &mut self.checker);
        }
        self.wait_and_wake(&told)
    }

    fn count(&mut self, op: &Op, outcome: &Outcome) {
        self.tally.count("answers");
        if self.struck {
            self.tally.count("answers after a fault");
        }
        let what = match outcome {
            Outcome::Sent(Answer::Accepted { .. }) => "accepted",
            Outcome::Sent(Answer::Conflict { .. }) | Outcome::Claimed(Answer::Conflict { .. }) => {
                "conflicts"
            }
            Outcome::Sent(Answer::StoreFull) | Outcome::Claimed(Answer::StoreFull) => {
                "refused for room"
            }
            Outcome::Sent(answer) | Outcome::Claimed(answer) if answer.is_replay() => {
                "duplicates answered"
            }
            Outcome::Claimed(Answer::Fresh(_)) => "claims",
            Outcome::Received(deliveries) => {
                self.tally.add("deliveries", deliveries.len() as u64);
                let again = deliveries.iter().filter(|delivery| delivery.attempt > 1).count();
                self.tally.add("redeliveries", again as u64);
                return;
            }
            Outcome::Settled(Settled::Ok { .. }) => match op {
                Op::Settle { how: crate::op::How::Done(_), .. } => "done",
                _ => "other settles",
            },
            Outcome::Settled(Settled::LeaseLost { .. }) => "leases lost",
            Outcome::Redrive(_) => "redrives",
            Outcome::Configured { created: true, .. } => "queues created",
            Outcome::Configured { created: false, .. } => "queues changed",
            Outcome::Ok => match op {
                Op::Delete { .. } => "queues deleted",
                Op::Purge { .. } => "purges",
                _ => return,
            },
            _ => return,
        };
        self.tally.count(what);
    }

    /// Starts a process, retrying until it succeeds.
    fn reopen(&mut self) -> Going<()> {
        for attempt in 1..=OPENS_MAX {
            if attempt == OPENS_MAX / 2 {
                self.heal();
            }
            self.at_open = self.world.disk.counters();
            let opened = self.world.open(self.last_at);
            self.note(|| format!("open {:?}", opened.as_ref().err().map(Error::to_string)));
            match opened {
                Ok(()) => {
                    self.last_stamp = None;
                    return self.ask_witnesses();
                }
                Err(error) => self.judge(&error)?,
            }
            let power = self.faults.one_in(2);
            self.forget_unanswered(power);
        }
        wrong("the partition does not open any more")
    }

    /// Looks at some items; the queues first, because the rest is checked against them.
    fn ask_witnesses(&mut self) -> Going<()> {
        let mut looks: Vec<Op> =
            (0..self.scene.queues.len()).map(|queue| Op::Show { queue }).collect();
        for _ in 0..WITNESSES {
            looks.extend(any_key(&mut self.clients, &self.checker).map(|item| Op::Look { item }));
        }
        self.urgent.retain(|op| !matches!(op, Op::Relayed { .. }));
        looks.append(&mut self.urgent);
        self.urgent = looks;
        Ok(())
    }

    /// Returns the result, or restarts the process if a fault explains the error.
    fn excuse<T>(&mut self, result: Result<T, Error>) -> Going<Option<T>> {
        let error = match result {
            Ok(value) => return Ok(Some(value)),
            Err(error) => error,
        };
        self.note(|| format!("failed: {error}"));
        self.judge(&error)?;
        let power = self.faults.one_in(3);
        self.forget_unanswered(power);
        self.reopen()?;
        Ok(None)
    }

    /// Whether a fault explains the error.
    fn judge(&mut self, error: &Error) -> Going<()> {
        self.notice_damage();
        let now = self.world.disk.counters();
        let before = self.at_open;
        let errors = |counters: &Counters| {
            counters.read_errors
                + counters.write_errors
                + counters.sync_errors
                + counters.names_errors
        };
        if self.world.disk.stopped().is_some() || errors(&now) > errors(&before) {
            return Ok(());
        }
        if self.freed_at.is_some() && !self.world.is_open() && is_full(error) {
            // With all spare segments in use there is no room for a new owner's epoch either. An
            // operator makes room; nothing may be lost meanwhile.
            self.tally.count("opened after making room");
            self.free();
            return Ok(());
        }
        if self.freed_at.is_some() && self.checker.damaged && is_full(error) {
            // The zeros of a spare segment were misdirected, so it has no allocated space: two
            // faults explain what one does not.
            self.tally.count("segments without their room");
            return Ok(());
        }
        if self.rotten.is_some() || self.checker.damaged {
            return self.refused(error);
        }
        wrong(format!("the store failed without a fault: {error}"))
    }

    /// The process ends; what it had not answered may have been done or not.
    fn forget_unanswered(&mut self, power: bool) {
        let lost = self.world.end(power);
        self.tally.count("restarts");
        self.lose(&lost);
        self.workload.crashed();
        self.forget_waiters();
    }

    fn lose(&mut self, lost: &[Submitted]) {
        for sent in lost {
            for op in &sent.ops {
                self.note(|| format!("lost {op:?}"));
                self.tally.count("answers lost");
                self.checker.lost(0, sent.at, op);
                self.workload.lost(op, &self.checker);
            }
        }
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if self.settings.trace && self.trace.len() < TRACE_LINES_MAX {
            self.trace.push(format!("{} {}", self.step, line()));
        }
    }
}

/// The release of a message whose caller went away.
fn give_back(item: usize, delivery: &hapax_core::Delivery) -> Op {
    let (name, id, generation) = (delivery.lease, delivery.id, delivery.generation);
    Op::Settle { held: Held { item, name, id, generation }, how: How::Release }
}

fn is_full(error: &Error) -> bool {
    matches!(error, Error::Store(error) if error.is_full())
}
