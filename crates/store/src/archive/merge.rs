//! Merges sections into one, and removes dead ones.
//!
//! Invariants:
//! - the inputs are adjacent, so the output can replace them: its age is that of the newest;
//! - of rows with the same key the newest is kept; a deletion is dropped only if no older row is
//!   left that it hides;
//! - if an input was dropped meanwhile because its bucket expired, the output is discarded.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::bounds::{READ_AHEAD_BYTES, STEP_ROWS};
use super::policy::Plan;
use super::run::{self, RunWriter};
use super::section::{Kind, Section};
use super::state::Shared;
use super::{Step, build, ordered, points};
use crate::Error;

/// A merge in progress, or the removal of files that are no longer read. One at a time.
#[derive(Debug)]
pub struct MergeJob {
    shared: Arc<Shared>,
    work: Work,
}

#[derive(Debug)]
enum Work {
    Remove,
    Merge(Box<Merge>),
    Failed(String),
}

impl MergeJob {
    pub(super) fn remove(shared: Arc<Shared>) -> Self {
        Self { shared, work: Work::Remove }
    }

    pub(super) fn merge(shared: Arc<Shared>, plan: Plan) -> Self {
        let merge = Box::new(Merge { plan, writer: None, phase: Phase::Begin });
        Self { shared, work: Work::Merge(merge) }
    }

    /// Does a bounded amount of work; never [`Step::Waiting`]. If the disk is full
    /// ([`Error::is_full`]), what was written is removed; the next step starts over.
    pub fn step(&mut self) -> Result<Step, Error> {
        let result = match &mut self.work {
            Work::Remove => match self.shared.remove_one() {
                Ok(true) => Ok(Step::More),
                Ok(false) => Ok(Step::Done),
                Err(error) => Err(error),
            },
            Work::Merge(merge) => merge.step(&self.shared),
            Work::Failed(why) => return Err(Error::Stopped(why.clone())),
        };
        match &result {
            Ok(Step::Done) => self.shared.merge_full.store(false, Ordering::Relaxed),
            Err(error) if error.is_full() => {
                self.shared.merge_full.store(true, Ordering::Relaxed);
            }
            Err(error) => self.work = Work::Failed(error.to_string()),
            Ok(_) => {}
        }
        result
    }
}

impl Drop for MergeJob {
    fn drop(&mut self) {
        // No files are touched here: a job may be dropped because the machine "crashed".
        self.shared.merging.store(false, Ordering::Release);
    }
}

#[derive(Debug)]
struct Merge {
    plan: Plan,
    writer: Option<RunWriter>,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Begin,
    Points { heads: Vec<u128>, cursors: Vec<points::Cursor>, section: build::Points },
    Ordered { cursors: Vec<ordered::Cursor>, section: build::Ordered },
    Finish,
    Commit(Vec<Arc<Section>>),
    Done,
}

impl Merge {
    fn step(&mut self, shared: &Shared) -> Result<Step, Error> {
        let result = self.advance(shared);
        if let Err(error) = &result
            && error.is_full()
            && !matches!(self.phase, Phase::Commit(_))
        {
            self.phase = Phase::Begin;
            if let Some(writer) = self.writer.take() {
                writer.abandon(shared)?;
            }
        }
        result
    }

    fn advance(&mut self, shared: &Shared) -> Result<Step, Error> {
        match &mut self.phase {
            Phase::Begin => self.begin(shared)?,
            Phase::Points { heads, cursors, section } => {
                let Some(writer) = &mut self.writer else { return Ok(Step::More) };
                merge_points(heads, cursors, section, writer, self.plan.oldest)?;
                write(&self.plan, writer, shared)?;
                if cursors.is_empty() {
                    self.end_section();
                }
            }
            Phase::Ordered { cursors, section } => {
                let Some(writer) = &mut self.writer else { return Ok(Step::More) };
                merge_ordered(cursors, section, writer, self.plan.oldest)?;
                write(&self.plan, writer, shared)?;
                if cursors.is_empty() {
                    self.end_section();
                }
            }
            Phase::Finish => self.finish(shared)?,
            Phase::Commit(sections) => {
                commit(shared, &self.plan, sections)?;
                if self.plan.input_bytes() > self.plan.bytes_max {
                    shared.guesses().was_right();
                }
                self.phase = Phase::Done;
                return Ok(Step::Done);
            }
            Phase::Done => return Ok(Step::Done),
        }
        Ok(Step::More)
    }

    fn begin(&mut self, shared: &Shared) -> Result<(), Error> {
        let inputs = &self.plan.inputs;
        let Some(newest) = inputs.first() else { return Ok(()) };
        assert!(
            inputs.is_sorted_by(|a, b| a.meta.kind == b.meta.kind && a.meta.age > b.meta.age),
            "inputs are of one kind, the newest first"
        );
        let writer = RunWriter::create(shared, shared.new_run())?;
        let walks = inputs.iter().map(|section| section.walk(0, READ_AHEAD_BYTES));
        let age = newest.meta.age;
        self.phase = match newest.meta.kind {
            Kind::Points { drop_at } => {
                let cursors = walks.map(points::Cursor::new).collect::<Result<Vec<_>, _>>()?;
                let heads = cursors.iter().map(points::Cursor::key).collect();
                let rows = inputs.iter().map(|section| section.meta.rows).sum();
                let section = build::Points::new(drop_at, age, rows, &writer);
                Phase::Points { heads, cursors, section }
            }
            Kind::Ordered => {
                let cursors = walks.map(ordered::Cursor::new).collect::<Result<Vec<_>, _>>()?;
                Phase::Ordered { cursors, section: build::Ordered::new(age, &writer) }
            }
        };
        self.writer = Some(writer);
        Ok(())
    }

