//! Opens the partitions of the data, and starts their writers.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use hapax_core::Recipe;
use hapax_partition::change::Known;
use hapax_partition::relay::{Confirmations, Emits};
use hapax_partition::route::Routes;
use hapax_partition::{Clock, Partition};
use hapax_postgres::{Database, PostgresStore, Steps, Uuid, Witnesses};
use hapax_store::Epoch;
use hapax_store::disk::DiskStore;
use tokio::sync::{broadcast, watch};

use super::holdings::UnreadReports;
use super::inbox::Inbox;
use super::{
    AnyStore, Data, Engine, Error, LOST_MAX, OnBeat, Options, Shared, SpareLists, Wall, data,
};

impl Engine {
    /// Opens every partition, recovers, and starts the writers. Blocks until all are ready.
    pub fn open(data: Data, options: Options, on_beat: OnBeat) -> Result<Self, Error> {
        let inboxes = inboxes(&data);
        warn_of_a_small_disk(&data);
        // All of them must be readable before the first one gets a new owner, which is durable.
        let stores = (0..data.partitions()).zip(&inboxes);
        let stores = stores.map(|(number, inbox)| open_store(&data, number, inbox));
        let stores: Vec<_> = stores.collect::<Result<_, _>>()?;
        Opened::own(data, inboxes, stores, options, Wall::Machine, on_beat)?.start()
    }

    /// Claims every partition in a database, in the order of their numbers, at the epochs that were
    /// seen, recovers, and starts the writers. Of two nodes that try at once, the one that has the
    /// first partition goes on; whoever fails releases what it got. Blocks until all are ready.
    pub fn open_shared(
        data: Data,
        place: &Place<'_>,
        options: Options,
        wall: Wall,
        on_beat: OnBeat,
    ) -> Result<Self, Error> {
        let inboxes = inboxes(&data);
        let stores = (0..data.partitions()).zip(&inboxes).map(|(number, inbox)| {
            let inbox = Arc::clone(inbox);
            let seen = place.epochs.get(usize::from(number)).copied();
            let cache = cache_of(place.cache, number);
            let options = hapax_postgres::Options {
                seen,
                witness: place.witnesses.of(number),
                steps: Arc::clone(place.steps),
                ..hapax_postgres::Options::new(place.node, cache)
            };
            let wake = Arc::new(move || inbox.wake());
            let store = PostgresStore::open(place.database, number, options, wake);
            AnyStore::Postgres(Box::new(store))
        });
        let stores = stores.collect();
        Opened::own(data, inboxes, stores, options, wall, on_beat)?.start()
    }
}

/// The cache of a partition, in the directory of a node's caches.
pub fn cache_of(caches: &Path, partition: u16) -> PathBuf {
    data::partition_path(caches, partition)
}

/// Where the partitions of a cluster are, and who claims them.
#[derive(Debug)]
pub struct Place<'a> {
    pub database: &'a Database,
    pub node: Uuid,
    /// The epoch of each partition that the claim was judged by.
    pub epochs: &'a [Epoch],
    /// A directory of this process alone.
    pub cache: &'a Path,
    /// How far this machine knows the partitions to have been.
    pub witnesses: &'a Witnesses,
    /// Adds up what opening takes.
    pub steps: &'a Arc<Steps>,
}

/// Partitions that have an owner, and no writer yet.
pub(super) struct Opened {
    pub(super) shared: Arc<Shared>,
    pub(super) partitions: Vec<Partition<AnyStore>>,
    known: Vec<Known>,
}

impl Opened {
    /// Takes ownership of the stores, one for each partition, and recovers.
    pub(super) fn own(
        mut data: Data,
        inboxes: Vec<Arc<Inbox>>,
        stores: Vec<AnyStore>,
        options: Options,
        wall: Wall,
        on_beat: OnBeat,
    ) -> Result<Self, Error> {
        let count = inboxes.len();
        let mut partitions = own_all(&data, stores, options.memory_bytes / count.max(1))?;
        data.complete()?;
        wait_for_the_wall_clock(&partitions, &wall);
        // Before the writers start, which may have something due at once.
        let known: Vec<_> =
            partitions.iter().map(|partition| Known::of(partition.machine())).collect();
        data.missing_steps(&known)?;
        let (lost, _) = broadcast::channel(LOST_MAX);
        let shared = Arc::new(Shared {
            inboxes,
            routes: RwLock::new(routes(&partitions, *data.recipe())),
            changes: std::array::from_fn(|_| tokio::sync::Mutex::new(())),
            redrives: tokio::sync::Mutex::new(()),
            next: AtomicUsize::new(0),
            lost,
            on_beat,
            clocks_ahead: (0..count).map(|_| AtomicI64::new(0)).collect(),
            tails: (0..count).map(|_| AtomicU64::new(0)).collect(),
            failed: watch::Sender::new(None),
            is_regressed: AtomicBool::new(false),
            is_stalled: AtomicBool::new(false),
            wall,
            fenced: watch::Sender::new(Vec::new()),
            draining: watch::Sender::new(false),
            sources: partitions.iter().filter_map(|it| it.store().source()).collect(),
            emits: Mutex::new(Emits::closed()),
            confirmations: Mutex::new(Confirmations::open()),
            backups: Mutex::new(()),
            listings: (0..count).map(|_| Mutex::default()).collect(),
            unread: (0..count).map(|_| UnreadReports::default()).collect(),
            data,
            spare: SpareLists::default(),
            threads: Mutex::new(Vec::new()),
        });
        partitions.iter_mut().for_each(|partition| shared.report(&partition.take_reports()));
        Ok(Self { shared, partitions, known })
    }

