//! The test suite for stores: each MUST and MUST NOT of [`Store`] as a case.
//!
//! An implementation writes a [`Harness`] of a few lines and calls [`run`], which panics with the
//! name of the case if the contract is broken. The suite never sleeps: it asks the harness to do
//! the store's background work.

#![expect(clippy::expect_used, reason = "a suite of tests: an error is a failure of the store")]

mod journal;
mod rows;

use crate::{Checkpoint, Epoch, Error, PointKey, RowSet, Sequence, Store};

/// What the suite needs from an implementation.
pub trait Harness {
    /// Opens the one partition of this harness.
    fn open(&mut self) -> Result<Box<dyn Store>, Error>;
    /// Does all pending background work: everything appended becomes durable, and checkpoints whose
    /// batches are durable become visible.
    fn settle(&mut self);
    /// Does all background work except making batches durable. A harness that cannot separate the
    /// two does nothing.
    fn settle_without_sync(&mut self) {}
    /// Simulates a crash: loses what was not durable. The store was dropped before.
    fn crash(&mut self);
    /// Takes away the last batch that was durable when its owner closed the store, as a disk or a
    /// database that was set back does. False where the harness cannot.
    fn lose_tail(&mut self) -> bool {
        false
    }
    /// Whether `open` works while another store of the partition is open.
    fn allows_two_owners(&self) -> bool;
}

type Case = (&'static str, fn(&mut dyn Harness));

/// Runs every case on a new harness.
pub fn run(make: &mut dyn FnMut() -> Box<dyn Harness>) {
    for (name, case) in journal::CASES.iter().chain(rows::CASES) {
        let naming = Naming(name);
        case(&mut *make());
        drop(naming);
    }
}

/// Prints the name of a case that panics.
struct Naming(&'static str);

impl Drop for Naming {
    #[expect(clippy::print_stderr, reason = "tells which case failed")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("conformance: failed in {}", self.0);
        }
    }
}

/// An open, claimed store, with helpers for the cases.
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

    /// Appends `count` batches with distinct contents.
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

    /// Starts a checkpoint through the last batch.
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
            rows.extend(value.map(|value| (key.to_vec(), value.to_vec())));
            true
        });
        scanned.expect("scans");
        rows
    }

    fn close(mut self) {
        self.store.close().expect("closes");
    }
}

/// Distinct contents for batches, of many sizes including empty.
fn batch(sequence: Sequence) -> Vec<u8> {
    let len = (sequence * 37 % 211) as usize;
    if len < 8 { vec![sequence as u8; len] } else { sequence.to_le_bytes().repeat(len / 8) }
}

fn numbered(range: std::ops::RangeInclusive<Sequence>) -> Vec<(Sequence, Vec<u8>)> {
    range.map(|sequence| (sequence, batch(sequence))).collect()
}

/// A key that looks like a digest.
fn key(number: u64) -> PointKey {
    let digest = blake3::hash(&number.to_le_bytes());
    *digest.as_bytes().first_chunk().expect("a digest has 32 bytes")
}
