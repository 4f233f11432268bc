//! The state that the readers and jobs of an open archive share: the view, and its changes.
//!
//! Invariants:
//! - a view is immutable; there is one newest view, and it equals the manifest on disk;
//! - only [`Shared::swap`] changes the view, one change at a time, after the manifest;
//! - a run file is removed only when no view in use refers to it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use super::checkpoint::Spare;
use super::guesses::Guesses;
use super::manifest::{self, Manifest};
use super::section::{Kind, Section};
use super::{Finding, Head, Options};
use super::{reserve, run};
use crate::progress::Progress;
use crate::{Epoch, Error, NotReplaced, Sequence, Volume};

/// The archive at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    pub(super) epoch: Epoch,
    pub(super) through: Sequence,
    pub(super) at: u64,
    /// By bucket, newest first within a bucket.
    pub(super) points: Vec<Arc<Section>>,
    /// The newest first.
    pub(super) ordered: Vec<Arc<Section>>,
}

impl View {
    pub(super) fn sections(&self) -> impl Iterator<Item = &Arc<Section>> {
        self.points.iter().chain(&self.ordered)
    }

    pub(super) fn add(&mut self, section: Arc<Section>) {
        let list = match section.meta.kind {
            Kind::Points { .. } => &mut self.points,
            Kind::Ordered => &mut self.ordered,
        };
        let rank = |section: &Section| (section.meta.kind, std::cmp::Reverse(section.meta.age));
        let at = list.partition_point(|other| rank(other) < rank(&section));
        let taken = list.get(at).is_some_and(|other| rank(other) == rank(&section));
        assert!(!taken, "two sections of a bucket are never of one age");
        list.insert(at, section);
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(&Arc<Section>) -> bool) {
        self.points.retain(&mut keep);
        self.ordered.retain(&mut keep);
    }

    /// The sections of one kind, the newest first.
    pub(super) fn of_kind(&self, kind: Kind) -> &[Arc<Section>] {
        match kind {
            Kind::Points { .. } => self
                .bucket_rows()
                .find(|bucket| bucket.first().is_some_and(|first| first.meta.kind == kind))
                .unwrap_or_default(),
            Kind::Ordered => &self.ordered,
        }
    }

    /// Each bucket's sections and the ordered ones.
    pub(super) fn kinds(&self) -> impl Iterator<Item = &[Arc<Section>]> {
        let ordered = Some(self.ordered.as_slice()).filter(|ordered| !ordered.is_empty());
        self.bucket_rows().chain(ordered)
    }

    /// Each bucket's sections.
    pub(super) fn bucket_rows(&self) -> impl DoubleEndedIterator<Item = &[Arc<Section>]> {
        self.points.chunk_by(|a, b| a.meta.kind == b.meta.kind)
    }

    pub(super) fn buckets(&self) -> usize {
        self.bucket_rows().count()
    }

    pub(super) fn filter_bytes(&self) -> u64 {
        self.sections().map(|section| section.filter_bytes()).sum()
    }

    pub(super) fn manifest(&self, next_run: u64, synced: u64) -> Manifest {
        let mut runs = BTreeMap::new();
        for section in self.sections() {
            let run = runs.entry(section.run.id).or_insert_with(|| manifest::Run {
                id: section.run.id,
                bytes: section.run.bytes,
                sections: Vec::new(),
            });
            run.sections.push(section.meta.clone());
        }
        Manifest {
            epoch: self.epoch,
            through: self.through,
            at: self.at,
            next_run,
            runs: runs.into_values().collect(),
            synced,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) blocks_read: AtomicU64,
    pub(super) false_positives: AtomicU64,
    pub(super) buckets_dropped: AtomicU64,
    pub(super) bytes_written: AtomicU64,
    /// That of the checkpoint.
    pub(super) progress: Progress,
}

impl Counters {
    pub(super) fn wrote(&self, bytes: u64) {
        self.bytes_written.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// State that changes only under the commit lock.
#[derive(Debug, Default)]
struct Commit {
    /// Set when the manifest on disk is unknown.
    stopped: Option<String>,
    /// Sections that left the newest view, until their last reader is gone.
    dead: Vec<Arc<Section>>,
    /// Whether the reserve is whole.
    is_reserved: bool,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) volume: Arc<dyn Volume>,
    pub(super) options: Options,
    pub(super) counters: Counters,
    pub(super) repaired: Vec<Finding>,
    view: RwLock<Arc<View>>,
    commit: Mutex<Commit>,
    next_run: AtomicU64,
    /// How far the journal is known to be synced; every manifest has it.
    synced: AtomicU64,
    /// Whether a merge job exists; there is one at a time.
    pub(super) merging: AtomicBool,
    /// Whether the last merge found the disk full.
    pub(super) merge_full: AtomicBool,
    guesses: Mutex<Guesses>,
    spare: Mutex<Spare>,
}

impl Shared {
    pub(super) fn new(
        volume: Arc<dyn Volume>,
        options: Options,
        view: View,
        next_run: u64,
        synced: u64,
        repaired: Vec<Finding>,
    ) -> Self {
        Self {
            volume,
            options,
            counters: Counters::default(),
            repaired,
            view: RwLock::new(Arc::new(view)),
            commit: Mutex::default(),
            next_run: AtomicU64::new(next_run),
            synced: AtomicU64::new(synced),
            merging: AtomicBool::new(false),
            merge_full: AtomicBool::new(false),
            guesses: Mutex::default(),
            spare: Mutex::default(),
        }
    }

