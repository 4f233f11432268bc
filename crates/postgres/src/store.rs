//! A partition on PostgreSQL: the [`Store`] contract.

use std::path::PathBuf;
use std::time::Duration;

use hapax_store::journal::Wake;
use hapax_store::{
    Checkpoint, Claim, EachBatch, Epoch, Error, PointKey, Question, Room, Sequence, Store, archive,
};
use uuid::Uuid;

use crate::database::Database;

/// How a partition is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// The node that becomes the owner.
    pub node: Uuid,
    /// The epoch that the claim was judged by: where the partition has a later one by now, the
    /// claim is refused as fenced, so that of two nodes that try one succeeds. `None` claims
    /// whatever is found.
    pub seen: Option<Epoch>,
    /// A directory of this process alone: runs are cached in it, and how far the partition was.
    pub cache: PathBuf,
    /// The most bytes of runs that are cached.
    pub cache_bytes: u64,
    pub archive: archive::Options,
    /// How long a close waits for the database.
    pub close_wait: Duration,
}

impl Options {
    pub fn new(node: Uuid, cache: PathBuf) -> Self {
        Self {
            node,
            seen: None,
            cache,
            cache_bytes: 4 << 30,
            archive: archive::Options { reserve_bytes: 0, ..archive::Options::default() },
            close_wait: Duration::from_secs(10),
        }
    }
}

/// A partition. Nothing is read or changed before it is claimed. Dropping it without
/// [`close`](Store::close) counts as a crash.
#[derive(Debug)]
pub struct PostgresStore {
    name: String,
}

impl PostgresStore {
    pub fn open(database: &Database, partition: u16, options: Options, wake: Wake) -> Self {
        let _ = (options, wake);
        Self { name: format!("partition {partition} in {}", database.shown()) }
    }

    fn unclaimed<T>(&self) -> Result<T, Error> {
        Err(Error::Stopped(format!("{} was not claimed", self.name)))
    }
}

impl Store for PostgresStore {
    fn claim(&mut self) -> Result<Claim, Error> {
        self.unclaimed()
    }

    fn read(&mut self, _: Sequence, _: EachBatch<'_>) -> Result<(), Error> {
        self.unclaimed()
    }

    fn append(&mut self, _: Epoch, _: Sequence, _: &[u8]) -> Result<(), Error> {
        self.unclaimed()
    }

    fn durable(&mut self) -> Result<Sequence, Error> {
        self.unclaimed()
    }

    fn confirm(&mut self) -> Result<Question, Error> {
        self.unclaimed()
    }

    fn confirmed(&mut self) -> Result<Question, Error> {
        self.unclaimed()
    }

    fn checkpoint(&mut self, _: Checkpoint) -> Result<(), Error> {
        self.unclaimed()
    }

    fn checkpointed(&mut self) -> Result<Sequence, Error> {
        self.unclaimed()
    }

    fn get_many(&mut self, _: &[PointKey], _: &mut dyn FnMut(usize, &[u8])) -> Result<(), Error> {
        self.unclaimed()
    }

    fn scan(
        &mut self,
        _: &[u8],
        _: &[u8],
        _: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Error> {
        self.unclaimed()
    }

    fn room(&mut self) -> Room {
        Room::Free
    }

    fn close(&mut self) -> Result<(), Error> {
        self.unclaimed()
    }
}
