//! The archive: a partition's rows, in immutable sorted run files.
//!
//! Finished keys are written once, looked up by point, mostly without a match, and forgotten by
//! time. So points are kept in *buckets* by the time at which they are dropped. Each bucket has a
//! few sorted sections with filters that answer "not here" without reading the disk. An expired
//! bucket is dropped as a whole. Ordered rows have the same form without filters. Checkpoints add
//! sections, merges join them, and both become visible by replacing the manifest.
//!
//! The archive uses neither threads nor clocks: checkpoints and merges are jobs that the caller
//! steps, a few milliseconds at a time. One checkpoint and one merge may be stepped by two threads
//! at once, while any number of readers look rows up.
//!
//! Important types: [`Archive`], [`Reader`], [`CheckpointJob`], [`MergeJob`]. The bytes on disk are
//! described in docs/disk-format.md and at the head of `block`, `run` and `manifest`.
//!
//! Invariants:
//! - rows are visible together with their `through`, all or nothing, also after a crash;
//! - a point is looked up in every bucket; in each the newest section with an entry counts;
//! - bytes that fail a checksum are never returned: they are [`Error::Corrupt`], with file and
//!   offset;
//! - a missing manifest beside run files is damage, never an empty archive.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::{Epoch, Error, NEVER, RowSet, Sequence, Volume};

mod block;
mod bounds;
mod build;
mod bytes;
mod checkpoint;
mod filter;
mod guesses;
mod manifest;
mod merge;
mod ordered;
mod points;
mod policy;
mod reader;
mod reserve;
mod run;
mod section;
mod sorted;
mod state;
mod verify;

pub use checkpoint::CheckpointJob;
pub use merge::MergeJob;
pub use reader::Reader;
pub use verify::{Finding, Severity, Summary, verify};

use manifest::Manifest;
use policy::Choice;
use run::RunFile;
use section::Section;
use state::{Shared, View};

const MANIFEST_MISSING: &str = "run files are here and the manifest that names them is missing";

/// Options of an archive.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Memory for filters. Sections beyond it have their filter only on disk and answer "maybe".
    pub filter_bytes_max: u64,
    /// Number of sections of similar size that are merged into one.
    pub merge_fan_in: usize,
    /// Disk space reserved for a manifest when the disk is full.
    pub reserve_bytes: u64,
    /// While the disk is short of space, a merge must free at least this much, and an eighth of
    /// what it reads.
    pub shrink_bytes_min: u64,
    /// Files are synced in pieces of this size as they are written: on a disk one large sync at the
    /// end would delay the journal's syncs, and so do pieces of a few MiB (docs/benchmarks.md).
    pub sync_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            filter_bytes_max: 1 << 30,
            merge_fan_in: 8,
            reserve_bytes: 1 << 20,
            shrink_bytes_min: 16 << 10,
            sync_bytes: 1 << 20,
        }
    }
}

/// The owner's epoch, and the batch up to which the rows are complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub epoch: Epoch,
    pub through: Sequence,
    /// How far the journal was synced; 0 if unknown.
    pub synced: u64,
}

/// Reads the manifest; `None` if there is none.
pub(crate) fn head(volume: &dyn Volume) -> Result<Option<Head>, Error> {
    let manifest = Manifest::read(volume)?;
    Ok(manifest.map(|Manifest { epoch, through, synced, .. }| Head { epoch, through, synced }))
}

/// Name and length of every run that a manifest lists, given what it holds: for volumes that check
/// that all of it is there before the manifest names it.
pub fn runs_of(manifest: &[u8]) -> Result<Vec<(String, u64)>, Error> {
    let manifest = Manifest::decode(manifest, manifest::NAME)?;
    Ok(manifest.runs.iter().map(|run| (run::name(run.id), run.bytes)).collect())
}

/// The same manifest for a store whose log is another one: it says nothing of how far the old log
/// was synced.
pub fn manifest_beside_another_log(manifest: &[u8]) -> Result<Vec<u8>, Error> {
    let manifest = Manifest::decode(manifest, manifest::NAME)?;
    Ok(Manifest { synced: 0, ..manifest }.encode())
}

/// The number in the name of a run file; `None` for other files.
pub fn run_number(name: &str) -> Option<u64> {
    run::id_of(name)
}

/// The name of a run file.
pub fn run_name(number: u64) -> String {
    run::name(number)
}

/// The name of the manifest.
pub const MANIFEST_NAME: &str = manifest::NAME;

/// The disk space available to a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    pub free_bytes: u64,
    /// Whether merges that free space come first.
    pub is_short: bool,
}

impl Space {
    /// Unlimited space.
    pub const PLENTY: Self = Self { free_bytes: u64::MAX, is_short: false };
}

/// The result of a step of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is more to do.
    More,
    /// Waiting for the journal to become durable.
    Waiting,
    Done,
}