    /// Starts a writer for each, and brings all of them to what the leader decided.
    pub(super) fn start(self) -> Result<Engine, Error> {
        let Self { shared, partitions, known } = self;
        for (number, partition) in partitions.into_iter().enumerate() {
            shared.start(number, partition)?;
        }
        let engine = Engine { shared };
        if let Err(error) = engine.reconcile(known) {
            engine.stop();
            return Err(error);
        }
        engine.shared.let_emits_go();
        Ok(engine)
    }
}

/// One for each partition.
pub(super) fn inboxes(data: &Data) -> Vec<Arc<Inbox>> {
    (0..data.partitions()).map(|_| Arc::new(Inbox::new())).collect()
}

fn open_store(data: &Data, number: u16, inbox: &Arc<Inbox>) -> Result<AnyStore, Error> {
    let path = data.partition(number);
    let inbox = Arc::clone(inbox);
    let wake = Arc::new(move || inbox.wake());
    DiskStore::open_threaded(&path, data.store_options(), wake)
        .map(AnyStore::Disk)
        .map_err(|error| Error::store(path, error))
}

/// A disk may be enlarged while the broker runs, so a small one is no reason not to start.
fn warn_of_a_small_disk(data: &Data) {
    let partitions = data.partitions();
    let needed_bytes = data.store_options().disk_bytes_min(partitions);
    if let Ok(disk_bytes) = hapax_store::disk_bytes(data.path())
        && disk_bytes < needed_bytes
    {
        tracing::warn!(
            partitions,
            disk_bytes,
            needed_bytes,
            "the disk is too small for the partitions of this data, so that every send is \
             refused: use a larger disk, or create the data with fewer partitions"
        );
    }
}

fn own_all(
    data: &Data,
    stores: Vec<AnyStore>,
    memory_bytes: usize,
) -> Result<Vec<Partition<AnyStore>>, Error> {
    let mut owned = Vec::with_capacity(stores.len());
    for (number, store) in (0..data.partitions()).zip(stores) {
        match own(data, number, store, memory_bytes) {
            Ok(partition) => owned.push(partition),
            Err(error) => {
                owned.into_iter().for_each(release);
                return Err(error);
            }
        }
    }
    Ok(owned)
}

/// Gives up a partition in a database, which another node would wait for otherwise.
fn release(mut partition: Partition<AnyStore>) {
    if matches!(partition.store_mut(), AnyStore::Postgres(_))
        && let Err(error) = partition.close()
    {
        tracing::warn!(%error, "a partition was not released");
    }
}

fn own(
    data: &Data,
    number: u16,
    store: AnyStore,
    memory_bytes: usize,
) -> Result<Partition<AnyStore>, Error> {
    let (journal_bytes, journal_decisions) = store.journal_max();
    let options = hapax_partition::Options {
        partition: number,
        partitions: data.partitions(),
        memory_bytes,
        journal_bytes,
        journal_decisions,
        seed: fastrand::u64(..),
        recipe: *data.recipe(),
        ..hapax_partition::Options::default()
    };
    let path = data.partition(number);
    let begun = Instant::now();
    let partition = Partition::open(store, options).map_err(|error| match error {
        hapax_partition::Error::Store(error) => Error::store(path, error),
        error => Error::Partition { path, error },
    })?;
    if let AnyStore::Postgres(store) = partition.store() {
        store.note_opened(begun.elapsed());
    }
    Ok(partition)
}

/// Waits until the wall clock has reached the times that partitions may have returned before a
/// crash, at most a second: otherwise their time would get further ahead of the wall clock with
/// every start.
fn wait_for_the_wall_clock(partitions: &[Partition<AnyStore>], wall: &Wall) {
    let now = Instant::now();
    let wall = wall.start_at(wall.now(now), now);
    let starts = partitions.iter().map(Partition::now);
    let wait = starts.map(|start| Clock::wait_ms(start, wall)).max().unwrap_or(0);
    std::thread::sleep(Duration::from_millis(wait));
}

fn routes(partitions: &[Partition<AnyStore>], recipe: Recipe) -> Routes {
    let mut routes = Routes::new(partitions.len(), recipe);
    for (name, view) in partitions.iter().flat_map(|partition| partition.machine().queues()) {
        routes.enter(name, &view.config);
    }
    routes
}
