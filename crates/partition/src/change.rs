//! A change of a queue over all partitions: configure, delete, pause, resume, purge.
//!
//! ```text
//!   enter the route ─▶ the leader decides ─▶ all others follow ─▶ remove the route (delete)
//! ```
//!
//! A change is decided when it is in the leader's journal; then it is sent to the others until they
//! have it. A crash after any step leaves a leader that is ahead of some others, and [`reconcile`]
//! completes the change before any request is served. The leader's version is passed on as an
//! edition, so that no partition applies an older one.
//!
//! Invariants, which the caller keeps: one change of a queue at a time; a change that has begun is
//! completed, whatever its caller does; reconciliation is complete before the first change.
//!
//! A purge leaves no trace in the leader: one that a crash interrupted is done in part, was not
//! confirmed, and can be repeated without harm.

use std::collections::{HashMap, HashSet};

use hapax_core::{
    Command, Configure, Follow, Machine, Outcome, Purge, QueueId, QueueName, QueueView, Recipe,
    Refusal,
};

use crate::route::{LEADER, Routes};

/// An operation on a queue as a whole.
#[derive(Clone, Debug)]
pub enum Change {
    Configure(Configure),
    /// Drops the queue with its messages and keys.
    Delete(QueueName),
    Pause(QueueName),
    Resume(QueueName),
    Purge(Purge),
}

impl Change {
    pub fn queue(&self) -> &QueueName {
        match self {
            Self::Configure(configure) => &configure.queue,
            Self::Delete(queue) | Self::Pause(queue) | Self::Resume(queue) => queue,
            Self::Purge(purge) => &purge.queue,
        }
    }

    fn command(&self) -> Command {
        match self {
            Self::Configure(configure) => Command::Configure(Box::new(configure.clone())),
            Self::Delete(queue) => Command::Delete(queue.clone()),
            Self::Pause(queue) => Command::Pause(queue.clone()),
            Self::Resume(queue) => Command::Resume(queue.clone()),
            Self::Purge(purge) => Command::Purge(purge.clone()),
        }
    }
}

/// The result of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    Configured { version: u64, created: bool },
    Done,
}

/// Commands for one partition, in one batch.
#[derive(Debug)]
pub struct Step {
    pub partition: usize,
    pub commands: Vec<Command>,
}

/// A change in progress.
///
/// ```text
///   let mut running = Running::begin(change, &mut routes);
///   while let Some(steps) = running.next() {
///       // Carry out all steps, in any order, and wait until they are durable.
///       running.done(outcomes, &mut routes);
///   }
///   running.end()
/// ```
#[derive(Debug)]
pub struct Running {
    change: Change,
    partitions: usize,
    /// Whether this change added the queue's route.
    entered: bool,
    stage: Stage,
    result: Result<Changed, Refusal>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Begun,
    Leading,
    /// The leader has decided; with the edition of a configuration.
    Led(u64),
    Following,
    Ended,
}

impl Running {
    /// Begins a change. The queue's route is known from here on, before any partition accepts a
    /// message for it.
    pub fn begin(change: Change, routes: &mut Routes) -> Self {
        let entered = match &change {
            Change::Configure(configure) => routes.enter(&configure.queue, &configure.config),
            _ => false,
        };
        let partitions = routes.partitions();
        Self { change, partitions, entered, stage: Stage::Begun, result: Ok(Changed::Done) }
    }

    /// The next steps, which may run concurrently; `None` when the change is complete.
    #[expect(clippy::should_implement_trait, reason = "the answers come in between")]
    pub fn next(&mut self) -> Option<Vec<Step>> {
        match self.stage {
            Stage::Begun => {
                self.stage = Stage::Leading;
                let mut commands = vec![self.change.command()];
                if let Change::Configure(configure) = &self.change {
                    commands.push(Command::Show(configure.queue.clone()));
                }
                Some(vec![Step { partition: LEADER, commands }])
            }
            Stage::Led(edition) => {
                self.stage = Stage::Following;
                let command = match &self.change {
                    Change::Configure(Configure { queue, config, .. }) => {
                        Command::Follow(Box::new(Follow {
                            queue: queue.clone(),
                            config: config.clone(),
                            version: edition,
                        }))
                    }
                    other => other.command(),
                };
                let step = |partition| Step { partition, commands: vec![command.clone()] };
                Some(others(self.partitions).map(step).collect())
            }
            Stage::Ended => None,
            Stage::Leading | Stage::Following => unreachable!("the steps before have no answer"),
        }
    }