/// What an archive holds and has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Run files.
    pub runs: u64,
    /// Sections of points that a look-up searches.
    pub point_sections: u64,
    pub ordered_sections: u64,
    /// Point buckets.
    pub buckets: u64,
    /// Rows in all sections, including deleted and hidden ones.
    pub rows: u64,
    /// Bytes of the run files.
    pub bytes: u64,
    /// Memory used by filters.
    pub filter_bytes: u64,
    /// Blocks read to look rows up.
    pub blocks_read: u64,
    /// Look-ups in a section that a filter let through without a match.
    pub false_positives: u64,
    pub buckets_dropped: u64,
    /// Bytes written by checkpoints and merges, manifests included.
    pub bytes_written: u64,
}

/// The rows of one partition. Clones share one archive.
#[derive(Clone, Debug)]
pub struct Archive(Arc<Shared>);

impl Archive {
    /// Opens the archive on `volume`, or creates an empty one if there is none. An existing one is
    /// not changed: its next owner removes the leftovers of a crash.
    pub fn open(volume: Arc<dyn Volume>, options: Options) -> Result<Self, Error> {
        assert!(options.merge_fan_in >= 2, "a merge joins at least two sections");
        let names =
            volume.list().map_err(|error| Error::io("list", &volume.describe(""), error))?;
        let ids: Vec<u64> = names.iter().filter_map(|name| run::id_of(name)).collect();
        let Some(manifest) = Manifest::read(volume.as_ref())? else {
            if !ids.is_empty() {
                let label = volume.describe(manifest::NAME);
                return Err(manifest::corrupt(&label, 0, MANIFEST_MISSING));
            }
            let shared = Shared::new(volume, options, View::default(), 1, 0, Vec::new());
            shared.swap(|empty| Some(empty.clone()))?;
            return Ok(Self(Arc::new(shared)));
        };
        let mut repaired = Vec::new();
        let view = load(volume.as_ref(), &manifest, &options, &mut repaired)?;
        // Numbers of leftovers are not reused: their old blocks would look valid.
        let next_run = ids.iter().map(|id| id + 1).fold(manifest.next_run, u64::max);
        let synced = manifest.synced;
        Ok(Self(Arc::new(Shared::new(volume, options, view, next_run, synced, repaired))))
    }

    pub fn head(&self) -> Head {
        let view = self.0.view();
        Head { epoch: view.epoch, through: view.through, synced: self.0.synced() }
    }

    /// Records how far the journal is synced, for the next manifest: a journal that ends earlier
    /// does not belong to these rows.
    pub fn note_synced(&self, synced: u64) {
        self.0.note_synced(synced);
    }

    /// Raises the epoch durably. An epoch below the newest is [`Error::Fenced`]. Runs that are
    /// begun after it have numbers of this epoch.
    pub fn commit_epoch(&self, epoch: Epoch) -> Result<(), Error> {
        let newest = self.head().epoch;
        if epoch < newest {
            return Err(Error::Fenced { held: epoch, newest });
        }
        self.0.swap(|old| Some(View { epoch, ..old.clone() }))?;
        self.0.number_runs_from(epoch);
        Ok(())
    }

    /// Removes the leftovers of the owners before `epoch`: runs of their epochs that the manifest
    /// does not list. Only for an owner with that epoch that has not begun a run yet; the runs of a
    /// later owner are left alone. Returns whether there were any.
    pub fn remove_leftovers(&self, epoch: Epoch) -> Result<bool, Error> {
        let volume = self.0.volume.as_ref();
        let names =
            volume.list().map_err(|error| Error::io("list", &volume.describe(""), error))?;
        let first = run::first_of(epoch);
        let is_leftover = |id: u64| id < first && !self.0.has_run(id);
        let mut any = false;
        for name in names.iter().filter(|name| run::id_of(name).is_some_and(is_leftover)) {
            volume
                .remove(name)
                .map_err(|error| Error::io("remove", &volume.describe(name), error))?;
            any = true;
        }
        Ok(any)
    }

    pub fn reader(&self) -> Reader {
        Reader::new(self.0.clone())
    }

    /// An empty row set for the next checkpoint, reusing memory of the previous one.
    pub fn empty_rows(&self) -> RowSet {
        let mut rows = std::mem::take(&mut self.0.spare().rows);
        rows.tell(&self.0.counters.progress);
        rows
    }

    /// Begins a checkpoint that brings the rows to batch `through` and drops the buckets expired at
    /// `at`. One at a time.
    pub fn checkpoint(&self, rows: RowSet, through: Sequence, at: u64) -> CheckpointJob {
        CheckpointJob::new(self.0.clone(), rows, through, at)
    }

    /// About how much of the checkpoint in progress is done, from 0 to 1; 0 without one.
    pub fn checkpoint_progress(&self) -> f64 {
        self.0.counters.progress.get()
    }

