//! Who owns a partition, and who only believes to.

use std::collections::{BTreeMap, VecDeque};

use hapax_core::Time;
use hapax_partition::{Clock, Error, Partition, Ticket};
use hapax_postgres::call::Call;
use hapax_postgres::node::Loss;
use hapax_postgres::{PostgresLog, Uuid};
use hapax_store::joined::{Checkpointer, Merger};
use hapax_store::{Sequence, Store};

use super::network::{Address, Port};
use super::process::Opening;
use super::work::{JobKind, Opened, Output};
use super::{Cluster, Going, wrong};
use crate::op::Op;
use crate::planted::SimStore;

/// A partition that a process owns, or believes to own.
#[derive(Debug)]
pub(super) struct Instance {
    /// None while a job has it.
    pub(super) partition: Option<Box<Partition<SimStore>>>,
    pub(super) checkpointer: Option<Checkpointer<PostgresLog>>,
    pub(super) merger: Option<Merger<PostgresLog>>,
    pub(super) clock: Clock,
    pub(super) pending: BTreeMap<Ticket, Submitted>,
    /// What a job is submitting.
    pub(super) submitting: Option<Submitted>,
    pub(super) claim: Option<Uuid>,
    /// Another claim was committed, or its history was undone.
    pub(super) is_replaced: bool,
    /// How often the database had failed over when it was opened.
    failovers: u64,
    /// It failed, or is being closed.
    pub(super) has_ended: bool,
}

impl Instance {
    pub(super) fn is_served(&self) -> bool {
        self.partition.is_some() && !self.has_ended
    }

    /// Whether none of its workers waits for the database: it may hold a lock that the others need.
    pub(super) fn is_at_rest(&self) -> bool {
        self.checkpointer.is_some() && self.merger.is_some()
    }

    /// Whether it takes a batch.
    pub(super) fn is_ready(&self) -> bool {
        let is_free = self.partition.as_ref().is_some_and(|it| !it.is_busy());
        is_free && !self.has_ended && self.may_turn()
    }

    /// Whether its owner may do anything: one that claims again needs all locks.
    pub(super) fn may_turn(&self) -> bool {
        let wants = |it: &Partition<SimStore>| it.machine().wants_epoch();
        self.is_at_rest() || self.partition.as_ref().is_some_and(|it| !wants(it))
    }
}

/// A batch of requests.
#[derive(Clone, Debug)]
pub(super) struct Submitted {
    pub(super) at: Time,
    pub(super) ops: VecDeque<Op>,
    /// It was reported to the checker as lost.
    pub(super) is_lost: bool,
    /// It was asked when the owner had been replaced.
    pub(super) is_late: bool,
}

impl Cluster {
    pub(super) fn instance(&mut self, to: Address, partition: u16) -> Option<&mut Instance> {
        let process = self.process(to)?;
        process.instances.get_mut(&partition)
    }

    pub(super) fn opened(
        &mut self,
        to: Address,
        partition: u16,
        opened: Result<Opened, Error>,
        (claim, is_replaced): (Option<Uuid>, bool),
    ) -> Going {
        let error = opened.as_ref().err().map(ToString::to_string);
        self.note(|| format!("{} opened {partition}: {error:?}", to.machine));
        let loss = match &opened {
            Ok(_) => None,
            Err(error) => {
                self.excuse_opening(error, is_replaced)?;
                Some(match error {
                    Error::Store(error) => Loss::of_opening(error),
                    _ => Loss::Failed,
                })
            }
        };
        let failovers = self.network.failovers;
        let seen = self.sides.get(usize::from(partition)).map_or(Time(0), |side| side.last_at);
        let (_, monotonic) = self.own_time(to.machine);
        let Some(process) = self.process(to) else { return Ok(()) };
        let wall = process.wall.0 + monotonic.saturating_sub(process.wall.1) / 1_000;
        let Some(opening) = &mut process.opening else { return Ok(()) };
        opening.left -= 1;
        opening.failed = opening.failed.or(loss);
        if let Ok(Opened { partition: it, checkpointer, merger }) = opened {
            let clock = Clock::start(it.now(), Time(wall.max(seen.0)), monotonic);
            let instance = Instance {
                partition: Some(Box::new(it)),
                checkpointer: Some(checkpointer),
                merger: Some(merger),
                clock,
                pending: BTreeMap::new(),
                submitting: None,
                claim,
                is_replaced,
                failovers,
                has_ended: false,
            };
            opening.opened.insert(partition, instance);
        }
        match opening.left {
            0 => self.opened_all(to),
            _ => Ok(()),
        }
    }

