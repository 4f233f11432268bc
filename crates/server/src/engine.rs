//! The running partitions, and the calls to them.
//!
//! Each partition belongs to one writer thread. An [`Engine`] routes a command to the partition of
//! its key, asks all of them if the question is about a queue, and joins their answers. It knows
//! only the rules of routing; the core knows the meaning of a command.

mod data;
mod dispatch;
mod holdings;
mod inbox;
mod open;
mod pages;
mod queues;
mod relay;
mod shares;
mod spare;
mod store;
mod wait;
mod wall;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use hapax_core::{Command, Fence, KeyName, Outcome, QueueName};
use hapax_partition::Partition;
use hapax_partition::change::LeaderBehind;
use hapax_partition::relay::{Confirmations, Emits};
use hapax_partition::route::Routes;
use hapax_store::disk;
use tokio::sync::{broadcast, oneshot, watch};

pub(crate) use data::moved_epoch;
pub use data::{Data, Moving};
pub use dispatch::{List, Listed, Omitted, Room, To};
pub(crate) use dispatch::{Parts, gather};
use holdings::UnreadReports;
use inbox::{Ask, Inbox, Reply};
pub use open::{Place, cache_of};
pub use pages::{Cursor, Page};
use queues::Listing;
pub use queues::{Decided, Survey};
use spare::Spare;
pub use store::AnyStore;
pub use wall::Wall;
use writer::{Now, Writer};

/// How long a stop may take, from the last answer on.
const STOP_MAX: Duration = Duration::from_secs(20);
/// Lost leases that a slow listener may be behind.
const LOST_MAX: usize = 1_024;
/// Changes of queues that may run at once.
const CHANGE_LOCKS: usize = 64;

/// Options of the engine.
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
        "{} is one partition, and no broker: if its parent directory has a broker.json, give that, \
         the data directory. Nothing was changed", .0.display()
    )]
    OnePartition(PathBuf),
    #[error(
        "{} has the data of a broker on disk, and this broker's store is a database: choose \
         another --data. `hapax import` brings data on disk into a database. Nothing was changed",
        .0.display()
    )]
    OnDisk(PathBuf),
    #[error(
        "the data of {} was imported into a database, and is outdated: start the broker with that \
         --store (HAPAX_STORE) and another --data. To go back to it nevertheless, rename \
         broker.json.imported in it to broker.json. Nothing was changed", .0.display()
    )]
    Retired(PathBuf),
    #[error(
        "{} is the directory of a node whose data is in a database, and this broker has no \
         --store (HAPAX_STORE): it would begin with nothing. Give it, or choose another --data. \
         Nothing was changed", .0.display()
    )]
    OfNode(PathBuf),
    #[error(
        "the data is in PostgreSQL: back the database up (pg_basebackup, pgBackRest, WAL-G, or \
         what your service offers). A backup of a node has nothing that is not there"
    )]
    InDatabase,
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
    #[error(
        "{}: {error}. Nothing that was confirmed is lost: free some space on the disk, or allow \
         more open files, and start the broker again", path.display()
    )]
    Full { path: PathBuf, error: hapax_store::Error },
}

impl Error {
    fn io(doing: &'static str, path: &Path, error: std::io::Error) -> Self {
        Self::Io { doing, path: path.to_owned(), error }
    }

    fn store(path: PathBuf, error: hapax_store::Error) -> Self {
        match error.is_full() {
            true => Self::Full { path, error },
            false => Self::Store { path, error },
        }
    }
}

/// The partition cannot answer: it is unknown whether the command was carried out.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Stopped(Arc<str>);

/// Events of a writer, for metrics.
#[derive(Clone, Copy, Debug)]
pub enum Beat {
    /// A batch was decided and submitted.
    Submitted { commands: usize },
    /// It is durable, after this time.
    Durable { waited: Duration },
    /// A checkpoint was written.
    Checkpointed { took: Duration },
}

/// Called for every beat, on the writer's thread: it must not block.
pub type OnBeat = Box<dyn Fn(usize, Beat) + Send + Sync>;

