//! Moves a broker on disk into a database that has none: `hapax import`.
//!
//! The source is locked, checked from end to end, and only read. Everything is copied as it is: the
//! runs, the manifest and the journal's batches of every partition, the secrets and the tokens. So
//! keys, results, leases and queues are those of the source. Epochs are raised, so that fences
//! grow. What was written is read back and compared before a node may use it.

use std::path::{Path, PathBuf};

use hapax_postgres::PIECE_BYTES;
use hapax_postgres::import::{Copy, Import, Place};
use hapax_postgres::{BadUrl, Create, Failure, Refused, Secret};
use hapax_store::archive::{self, Pinned, Severity};
use hapax_store::disk::{self, DiskStore};
use hapax_store::{Corruption, Epoch, OsVolume, Sequence, Store, Volume};

use crate::auth::{self, TokenFile, shared};
use crate::engine::{self, Data, Moving, moved_epoch};
use crate::options::StoreUrl;

/// What an import is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The source is checked.
    Checking,
    Copying,
    /// What was copied is read back and compared.
    Verifying,
}

/// What was imported.
#[derive(Clone, Debug)]
pub struct Imported {
    /// Hosts and name of the database.
    pub database: String,
    pub partitions: Vec<Partition>,
    pub tokens: usize,
    /// Whether the source was a copy that no broker had opened yet: leases of the original are not
    /// valid.
    pub is_copy: bool,
}

/// What a partition holds in the database.
#[derive(Clone, Copy, Debug)]
pub struct Partition {
    pub number: u16,
    /// The last batch.
    pub last: Sequence,
    /// Batches that the rows do not have.
    pub batches: u64,
    pub rows: u64,
    pub row_bytes: u64,
    /// The next owner's epoch is above it.
    pub epoch: Epoch,
}