    pub(super) fn spare(&self) -> MutexGuard<'_, Spare> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn view(&self) -> Arc<View> {
        self.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A number that no run file has had.
    pub(super) fn new_run(&self) -> u64 {
        self.next_run.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn next_run(&self) -> u64 {
        self.next_run.load(Ordering::Relaxed)
    }

    /// From here on runs have numbers of this epoch, which no earlier owner gives: whoever kept
    /// bytes of a run by its number never mixes up those of two owners.
    pub(super) fn number_runs_from(&self, epoch: Epoch) {
        self.next_run.fetch_max(run::first_of(epoch), Ordering::Relaxed);
    }

    /// Whether some view in use has the run.
    pub(super) fn has_run(&self, id: u64) -> bool {
        let commit = self.lock_commit();
        self.view().sections().chain(&commit.dead).any(|section| section.run.id == id)
    }

    /// When merges may rely on their outputs being smaller than their inputs.
    pub(super) fn guesses(&self) -> MutexGuard<'_, Guesses> {
        self.guesses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn synced(&self) -> u64 {
        self.synced.load(Ordering::Acquire)
    }

    pub(super) fn note_synced(&self, synced: u64) {
        self.synced.fetch_max(synced, Ordering::AcqRel);
    }

    /// Replaces the newest view, on disk first. `change` returns the next view, or `None` if
    /// nothing needs to change.
    pub(super) fn swap(&self, change: impl FnOnce(&View) -> Option<View>) -> Result<(), Error> {
        let mut commit = self.lock_commit();
        if let Some(why) = &commit.stopped {
            return Err(Error::Stopped(why.clone()));
        }
        let old = self.view();
        let Some(new) = change(&old) else { return Ok(()) };
        assert!(new.epoch >= old.epoch && new.through >= old.through, "the head only grows");
        assert!(new.at >= old.at, "so does its time");
        let next_run = self.next_run();
        assert!(new.sections().all(|section| section.run.id < next_run), "numbers are given once");
        let synced = self.synced();
        let bytes = new.manifest(self.next_run(), synced).encode();
        let volume = self.volume.as_ref();
        let head = Head { epoch: new.epoch, through: new.through, synced };
        let replace = || volume.replace(manifest::NAME, &bytes, head);
        let replaced = match replace() {
            Err(NotReplaced::Unchanged(error)) if error.is_full() && reserve::give_up(volume) => {
                commit.is_reserved = false;
                replace()
            }
            replaced => replaced,
        };
        match replaced {
            Ok(()) => {}
            Err(NotReplaced::Unchanged(error)) => {
                if !error.is_full() {
                    commit.stopped = Some(error.to_string());
                }
                return Err(error);
            }
            Err(NotReplaced::Unknown(error)) => {
                commit.stopped = Some(error.to_string());
                return Err(error);
            }
        }
        self.counters.wrote(bytes.len() as u64);
        let gone =
            old.sections().filter(|section| !new.sections().any(|s| Arc::ptr_eq(s, section)));
        commit.dead.extend(gone.cloned());
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
        if !commit.is_reserved {
            commit.is_reserved = reserve::keep(volume, self.options.reserve_bytes);
        }
        Ok(())
    }

    /// Whether some dead section has no readers left.
    pub(super) fn has_removable(&self) -> bool {
        self.lock_commit().dead.iter().any(|section| Arc::strong_count(section) == 1)
    }

    /// Removes one dead section, and its run file if it was the last. `false` if none can be
    /// removed.
    pub(super) fn remove_one(&self) -> Result<bool, Error> {
        let mut commit = self.lock_commit();
        let Some(at) = commit.dead.iter().position(|dead| Arc::strong_count(dead) == 1) else {
            return Ok(false);
        };
        let section = commit.dead.swap_remove(at);
        // Freeing filters and unlinking gigabytes takes long: commits must not wait for it.
        drop(commit);
        let run = section.run.clone();
        drop(section);
        if Arc::strong_count(&run) > 1 {
            return Ok(true);
        }
        self.volume
            .remove(&run::name(run.id))
            .map_err(|error| Error::io("remove", run.label(), error))?;
        Ok(true)
    }

    fn lock_commit(&self) -> MutexGuard<'_, Commit> {
        self.commit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