    fn opened_all(&mut self, to: Address) -> Going {
        let (now, _) = self.own_time(to.machine);
        let Some(process) = self.process(to) else { return Ok(()) };
        let Some(Opening { opened, failed, .. }) = process.opening.take() else { return Ok(()) };
        let outcome = failed.map_or(Ok(()), Err);
        if outcome.is_ok() {
            process.instances = opened;
        }
        let acts = process.state.as_mut().map_or(Vec::new(), |state| state.opened(now, outcome));
        self.note(|| format!("{} serves: {outcome:?}", to.machine));
        if outcome.is_ok() {
            self.tally.count("openings");
            for partition in 0..self.sides.len() {
                let instance = self.instance(to, partition as u16);
                if instance.is_some_and(|instance| !instance.is_replaced) {
                    self.ask_first(partition);
                }
            }
        }
        self.act(to.machine, acts)
    }

    pub(super) fn owned(&mut self, at: usize, partition: u16) -> Option<(u64, &mut Instance)> {
        let process = self.machines.get_mut(at)?.process.as_mut()?;
        Some((process.serial, process.instances.get_mut(&partition)?))
    }

    /// Ends the partitions of a node that closes, one after the other work on them.
    pub(super) fn turn_closing(&mut self, at: usize) -> Going {
        let Some(process) = self.machines.get_mut(at).and_then(|it| it.process.as_mut()) else {
            return Ok(());
        };
        let (Some(loss), serial) = (process.closing, process.serial) else { return Ok(()) };
        if process.instances.is_empty() && process.opening.is_none() {
            process.closing = None;
            if let Some(state) = &mut process.state {
                state.closed(loss);
            }
            if process.is_stopping {
                self.leave(at);
            }
            return Ok(());
        }
        let idle =
            process.instances.iter_mut().find(|(_, it)| it.partition.is_some() && it.is_at_rest());
        let Some((partition, instance)) = idle else { return Ok(()) };
        let partition = *partition;
        instance.has_ended = true;
        let Some(it) = instance.partition.take() else { return Ok(()) };
        self.start_job(at, serial, partition, JobKind::Close, move || {
            Output::Closed(it.close().map(drop))
        })
    }

    /// Whoever else has the partition is replaced by this claim.
    pub(super) fn claimed(&mut self, partition: u16, claim: Uuid, by: Address) {
        let end = self.network.tables.end(partition).map(|end| (end.epoch, end.last.sequence));
        self.note(|| format!("{} claimed {partition} {end:?}", by.machine));
        let is_again = match by.port {
            Port::Job(number) => self.jobs.get_mut(&number).is_some_and(|job| {
                job.claim = Some(claim);
                job.kind == JobKind::Turn
            }),
            _ => false,
        };
        for (number, job) in &mut self.jobs {
            let is_other = job.partition == partition && job.kind == JobKind::Open;
            if is_other && Port::Job(*number) != by.port && job.claim.is_some() {
                job.is_replaced = true;
            }
        }
        self.replace_owners(partition, is_again.then_some((by, claim)));
    }

