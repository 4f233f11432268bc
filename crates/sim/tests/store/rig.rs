//! Runs a disk store on a simulated disk through several lives, and checks it against the model
//! at every turn. All choices come from the seed.

use std::sync::Arc;

use hapax_sim::{Random, SimDisk};
use hapax_store::disk::{DiskStore, Options, Workers};
use hapax_store::{Checkpoint, Error, Room, Shortage, Store};

use crate::model::{Model, Verdict, ensure, fill};

/// What a run may meet besides crashes and kills.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allowed {
    /// The store may stop after an I/O error.
    pub(crate) io_errors: bool,
    /// The store may refuse or stop because of damage.
    pub(crate) damage: bool,
    /// A new owner may be refused where there is no room for a manifest.
    pub(crate) claim_without_room: bool,
}

pub(crate) struct Rig {
    pub(crate) disk: SimDisk,
    pub(crate) random: Random,
    pub(crate) model: Model,
    pub(crate) allowed: Allowed,
    pub(crate) progress: Progress,
    live: Option<Live>,
}

/// What was done, to prove that a run was not empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) lives: u64,
    pub(crate) appended: u64,
    pub(crate) acknowledged: u64,
    pub(crate) checkpoints: u64,
    pub(crate) row_checks: u64,
    pub(crate) low: u64,
    pub(crate) stopped_by_errors: u64,
    pub(crate) refused_for_damage: u64,
    pub(crate) refused_for_room: u64,
    pub(crate) merge_steps: u64,
    pub(crate) buckets_dropped: u64,
}

struct Live {
    store: DiskStore,
    workers: Workers,
}

/// How a life ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It goes on.
    Alive,
    Closed,
    Crashed,
    /// The store stopped after an error that is allowed.
    Failed,
    /// The store found damage, or no room, which is allowed.
    Refused,
}

impl Progress {
    pub(crate) fn add(&mut self, other: Self) {
        self.lives += other.lives;
        self.appended += other.appended;
        self.acknowledged += other.acknowledged;
        self.checkpoints += other.checkpoints;
        self.row_checks += other.row_checks;
        self.low += other.low;
        self.stopped_by_errors += other.stopped_by_errors;
        self.refused_for_damage += other.refused_for_damage;
        self.refused_for_room += other.refused_for_room;
        self.merge_steps += other.merge_steps;
        self.buckets_dropped += other.buckets_dropped;
    }
}

