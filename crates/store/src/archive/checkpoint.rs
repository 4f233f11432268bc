//! Writes a checkpoint: the rows to one new run file, then the manifest.
//!
//! Invariants:
//! - the manifest is not replaced before the journal is durable through the checkpoint's batch:
//!   otherwise a crash could keep rows of batches that are lost;
//! - until then, whatever fails, the archive is unchanged and the rows are kept.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::bounds::STEP_ROWS;
use super::run::RunWriter;
use super::section::{Kind, Section};
use super::sorted::{Buckets, Piles, Slot};
use super::state::{Shared, View};
use super::{Step, build, is_over};
use crate::progress::{ADDED, GATHERED, WRITTEN};
use crate::{Error, RowSet, Sequence};

/// Distributing a row is much cheaper than writing it.
const GATHER_ROWS: usize = 8 * STEP_ROWS;

/// Memory of earlier checkpoints, for the next one: there is one at a time.
#[derive(Debug, Default)]
pub(super) struct Spare {
    pub(super) rows: RowSet,
    slots: Vec<Vec<Slot>>,
}

/// A checkpoint in progress. Dropping it leaves at most a file that the next open removes.
#[derive(Debug)]
pub struct CheckpointJob {
    shared: Arc<Shared>,
    rows: RowSet,
    through: Sequence,
    at: u64,
    writer: Option<RunWriter>,
    phase: Phase,
    /// Rows that were written.
    written: usize,
    /// The disk was full at least once.
    found_no_room: bool,
}

#[derive(Debug)]
enum Phase {
    Gather(Buckets),
    Points(Buckets, Option<Box<Bucket>>),
    Ordered { order: Vec<u32>, next: usize, section: Box<build::Ordered> },
    Finish,
    Commit(Vec<Arc<Section>>),
    Done,
    Failed(String),
}

#[derive(Debug)]
struct Bucket {
    piles: Piles,
    section: build::Points,
    /// Whether deletions must be kept: false if the bucket has nothing older to hide.
    keep_deleted: bool,
}

impl CheckpointJob {
    pub(super) fn new(shared: Arc<Shared>, rows: RowSet, through: Sequence, at: u64) -> Self {
        let spare = std::mem::take(&mut shared.spare().slots);
        let phase = Phase::Gather(Buckets::new(spare));
        let (writer, written, found_no_room) = (None, 0, false);
        Self { shared, rows, through, at, writer, phase, written, found_no_room }
    }

    /// Whether it found the disk full and has written nothing since: then it is to be dropped, as
    /// if it had never been begun.
    pub fn abandon(&mut self) -> bool {
        let is_over = matches!(self.phase, Phase::Commit(_) | Phase::Done | Phase::Failed(_));
        let is_abandoned = self.found_no_room && self.writer.is_none() && !is_over;
        if is_abandoned {
            self.shared.counters.progress.tell(0);
        }
        is_abandoned
    }

    fn start_over(&mut self) -> Result<(), Error> {
        self.phase = Phase::Gather(Buckets::default());
        self.written = 0;
        self.writer.take().map_or(Ok(()), |writer| writer.abandon(&self.shared))
    }

    /// Does a bounded amount of work. [`Step::Waiting`] means that all is written and `durable` has
    /// to reach the checkpoint's batch. If the disk is full ([`Error::is_full`]), what was written
    /// is removed, and the next step starts over.
    pub fn step(&mut self, durable: Sequence) -> Result<Step, Error> {
        let advanced = self.advance(durable).map_err(|error| self.failed(error));
        self.shared.counters.progress.tell(self.progress());
        advanced
    }

    /// What follows from a step that failed, and the error to return.
    fn failed(&mut self, error: Error) -> Error {
        if !error.is_full() {
            self.phase = Phase::Failed(error.to_string());
            return error;
        }
        // Complete sections only need a new manifest, and that lets the journal shrink.
        if matches!(self.phase, Phase::Commit(_)) {
            return error;
        }
        self.found_no_room = true;
        self.start_over().err().unwrap_or(error)
    }

    /// About how much is done, in thousandths.
    fn progress(&self) -> u64 {
        match &self.phase {
            Phase::Points(..) | Phase::Ordered { .. } => {
                let rows = (self.rows.points.len() + self.rows.ordered.len()).max(1);
                GATHERED + (WRITTEN - GATHERED) * self.written.min(rows) as u64 / rows as u64
            }
            Phase::Finish | Phase::Commit(_) => WRITTEN,
            Phase::Gather(_) => ADDED,
            Phase::Done | Phase::Failed(_) => 0,
        }
    }

    fn advance(&mut self, durable: Sequence) -> Result<Step, Error> {
        match &mut self.phase {
            Phase::Gather(buckets) => {
                if !buckets.gather(&self.rows, self.at, GATHER_ROWS) {
                    self.phase = Phase::Points(std::mem::take(buckets), None);
                }
                Ok(Step::More)
            }
            Phase::Points(..) => self.write_points(),
            Phase::Ordered { .. } => self.write_ordered(),
            Phase::Finish => self.finish(),
            Phase::Commit(_) if durable < self.through => Ok(Step::Waiting),
            Phase::Commit(sections) => {
                assert!(self.writer.is_none(), "what is committed is complete");
                commit(&self.shared, sections, self.through, self.at)?;
                self.phase = Phase::Done;
                Ok(Step::Done)
            }
            Phase::Done => Ok(Step::Done),
            Phase::Failed(why) => Err(Error::Stopped(why.clone())),
        }
    }

