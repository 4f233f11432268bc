//! Copies that are taken while the broker runs, and restores of them.

use hapax_core::Time;
use hapax_partition::Error;
use hapax_store::disk;

use super::{Going, Run, wrong};
use crate::checker::Checker;
use crate::op::Op;
use crate::planted::Bug;
use crate::world::Step;
use crate::{Random, SimDisk};

/// A copy, and what is known of it.
#[derive(Debug)]
pub(super) struct Copy {
    disk: SimDisk,
    /// What was seen before it was begun. All of it is in the copy.
    before: Box<Checker>,
    /// Requests not answered by then, or made while it was taken: each may be in it.
    perhaps: Vec<(Time, Op)>,
}

impl Run {
    /// Takes a copy; the broker continues between its pieces.
    pub(super) fn back_up(&mut self) -> Going<()> {
        let Some(source) = self.world.source() else { return Ok(()) };
        if self.checker.damaged || self.asked.is_some() {
            return Ok(());
        }
        self.note(|| "backup".to_owned());
        let copy = SimDisk::new(self.random.bits());
        let before = Box::new(self.checker.clone());
        let pending = self.world.pending().into_iter();
        let pending = pending.flat_map(|sent| sent.ops.into_iter().map(move |op| (sent.at, op)));
        self.asked = Some(pending.collect());
        let restarts = self.tally.get("restarts");
        let mut went = Ok(());
        let mut pace: Random = self.random.branch();
        let volume = copy.mount();
        let planted = match self.settings.bug {
            Some(Bug::RowsPinnedFirst) => Some(disk::Planted::RowsFirst),
            Some(Bug::SegmentsNotPinned) => Some(disk::Planted::Unpinned),
            _ => None,
        };
        let copied = disk::backup_planted(&source, &*volume, planted, &mut |stage| {
            for _ in 0..pace.below(12) {
                if went.is_ok() {
                    went = match stage {
                        disk::Stage::BetweenPins => self.work_on(&mut pace),
                        disk::Stage::Copied { .. } => self.go_on(),
                    };
                }
            }
        });
        drop((volume, source));
        copy.kill();
        let perhaps = self.asked.take().unwrap_or_default();
        went?;
        match copied {
            Ok(_) => {
                self.tally.count("backups");
                self.copy = Some(Copy { disk: copy, before, perhaps });
            }
            Err(_) if self.tally.get("restarts") > restarts => {}
            Err(error) => {
                self.note(|| format!("backup failed: {error}"));
                let stopped = self.world.checkpointed().is_none();
                if !stopped {
                    self.judge(&Error::Store(error))?;
                }
            }
        }
        Ok(())
    }

    /// The machine is lost, and the copy takes its place. Nothing that was confirmed before the
    /// copy was begun is lost.
    pub(super) fn restore(&mut self) -> Going<()> {
        let Some(Copy { disk, before, perhaps }) = self.copy.take() else { return Ok(()) };
        self.note(|| "restore".to_owned());
        self.tally.count("restores");
        self.forget_unanswered(true);
        self.tally.add_disk(&self.world.disk.counters());
        self.world.replace_disk(disk);
        if self.settings.trace {
            self.world.disk.record(super::TRACE_LINES_MAX);
        }
        self.rotten = None;
        self.freed_at = None;
        self.checker.set_back(&before);
        for (at, op) in &perhaps {
            self.checker.lost(0, *at, op);
        }
        self.workload.forget_unknown(&self.checker);
        self.urgent.retain(|op| !matches!(op, Op::Settle { .. }));
        self.reopen()
    }

    /// Steps the workers of the store without requests.
    fn work_on(&mut self, pace: &mut Random) -> Going<()> {
        let cut = self.world.checkpoint();
        self.excuse(cut)?;
        let workers = [Step::Flusher, Step::Checkpointer, Step::Keeper, Step::Merger];
        for _ in 0..pace.below(8) {
            for worker in workers {
                self.work(worker)?;
            }
        }
        Ok(())
    }

    /// A step of the broker while a copy is taken.
    fn go_on(&mut self) -> Going<()> {
        if self.world.source().is_none() {
            return wrong("a copy of nothing");
        }
        self.ordinary_step()
    }
}
