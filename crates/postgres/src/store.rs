//! A partition on PostgreSQL: the [`Store`] contract.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hapax_store::archive::Archive;
use hapax_store::joined::Joined;
use hapax_store::journal::Wake;
use hapax_store::{
    Checkpoint, Claim, EachBatch, EachRow, Epoch, Error, PointKey, Question, Room, Sequence, Store,
    archive,
};
use uuid::Uuid;

use crate::claim::{Claiming, Ground};
use crate::database::{Database, Shared};
use crate::log::PostgresLog;
use crate::steps::Steps;
use crate::witness::{self, Witness};

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
    /// What this machine knows of the partition; `None` if that is only in the cache's directory.
    pub witness: Option<Arc<Witness>>,
    /// Adds up what it takes.
    pub steps: Arc<Steps>,
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
            archive: archive::Options {
                reserve_bytes: 0,
                sync_bytes: SYNC_BYTES,
                ..archive::Options::default()
            },
            witness: None,
            steps: Arc::default(),
            close_wait: Duration::from_secs(10),
        }
    }

    fn claiming(&self) -> Claiming {
        Claiming {
            node: self.node,
            seen: self.seen,
            cache: Some((self.cache.clone(), self.cache_bytes)),
            archive: self.archive,
            close_wait: self.close_wait,
            steps: Arc::clone(&self.steps),
        }
    }
}

/// Bytes of a run after which it is synced. What is left over then is a piece of its own, and no
/// journal waits for this disk.
const SYNC_BYTES: u64 = 4 << 20;

/// A partition. Nothing is read or changed before it is claimed. Dropping it without
/// [`close`](Store::close) counts as a crash.
pub struct PostgresStore {
    database: Database,
    partition: u16,
    options: Options,
    wake: Wake,
    label: String,
    joined: Option<Joined<PostgresLog>>,
    is_closed: bool,
}

impl PostgresStore {
    pub fn open(database: &Database, partition: u16, options: Options, wake: Wake) -> Self {
        let label = witness::label(partition);
        let database = database.clone();
        Self { database, partition, options, wake, label, joined: None, is_closed: false }
    }

    /// Counts it as opened, all in all in this time.
    pub fn note_opened(&self, time: Duration) {
        self.options.steps.note_opened(time);
    }

    /// Whether everything that was started is done.
    pub fn is_idle(&self) -> bool {
        self.joined.as_ref().is_none_or(|joined| joined.is_idle() && joined.log().is_told())
    }

    /// The archive, for its statistics.
    pub fn archive(&self) -> Option<&Archive> {
        self.joined.as_ref().map(Joined::archive)
    }

    fn claim_first(&self) -> Result<Joined<PostgresLog>, Error> {
        let Shared { cluster, lineage, .. } = *self.database.shared();
        let ground = Ground {
            backend: Arc::new(self.database.clone()),
            lane: Arc::clone(self.database.lane(self.partition)),
            cluster,
            lineage,
            partition: self.partition,
            label: self.label.clone(),
        };
        let cache = &self.options.cache;
        hapax_store::create_private_directory(cache)
            .map_err(|error| Error::io("create", &cache.display().to_string(), error))?;
        let of_cache = || {
            let file = Arc::new(witness::path(cache, self.partition));
            Arc::new(Witness::read(file, cluster, lineage))
        };
        let witness = self.options.witness.clone().unwrap_or_else(of_cache);
        ground.claim(&self.options.claiming(), witness, &self.wake)?.threaded()
    }

    /// Who did not claim is no owner.
    fn refuse_nobody(&self, held: Epoch) -> Result<(), Error> {
        match self.joined {
            Some(_) => Ok(()),
            None => Err(Error::Fenced { held, newest: self.options.seen.unwrap_or(0) }),
        }
    }

    fn joined(&mut self) -> Result<&mut Joined<PostgresLog>, Error> {
        let unclaimed = || Error::Stopped(format!("{} was not claimed", self.label));
        self.joined.as_mut().ok_or_else(unclaimed)
    }
}

impl Store for PostgresStore {
    fn claim(&mut self) -> Result<Claim, Error> {
        if self.joined.is_none() {
            if self.is_closed {
                return Err(Error::Stopped("it was closed".to_owned()));
            }
            let mut joined = self.claim_first()?;
            let claim = joined.claim()?;
            self.joined = Some(joined);
            return Ok(claim);
        }
        self.joined()?.claim()
    }

    fn read(&mut self, from: Sequence, each: EachBatch<'_>) -> Result<(), Error> {
        self.joined()?.read(from, each)
    }

    fn append(&mut self, epoch: Epoch, sequence: Sequence, batch: &[u8]) -> Result<(), Error> {
        self.refuse_nobody(epoch)?;
        self.joined()?.append(epoch, sequence, batch)
    }

    fn durable(&mut self) -> Result<Sequence, Error> {
        self.joined()?.durable()
    }

    fn confirm(&mut self) -> Result<Question, Error> {
        self.joined()?.confirm()
    }

    fn confirmed(&mut self) -> Result<Question, Error> {
        self.joined()?.confirmed()
    }

    fn checkpoint(&mut self, checkpoint: Checkpoint) -> Result<(), Error> {
        self.refuse_nobody(checkpoint.epoch)?;
        self.joined()?.checkpoint(checkpoint)
    }

    fn abandon(&mut self) -> Result<bool, Error> {
        self.joined()?.abandon()
    }

    fn checkpointed(&mut self) -> Result<Sequence, Error> {
        self.joined()?.checkpointed()
    }

    fn get_many(
        &mut self,
        keys: &[PointKey],
        found: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), Error> {
        self.joined()?.get_many(keys, found)
    }

    fn scan(&mut self, from: &[u8], to: &[u8], each: EachRow<'_>) -> Result<(), Error> {
        self.joined()?.scan(from, to, each)
    }

    fn room(&mut self) -> Room {
        self.joined.as_mut().map_or(Room::Free, Joined::room)
    }

    fn close(&mut self) -> Result<(), Error> {
        self.is_closed = true;
        self.joined.as_mut().map_or(Ok(()), Joined::close)
    }
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore").field("of", &self.label).finish_non_exhaustive()
    }
}