    fn write_points(&mut self) -> Result<Step, Error> {
        let Phase::Points(buckets, current) = &mut self.phase else {
            unreachable!("points are written in their phase");
        };
        let shared = &self.shared;
        if self.writer.is_none() && (!buckets.is_empty() || !self.rows.ordered.is_empty()) {
            self.writer = Some(RunWriter::create(shared, shared.new_run())?);
        }
        let Some(writer) = &mut self.writer else {
            self.phase = Phase::Finish;
            return Ok(Step::More);
        };
        while !writer.is_full() {
            let Some(bucket) = current else {
                let Some((drop_at, piles)) = buckets.pop() else {
                    shared.spare().slots = std::mem::take(buckets).into_spare();
                    let order = order(&self.rows);
                    let section = Box::new(build::Ordered::new(writer.id, writer));
                    self.phase = Phase::Ordered { order, next: 0, section };
                    return Ok(Step::More);
                };
                let rows = piles.len() as u64;
                let section = build::Points::new(drop_at, writer.id, rows, writer);
                let kind = Kind::Points { drop_at };
                let keep_deleted = !shared.view().of_kind(kind).is_empty();
                *current = Some(Box::new(Bucket { piles, section, keep_deleted }));
                continue;
            };
            let Some(pile) = bucket.piles.next(&self.rows) else {
                if let Some(bucket) = current.take() {
                    let Bucket { piles, section, .. } = *bucket;
                    buckets.reuse(piles);
                    section.finish(writer);
                }
                continue;
            };
            let value = |row: usize| {
                let span = self.rows.points.get(row).map(|point| point.value);
                span.and_then(|span| self.rows.get(span))
            };
            // The values lie in the order in which they were written: here the cache misses of a
            // pile overlap, where below each row would wait for its own.
            let firsts = pile.iter().filter_map(|(_, row)| value(*row)?.first());
            std::hint::black_box(firsts.fold(0, |seen, byte| seen ^ byte));
            self.written += pile.len();
            for &(key, row) in pile {
                let value = value(row);
                if value.is_some() || bucket.keep_deleted {
                    bucket.section.push(writer, key, value);
                }
            }
        }
        writer.flush(shared)?;
        Ok(Step::More)
    }

    fn write_ordered(&mut self) -> Result<Step, Error> {
        let Phase::Ordered { order, next, section } = &mut self.phase else {
            unreachable!("ordered rows are written in their phase");
        };
        let Some(writer) = &mut self.writer else {
            unreachable!("a run that has rows has its writer");
        };
        let keep_deleted = !self.shared.view().ordered.is_empty();
        while !writer.is_full() {
            let Some(row) = order.get(*next).and_then(|row| self.rows.ordered.get(*row as usize))
            else {
                let Phase::Ordered { section, .. } =
                    std::mem::replace(&mut self.phase, Phase::Finish)
                else {
                    unreachable!("it was that phase a moment ago");
                };
                section.finish(writer);
                return Ok(Step::More);
            };
            *next += 1;
            self.written += 1;
            let key = self.rows.get(row.key).unwrap_or_default();
            let value = self.rows.get(row.value);
            if value.is_some() || keep_deleted {
                section.push(writer, key, value);
            }
        }
        writer.flush(&self.shared)?;
        Ok(Step::More)
    }

    fn finish(&mut self) -> Result<Step, Error> {
        if self.writer.as_ref().is_some_and(RunWriter::is_empty)
            && let Some(writer) = self.writer.take()
        {
            writer.abandon(&self.shared)?;
        }
        if let Some(writer) = &mut self.writer
            && !writer.finish_step(&self.shared)?
        {
            return Ok(Step::More);
        }
        let sections = self.writer.take().map(|writer| writer.into_sections(&self.shared, 0));
        self.phase = Phase::Commit(sections.unwrap_or_default());
        self.rows.clear();
        self.shared.spare().rows = std::mem::take(&mut self.rows);
        Ok(Step::More)
    }
}

/// The indexes of the ordered rows, sorted by key.
fn order(rows: &RowSet) -> Vec<u32> {
    let key = |row: u32| {
        rows.ordered.get(row as usize).and_then(|row| rows.get(row.key)).unwrap_or_default()
    };
    let count = rows.ordered.len() as u32;
    let mut order: Vec<(u128, u32)> = (0..count).map(|row| (first_bytes(key(row)), row)).collect();
    // The first bytes nearly always decide; otherwise the whole keys do.
    order.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| key(a.1).cmp(key(b.1))));
    debug_assert!(order.is_sorted_by(|a, b| key(a.1) < key(b.1)), "a key appears once");
    order.into_iter().map(|(_, row)| row).collect()
}

/// A number that sorts like the first 16 bytes.
fn first_bytes(key: &[u8]) -> u128 {
    let mut first = [0; 16];
    let len = key.len().min(first.len());
    if let (Some(to), Some(from)) = (first.get_mut(..len), key.get(..len)) {
        to.copy_from_slice(from);
    }
    u128::from_be_bytes(first)
}

fn commit(
    shared: &Shared,
    sections: &[Arc<Section>],
    through: Sequence,
    at: u64,
) -> Result<(), Error> {
    let mut dropped = 0;
    shared.swap(|old| {
        let mut new = View { through, at: at.max(old.at), ..old.clone() };
        new.retain(|section| match section.meta.kind {
            Kind::Points { drop_at } => !is_over(drop_at, at),
            Kind::Ordered => true,
        });
        dropped = old.buckets() - new.buckets();
        sections.iter().for_each(|section| new.add(section.clone()));
        Some(new)
    })?;
    shared.counters.buckets_dropped.fetch_add(dropped as u64, Ordering::Relaxed);
    Ok(())
}
