//! Claims a partition, and joins its journal to its runs: what the store on PostgreSQL and the
//! simulator have in common.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax_store::joined::{Joined, Opening, Stepped};
use hapax_store::journal::Wake;
use hapax_store::{Epoch, Error, archive};
use uuid::Uuid;

use crate::cache::Cache;
use crate::call::Backend;
use crate::lane::Lane;
use crate::log::{Parts, PostgresLog};
use crate::steps::Steps;
use crate::volume::PostgresVolume;
use crate::witness::Witness;

/// How often a claim tries to reach the database before it gives up.
const TRIES: u32 = 20;

/// Where a partition is.
#[derive(Debug)]
pub struct Ground {
    pub backend: Arc<dyn Backend>,
    pub lane: Arc<Lane>,
    pub cluster: Uuid,
    pub lineage: Uuid,
    pub partition: u16,
    /// The partition in messages.
    pub label: String,
}

/// How it is claimed.
#[derive(Clone, Debug)]
pub struct Claiming {
    /// The node that becomes the owner.
    pub node: Uuid,
    /// The epoch that the claim was judged by; `None` claims whatever is found.
    pub seen: Option<Epoch>,
    /// Where runs are cached, and the most bytes of them.
    pub cache: Option<(PathBuf, u64)>,
    pub archive: archive::Options,
    /// How long a close waits for the database.
    pub close_wait: Duration,
    /// Counts what opening it takes.
    pub steps: Arc<Steps>,
}

/// A partition that this node owns, and has not opened yet.
pub struct Claimed {
    opening: Opening,
    volume: PostgresVolume,
    archive: archive::Options,
    log: PostgresLog,
    steps: Arc<Steps>,
}

impl Ground {
    /// Claims in the database first: the manifest is read when nobody else can replace it. Blocks.
    pub fn claim(
        self,
        claiming: &Claiming,
        witness: Arc<Witness>,
        wake: &Wake,
    ) -> Result<Claimed, Error> {
        let Self { backend, lane, cluster, lineage, partition, label } = self;
        let opening = Opening::new(Arc::clone(wake));
        let log = PostgresLog::new(Parts {
            backend: Arc::clone(&backend),
            lane,
            cluster,
            lineage,
            partition,
            node: claiming.node,
            label: label.clone(),
            witness,
            steps: Arc::clone(&claiming.steps),
            wake: opening.on_durable(),
            tries: TRIES,
            close_wait: claiming.close_wait,
        });
        let begun = Instant::now();
        log.claim_first(claiming.seen)?;
        claiming.steps.claim.note(begun.elapsed(), 0);
        let ownership = Arc::clone(log.ownership());
        let name = ownership.owner()?.claim.simple().to_string();
        let cache = match &claiming.cache {
            Some((parent, bytes_max)) => Cache::create(parent, partition, &name, *bytes_max),
            None => Cache::none(),
        };
        let steps = Arc::clone(&claiming.steps);
        let volume = PostgresVolume::new(backend, ownership, partition, label, cache, steps);
        let (archive, steps) = (claiming.archive, Arc::clone(&claiming.steps));
        Ok(Claimed { opening, volume, archive, log, steps })
    }
}

impl Claimed {
    /// The store, with its workers on threads that stop with it.
    pub fn threaded(self) -> Result<Joined<PostgresLog>, Error> {
        let begun = Instant::now();
        let opened = self.opening.threaded(Arc::new(self.volume), self.archive, self.log);
        self.steps.archive.note(begun.elapsed(), 0);
        opened
    }

    /// The store, and its workers for the caller to step.
    pub fn stepped(self) -> Result<Stepped<PostgresLog>, Error> {
        self.opening.stepped(Arc::new(self.volume), self.archive, self.log)
    }
}

impl std::fmt::Debug for Claimed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Claimed").field("log", &self.log).finish_non_exhaustive()
    }
}
