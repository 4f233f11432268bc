//! The runs and the manifest of a partition in the database: the [`Volume`] contract.
//!
//! A run is pieces of at most 1 MiB under a name that no other owner uses, kept on the local disk
//! as it is written and fetched piece by piece where it is not. The manifest is one row, replaced
//! by a conditional update.
//!
//! Invariants:
//! - a piece is written once, and before any manifest names its run: the swap checks that;
//! - what fails on the local disk costs time and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use hapax_store::archive::{self, Head};
use hapax_store::{Corruption, Error, File, Lock, LogEnd, NotReplaced, Volume};

use crate::cache::{Cache, Run};
use crate::call::{Answer, Backend, Call, End, Owner, Piece};
use crate::error::Failure;
use crate::log::lock;
use crate::ownership::Ownership;
use crate::steps::Steps;

/// The most bytes of a piece.
pub const PIECE_BYTES: usize = 1 << 20;
/// Pieces that one statement removes.
const REMOVED: u64 = 64;

pub(crate) struct PostgresVolume {
    shared: Arc<Shared>,
    /// Of the manifest that was read or written last.
    version: Mutex<u64>,
    runs: Mutex<BTreeMap<u64, Arc<Run>>>,
    /// Runs that were written since the last manifest.
    unlisted: Mutex<BTreeSet<u64>>,
}

struct Shared {
    backend: Arc<dyn Backend>,
    ownership: Arc<Ownership>,
    partition: u16,
    label: String,
    cache: Cache,
    steps: Arc<Steps>,
}

impl PostgresVolume {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        ownership: Arc<Ownership>,
        partition: u16,
        label: String,
        cache: Cache,
        steps: Arc<Steps>,
    ) -> Self {
        Self {
            shared: Arc::new(Shared { backend, ownership, partition, label, cache, steps }),
            version: Mutex::new(0),
            runs: Mutex::default(),
            unlisted: Mutex::default(),
        }
    }

    /// Whether the manifest is the one that was to replace the last: the answer was lost.
    fn is_replaced(&self, version: u64, bytes: &[u8]) -> Result<bool, Error> {
        let partition = self.shared.partition;
        match self.shared.insist(&Call::Manifest { partition })? {
            Answer::Manifest { version: found, bytes: there, .. } => {
                Ok(found == version + 1 && there == bytes)
            }
            _ => Ok(false),
        }
    }

    /// Why a swap was refused.
    fn refusal(&self, owner: Owner) -> Error {
        let had = self.shared.ownership.reached();
        match self.shared.insist(&Call::Ends(vec![owner.partition])) {
            Err(error) => error,
            Ok(Answer::Ends(ends)) => match ends.ends.first() {
                Some(end) if end.claim == Some(owner.claim) => {
                    let why = "a batch or a run that it names is missing";
                    let label = &self.shared.label;
                    let text = format!("the manifest of {label} was refused: {why}");
                    self.shared.check_end(had, end).err().unwrap_or(Error::Stopped(text))
                }
                Some(end) => {
                    let ownership = &self.shared.ownership;
                    ownership.fail(ownership.replaced(&self.shared.label, owner, end))
                }
                None => Error::Stopped("its row is missing".to_owned()),
            },
            Ok(_) => Error::Stopped("its end is missing".to_owned()),
        }
    }
}

impl Shared {
    /// Executes a call that may be executed twice, until it succeeds or the store stops. A lack of
    /// room is the caller's to wait out, and damage is nothing to wait for.
    fn insist(&self, call: &Call) -> Result<Answer, Error> {
        loop {
            self.ownership.stop.check()?;
            match self.backend.call(call.clone()) {
                Ok(answer) => return Ok(answer),
                Err(Failure::Full(why)) => return Err(self.full(why)),
                Err(damaged @ Failure::Damaged(_)) => {
                    let (file, offset, what) = (self.label.clone(), 0, damaged.to_string());
                    return Err(Error::Corrupt(Corruption { file, offset, what }));
                }
                Err(_) => self.backend.pause(),
            }
        }
    }

    fn check_end(&self, had: Option<LogEnd>, end: &End) -> Result<(), Error> {
        had.map_or(Ok(()), |had| self.ownership.check_end(&self.label, had, end))
    }

