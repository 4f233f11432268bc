//! The runs and the manifest of a partition as they are in the database, for their verification: a
//! [`Volume`] that is only read. Each piece is compared with what was written when it is fetched.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex};

use hapax_store::archive::{self, Head};
use hapax_store::{File, Lock, NotReplaced, Volume};

use super::copy::{Kept, PieceAt};
use super::{Error, Import};
use crate::log::lock;
use crate::sql;
use crate::volume::{PIECE_BYTES, Whole};

/// Pieces that are held: the checks of a run go through its blocks and look at its index.
const HELD: usize = 8;

pub(super) struct Readback {
    shared: Arc<Shared>,
    manifest: Vec<u8>,
}

struct Shared {
    import: Import,
    partition: u16,
    label: String,
    pieces: BTreeMap<PieceAt, Kept>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    held: VecDeque<(PieceAt, Arc<[u8]>)>,
    fetched: BTreeSet<PieceAt>,
    /// The first failure that is not one of the bytes.
    failed: Option<Error>,
}

impl Readback {
    pub(super) fn new(
        import: Import,
        partition: u16,
        label: String,
        manifest: Vec<u8>,
        pieces: &BTreeMap<PieceAt, Kept>,
    ) -> Self {
        let (pieces, state) = (pieces.clone(), Mutex::default());
        Self { shared: Arc::new(Shared { import, partition, label, pieces, state }), manifest }
    }

    /// Why it could not be read, or differs.
    pub(super) fn failed(&self) -> Result<(), Error> {
        lock(&self.shared.state).failed.take().map_or(Ok(()), Err)
    }

    /// Fetches what nobody asked for.
    pub(super) fn read_rest(&self) -> Result<(), Error> {
        let fetched = std::mem::take(&mut lock(&self.shared.state).fetched);
        for at in self.shared.pieces.keys().filter(|at| !fetched.contains(at)) {
            self.shared.fetch(*at)?;
        }
        Ok(())
    }
}

impl Shared {
    fn piece(&self, at: PieceAt) -> io::Result<Arc<[u8]>> {
        let held = |state: &State| state.held.iter().find(|it| it.0 == at).map(|it| it.1.clone());
        if let Some(bytes) = held(&lock(&self.state)) {
            return Ok(bytes);
        }
        let fetched = self.fetch(at).map_err(|error| {
            let told = io::Error::other(error.to_string());
            lock(&self.state).failed.get_or_insert(error);
            told
        });
        let bytes: Arc<[u8]> = fetched?.into();
        let mut state = lock(&self.state);
        state.fetched.insert(at);
        state.held.truncate(HELD - 1);
        state.held.push_front((at, Arc::clone(&bytes)));
        Ok(bytes)
    }

    /// Fetches a piece and compares it with what was written.
    fn fetch(&self, (run, at): PieceAt) -> Result<Vec<u8>, Error> {
        let number = i32::from(self.partition);
        let rows =
            self.import.read(&sql::FETCH, &[&number, &run.cast_signed(), &at.cast_signed()])?;
        let bytes = rows.first().and_then(|row| row.try_get::<_, Vec<u8>>(0).ok());
        let is_same = |bytes: &Vec<u8>| {
            self.pieces.get(&(run, at)).is_some_and(|kept| blake3::hash(bytes) == kept.hash)
        };
        bytes.filter(is_same).ok_or_else(|| {
            let name = archive::run_name(run);
            Error::Differs(format!("{}: {name} at byte {at}", self.label))
        })
    }
}

impl Volume for Readback {
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        if name == archive::MANIFEST_NAME {
            return Ok(Arc::new(Whole(self.manifest.clone())));
        }
        let run = archive::run_number(name).ok_or(io::ErrorKind::NotFound)?;
        let shared = Arc::clone(&self.shared);
        let of_run = shared.pieces.range((run, 0)..=(run, u64::MAX));
        let bytes = of_run.map(|(_, kept)| kept.bytes).sum();
        match bytes {
            0 => Err(io::ErrorKind::NotFound.into()),
            _ => Ok(Arc::new(Run { shared, run, bytes })),
        }
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let runs: BTreeSet<u64> = self.shared.pieces.keys().map(|(run, _)| *run).collect();
        let manifest = archive::MANIFEST_NAME.to_owned();
        Ok(std::iter::once(manifest).chain(runs.into_iter().map(archive::run_name)).collect())
    }

    fn create(&self, _: &str) -> io::Result<Arc<dyn File>> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn replace(&self, name: &str, _: &[u8], _: Head) -> Result<(), NotReplaced> {
        let error = io::ErrorKind::ReadOnlyFilesystem.into();
        let label = self.describe(name);
        Err(NotReplaced::Unchanged(hapax_store::Error::io("replace", &label, error)))
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync_names(&self) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, _: &str) -> io::Result<Box<dyn Lock>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn describe(&self, name: &str) -> String {
        format!("{} {name}", self.shared.label)
    }
}

impl std::fmt::Debug for Readback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Readback").field("of", &self.shared.label).finish_non_exhaustive()
    }
}

struct Run {
    shared: Arc<Shared>,
    run: u64,
    bytes: u64,
}

impl File for Run {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let size = PIECE_BYTES as u64;
        let (mut left, mut from) = (buffer, offset);
        while !left.is_empty() {
            let at = from / size * size;
            if !self.shared.pieces.contains_key(&(self.run, at)) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let piece = self.shared.piece((self.run, at))?;
            let start = usize::try_from(from - at).map_err(io::Error::other)?;
            let there = piece.get(start..).filter(|there| !there.is_empty());
            let there = there.ok_or(io::ErrorKind::UnexpectedEof)?;
            let length = there.len().min(left.len());
            let (part, rest) = left.split_at_mut(length);
            let there = there.get(..length).ok_or(io::ErrorKind::UnexpectedEof)?;
            part.copy_from_slice(there);
            (left, from) = (rest, from + length as u64);
        }
        Ok(())
    }

    fn write_all_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes)
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").field("run", &self.run).finish_non_exhaustive()
    }
}
