//! The running partitions, and the calls to them.
//!
//! Each partition belongs to one writer thread. An [`Engine`] routes a command to the partition of
//! its key, asks all of them if the question is about a queue, and joins their answers. It knows
//! only the rules of routing; the core knows the meaning of a command.

mod data;
mod dispatch;
mod holdings;
mod inbox;
mod pages;
mod queues;
mod relay;
mod shares;
mod wait;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use hapax_core::{Command, Fence, KeyName, Outcome, QueueName};
use hapax_partition::change::{Known, LeaderBehind};
use hapax_partition::relay::{Confirmations, Emits};
use hapax_partition::route::Routes;
use hapax_partition::{Clock, Partition};
use hapax_store::disk::{self, DiskStore};
use tokio::sync::{broadcast, oneshot, watch};

pub use data::Data;
pub use dispatch::{Listed, Omitted, Room, To};
pub(crate) use dispatch::{Parts, gather};
use holdings::Unheard;
use inbox::{Ask, Inbox, Reply};
pub use pages::{Cursor, Page};
use queues::Listing;
pub use queues::{Decided, Survey};
use writer::Writer;

/// How long a stop may take, from the last answer on.
const STOP_MAX: Duration = Duration::from_secs(20);
/// Lost leases that a slow listener may be behind.
const LOST_MAX: usize = 1_024;
/// Changes of queues that may go on at once.
const CHANGE_LOCKS: usize = 64;

/// What may be chosen about the engine.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The number of partitions of new data; existing data keeps its number.
    pub partitions: u16,
    /// Memory for caches, heads of queues and changes since the last checkpoint, in the whole
    /// process.
    pub memory_bytes: usize,
}

/// Why the data cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("cannot {doing} {}: {error}", path.display())]
    Io { doing: &'static str, path: PathBuf, error: std::io::Error },
    #[error("{} is damaged: {why}; nothing was changed", .0.display(), why = .1)]
    Damaged(PathBuf, String),
    #[error(
        "{} was written by a newer release: it has format {format}, and this release knows \
         formats up to {known}. Nothing was changed. Start the newer release", path.display()
    )]
    Newer { path: PathBuf, format: u64, known: u32 },
    #[error("{} is not the data directory of a broker", .0.display())]
    NoData(PathBuf),
    #[error(
        "{} is missing. Is a file system not mounted, or was a copy interrupted? Nothing was \
         changed. Put it back, or restore a backup into an empty directory", .0.display()
    )]
    Missing(PathBuf),
    #[error(
        "{} is missing, although {} exists: the file was deleted, or a copy was interrupted. \
         Nothing was changed. Put it back, restore a backup into an empty directory, or choose \
         another directory", head.display(), beside.display()
    )]
    HeadMissing { head: PathBuf, beside: PathBuf },
    #[error(
        "{} is one partition of a broker: give its parent directory, the data directory. Nothing \
         was changed", .0.display()
    )]
    OnePartition(PathBuf),
    #[error(
        "{} is inside the data directory {}: choose a directory outside of it",
        target.display(), data.display()
    )]
    Inside { target: PathBuf, data: PathBuf },
    #[error("{}: {error}", path.display())]
    Partition { path: PathBuf, error: hapax_partition::Error },
    #[error(transparent)]
    Stopped(Stopped),
    #[error("{}: {error}", path.display())]
    LeaderBehind { path: PathBuf, error: LeaderBehind },
    #[error("{}: {error}", path.display())]
    Store { path: PathBuf, error: hapax_store::Error },
}

impl Error {
    fn io(doing: &'static str, path: &Path, error: std::io::Error) -> Self {
        Self::Io { doing, path: path.to_owned(), error }
    }
}

/// The partition cannot answer: whether the command was carried out is not known.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Stopped(Arc<str>);

/// What a writer does, for whoever counts it.
#[derive(Clone, Copy, Debug)]
pub enum Beat {
    /// A batch was decided and is on its way.
    Submitted { commands: usize },
    /// It is durable; so long it took.
    Durable { waited: Duration },
    /// A checkpoint was written.
    Checkpointed { took: Duration },
}

/// Told about every beat, on the writer's thread: it must not block.
pub type OnBeat = Box<dyn Fn(usize, Beat) + Send + Sync>;