    /// Why a piece is not there: the database may have been set back, or the owner replaced.
    fn explain_missing(&self) -> Result<(), Error> {
        let (owner, had) = (self.ownership.owner()?, self.ownership.reached());
        let answer = self.insist(&Call::Ends(vec![self.partition]))?;
        let Answer::Ends(ends) = answer else { return Ok(()) };
        match ends.ends.first() {
            Some(end) if end.epoch > owner.epoch => {
                Err(self.ownership.fail(Error::Fenced { held: owner.epoch, newest: end.epoch }))
            }
            Some(end) => self.check_end(had, end),
            None => Ok(()),
        }
    }

    fn full(&self, why: String) -> Error {
        let full = io::Error::new(io::ErrorKind::StorageFull, why);
        Error::io("write to", &self.label, full)
    }

    /// The next claim of an owner that claimed again, or why it is the owner no more.
    fn claimed_again(&self, owner: Owner) -> Result<Owner, Error> {
        let newest = owner.epoch + 1; // At least.
        let fenced = || self.ownership.fail(Error::Fenced { held: owner.epoch, newest });
        self.ownership.owner_after(owner)?.ok_or_else(fenced)
    }

    fn keep(&self, run: &Arc<Run>, at: u64, bytes: Vec<u8>) -> io::Result<()> {
        let mut owner = self.ownership.owner().map_err(io_error)?;
        let bytes: Arc<[u8]> = Arc::from(bytes);
        loop {
            let piece = Piece { run: run.number(), at, bytes: Arc::clone(&bytes) };
            match self.insist(&Call::Keep { owner, piece }).map_err(io_error)? {
                Answer::Owned(true) => {
                    self.cache.add(run, at, &bytes);
                    return Ok(());
                }
                _ => owner = self.claimed_again(owner).map_err(io_error)?,
            }
        }
    }
}

impl Volume for PostgresVolume {
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let shared = &self.shared;
        if name == archive::MANIFEST_NAME {
            let call = Call::Manifest { partition: shared.partition };
            let Answer::Manifest { version, bytes, .. } = shared.insist(&call).map_err(io_error)?
            else {
                return Err(io::Error::other("the manifest is missing"));
            };
            *lock(&self.version) = version;
            return match bytes.is_empty() {
                true => Err(io::ErrorKind::NotFound.into()),
                false => Ok(Arc::new(Whole(bytes))),
            };
        }
        let run = archive::run_number(name).and_then(|run| lock(&self.runs).get(&run).cloned());
        let run = run.ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(RunFile { shared: Arc::clone(shared), run, tail: Mutex::default() }))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let number = archive::run_number(name).ok_or(io::ErrorKind::Unsupported)?;
        let run = Arc::new(Run::new(number, &[]));
        lock(&self.runs).insert(number, Arc::clone(&run));
        lock(&self.unlisted).insert(number);
        let shared = Arc::clone(&self.shared);
        Ok(Arc::new(RunFile { shared, run, tail: Mutex::default() }))
    }

    fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn replace(&self, _: &str, bytes: &[u8], head: Head) -> Result<(), NotReplaced> {
        let unchanged = NotReplaced::Unchanged;
        let mut owner = self.shared.ownership.owner().map_err(unchanged)?;
        let mut version = lock(&self.version);
        let listed = archive::runs_of(bytes).map_err(unchanged)?;
        let (mut runs, mut size) = (Vec::new(), 0);
        let mut unlisted = lock(&self.unlisted);
        for (name, length) in &listed {
            let number = archive::run_number(name).filter(|number| unlisted.contains(number));
            size += if number.is_some() { *length } else { 0 };
            runs.extend(number);
        }
        let (through, whole): (_, Arc<[u8]>) = (head.through, Arc::from(bytes));
        // An earlier try may have replaced it, or may yet.
        let mut is_open = false;
        loop {
            let (version, runs, bytes) = (*version, runs.clone(), Arc::clone(&whole));
            let call = Call::Swap { owner, version, through, bytes, runs, size };
            match self.shared.backend.call(call) {
                Ok(Answer::Changed(1)) => break,
                Ok(_) if self.is_replaced(version, &whole).map_err(NotReplaced::Unknown)? => break,
                Ok(_) => match self.shared.ownership.owner_after(owner) {
                    Ok(Some(next)) => owner = next,
                    Ok(None) => return Err(unchanged(self.refusal(owner))),
                    Err(error) => return Err(NotReplaced::Unknown(error)),
                },
                Err(Failure::Full(why)) if !is_open => {
                    return Err(unchanged(self.shared.full(why)));
                }
                Err(_) => {
                    is_open = true;
                    self.shared.ownership.stop.check().map_err(NotReplaced::Unknown)?;
                    self.shared.backend.pause();
                }
            }
        }
        *version += 1;
        runs.iter().for_each(|run| {
            unlisted.remove(run);
        });
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let run = archive::run_number(name).ok_or(io::ErrorKind::NotFound)?;
        let mut owner = self.shared.ownership.owner().map_err(io_error)?;
        if let Some(run) = lock(&self.runs).remove(&run) {
            self.shared.cache.remove(&run);
        }
        lock(&self.unlisted).remove(&run);
        let version = *lock(&self.version);
        loop {
            match self.shared.insist(&Call::Remove { owner, run, version }).map_err(io_error)? {
                Answer::Changed(count) if count >= REMOVED => {}
                _ => match self.shared.ownership.owner_after(owner).map_err(io_error)? {
                    Some(next) => owner = next,
                    None => return Ok(()),
                },
            }
        }
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let partition = self.shared.partition;
        let answer = self.shared.insist(&Call::Pieces { partition }).map_err(io_error)?;
        let Answer::Pieces(pieces) = answer else {
            return Err(io::Error::other("the pieces are missing"));
        };
        let mut runs = lock(&self.runs);
        let mut names = Vec::new();
        for of_run in pieces.chunk_by(|(one, ..), (other, ..)| one == other) {
            let Some((number, ..)) = of_run.first() else { continue };
            let places: Vec<_> = of_run.iter().map(|(_, at, length)| (*at, *length)).collect();
            runs.entry(*number).or_insert_with(|| Arc::new(Run::new(*number, &places)));
            names.push(archive::run_name(*number));
        }
        Ok(names)
    }

    fn sync_names(&self) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, _: &str) -> io::Result<Box<dyn Lock>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Nobody can tell: a lack of room is noticed when it is there.
    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn describe(&self, name: &str) -> String {
        format!("{} {name}", self.shared.label)
    }
}