/// The partitions. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Engine {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    inboxes: Vec<Arc<Inbox>>,
    /// Which partition a message goes to. Read-locked until what was routed is submitted, so that
    /// routes do not change in between.
    routes: RwLock<Routes>,
    /// One change of a queue at a time; queues share these locks by their names.
    changes: [tokio::sync::Mutex<()>; CHANGE_LOCKS],
    /// One redrive starts at a time: those of all queues of a tenant count for its limit.
    redrives: tokio::sync::Mutex<()>,
    /// Turns, so that no partition is asked first every time.
    next: AtomicUsize,
    lost: broadcast::Sender<(QueueName, Fence)>,
    on_beat: OnBeat,
    clocks_ahead: Vec<AtomicI64>,
    /// Bytes of journal that each partition has written since its last checkpoint began.
    tails: Vec<AtomicU64>,
    /// Why a partition stopped by itself.
    failed: watch::Sender<Option<Stopped>>,
    /// Whether that is because its store was set back.
    is_regressed: AtomicBool,
    /// Whether a partition gets nothing done.
    is_stalled: AtomicBool,
    wall: Wall,
    /// The partitions that belong to another owner, and what is answered for them.
    fenced: watch::Sender<Vec<(usize, Stopped)>>,
    draining: watch::Sender<bool>,
    data: Data,
    sources: Vec<disk::Source>,
    emits: Mutex<Emits>,
    confirmations: Mutex<Confirmations>,
    /// One at a time.
    backups: Mutex<()>,
    /// The last report of each partition about its queues.
    listings: Vec<Mutex<Listing>>,
    unread: Vec<UnreadReports>,
    spare: SpareLists,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The lists that request handlers and writers exchange.
#[derive(Debug, Default)]
struct SpareLists {
    commands: Spare<Command>,
    outcomes: Spare<Outcome>,
}

impl Engine {
    /// Accepts no more, answers everything in flight, writes a checkpoint, and waits for the
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

    /// Grants no more leases; settles and sends continue.
    pub fn drain(&self) {
        if !self.shared.draining.send_replace(true) {
            (0..self.partitions()).for_each(|partition| self.shared.push(partition, Ask::Drain));
        }
    }

    pub fn is_draining(&self) -> bool {
        *self.shared.draining.borrow()
    }

    /// Completes when no more leases are granted.
    pub fn draining(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut draining = self.shared.draining.subscribe();
        async move { drop(draining.wait_for(|draining| *draining).await) }
    }

    /// Whether every partition can answer.
    pub fn is_ready(&self) -> bool {
        let is_over = self.has_failed() || self.is_draining() || !self.fenced().is_empty();
        !is_over && !self.is_stalled()
    }

    /// Whether a partition was found to get nothing done.
    pub fn is_stalled(&self) -> bool {
        self.shared.is_stalled.load(Ordering::Relaxed)
    }

    /// A partition gets nothing done, or all go on again.
    pub fn set_stalled(&self, is_stalled: bool) {
        self.shared.is_stalled.store(is_stalled, Ordering::Relaxed);
    }

    /// The partitions that another owner took over, in the order in which that was noticed, and
    /// what is answered for them. The others go on.
    pub fn fenced(&self) -> Vec<(usize, Stopped)> {
        self.shared.fenced.borrow().clone()
    }

    /// Completes when another owner took a partition over.
    pub async fn fenced_any(&self) {
        let mut fenced = self.shared.fenced.subscribe();
        drop(fenced.wait_for(|fenced| !fenced.is_empty()).await);
    }

    /// Why a partition stopped by itself, if one did.
    pub fn failure(&self) -> Option<Stopped> {
        self.shared.failed.borrow().clone()
    }

    /// Ends when some partition cannot answer any more: the opposite of [`Self::is_ready`].
    pub async fn unready(&self) {
        let mut fenced = self.shared.fenced.subscribe();
        tokio::select! {
            () = self.draining() => {}
            _ = self.failed() => {}
            _ = fenced.wait_for(|fenced| !fenced.is_empty()) => {}
        }
    }