/// The partitions. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Engine {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    inboxes: Vec<Arc<Inbox>>,
    /// Which partition a message goes to. Read-locked until what was routed is handed over, so
    /// that no message arrives by routes that changed meanwhile.
    routes: RwLock<Routes>,
    /// One change of a queue at a time; queues share these locks by their names.
    changes: [tokio::sync::Mutex<()>; CHANGE_LOCKS],
    /// Turns, so that no partition is asked first every time.
    next: AtomicUsize,
    lost: broadcast::Sender<(QueueName, Fence)>,
    on_beat: OnBeat,
    clocks_ahead: Vec<AtomicI64>,
    /// Why a partition stopped although nobody asked it to.
    failed: watch::Sender<Option<Stopped>>,
    draining: watch::Sender<bool>,
    data: Data,
    sources: Vec<disk::Source>,
    emits: Mutex<Emits>,
    confirmations: Mutex<Confirmations>,
    /// One at a time.
    backups: Mutex<()>,
    /// The last report of each partition about its queues.
    listings: Vec<Mutex<Listing>>,
    unheard: Vec<Unheard>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Engine {
    /// Opens every partition, recovers, and starts the writers. Blocks until all are ready.
    pub fn open(mut data: Data, options: Options, on_beat: OnBeat) -> Result<Self, Error> {
        let count = usize::from(data.partitions());
        let inboxes: Vec<_> = (0..count).map(|_| Arc::new(Inbox::new())).collect();
        // All of them are readable before the first one gets a new owner, which it remembers.
        let stores = (0..data.partitions()).zip(&inboxes);
        let stores = stores.map(|(number, inbox)| open_store(&data, number, inbox));
        let stores: Vec<_> = stores.collect::<Result<_, _>>()?;
        let memory_bytes = options.memory_bytes / count.max(1);
        let partitions = (0..data.partitions()).zip(stores);
        let partitions = partitions.map(|(number, store)| own(&data, number, store, memory_bytes));
        let mut partitions: Vec<_> = partitions.collect::<Result<_, _>>()?;
        data.complete()?;
        wait_for_the_wall_clock(&partitions);
        // Before the writers, which may have something due at once: then the time goes on.
        let known: Vec<_> =
            partitions.iter().map(|partition| Known::of(partition.machine())).collect();
        data.missing_steps(&known)?;
        let (lost, _) = broadcast::channel(LOST_MAX);
        let shared = Arc::new(Shared {
            inboxes,
            routes: RwLock::new(routes(&partitions)),
            changes: std::array::from_fn(|_| tokio::sync::Mutex::new(())),
            next: AtomicUsize::new(0),
            lost,
            on_beat,
            clocks_ahead: (0..count).map(|_| AtomicI64::new(0)).collect(),
            failed: watch::Sender::new(None),
            draining: watch::Sender::new(false),
            sources: partitions.iter().map(|partition| partition.store().source()).collect(),
            emits: Mutex::new(Emits::closed()),
            confirmations: Mutex::new(Confirmations::open()),
            backups: Mutex::new(()),
            listings: (0..count).map(|_| Mutex::default()).collect(),
            unheard: (0..count).map(|_| Unheard::default()).collect(),
            data,
            threads: Mutex::new(Vec::new()),
        });
        partitions.iter_mut().for_each(|partition| shared.report(&partition.take_reports()));
        for (number, partition) in partitions.into_iter().enumerate() {
            shared.start(number, partition)?;
        }
        let engine = Self { shared };
        if let Err(error) = engine.reconcile(known) {
            engine.stop();
            return Err(error);
        }
        engine.shared.let_emits_go();
        Ok(engine)
    }

    /// Stops taking, lets everything in flight be answered, writes a checkpoint, and waits for the
    /// writers to end. Blocks.
    pub fn stop(&self) {
        self.drain();
        for inbox in &self.shared.inboxes {
            let _ = inbox.push(Ask::Stop);
        }
        let mut threads = self.shared.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            let _ = thread.join();
        }
    }

    /// No more leases from here on; settles and sends go on.
    pub fn drain(&self) {
        if !self.shared.draining.send_replace(true) {
            (0..self.partitions()).for_each(|partition| self.shared.push(partition, Ask::Drain));
        }
    }

    pub fn is_draining(&self) -> bool {
        *self.shared.draining.borrow()
    }

    /// Ends when there are no more leases: for those who have nothing else to wake them.
    pub fn draining(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut draining = self.shared.draining.subscribe();
        async move { drop(draining.wait_for(|draining| *draining).await) }
    }

    /// Whether every partition can answer.
    pub fn is_ready(&self) -> bool {
        !self.has_failed() && !self.is_draining()
    }

    /// Whether a partition stopped because it had to.
    pub fn has_failed(&self) -> bool {
        self.shared.failed.borrow().is_some()
    }

    /// Ends when a partition stopped because it had to, and tells why.
    pub async fn failed(&self) -> Stopped {
        let mut failed = self.shared.failed.subscribe();
        let why = failed.wait_for(Option::is_some).await.ok().and_then(|why| why.clone());
        why.unwrap_or_else(Stopped::silent)
    }

    pub fn partitions(&self) -> usize {
        self.shared.partitions()
    }

    pub fn data(&self) -> &Data {
        &self.shared.data
    }

    /// How many milliseconds the wall clock is ahead of each partition, where that is alarming.
    pub fn clocks_ahead_ms(&self) -> Vec<i64> {
        self.shared.clocks_ahead.iter().map(|ahead| ahead.load(Ordering::Relaxed)).collect()
    }

    /// Leases that are lost from now on, of every queue.
    pub fn lost(&self) -> broadcast::Receiver<(QueueName, Fence)> {
        self.shared.lost.subscribe()
    }

    /// Hands commands to a partition. `reply` is called once, on the writer's thread, when they
    /// are durable or cannot be: it must not block.
    pub fn submit(
        &self,
        partition: usize,
        commands: Vec<Command>,
        reply: impl FnOnce(Result<Vec<Outcome>, Stopped>) + Send + 'static,
    ) {
        self.shared.submit(partition, commands, Box::new(reply));
    }

    /// One command to one partition.
    pub async fn call(&self, partition: usize, command: Command) -> Result<Outcome, Stopped> {
        let reply = self.start_call(partition, vec![command]);
        let mut outcomes = reply.await.map_err(|_| Stopped::silent())??;
        outcomes.pop().ok_or_else(Stopped::silent)
    }

    /// One command to the partition of a key.
    pub async fn call_key(
        &self,
        key: &KeyName,
        command: impl Fn() -> Command,
    ) -> Result<Outcome, Stopped> {
        // Without its group a key of a queue that is spread by groups may be anywhere.
        let partitions = self.shared.routes().of_key(key);
        for partition in partitions {
            let outcome = self.call(partition, command()).await?;
            let elsewhere = matches!(&outcome, Outcome::Refused(hapax_core::Refusal::NoSuchKey));
            if !elsewhere {
                return Ok(outcome);
            }
        }
        Ok(Outcome::Refused(hapax_core::Refusal::NoSuchKey))
    }

    /// The same command to every partition, the outcomes in their order.
    pub async fn call_all(&self, command: Command) -> Result<Vec<Outcome>, Stopped> {
        self.call_every(vec![command; self.partitions()]).await
    }

    /// Sends each partition its command, and returns the outcomes in order.
    async fn call_every(
        &self,
        commands: impl IntoIterator<Item = Command>,
    ) -> Result<Vec<Outcome>, Stopped> {
        let commands = commands.into_iter().enumerate();
        let commands = commands.map(|(partition, command)| (To::Partition(partition), command));
        self.ask(commands.collect()).await
    }

    /// A list of commands to one partition.
    fn start_call(
        &self,
        partition: usize,
        commands: Vec<Command>,
    ) -> oneshot::Receiver<Result<Vec<Outcome>, Stopped>> {
        let (sender, receiver) = oneshot::channel();
        self.submit(partition, commands, move |outcomes| drop(sender.send(outcomes)));
        receiver
    }
}