impl Rig {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        Self {
            disk: SimDisk::new(random.bits()),
            random,
            model: Model::default(),
            allowed: Allowed::default(),
            progress: Progress::default(),
            live: None,
        }
    }

    /// Opens, claims and compares everything with the model.
    pub(crate) fn open(&mut self) -> Verdict<End> {
        assert!(self.live.is_none(), "one life at a time");
        let opened = DiskStore::open(self.disk.mount(), options(), Arc::new(|| {}));
        let (store, workers) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.judge("open", error),
        };
        self.live = Some(Live { store, workers });
        let claim = self.with("claim", |live| live.store.claim())?;
        let Some(claim) = claim.ok() else { return Ok(claim.end()) };
        self.progress.lives += 1;
        self.model.claimed(claim)?;
        self.check_everything()
    }

    pub(crate) fn check_everything(&mut self) -> Verdict<End> {
        let Some(live) = &mut self.live else { return Ok(End::Crashed) };
        self.progress.row_checks += 1;
        let checked = self
            .model
            .check_batches(&mut live.store, self.model.through + 1)
            .and_then(|()| self.model.check_rows(&mut live.store, &mut self.random));
        match checked {
            Ok(()) => Ok(End::Alive),
            Err(_) if self.disk.stopped().is_some() => Ok(self.end(End::Crashed)),
            Err(problem) => self.judge_text(problem),
        }
    }

    /// Lives for so many steps, or until something ends it.
    pub(crate) fn live(&mut self, steps: u64) -> Verdict<End> {
        for _ in 0..steps {
            match self.step()? {
                End::Alive => {}
                end => return Ok(end),
            }
        }
        Ok(End::Alive)
    }

    /// One thing or another.
    pub(crate) fn step(&mut self) -> Verdict<End> {
        match self.random.weighted(&[30, 20, 12, 6, 8, 14, 4, 8, 2]) {
            0 => self.append(),
            1 => self.work("flusher", |workers| workers.flusher.step()),
            2 => self.often(|rig| rig.work("checkpointer", |workers| workers.checkpointer.step())),
            3 => self.often(Self::merge),
            4 => self.work("keeper", |workers| workers.keeper.step()),
            5 => self.checkpoint(),
            6 => self.ask_durable(),
            7 => self.ask_checkpointed(),
            _ => match self.ask_durable()? {
                End::Alive => match self.ask_checkpointed()? {
                    End::Alive => self.check_everything(),
                    end => Ok(end),
                },
                end => Ok(end),
            },
        }
    }

    pub(crate) fn append(&mut self) -> Verdict<End> {
        let low = self.room().is_low();
        if low && self.random.share(3, 4) {
            return Ok(End::Alive);
        }
        let len = match self.random.below(20) {
            // Where room is low only what shrinks the state is sent, and that is small.
            _ if low => self.random.between(1, 60),
            0 => 0,
            1 => self.random.between(2000, 9000),
            2..6 => self.random.between(400, 2000),
            _ => self.random.between(1, 300),
        };
        let mut batch = vec![0; len as usize];
        self.random.fill(&mut batch);
        let (epoch, sequence) = (self.model.epoch, self.model.last() + 1);
        // A batch whose append failed may still be found after a crash.
        self.model.append(batch.clone());
        self.progress.appended += 1;
        Ok(self.with("append", |live| live.store.append(epoch, sequence, &batch))?.end())
    }

    pub(crate) fn checkpoint(&mut self) -> Verdict<End> {
        if self.model.started.is_some() || self.model.through == self.model.last() {
            return Ok(End::Alive);
        }
        let epoch = self.model.epoch;
        let (through, at, changes) = self.model.start_checkpoint(&mut self.random);
        let rows = Box::new(move |rows: &mut _| fill(rows, &changes));
        let checkpoint = Checkpoint { epoch, through, at, rows };
        Ok(self.with("checkpoint", |live| live.store.checkpoint(checkpoint))?.end())
    }

    pub(crate) fn ask_durable(&mut self) -> Verdict<End> {
        let durable = self.with("durable", |live| live.store.durable())?;
        if let Lived::Yes(sequence) = durable {
            self.progress.acknowledged += sequence.saturating_sub(self.model.acknowledged);
            self.model.durable(sequence)?;
        }
        Ok(durable.end())
    }

    pub(crate) fn ask_checkpointed(&mut self) -> Verdict<End> {
        // In this order: the rows may be visible only when their batch is durable already.
        let through = self.with("checkpointed", |live| live.store.checkpointed())?;
        let Some(sequence) = through.ok() else { return Ok(through.end()) };
        if let end @ (End::Crashed | End::Failed | End::Refused) = self.ask_durable()? {
            return Ok(end);
        }
        self.progress.checkpoints += u64::from(sequence > self.model.through);
        self.model.checkpointed(sequence)?;
        Ok(End::Alive)
    }

    /// Checkpoints and merges take many steps to their end.
    fn often(&mut self, step: impl Fn(&mut Self) -> Verdict<End>) -> Verdict<End> {
        for _ in 0..self.random.between(1, 10) {
            match step(self)? {
                End::Alive => {}
                end => return Ok(end),
            }
        }
        Ok(End::Alive)
    }

    fn merge(&mut self) -> Verdict<End> {
        let merged = self.with("merger", |live| {
            let did = live.workers.merger.step()?;
            Ok((did, live.store.archive().stats().buckets_dropped))
        })?;
        if let Lived::Yes((did, buckets_dropped)) = merged {
            self.progress.merge_steps += u64::from(did);
            self.progress.buckets_dropped = self.progress.buckets_dropped.max(buckets_dropped);
        }
        Ok(merged.end())
    }

    fn work(
        &mut self,
        what: &'static str,
        step: impl FnOnce(&mut Workers) -> Result<bool, Error>,
    ) -> Verdict<End> {
        Ok(self.with(what, |live| step(&mut live.workers))?.end())
    }

    /// Steps every worker until nothing changes any more.
    pub(crate) fn settle(&mut self) -> Verdict<End> {
        let mut idle = 0;
        // The second idle round sees what the first one's last step made possible.
        for _ in 0..10_000 {
            if idle == 2 {
                break;
            }
            let did = self.with("workers", |live| live.workers.step())?;
            let Some(did) = did.ok() else { return Ok(did.end()) };
            idle = if did { 0 } else { idle + 1 };
        }
        ensure!(idle == 2, "the workers never rest");
        match self.ask_durable()? {
            End::Alive => self.ask_checkpointed(),
            end => Ok(end),
        }
    }

    pub(crate) fn room(&mut self) -> Room {
        let room =
            self.live.as_mut().map_or(Room::Low(Shortage::default()), |live| live.store.room());
        self.progress.low += u64::from(room.is_low());
        room
    }

    pub(crate) fn close(&mut self) -> Verdict<End> {
        let closed = self.with("close", |live| live.store.close())?;
        if let Lived::Yes(()) = closed {
            // Close waits for everything under way.
            self.model.durable(self.model.last())?;
            return Ok(self.end(End::Closed));
        }
        Ok(closed.end())
    }

    pub(crate) fn crash(&mut self) -> End {
        self.disk.crash();
        self.end(End::Crashed)
    }

    pub(crate) fn kill(&mut self) -> End {
        self.disk.kill();
        self.end(End::Crashed)
    }

    fn end(&mut self, end: End) -> End {
        // The processes die before their handles are dropped, so that nothing is done on the way.
        if end != End::Closed && self.disk.stopped().is_none() {
            self.disk.kill();
        }
        self.live = None;
        end
    }

    fn with<T>(
        &mut self,
        what: &'static str,
        call: impl FnOnce(&mut Live) -> Result<T, Error>,
    ) -> Verdict<Lived<T>> {
        let Some(live) = &mut self.live else { return Ok(Lived::No(End::Crashed)) };
        match call(live) {
            Ok(value) => Ok(Lived::Yes(value)),
            Err(error) => Ok(Lived::No(self.judge(what, error)?)),
        }
    }

    fn judge(&mut self, what: &str, error: Error) -> Verdict<End> {
        if self.disk.stopped().is_some() {
            return Ok(self.end(End::Crashed));
        }
        if self.allowed.claim_without_room && what == "claim" && error.is_full() {
            self.progress.refused_for_room += 1;
            return Ok(self.end(End::Refused));
        }
        if self.allowed.io_errors && matches!(error, Error::Io { .. } | Error::Stopped(_)) {
            return self.failed();
        }
        self.judge_text(format!("{what}: {error}"))
    }

    fn judge_text(&mut self, problem: String) -> Verdict<End> {
        if self.allowed.damage && problem.contains("is damaged at byte") {
            self.progress.refused_for_damage += 1;
            return Ok(self.end(End::Refused));
        }
        if self.allowed.io_errors && problem.contains("os error 5") {
            return self.failed();
        }
        Err(problem)
    }

    /// A store that stopped stays stopped and confirms nothing.
    fn failed(&mut self) -> Verdict<End> {
        self.progress.stopped_by_errors += 1;
        if let Some(live) = &mut self.live {
            let again = live.store.durable();
            ensure!(again.is_err(), "durable says {again:?} after the store stopped");
            let append = live.store.append(self.model.epoch, self.model.last() + 1, b"more");
            ensure!(append.is_err(), "append succeeds after the store stopped");
        }
        Ok(self.end(End::Failed))
    }
}

/// The value of a call, or how it ended the life.
#[derive(Clone, Copy, Debug)]
enum Lived<T> {
    Yes(T),
    No(End),
}

impl<T> Lived<T> {
    fn ok(self) -> Option<T> {
        match self {
            Self::Yes(value) => Some(value),
            Self::No(_) => None,
        }
    }

    fn end(&self) -> End {
        match self {
            Self::Yes(_) => End::Alive,
            Self::No(end) => *end,
        }
    }
}

/// Everything small, so that a short run meets every boundary.
fn options() -> Options {
    let mut options = Options { identity: 7, ..Options::default() };
    options.journal.segment_bytes = 16 << 10;
    options.journal.pending_bytes_max = 32 << 10;
    options.journal.free_bytes_min = 64 << 10;
    options.archive.merge_fan_in = 3;
    options.archive.reserve_bytes = 8 << 10;
    options.archive.shrink_bytes_min = 4 << 10;
    options
}