    /// Whether a partition stopped by itself.
    pub fn has_failed(&self) -> bool {
        self.shared.failed.borrow().is_some()
    }

    /// Whether it stopped because its store was set back: it lost what it had confirmed.
    pub fn is_regressed(&self) -> bool {
        self.shared.is_regressed.load(Ordering::SeqCst)
    }

    /// Completes when a partition stopped by itself, with the reason.
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

    /// How many milliseconds the wall clock is ahead of each partition, if that is too much; else
    /// 0.
    pub fn clocks_ahead_ms(&self) -> Vec<i64> {
        self.shared.clocks_ahead.iter().map(|ahead| ahead.load(Ordering::Relaxed)).collect()
    }

    /// Bytes of journal of each partition since its last checkpoint began: about what the next
    /// owner has to read.
    pub fn tail_bytes(&self) -> Vec<u64> {
        self.shared.tails.iter().map(|tail| tail.load(Ordering::Relaxed)).collect()
    }

    /// Leases that are lost from now on, of every queue.
    pub fn lost(&self) -> broadcast::Receiver<(QueueName, Fence)> {
        self.shared.lost.subscribe()
    }

    /// Submits commands to a partition. `reply` is called once, on the writer's thread, when they
    /// are durable or the partition failed: it must not block.
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
        // Without its group, a key of a queue that is spread by group may be in any partition.
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
        let partitions = (0..self.partitions()).map(|partition| partition as u16);
        self.ask(commands.into_iter().collect(), To::Partitions(partitions.collect())).await
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
    /// For a reply that was dropped instead of called.
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

    /// A partition has written that much journal since its last checkpoint began.
    fn tail(&self, partition: usize, bytes: usize) {
        if let Some(tail) = self.tails.get(partition) {
            tail.store(bytes as u64, Ordering::Relaxed);
        }
    }

    fn start(self: &Arc<Self>, number: usize, partition: Partition<AnyStore>) -> Result<(), Error> {
        let Some(inbox) = self.inboxes.get(number).cloned() else { return Ok(()) };
        let shared = Arc::clone(self);
        let run = move || {
            inbox.belongs_to_this_thread();
            let now = Now::read(&shared.wall);
            Writer::new(partition, number, inbox, shared, now).run();
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

    /// Routes commands and submits them before the routes can change.
    fn submit_routed(&self, route: impl FnOnce(&Routes) -> Vec<(usize, Vec<Command>, Reply)>) {
        let routes = self.routes();
        let parts = route(&routes).into_iter();
        let refused: Vec<(usize, Ask)> = parts
            .filter_map(|(partition, commands, reply)| {
                let ask = Ask::Commands(commands, reply);
                self.offer(partition, ask).err().map(|ask| (partition, ask))
            })
            .collect();
        drop(routes);
        // Replies run here, without the lock: they may need the routes themselves.
        refused.into_iter().for_each(|(partition, ask)| self.refuse(partition, ask));
    }

    fn push(&self, partition: usize, ask: Ask) {
        if let Err(ask) = self.offer(partition, ask) {
            self.refuse(partition, ask);
        }
    }

    /// Answers for a partition that has ended.
    fn refuse(&self, partition: usize, ask: Ask) {
        let fenced = self.fenced.borrow();
        let why = fenced.iter().find(|(number, _)| *number == partition).map(|(_, why)| why);
        let why = why.cloned().unwrap_or_else(|| Stopped("the partition is stopped".into()));
        drop(fenced);
        writer::refuse(ask, &why);
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

    /// Calls waiters of the queue in the other partitions, which may have something for them.
    fn call_elsewhere(&self, here: usize, queue: &QueueName) {
        for partition in (0..self.partitions()).filter(|partition| *partition != here) {
            self.push(partition, Ask::CallAgain(queue.clone()));
        }
    }

    /// Calls all waiters of a queue that was deleted.
    fn call_everywhere(&self, queue: &QueueName) {
        for partition in 0..self.partitions() {
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
