//! The jobs of a process: openings, turns of its partitions, and the workers of their stores.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hapax_partition::{Error, Options, Partition, Ticket};
use hapax_postgres::call::Answer;
use hapax_postgres::{Claiming, Failure, Ground, PostgresLog, Uuid};
use hapax_store::joined::{Checkpointer, Merger, Stepped};
use hapax_store::{Epoch, archive};

use super::jobs::{Event, Remote, Reply, Worker};
use super::network::{Address, Port};
use super::process::{LANES, Opening};
use super::{Cluster, Going, wrong};
use crate::planted::SimStore;
use crate::run::panic_text;

/// Pauses of a job that waits for its lane.
const PASSES_MAX: u32 = 60;

/// Work of a process.
pub(super) struct Job {
    pub(super) worker: Worker<Output>,
    pub(super) machine: usize,
    pub(super) process: u64,
    pub(super) partition: u16,
    pub(super) kind: JobKind,
    pub(super) claim: Option<Uuid>,
    pub(super) is_replaced: bool,
    passes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobKind {
    Open,
    Turn,
    Checkpoint,
    Merge,
    Close,
}

/// What a job brings back.
pub(super) enum Output {
    Opened(Box<Result<Opened, Error>>),
    Turned(Box<Partition<SimStore>>, Turned),
    Checkpointed(Checkpointer<PostgresLog>, Result<bool, hapax_store::Error>),
    Merged(Merger<PostgresLog>, Result<bool, hapax_store::Error>),
    Closed(Result<(), Error>),
}

pub(super) struct Opened {
    pub(super) partition: Partition<SimStore>,
    pub(super) checkpointer: Checkpointer<PostgresLog>,
    pub(super) merger: Merger<PostgresLog>,
}

/// What came of a turn of a partition.
pub(super) enum Turned {
    Submitted(Result<Ticket, Error>),
    Polled(Result<Option<hapax_partition::Answered>, Error>),
    Cut(Result<(), Error>),
}

impl Cluster {
    pub(super) fn open_all(&mut self, at: usize, epochs: &[Epoch]) -> Going {
        self.tally.count("takeovers");
        let process = self.machines.get_mut(at).and_then(|it| it.process.as_mut());
        let Some(process) = process else { return Ok(()) };
        let (left, opened) = (epochs.len(), BTreeMap::new());
        process.opening = Some(Opening { left, opened, failed: None });
        let serial = process.serial;
        for (partition, seen) in (0..).zip(epochs) {
            let job = self.opening_job(at, partition, *seen);
            let Some(job) = job else { continue };
            self.start_job(at, serial, partition, JobKind::Open, job)?;
        }
        Ok(())
    }

    fn opening_job(
        &mut self,
        at: usize,
        partition: u16,
        seen: Epoch,
    ) -> Option<impl FnOnce() -> Output + Send + 'static> {
        let seed = self.random.bits();
        let machine = self.machines.get(at)?;
        let process = machine.process.as_ref()?;
        let lane = process.lanes.get(usize::from(partition) % LANES)?;
        let witness = process.witnesses.of(partition)?;
        let scene = &self.sides.get(usize::from(partition))?.scene;
        let ground = Ground {
            backend: Arc::new(Remote),
            lane: Arc::clone(&lane.lane),
            cluster: process.cluster,
            lineage: process.lineage,
            partition,
            label: format!("partition {partition}"),
        };
        let claiming = Claiming {
            node: process.id,
            seen: Some(seen),
            cache: None,
            archive: archive::Options { reserve_bytes: 0, ..scene.store.archive },
            close_wait: Duration::from_secs(10),
            steps: Arc::default(),
        };
        let options = Options { seed, ..scene.partition };
        let bug = self.settings.bug;
        Some(move || {
            let opened = || {
                let claimed = ground.claim(&claiming, witness, &(Arc::new(|| {}) as _))?;
                let Stepped { store, checkpointer, merger } = claimed.stepped()?;
                let store = SimStore::postgres(store, partition, bug);
                let partition = Partition::open(store, options)?;
                Ok(Opened { partition, checkpointer, merger })
            };
            Output::Opened(Box::new(opened()))
        })
    }

    pub(super) fn start_job(
        &mut self,
        machine: usize,
        process: u64,
        partition: u16,
        kind: JobKind,
        job: impl FnOnce() -> Output + Send + 'static,
    ) -> Going {
        let worker = self.pool.pop().unwrap_or_else(Worker::new);
        let number = self.serial();
        let event = worker.start(job);
        let (claim, is_replaced, passes) = (None, false, 0);
        let job = Job { worker, machine, process, partition, kind, claim, is_replaced, passes };
        self.jobs.insert(number, job);
        self.went_on(number, event)
    }