    fn end_section(&mut self) {
        let Some(writer) = &mut self.writer else { return };
        match std::mem::replace(&mut self.phase, Phase::Finish) {
            Phase::Points { section, .. } => section.finish(writer),
            Phase::Ordered { section, .. } => section.finish(writer),
            Phase::Begin | Phase::Finish | Phase::Commit(_) | Phase::Done => {}
        }
    }

    fn finish(&mut self, shared: &Shared) -> Result<(), Error> {
        if self.writer.as_ref().is_some_and(RunWriter::is_empty)
            && let Some(writer) = self.writer.take()
        {
            writer.abandon(shared)?;
        }
        if let Some(writer) = &mut self.writer
            && !writer.finish_step(shared)?
        {
            return Ok(());
        }
        let released = self.plan.inputs.iter().map(|section| section.filter_bytes()).sum();
        let sections = self.writer.take().map(|writer| writer.into_sections(shared, released));
        self.phase = Phase::Commit(sections.unwrap_or_default());
        Ok(())
    }
}

/// Writes what is merged so far, unless it exceeds the available space.
fn write(plan: &Plan, writer: &mut RunWriter, shared: &Shared) -> Result<(), Error> {
    if writer.bytes() <= plan.bytes_max {
        return writer.flush(shared);
    }
    shared.guesses().was_wrong(shared.next_run(), plan.bytes_max);
    let full = io::Error::from(io::ErrorKind::StorageFull);
    Err(Error::io("merge into", &shared.volume.describe(&run::name(writer.id)), full))
}

/// Merges up to a step's worth of rows. `heads` are the keys the cursors stand on: searching them
/// for the smallest touches one or two cache lines.
fn merge_points(
    heads: &mut Vec<u128>,
    cursors: &mut Vec<points::Cursor>,
    section: &mut build::Points,
    writer: &mut RunWriter,
    oldest: bool,
) -> Result<(), Error> {
    for _ in 0..STEP_ROWS {
        let (mut best, mut key, mut twice) = (usize::MAX, u128::MAX, false);
        for (at, head) in heads.iter().enumerate() {
            if *head < key || best == usize::MAX {
                (best, key, twice) = (at, *head, false);
            } else if *head == key {
                twice = true;
            }
        }
        debug_assert_eq!(heads.len(), cursors.len(), "every cursor has its head");
        let Some(cursor) = cursors.get(best) else { return Ok(()) };
        let value = cursor.value();
        if value.is_some() || !oldest {
            section.push(writer, key, value);
        }
        if !twice {
            advance_point(heads, cursors, best)?;
        } else {
            for at in (0..heads.len()).rev() {
                if heads.get(at) == Some(&key) {
                    advance_point(heads, cursors, at)?;
                }
            }
        }
        if writer.is_full() {
            return Ok(());
        }
    }
    Ok(())
}

#[inline]
fn advance_point(
    heads: &mut Vec<u128>,
    cursors: &mut Vec<points::Cursor>,
    at: usize,
) -> Result<(), Error> {
    let (Some(head), Some(cursor)) = (heads.get_mut(at), cursors.get_mut(at)) else {
        return Ok(());
    };
    cursor.advance()?;
    if cursor.ended() {
        heads.remove(at);
        cursors.remove(at);
    } else {
        *head = cursor.key();
    }
    Ok(())
}

fn merge_ordered(
    cursors: &mut Vec<ordered::Cursor>,
    section: &mut build::Ordered,
    writer: &mut RunWriter,
    oldest: bool,
) -> Result<(), Error> {
    let mut key = Vec::new();
    for _ in 0..STEP_ROWS {
        // The first of equal keys, which is the newest.
        let Some(best) = cursors.iter().min_by(|a, b| a.key().cmp(b.key())) else {
            return Ok(());
        };
        let value = best.value();
        if value.is_some() || !oldest {
            section.push(writer, best.key(), value);
        }
        key.clear();
        key.extend_from_slice(best.key());
        ordered::advance_all(cursors, &key)?;
        if writer.is_full() {
            return Ok(());
        }
    }
    Ok(())
}

fn commit(shared: &Shared, plan: &Plan, sections: &[Arc<Section>]) -> Result<(), Error> {
    let mut dropped = false;
    shared.swap(|old| {
        let is_input = |section: &Arc<Section>| plan.inputs.iter().any(|i| Arc::ptr_eq(i, section));
        let live = old.sections().filter(|section| is_input(section)).count();
        if live != plan.inputs.len() {
            assert_eq!(live, 0, "a bucket is dropped whole");
            dropped = true;
            return None;
        }
        assert!(sections.len() <= 1, "a merge makes one section, or none");
        let mut new = old.clone();
        new.retain(|section| !is_input(section));
        sections.iter().for_each(|section| new.add(section.clone()));
        Some(new)
    })?;
    if dropped {
        for section in sections {
            let name = run::name(section.run.id);
            shared
                .volume
                .remove(&name)
                .map_err(|error| Error::io("remove", section.run.label(), error))?;
        }
    }
    Ok(())
}