    /// The next worthwhile merge that fits, or the removal of files that are no longer read. `None`
    /// while another such job exists.
    pub fn merge(&self, space: Space) -> Option<MergeJob> {
        if self.0.merging.swap(true, Ordering::Acquire) {
            return None;
        }
        if self.0.has_removable() {
            return Some(MergeJob::remove(self.0.clone()));
        }
        let may_guess = self.0.guesses().may(self.0.next_run(), policy::room(space));
        let choice = policy::choose(&self.0.view(), &self.0.options, space, may_guess);
        let Choice::Merge(plan) = choice else {
            let is_full = matches!(choice, Choice::NoRoom);
            self.0.merge_full.store(is_full, Ordering::Relaxed);
            self.0.merging.store(false, Ordering::Release);
            return None;
        };
        Some(MergeJob::merge(self.0.clone(), plan))
    }

    /// Whether merges are behind, so that checkpoints should wait for them. False if merges wait
    /// for disk space: then only checkpoints can free some.
    pub fn behind(&self) -> bool {
        !self.0.merge_full.load(Ordering::Relaxed)
            && policy::is_behind(&self.0.view(), self.0.options.merge_fan_in)
    }

    /// Pins the current state of the archive, for a backup.
    pub fn pin(&self) -> Pinned {
        let view = self.0.view();
        let synced = self.0.synced();
        let manifest = view.manifest(self.0.next_run(), synced).encode();
        Pinned { view, manifest, synced }
    }

    pub fn stats(&self) -> Stats {
        let view = self.0.view();
        let runs: HashSet<u64> = view.sections().map(|section| section.run.id).collect();
        let mut stats = Stats {
            runs: runs.len() as u64,
            point_sections: view.points.len() as u64,
            ordered_sections: view.ordered.len() as u64,
            buckets: view.buckets() as u64,
            filter_bytes: view.filter_bytes(),
            blocks_read: self.0.counters.blocks_read.load(Ordering::Relaxed),
            false_positives: self.0.counters.false_positives.load(Ordering::Relaxed),
            buckets_dropped: self.0.counters.buckets_dropped.load(Ordering::Relaxed),
            bytes_written: self.0.counters.bytes_written.load(Ordering::Relaxed),
            ..Stats::default()
        };
        let mut seen = HashSet::new();
        for section in view.sections() {
            stats.rows += section.meta.rows;
            if seen.insert(section.run.id) {
                stats.bytes += section.run.bytes;
            }
        }
        stats
    }

    /// Derived parts that were damaged when the archive was opened and were rebuilt in memory.
    pub fn repaired(&self) -> &[Finding] {
        &self.0.repaired
    }
}

/// The archive at one moment. Its files are not removed while this exists.
#[derive(Debug)]
pub struct Pinned {
    view: Arc<View>,
    manifest: Vec<u8>,
    synced: u64,
}

impl Pinned {
    pub fn head(&self) -> Head {
        let View { epoch, through, .. } = *self.view;
        Head { epoch, through, synced: self.synced }
    }

    /// Name and contents of the manifest. A backup writes it last.
    pub fn manifest(&self) -> (&'static str, &[u8]) {
        (manifest::NAME, &self.manifest)
    }

    /// Name and length of every file the manifest names.
    pub fn files(&self) -> Vec<(String, u64)> {
        let mut files: Vec<_> = self
            .view
            .sections()
            .map(|section| (run::name(section.run.id), section.run.bytes))
            .collect();
        files.sort_unstable();
        files.dedup();
        files
    }
}

/// Whether a bucket has expired.
fn is_over(drop_at: u64, at: u64) -> bool {
    drop_at <= at && drop_at != NEVER
}

fn load(
    volume: &dyn Volume,
    manifest: &Manifest,
    options: &Options,
    repaired: &mut Vec<Finding>,
) -> Result<View, Error> {
    let mut view = View {
        epoch: manifest.epoch,
        through: manifest.through,
        at: manifest.at,
        ..View::default()
    };
    let mut sections = Vec::new();
    for entry in &manifest.runs {
        let file = RunFile::open(volume, entry.id, entry.bytes)?;
        let footer = run::read_footer(&file)?;
        if footer.is_none() {
            let offset = file.bytes.saturating_sub(run::TRAILER_BYTES);
            let what = "the footer is damaged".to_owned();
            let file = file.label().to_owned();
            repaired.push(Finding { severity: Severity::Derived, file, offset, what });
        }
        sections.extend(entry.sections.iter().map(|meta| (meta.clone(), file.clone())));
    }
    // Newest first: they are searched most, and if filters exceed their memory, the oldest and
    // largest do without.
    sections.sort_by_key(|(meta, _)| std::cmp::Reverse(meta.age));
    let mut left = options.filter_bytes_max;
    for (meta, file) in sections {
        let label = file.label().to_owned();
        let mut damaged = |offset, what: &str| {
            let (file, what) = (label.clone(), format!("{what}; it was rebuilt"));
            repaired.push(Finding { severity: Severity::Derived, file, offset, what });
        };
        let section = Section::load(meta, file, left, &mut damaged)?;
        left -= section.filter_bytes().min(left);
        view.add(Arc::new(section));
    }
    Ok(view)
}