impl Stopped {
    /// A reply was dropped instead of being called.
    fn silent() -> Self {
        Self("the partition stopped without an answer".into())
    }

    fn late(partition: usize, wait: Duration) -> Self {
        Self(format!("partition {partition} did not answer within {wait:?}").into())
    }
}

impl Shared {
    fn partitions(&self) -> usize {
        self.inboxes.len()
    }

    fn start(
        self: &Arc<Self>,
        number: usize,
        partition: Partition<DiskStore>,
    ) -> Result<(), Error> {
        let Some(inbox) = self.inboxes.get(number).cloned() else { return Ok(()) };
        let shared = Arc::clone(self);
        let run = move || {
            inbox.belongs_to_this_thread();
            Writer::new(partition, number, inbox, shared).run();
        };
        let thread = std::thread::Builder::new()
            .name(format!("hapax-writer-{number}"))
            .spawn(run)
            .map_err(|error| Error::io("start a thread for", self.data.path(), error))?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }

    fn submit(&self, partition: usize, commands: Vec<Command>, reply: Reply) {
        self.push(partition, Ask::Commands(commands, reply));
    }

    /// Routes commands and hands them over before the routes can change.
    fn submit_routed(&self, route: impl FnOnce(&Routes) -> Vec<(usize, Vec<Command>, Reply)>) {
        let routes = self.routes();
        let parts = route(&routes).into_iter();
        let refused: Vec<Ask> = parts
            .filter_map(|(partition, commands, reply)| {
                self.offer(partition, Ask::Commands(commands, reply)).err()
            })
            .collect();
        drop(routes);
        // Replies run here: they may want the routes themselves.
        refused.into_iter().for_each(refuse_stopped);
    }