    /// Takes the outcomes of all steps of `next`, in order.
    pub fn done(&mut self, mut outcomes: Vec<Vec<Outcome>>, routes: &mut Routes) {
        match self.stage {
            Stage::Leading => {
                assert_eq!(outcomes.len(), 1, "the leader alone was asked");
                let led = self.led(outcomes.pop().unwrap_or_default());
                self.stage = match led {
                    Ok(edition) if self.partitions > 1 => Stage::Led(edition),
                    Ok(_) => Stage::Ended,
                    Err(refusal) => {
                        self.result = Err(refusal);
                        Stage::Ended
                    }
                };
                match (&self.change, &self.result) {
                    (Change::Configure(configure), Err(_)) if self.entered => {
                        routes.remove(&configure.queue);
                    }
                    (Change::Delete(queue), Ok(_)) => routes.close(queue),
                    _ => {}
                }
            }
            Stage::Following => {
                assert_eq!(outcomes.len(), self.partitions - 1, "all others were asked");
                for outcome in outcomes.into_iter().flatten() {
                    self.followed(outcome);
                }
                self.stage = Stage::Ended;
            }
            Stage::Begun | Stage::Led(_) | Stage::Ended => unreachable!("nothing was asked"),
        }
        if self.stage == Stage::Ended
            && let (Change::Delete(queue), Ok(_)) = (&self.change, &self.result)
        {
            routes.remove(queue);
        }
    }

    /// The result of the change.
    pub fn end(self) -> Result<Changed, Refusal> {
        assert_eq!(self.stage, Stage::Ended, "a change is carried to its end");
        self.result
    }

    fn led(&mut self, outcomes: Vec<Outcome>) -> Result<u64, Refusal> {
        let mut outcomes = outcomes.into_iter();
        match (outcomes.next(), outcomes.next()) {
            (Some(Outcome::Refused(refusal)), _) => Err(refusal),
            (Some(Outcome::Configured { version, created }), Some(Outcome::Queue(view))) => {
                self.result = Ok(Changed::Configured { version, created });
                Ok(edition(&view))
            }
            (Some(Outcome::Ok), None) => Ok(0),
            other => unreachable!("a change is not answered by {other:?}"),
        }
    }

    fn followed(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Ok | Outcome::Configured { .. } => {}
            // A partition without the queue delivers nothing from it either.
            Outcome::Refused(Refusal::NoSuchQueue) => {}
            Outcome::Refused(refusal) => self.result = Err(refusal),
            other => unreachable!("a change is not answered by {other:?}"),
        }
    }
}

/// The version of a queue as followers know it: its number in the leader, and the number of changes
/// since it was created. It grows with every change, also if a queue is deleted and created again.
fn edition(leads: &QueueView) -> u64 {
    (u64::from(leads.number) + 1) << VERSION_BITS | leads.version.min(VERSION_MAX)
}

const VERSION_BITS: u32 = 32;
const VERSION_MAX: u64 = (1 << VERSION_BITS) - 1;

/// The leader's number of a queue of this edition; `None` if release 0.1 wrote it, which counted in
/// every partition separately.
fn number(edition: u64) -> Option<u64> {
    (edition >> VERSION_BITS).checked_sub(1)
}

/// What one partition knows of the queues at a start.
#[derive(Clone, Debug)]
pub struct Known {
    /// The number of the next queue that it creates.
    pub next_queue: QueueId,
    pub queues: Vec<(QueueName, QueueView)>,
}

impl Known {
    pub fn of(machine: &Machine) -> Self {
        let queues = machine.queues().map(|(name, view)| (name.clone(), view)).collect();
        Self { next_queue: machine.next_queue(), queues }
    }

    fn views(&self) -> HashMap<&QueueName, &QueueView> {
        self.queues.iter().map(|(name, view)| (name, view)).collect()
    }
}

/// The leader lacks what the others have: its directory was lost, emptied or rolled back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "partition {LEADER} does not know what partition {partition} was told about the queue \
     {queue}: it was set back or replaced; restore all partitions from one backup"
)]
pub struct LeaderBehind {
    pub partition: usize,
    pub queue: String,
}