/// Why nothing was imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Url(#[from] BadUrl),
    #[error(transparent)]
    Data(#[from] engine::Error),
    #[error(transparent)]
    Tokens(#[from] auth::Error),
    #[error("{} is in use by a running process", .0.display())]
    InUse(PathBuf),
    /// The source cannot be read, or is damaged.
    #[error(transparent)]
    Source(#[from] hapax_store::Error),
    #[error(transparent)]
    Target(#[from] Refused),
    #[error("{0}. Nothing is left of it in the database")]
    Failed(hapax_postgres::import::Error),
    #[error("{0}. What was copied so far was not removed ({1}): no node takes it for a broker")]
    Left(hapax_postgres::import::Error, Failure),
}

impl Error {
    /// Whether the database did not answer: it may later.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Target(Refused::Unreachable { .. }))
    }

    /// Whether the database holds a broker already.
    pub fn is_taken(&self) -> bool {
        matches!(self, Self::Target(Refused::NotEmpty { .. }))
    }
}

/// Imports the broker in `directory`. Calls `progress(stage, bytes done, bytes in total)`. Blocks,
/// and must not be called within a runtime.
pub fn import(
    directory: &Path,
    store: &StoreUrl,
    progress: &mut (dyn FnMut(Stage, u64, u64) + Send),
) -> Result<Imported, Error> {
    let settings = store.settings()?;
    let mut sources = open(directory, &Data::moving(directory)?)?;
    // Again, now that nobody else can open it: the first broker on a copy gives it another secret.
    let moving = Data::moving(directory)?;
    let tokens = TokenFile::in_directory(directory).contents()?;
    // The target before all of the source, which may take long.
    Import::check(&settings)?;
    let total = sources.iter().map(Source::run_bytes).sum();
    let mut done = 0;
    for source in &mut sources {
        progress(Stage::Checking, done, total);
        source.check()?;
        done += source.run_bytes();
    }
    let database = settings.shown().to_owned();
    let (is_copy, token_count) = (moving.is_copy, tokens.as_ref().map_or(0, |(_, count)| *count));
    let from = directory.display().to_string();
    let import = Import::begin(settings, creation(moving)?, &from)?;
    let copied = bring(&import, &mut sources, tokens.as_ref().map(|it| &*it.0), progress);
    let finished = copied.and_then(|partitions| {
        import.clone().finish()?;
        Ok(partitions)
    });
    match finished {
        Ok(partitions) => Ok(Imported { database, partitions, tokens: token_count, is_copy }),
        Err(error) => Err(withdraw(import, error)),
    }
}

/// Removes what was copied. Not where it may have become a broker, or is another import's.
fn withdraw(import: Import, error: hapax_postgres::import::Error) -> Error {
    use hapax_postgres::import::Error::{Replaced, Unknown};
    match error {
        Replaced => Error::Failed(error),
        Unknown(failure) => Error::Left(Unknown(failure.clone()), failure),
        error => match import.abandon() {
            Ok(()) => Error::Failed(error),
            Err(failure) => Error::Left(error, failure),
        },
    }
}

fn creation(moving: Moving) -> Result<Create, Error> {
    let Moving { partitions, fingerprints, leases, .. } = moving;
    let mut links = [0; 32];
    getrandom::fill(&mut links).map_err(auth::Error::Random)?;
    let partitions = u16::try_from(partitions.len()).unwrap_or(u16::MAX);
    Ok(Create { partitions, fingerprints, leases, links: Secret(links) })
}

fn bring(
    import: &Import,
    sources: &mut [Source],
    tokens: Option<&[u8]>,
    progress: &mut (dyn FnMut(Stage, u64, u64) + Send),
) -> Result<Vec<Partition>, hapax_postgres::import::Error> {
    let total = sources.iter().map(|it| it.run_bytes() + it.summary.batch_bytes).sum();
    let mut done = 0;
    let mut copies = Vec::new();
    for source in sources.iter_mut() {
        let copied = source.copy(import, &mut |bytes| {
            done += bytes;
            progress(Stage::Copying, done, total);
        });
        copies.push(copied?);
    }
    if let Some(tokens) = tokens {
        import.document(shared::DOCUMENT, tokens)?;
    }
    let mut done = 0;
    let mut partitions = Vec::new();
    for (source, copy) in sources.iter().zip(&copies) {
        progress(Stage::Verifying, done, total);
        let verified = copy.verify(&mut |bytes| {
            done += bytes;
            progress(Stage::Verifying, done, total);
        });
        let (last, batches, rows) = verified?;
        assert_eq!(last, source.summary.last, "everything was copied");
        partitions.push(Partition {
            number: source.number,
            last,
            batches,
            rows: rows.rows,
            row_bytes: rows.bytes,
            epoch: moved_epoch(source.summary.epoch),
        });
    }
    Ok(partitions)
}

/// A partition on disk. It is locked as long as this exists.
struct Source {
    number: u16,
    path: PathBuf,
    store: DiskStore,
    pinned: Pinned,
    summary: disk::Summary,
}

fn open(directory: &Path, moving: &Moving) -> Result<Vec<Source>, Error> {
    let mut sources = Vec::new();
    for (number, path) in (0..).zip(&moving.partitions) {
        let options = disk::Options { must_exist: true, ..disk::Options::default() };
        // The workers would write: they are never started.
        let opened = DiskStore::open(volume(path)?, options, std::sync::Arc::new(|| {}));
        let (store, _) = opened.map_err(|error| match error {
            hapax_store::Error::Locked { .. } => Error::InUse(directory.to_owned()),
            error => Error::Source(error),
        })?;
        let (pinned, summary) = (store.archive().pin(), disk::Summary::default());
        sources.push(Source { number, path: path.clone(), store, pinned, summary });
    }
    Ok(sources)
}

fn volume(path: &Path) -> Result<std::sync::Arc<OsVolume>, hapax_store::Error> {
    let volume = OsVolume::read_only(path).map(std::sync::Arc::new);
    volume.map_err(|error| hapax_store::Error::io("open", &path.display().to_string(), error))
}

impl Source {
    fn run_bytes(&self) -> u64 {
        self.pinned.files().iter().map(|(_, bytes)| *bytes).sum()
    }

    /// Reads all of it, and refuses damage.
    fn check(&mut self) -> Result<(), hapax_store::Error> {
        let mut first = None;
        self.summary = disk::check(&*volume(&self.path)?, &mut |finding| {
            if finding.severity == Severity::Damage && first.is_none() {
                first = Some(finding);
            }
        })?;
        match first {
            Some(found) => {
                let (file, offset, what) = (found.file, found.offset, found.what);
                Err(Corruption { file, offset, what }.into())
            }
            None => Ok(()),
        }
    }

    /// Calls `copied(bytes)` as it goes on.
    fn copy(
        &mut self,
        import: &Import,
        copied: &mut dyn FnMut(u64),
    ) -> Result<Copy, hapax_postgres::import::Error> {
        let head = self.pinned.head();
        let (_, manifest) = self.pinned.manifest();
        let place = Place {
            epoch: head.epoch,
            raised: moved_epoch(head.epoch),
            is_closed: self.summary.sealed,
            through: head.through,
            manifest: archive::manifest_beside_another_log(manifest)?,
        };
        let mut copy = import.partition(self.number, place)?;
        for (name, bytes) in self.pinned.files() {
            self.copy_run(&mut copy, &name, bytes, copied)?;
        }
        let mut failed = None;
        self.store.read(head.through + 1, &mut |sequence, batch| {
            failed = copy.append(sequence, batch).err();
            copied(batch.len() as u64);
            Ok(failed.is_none())
        })?;
        failed.map_or(Ok(()), Err)?;
        copy.flush()?;
        Ok(copy)
    }

    fn copy_run(
        &self,
        copy: &mut Copy,
        name: &str,
        bytes: u64,
        copied: &mut dyn FnMut(u64),
    ) -> Result<(), hapax_postgres::import::Error> {
        let failed = |error| {
            hapax_store::Error::io("read", &self.path.join(name).display().to_string(), error)
        };
        let Some(run) = archive::run_number(name) else {
            unreachable!("the manifest lists runs by their numbers");
        };
        let file = volume(&self.path)?.open(name).map_err(failed)?;
        let mut at = 0;
        while at < bytes {
            let mut piece = vec![0; (bytes - at).min(PIECE_BYTES as u64) as usize];
            file.read_exact_at(&mut piece, at).map_err(failed)?;
            copy.keep(run, at, &piece)?;
            at += piece.len() as u64;
            copied(piece.len() as u64);
        }
        Ok(())
    }
}