    /// What a job does next.
    fn went_on(&mut self, number: u64, mut event: Event<Output>) -> Going {
        loop {
            let Some(job) = self.jobs.get(&number) else { return Ok(()) };
            let from =
                Address { machine: job.machine, process: job.process, port: Port::Job(number) };
            match event {
                Event::Call(call) => {
                    self.network.send(self.now_us, *call, from);
                    return Ok(());
                }
                Event::Pause => {
                    self.network.pause(self.now_us, from);
                    return Ok(());
                }
                Event::Draw => {
                    let id = self.draw_id();
                    let Some(job) = self.jobs.get(&number) else { return Ok(()) };
                    event = job.worker.resume(Reply::Drawn(id));
                }
                Event::Done(output) => {
                    let Some(job) = self.jobs.remove(&number) else { return Ok(()) };
                    return self.finished(job, output);
                }
                Event::Panicked(panic) => return wrong(panic_text(&*panic)),
                Event::Killed => {
                    self.jobs.remove(&number);
                    return Ok(());
                }
            }
        }
    }

    pub(super) fn job_answered(&mut self, number: u64, outcome: Result<Answer, Failure>) -> Going {
        let Some(job) = self.jobs.get(&number) else { return Ok(()) };
        let event = job.worker.resume(Reply::Answer(outcome));
        self.went_on(number, event)
    }

    pub(super) fn go_on(&mut self, to: Address) -> Going {
        let Port::Job(number) = to.port else { return Ok(()) };
        let Some(job) = self.jobs.get_mut(&number) else { return Ok(()) };
        job.passes += 1;
        let event = job.worker.resume(Reply::GoOn(job.passes < PASSES_MAX));
        self.went_on(number, event)
    }

    fn finished(&mut self, job: Job, output: Output) -> Going {
        let Job { worker, machine, process, partition, claim, is_replaced, .. } = job;
        self.pool.push(worker);
        let to = Address { machine, process, port: Port::Job(0) };
        match output {
            Output::Opened(opened) => self.opened(to, partition, *opened, (claim, is_replaced)),
            Output::Turned(it, turned) => self.turned(to, partition, it, turned),
            Output::Checkpointed(checkpointer, stepped) => {
                if let Some(instance) = self.instance(to, partition) {
                    instance.checkpointer = Some(checkpointer);
                }
                match stepped {
                    Ok(_) => Ok(()),
                    Err(error) => self.ended(to, partition, &Error::Store(error)),
                }
            }
            Output::Merged(merger, stepped) => {
                if let Some(instance) = self.instance(to, partition) {
                    instance.merger = Some(merger);
                }
                match stepped {
                    Ok(did) => {
                        self.tally.add("steps of merges", u64::from(did));
                        Ok(())
                    }
                    Err(error) => self.ended(to, partition, &Error::Store(error)),
                }
            }
            Output::Closed(closed) => {
                self.note(|| format!("{machine} closed {partition}: {closed:?}"));
                if let Err(Error::Store(hapax_store::Error::Regressed { .. })) = closed {
                    self.tally.count("regressions noticed while closing");
                    self.is_told_of_loss = true;
                }
                self.lose_instance(to, partition);
                Ok(())
            }
        }
    }

    /// Steps one of the workers of a partition, if nobody does.
    pub(super) fn step_checkpointer(&mut self, at: usize, partition: u16) -> Going {
        let Some((serial, instance)) = self.owned(at, partition) else { return Ok(()) };
        if !instance.is_at_rest() || instance.partition.is_none() {
            return Ok(());
        }
        let Some(mut checkpointer) = instance.checkpointer.take() else { return Ok(()) };
        self.start_job(at, serial, partition, JobKind::Checkpoint, move || {
            let stepped = checkpointer.step();
            Output::Checkpointed(checkpointer, stepped)
        })
    }

    pub(super) fn step_merger(&mut self, at: usize, partition: u16) -> Going {
        let Some((serial, instance)) = self.owned(at, partition) else { return Ok(()) };
        if !instance.is_at_rest() || instance.partition.is_none() {
            return Ok(());
        }
        let Some(mut merger) = instance.merger.take() else { return Ok(()) };
        self.start_job(at, serial, partition, JobKind::Merge, move || {
            let stepped = merger.step();
            Output::Merged(merger, stepped)
        })
    }
}