/// The steps that bring all partitions to what the leader decided, from what each knows at a start.
/// Called again after they are carried out, until there are none: a queue that the leader has to
/// adopt first reaches the others in the second round.
///
/// A queue is deleted if the leader deleted it: the leader issued its number and no longer has it.
/// A leader that has not reached that number deletes nothing.
pub fn reconcile(partitions: &[Known]) -> Result<Vec<Step>, LeaderBehind> {
    let Some((leader, followers)) = partitions.split_first() else { return Ok(Vec::new()) };
    let mut lead: Vec<Command> = Vec::new();
    let mut adopted: HashSet<&QueueName> = HashSet::new();
    let mut steps = Vec::new();
    let leads = leader.views();
    for (partition, known) in others(partitions.len()).zip(followers) {
        let behind = |queue: &QueueName| LeaderBehind { partition, queue: queue.queue.to_string() };
        let mut commands = Vec::new();
        let views = known.views();
        for (queue, view) in &leader.queues {
            let known = views.get(queue).copied();
            follow(queue, view, known, &mut commands).map_err(|_| behind(queue))?;
        }
        let left = known.queues.iter().filter(|(queue, _)| !leads.contains_key(queue));
        for (queue, view) in left {
            match number(view.version) {
                Some(number) if number < leader.next_queue.into() => {
                    commands.push(Command::Delete(queue.clone()));
                }
                Some(_) => return Err(behind(queue)),
                // It is unknown whether the leader deleted it. Messages and keys are kept; an empty
                // queue can be created again.
                None if holds_nothing(view) => commands.push(Command::Delete(queue.clone())),
                None if !adopted.insert(queue) => {}
                None => {
                    let (queue, config) = (queue.clone(), view.config.clone());
                    lead.push(Command::Configure(Box::new(Configure {
                        queue,
                        config,
                        if_version: None,
                    })));
                }
            }
        }
        if !commands.is_empty() {
            steps.push(Step { partition, commands });
        }
    }
    if !lead.is_empty() {
        steps.push(Step { partition: LEADER, commands: lead });
    }
    Ok(steps)
}

/// The routes after [`reconcile`]: those of the leader's queues. A queue that only others knew is
/// gone by then.
pub fn routes(partitions: &[Known], recipe: Recipe) -> Routes {
    let mut routes = Routes::new(partitions.len(), recipe);
    for (queue, view) in partitions.first().into_iter().flat_map(|leader| &leader.queues) {
        routes.enter(queue, &view.config);
    }
    routes
}

/// Brings one queue of a follower to what the leader has.
fn follow(
    queue: &QueueName,
    leads: &QueueView,
    known: Option<&QueueView>,
    commands: &mut Vec<Command>,
) -> Result<(), ()> {
    let newest = edition(leads);
    let follow = || {
        let (queue, config) = (queue.clone(), leads.config.clone());
        Command::Follow(Box::new(Follow { queue, config, version: newest }))
    };
    let mut is_paused = known.is_some_and(|known| known.paused);
    match known {
        None => commands.push(follow()),
        Some(known) if known.version > newest => return Err(()),
        Some(known) if known.version == newest => {}
        Some(known) => match number(known.version) {
            // An earlier queue of the name, which the leader deleted.
            Some(number) if number < leads.number.into() => {
                commands.extend([Command::Delete(queue.clone()), follow()]);
                is_paused = false;
            }
            // From release 0.1, spread differently: its messages are kept as they are.
            None if known.config.check_change(&leads.config).is_err() => {}
            Some(_) | None => commands.push(follow()),
        },
    }
    if is_paused != leads.paused {
        let queue = queue.clone();
        commands.push(if leads.paused { Command::Pause(queue) } else { Command::Resume(queue) });
    }
    Ok(())
}

/// The order in which partitions are copied while changes continue: the leader last, so that its
/// copy is not behind the others.
pub fn copied(partitions: usize) -> impl Iterator<Item = usize> {
    others(partitions).chain([LEADER])
}

fn holds_nothing(view: &QueueView) -> bool {
    view.stats.messages() == 0 && view.stats.keys == 0
}

fn others(partitions: usize) -> std::ops::Range<usize> {
    LEADER + 1..partitions
}
