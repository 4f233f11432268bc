//! What an open archive shares between its readers and its jobs: the view, and how it is changed.
//!
//! Invariants:
//! - a view is immutable; there is one newest view, and it is what the manifest on disk says;
//! - the view changes in [`Shared::swap`] alone, one change at a time, after the manifest did;
//! - a run file is removed when no view that anybody holds refers to it, never earlier.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use super::manifest::{self, Failed, Manifest};
use super::run;
use super::section::{Kind, Section};
use super::{Finding, Options};
use crate::{Epoch, Error, Sequence, Volume};

/// The archive at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    pub(super) epoch: Epoch,
    pub(super) through: Sequence,
    pub(super) at: u64,
    /// By bucket, within a bucket the newest first.
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
}

impl Counters {
    pub(super) fn wrote(&self, bytes: u64) {
        self.bytes_written.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// What changes only under the commit lock.
#[derive(Debug, Default)]
struct Commit {
    /// Set when nobody knows what the manifest on disk is.
    stopped: Option<String>,
    /// Sections of no newest view, until their last reader is gone.
    dead: Vec<Arc<Section>>,
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
    /// Whether a merge job is out; there is one at a time.
    pub(super) merging: AtomicBool,
    /// Whether the last merge found the disk full.
    pub(super) merge_full: AtomicBool,
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
        }
    }

    pub(super) fn view(&self) -> Arc<View> {
        self.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A number no run file has had.
    pub(super) fn new_run(&self) -> u64 {
        self.next_run.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn next_run(&self) -> u64 {
        self.next_run.load(Ordering::Relaxed)
    }

    pub(super) fn synced(&self) -> u64 {
        self.synced.load(Ordering::Acquire)
    }

    pub(super) fn note_synced(&self, synced: u64) {
        self.synced.fetch_max(synced, Ordering::AcqRel);
    }

    /// Replaces the newest view, on disk first. `change` says what follows the view of now, or
    /// `None` where nothing needs to be changed.
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
        let bytes = new.manifest(self.next_run(), self.synced()).encode();
        match manifest::replace(self.volume.as_ref(), &bytes) {
            Ok(()) => {}
            Err(Failed::Unchanged(error)) => {
                if !error.is_full() {
                    commit.stopped = Some(error.to_string());
                }
                return Err(error);
            }
            Err(Failed::Unknown(error)) => {
                commit.stopped = Some(error.to_string());
                return Err(error);
            }
        }
        self.counters.wrote(bytes.len() as u64);
        let gone =
            old.sections().filter(|section| !new.sections().any(|s| Arc::ptr_eq(s, section)));
        commit.dead.extend(gone.cloned());
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
        Ok(())
    }

    /// Whether some dead section has lost its last reader.
    pub(super) fn has_removable(&self) -> bool {
        self.lock_commit().dead.iter().any(|section| Arc::strong_count(section) == 1)
    }

    /// Lets one dead section go, and its run file where it was the last. `false` if none can.
    pub(super) fn remove_one(&self) -> Result<bool, Error> {
        let mut commit = self.lock_commit();
        let Some(at) = commit.dead.iter().position(|dead| Arc::strong_count(dead) == 1) else {
            return Ok(false);
        };
        let section = commit.dead.swap_remove(at);
        // Freeing filters and unlinking gigabytes takes long: nobody who commits waits for it.
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