impl std::fmt::Debug for PostgresVolume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresVolume").field("of", &self.shared.label).finish_non_exhaustive()
    }
}

/// A run, being written or complete.
struct RunFile {
    shared: Arc<Shared>,
    run: Arc<Run>,
    /// Written, and not a piece yet.
    tail: Mutex<Vec<u8>>,
}

impl File for RunFile {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.shared.cache.read(&self.run, buffer, offset, |at| {
            let Shared { partition, .. } = *self.shared;
            let call = Call::Fetch { partition, run: self.run.number(), at };
            let begun = Instant::now();
            match self.shared.insist(&call).map_err(io_error)? {
                Answer::Bytes(Some(bytes)) => {
                    self.shared.steps.pieces.note(begun.elapsed(), bytes.len() as u64);
                    Ok(bytes)
                }
                _ => {
                    self.shared.explain_missing().map_err(io_error)?;
                    Err(io::ErrorKind::UnexpectedEof.into())
                }
            }
        })
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut tail = lock(&self.tail);
        assert_eq!(offset, self.run.bytes() + tail.len() as u64, "runs are written front to back");
        tail.extend_from_slice(bytes);
        while tail.len() >= PIECE_BYTES {
            let rest = tail.split_off(PIECE_BYTES);
            let piece = std::mem::replace(&mut *tail, rest);
            self.shared.keep(&self.run, self.run.bytes(), piece)?;
        }
        Ok(())
    }

    /// What is written is in the database; the manifest's commit makes it durable.
    fn sync(&self) -> io::Result<()> {
        let piece = std::mem::take(&mut *lock(&self.tail));
        match piece.is_empty() {
            true => Ok(()),
            false => self.shared.keep(&self.run, self.run.bytes(), piece),
        }
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.run.bytes() + lock(&self.tail).len() as u64)
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl std::fmt::Debug for RunFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunFile").field("run", &self.run.number()).finish_non_exhaustive()
    }
}

/// A file that was read as a whole.
#[derive(Debug)]
pub(crate) struct Whole(pub(crate) Vec<u8>);

impl File for Whole {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let from = usize::try_from(offset).map_err(io::Error::other)?;
        let there = self.0.get(from..from + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(there);
        Ok(())
    }

    fn write_all_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Keeps the kind, by which a lack of room is known.
fn io_error(error: Error) -> io::Error {
    match error {
        Error::Io { source, .. } => source,
        other => io::Error::other(other.to_string()),
    }
}
