//! The suite that every store passes: each MUST and MUST NOT of [`Store`] as a case.
//!
//! An implementation writes a [`Harness`] of a few lines and calls [`run`], which panics, naming
//! the case, where the contract is broken. The suite never sleeps: it asks the harness to do the
//! store's background work.

#![expect(clippy::expect_used, reason = "a suite of tests: an error is a failure of the store")]

mod journal;
mod rows;

use crate::{Checkpoint, Epoch, Error, PointKey, RowSet, Sequence, Store};

/// What the suite needs to know of an implementation.
pub trait Harness {
    /// Opens the one partition of this harness.
    fn open(&mut self) -> Result<Box<dyn Store>, Error>;
    /// Does all background work there is: everything appended becomes durable, checkpoints whose
    /// batches are durable become visible.
    fn settle(&mut self);
    /// Does all background work but making batches durable. A harness that cannot part the two
    /// does nothing.
    fn settle_without_sync(&mut self) {}
    /// The machine loses what was not durable. The store was dropped before.
    fn crash(&mut self);
    /// Whether `open` works while another store of the partition is open.
    fn allows_two_owners(&self) -> bool;
}

type Case = (&'static str, fn(&mut dyn Harness));

/// Runs every case on a harness of its own.
pub fn run(make: &mut dyn FnMut() -> Box<dyn Harness>) {
    for (name, case) in journal::CASES.iter().chain(rows::CASES) {
        let naming = Naming(name);
        case(&mut *make());
        drop(naming);
    }
}

/// Names the case that panics.
struct Naming(&'static str);

impl Drop for Naming {
    #[expect(clippy::print_stderr, reason = "tells which case failed")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("conformance: failed in {}", self.0);
        }
    }
}

/// An open, claimed store, and what the cases do with it.
struct Owner {
    store: Box<dyn Store>,
    epoch: Epoch,
    through: Sequence,
    last: Sequence,
}

impl Owner {
    fn open(harness: &mut dyn Harness) -> Self {
        let mut store = harness.open().expect("opens");
        let claim = store.claim().expect("claims");
        assert!(claim.through <= claim.last);
        Self { store, epoch: claim.epoch, through: claim.through, last: claim.last }
    }

    fn append(&mut self, batch: &[u8]) {
        self.store.append(self.epoch, self.last + 1, batch).expect("appends");
        self.last += 1;
    }

    /// Appends `count` batches with contents of their own.
    fn append_many(&mut self, count: u64) {
        for _ in 0..count {
            let batch = batch(self.last + 1);
            self.append(&batch);
        }
    }

    fn batches(&mut self, from: Sequence) -> Vec<(Sequence, Vec<u8>)> {
        let mut batches = Vec::new();
        let read = self.store.read(from, &mut |sequence, batch| {
            batches.push((sequence, batch.to_vec()));
            Ok(true)
        });
        read.expect("reads");
        batches
    }

    /// Hands in a checkpoint through the last batch.
    fn checkpoint(&mut self, at: u64, rows: impl FnOnce(&mut RowSet) + Send + 'static) {
        let started = self.try_checkpoint(self.epoch, self.last, at, rows);
        started.expect("starts a checkpoint");
    }

    fn try_checkpoint(
        &mut self,
        epoch: Epoch,
        through: Sequence,
        at: u64,
        rows: impl FnOnce(&mut RowSet) + Send + 'static,
    ) -> Result<(), Error> {
        self.store.checkpoint(Checkpoint { epoch, through, at, rows: Box::new(rows) })
    }

    /// Appends a batch and checkpoints through it, to the end.
    fn write(
        &mut self,
        harness: &mut dyn Harness,
        at: u64,
        rows: impl FnOnce(&mut RowSet) + Send + 'static,
    ) {
        self.append_many(1);
        self.checkpoint(at, rows);
        harness.settle();
        assert_eq!(self.store.checkpointed().expect("is well"), self.last);
    }

    fn get(&mut self, keys: &[PointKey]) -> Vec<Option<Vec<u8>>> {
        let mut values = vec![None; keys.len()];
        let looked_up = self.store.get_many(keys, &mut |index, value| {
            let place = values.get_mut(index).expect("an index of the keys");
            assert!(place.is_none(), "a key is found once");
            *place = Some(value.to_vec());
        });
        looked_up.expect("looks up");
        values
    }

    fn scan(&mut self, from: &[u8], to: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut rows = Vec::new();
        let scanned = self.store.scan(from, to, &mut |key, value| {
            rows.push((key.to_vec(), value.to_vec()));
            true
        });
        scanned.expect("scans");
        rows
    }

    fn close(mut self) {
        self.store.close().expect("closes");
    }
}

/// Contents that tell batches apart, of many sizes, the empty one among them.
fn batch(sequence: Sequence) -> Vec<u8> {
    let len = (sequence * 37 % 211) as usize;
    if len < 8 { vec![sequence as u8; len] } else { sequence.to_le_bytes().repeat(len / 8) }
}

fn numbered(range: std::ops::RangeInclusive<Sequence>) -> Vec<(Sequence, Vec<u8>)> {
    range.map(|sequence| (sequence, batch(sequence))).collect()
}

/// A key as a digest would be.
fn key(number: u64) -> PointKey {
    let digest = blake3::hash(&number.to_le_bytes());
    *digest.as_bytes().first_chunk().expect("a digest has 32 bytes")
}