    fn push(&self, partition: usize, ask: Ask) {
        if let Err(ask) = self.offer(partition, ask) {
            refuse_stopped(ask);
        }
    }

    fn offer(&self, partition: usize, ask: Ask) -> Result<(), Ask> {
        match self.inboxes.get(partition) {
            Some(inbox) => inbox.push(ask),
            None => Err(ask),
        }
    }

    fn routes(&self) -> RwLockReadGuard<'_, Routes> {
        self.routes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn routes_mut(&self) -> RwLockWriteGuard<'_, Routes> {
        self.routes.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed) % self.partitions()
    }

    fn beat(&self, partition: usize, beat: Beat) {
        (self.on_beat)(partition, beat);
    }

    fn clock_ahead(&self, partition: usize, ahead_ms: i64) {
        if let Some(ahead) = self.clocks_ahead.get(partition) {
            ahead.store(ahead_ms, Ordering::Relaxed);
        }
    }

    /// Other partitions may have something for those who wait for messages of the queue.
    fn call_elsewhere(&self, here: usize, queue: &QueueName) {
        for partition in (0..self.partitions()).filter(|partition| *partition != here) {
            self.push(partition, Ask::CallAgain(queue.clone()));
        }
    }

    fn lost(&self, queue: &QueueName, fence: Fence) {
        // Nobody may be listening.
        let _ = self.lost.send((queue.clone(), fence));
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("data", &self.data).finish_non_exhaustive()
    }
}

fn open_store(data: &Data, number: u16, inbox: &Arc<Inbox>) -> Result<DiskStore, Error> {
    let path = data.partition(number);
    let inbox = Arc::clone(inbox);
    let wake = Arc::new(move || inbox.wake());
    DiskStore::open_threaded(&path, data.store_options(), wake)
        .map_err(|error| Error::Store { path, error })
}

fn own(
    data: &Data,
    number: u16,
    store: DiskStore,
    memory_bytes: usize,
) -> Result<Partition<DiskStore>, Error> {
    let options = hapax_partition::Options {
        partition: number,
        partitions: data.partitions(),
        memory_bytes,
        seed: fastrand::u64(..),
        ..hapax_partition::Options::default()
    };
    let path = data.partition(number);
    Partition::open(store, options).map_err(|error| Error::Partition { path, error })
}

/// Waits until the wall clock has reached what the partitions may have said before a crash, at most
/// a second: a time that is ahead of the wall clock at every start would run away from it.
fn wait_for_the_wall_clock(partitions: &[Partition<DiskStore>]) {
    let starts = partitions.iter().map(Partition::now);
    let wait = starts.map(|start| Clock::wait_ms(start, crate::time::now())).max().unwrap_or(0);
    std::thread::sleep(Duration::from_millis(wait));
}

fn routes(partitions: &[Partition<DiskStore>]) -> Routes {
    let mut routes = Routes::new(partitions.len());
    for (name, view) in partitions.iter().flat_map(|partition| partition.machine().queues()) {
        routes.enter(name, &view.config);
    }
    routes
}

fn refuse_stopped(ask: Ask) {
    writer::refuse(ask, &Stopped("the partition is stopped".into()));
}