    /// Whoever has the partition is not its owner any more, except for one that claimed again.
    pub(super) fn replace_owners(&mut self, partition: u16, except: Option<(Address, Uuid)>) {
        for at in 0..self.machines.len() {
            let Some(process) = self.machines.get_mut(at).and_then(|it| it.process.as_mut()) else {
                continue;
            };
            let serial = process.serial;
            let opening = process.opening.as_mut();
            let opened = opening.and_then(|opening| opening.opened.get_mut(&partition));
            for instance in opened.into_iter().chain(process.instances.get_mut(&partition)) {
                match except {
                    Some((by, claim)) if by.process == serial => instance.claim = Some(claim),
                    _ => instance.is_replaced = true,
                }
            }
            if except.is_none_or(|(by, _)| by.process != serial) {
                self.lose_pending(at, partition);
            }
        }
    }

    /// What an owner has not answered may have been done or not: that is decided now.
    fn lose_pending(&mut self, at: usize, partition: u16) {
        let Some((_, instance)) = self.owned(at, partition) else { return };
        let submitting = instance.submitting.iter_mut();
        let lost: Vec<Submitted> = submitting
            .chain(instance.pending.values_mut())
            .filter(|sent| !sent.is_lost)
            .map(|sent| {
                let lost = sent.clone();
                sent.is_lost = true;
                lost
            })
            .collect();
        self.lose(partition, lost.into_iter());
    }

    pub(super) fn lose_instance(&mut self, to: Address, partition: u16) {
        let Some(process) = self.process(to) else { return };
        let Some(instance) = process.instances.remove(&partition) else { return };
        let left = instance.submitting.into_iter().chain(instance.pending.into_values());
        let left: Vec<_> = left.collect();
        self.lose(partition, left.into_iter());
    }

    /// A partition failed: whether that is explained, and what its node does about it.
    pub(super) fn ended(&mut self, to: Address, partition: u16, error: &Error) -> Going {
        self.note(|| format!("{} lost {partition}: {error}", to.machine));
        let failovers = self.network.failovers;
        let is_set_back = self.undone_since.is_some();
        let (now, _) = self.own_time(to.machine);
        let Some(process) = self.process(to) else { return Ok(()) };
        let Some(instance) = process.instances.get_mut(&partition) else { return Ok(()) };
        instance.has_ended = true;
        let is_explained = instance.is_replaced || instance.failovers < failovers;
        use hapax_store::Error::{Fenced, Regressed};
        let loss = match error {
            Error::Store(Fenced { .. }) if is_explained => Loss::Fenced,
            Error::Store(Regressed { .. }) if is_set_back => Loss::Regressed,
            Error::Store(Fenced { .. } | Regressed { .. }) => {
                return wrong(format!("an owner that nobody replaced ended: {error}"));
            }
            _ if is_explained => Loss::Failed,
            _ => return wrong(format!("the store failed without a fault: {error}")),
        };
        let acts = process.state.as_mut().map_or(Vec::new(), |state| state.lost(now, loss));
        self.tally.count(match loss {
            Loss::Fenced => "owners fenced",
            Loss::Regressed => "regressions noticed",
            _ => "owners failed",
        });
        self.act(to.machine, acts)
    }

    /// Whether a fault explains that a partition could not be opened.
    fn excuse_opening(&self, error: &Error, is_replaced: bool) -> Going {
        use hapax_store::Error::{Fenced, Regressed, Unreachable};
        let is_excused = match error {
            Error::Store(Fenced { .. } | Unreachable { .. }) => true,
            Error::Store(Regressed { .. }) => self.undone_since.is_some(),
            // The reply may be later than the fault.
            Error::Store(error) if error.is_full() => true,
            _ => is_replaced || self.network.failovers > 0 || self.network.full_until > 0,
        };
        match is_excused {
            true => Ok(()),
            false => wrong(format!("a partition does not open: {error}")),
        }
    }
}

/// What the store of a partition has made durable, if it says.
pub(super) fn durable(partition: &mut Partition<SimStore>) -> Option<Sequence> {
    partition.store_mut().durable().ok()
}

/// Whether a call claims.
pub(super) fn claim_of(call: &Call) -> Option<(u16, Uuid)> {
    match call {
        Call::Claim { partition, claim, .. } => Some((*partition, *claim)),
        _ => None,
    }
}
