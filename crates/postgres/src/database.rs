//! The database: its connections, and what all nodes share.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::mem::{Discriminant, discriminant};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, Semaphore};
use uuid::Uuid;

use crate::appender::Appender;
use crate::call::{Answer, Backend, Call, unexpected};
use crate::connection::Connection;
use crate::drive::{Driver, execute, execute_on};
use crate::error::{Failure, Refused, Warning};
use crate::lane::{Lane, OnAppend};
use crate::patience::{Patience, Pulse};
use crate::schema;
use crate::settings::Settings;
use crate::witness::Witnesses;

/// Appends of a node go over this many connections.
const LANES: usize = 2;
/// Claims, checkpoints, merges and reads share this many; members have one more.
const POOL: usize = 4;
/// A statement of those that takes longer may be on a dead connection.
const POOL_LATE: Duration = Duration::from_secs(20);
/// The same for members, who do not wait for a pulse: they make it.
const MEMBERS_LATE: Duration = Duration::from_secs(1);
/// Between two tries, at random within these.
const PAUSE_MS: std::ops::Range<u64> = 20..250;

/// A secret that is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub [u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// What a new broker gets.
#[derive(Clone, Debug)]
pub struct Create {
    /// Fixed for good.
    pub partitions: u16,
    /// The secret of fingerprints, as in `broker.json`; `None` for data of release 0.1 that is
    /// imported.
    pub fingerprints: Option<Secret>,
    /// Seals leases, as the file `secret`.
    pub leases: Secret,
    /// Nodes know each other by it.
    pub links: Secret,
}

/// What all nodes of a broker share, as it was when this node connected.
#[derive(Clone, Debug)]
pub struct Shared {
    /// Of the tables.
    pub format: i32,
    /// What every node may write.
    pub feature: i32,
    /// Drawn once.
    pub cluster: Uuid,
    /// Drawn anew when an operator accepts a loss.
    pub lineage: Uuid,
    pub partitions: u16,
    pub fingerprints: Option<Secret>,
    pub leases: Secret,
    pub links: Secret,
}

/// A database that was checked. Clones share its connections, at most seven.
#[derive(Clone)]
pub struct Database(Arc<Inner>);

struct Inner {
    settings: Settings,
    shared: Shared,
    warning: Option<Warning>,
    lanes: Vec<Arc<Lane>>,
    pool: Arc<Pool>,
    /// Of the members alone, so that no full pool keeps a heartbeat waiting.
    members: Arc<Apart>,
    pulse: Pulse,
    on_append: Arc<OnceLock<OnAppend>>,
    runtime: Option<Runtime>,
}

impl Database {
    /// Connects and checks. Where the database is empty the broker is created in it, if `create` is
    /// given, and refused otherwise. Blocks.
    pub fn connect(settings: Settings, create: Option<&Create>) -> Result<Self, Refused> {
        let (asked, create) = (settings.clone(), create.cloned());
        Self::checked(settings, async move { schema::check(&asked, create.as_ref()).await })
    }

    /// Connects to read what nodes do. Settings with which the database would lose what it
    /// confirms, and which no node accepts, are its [`Self::warning`]. Blocks.
    pub fn look(settings: Settings) -> Result<Self, Refused> {
        let asked = settings.clone();
        Self::checked(settings, async move { schema::look(&asked).await })
    }

    fn checked(
        settings: Settings,
        checking: impl Future<Output = Result<(Shared, Option<Warning>), Refused>> + Send + 'static,
    ) -> Result<Self, Refused> {
        let unreachable =
            |why: String| Refused::Unreachable { database: settings.shown().to_owned(), why };
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("hapax-postgres")
            .enable_all()
            .build()
            .map_err(|error| unreachable(error.to_string()))?;
        let (shared, warning) = match wait(&runtime, checking) {
            Some(checked) => checked?,
            None => return Err(unreachable("its thread ended".to_owned())),
        };
        let (pulse, on_append) = (Pulse::default(), Arc::new(OnceLock::new()));
        let lane = |_| {
            let wanted = Arc::new(Notify::new());
            let told = Arc::clone(&wanted);
            let wake = Arc::new(move || told.notify_one());
            let lane = Arc::new(Lane::new(shared.cluster, shared.lineage, wake));
            let driver = Driver {
                lane: Arc::clone(&lane),
                wanted,
                settings: settings.clone(),
                pulse: pulse.clone(),
                on_append: Arc::clone(&on_append),
            };
            runtime.spawn(driver.run());
            lane
        };
        let lanes: Vec<_> = (0..LANES).map(lane).collect();
        let pool = Arc::new(Pool::new(settings.clone(), POOL, pulse.clone(), POOL_LATE));
        let members = Arc::new(Apart::new(settings.clone().of_heartbeats(), MEMBERS_LATE));
        let runtime = Some(runtime);
        let inner =
            Inner { settings, shared, warning, lanes, pool, members, pulse, on_append, runtime };
        Ok(Self(Arc::new(inner)))
    }

    /// What an operator should know of the database, as it was when this was connected.
    pub fn warning(&self) -> Option<&Warning> {
        self.0.warning.as_ref()
    }

    pub fn shared(&self) -> &Shared {
        &self.0.shared
    }

    /// The database in messages.
    pub fn shown(&self) -> &str {
        self.0.settings.shown()
    }

    /// The same with the one host that answered last, of several.
    pub fn answered(&self) -> String {
        self.0.settings.answered()
    }

    /// What this machine knows of the partitions, in one directory for each.
    pub fn witnesses(&self, directory: impl Fn(u16) -> PathBuf) -> Witnesses {
        let Shared { cluster, lineage, partitions, .. } = *self.shared();
        let directories: Vec<_> = (0..partitions).map(directory).collect();
        Witnesses::of_files((cluster, lineage), &directories)
    }

    /// Asks now how far the partitions of this node are, so that an idle owner that was replaced
    /// learns of it. Returns at once.
    pub fn check_owners(&self) {
        self.0.lanes.iter().for_each(|lane| lane.look());
    }

    /// Tells of every append from now on; the first who asks is told.
    pub fn on_append(&self, told: OnAppend) {
        let _ = self.0.on_append.set(told);
    }

    /// How many connections are open.
    pub fn connections(&self) -> usize {
        self.0.settings.connections.load(Ordering::Relaxed)
    }

    /// Whether the database has no room for batches.
    pub fn is_full(&self) -> bool {
        self.0.lanes.iter().any(|lane| lane.read(Appender::is_full))
    }

    /// Waits until nothing of this node is on its way to the database. For tests.
    #[doc(hidden)]
    pub fn wait_idle(&self) {
        self.0.lanes.iter().for_each(|lane| {
            lane.wait(Duration::from_secs(60), Appender::is_at_rest);
        });
    }

    /// What keeps appends from being acknowledged, and for how long it has.
    pub fn trouble(&self) -> Option<(Failure, Duration)> {
        self.0.lanes.iter().filter_map(|lane| lane.trouble()).max_by_key(|(_, since)| *since)
    }

    /// What is kept under a name for all nodes (tokens), with its version; version 0 if nothing is.
    pub fn document(&self, name: &str, within: Duration) -> Result<(Vec<u8>, u64), Failure> {
        match self.call_within(Call::Document { name: name.to_owned() }, within)? {
            Answer::Document(bytes, version) => Ok((bytes, version)),
            other => Err(unexpected(&other)),
        }
    }

    /// Replaces it if it has that version. False if somebody else was faster.
    pub fn replace_document(
        &self,
        name: &str,
        version: u64,
        bytes: &[u8],
        within: Duration,
    ) -> Result<bool, Failure> {
        let name = name.to_owned();
        let call = Call::Replace { name, version, bytes: Arc::from(bytes) };
        self.changed(call, within).map(|changed| changed > 0)
    }

    /// Goes on after a loss: draws another lineage and raises every epoch by 65,536, so that fences
    /// stay above those of the lost history. Every owner is fenced by it; nodes have to connect
    /// anew.
    pub fn accept_loss(&self, within: Duration) -> Result<Uuid, Failure> {
        let lineage = draw().map_err(Failure::Refused)?;
        self.changed(Call::AcceptLoss { lineage }, within).map(|_| lineage)
    }

    /// How far all partitions are.
    pub fn ends(&self, within: Duration) -> Result<crate::call::Ends, Failure> {
        let all = (0..self.shared().partitions).collect();
        match self.call_within(Call::Ends(all), within)? {
            Answer::Ends(ends) => Ok(ends),
            other => Err(unexpected(&other)),
        }
    }

    /// Executes a call, if that takes no longer than this. It is not cancelled: it may take effect
    /// later.
    pub fn call_within(&self, call: Call, within: Duration) -> Result<Answer, Failure> {
        let pool = Arc::clone(&self.0.pool);
        self.wait_within(within, async move { pool.call(&call).await })
    }

    /// The same over the members' connection.
    pub(crate) fn call_member(&self, call: Call, within: Duration) -> Result<Answer, Failure> {
        let begun = Instant::now();
        let is_heartbeat = matches!(call, Call::Heartbeat { .. });
        let members = Arc::clone(&self.0.members);
        let answer = self.wait_within(within, async move { members.call(call, within).await })?;
        if is_heartbeat {
            self.0.pulse.beat(begun);
        }
        Ok(answer)
    }

    pub(crate) fn lane(&self, partition: u16) -> &Arc<Lane> {
        let at = usize::from(partition) % LANES;
        match self.0.lanes.get(at) {
            Some(lane) => lane,
            None => unreachable!("there are as many lanes as that"),
        }
    }

    fn changed(&self, call: Call, within: Duration) -> Result<u64, Failure> {
        match self.call_within(call, within)? {
            Answer::Changed(count) => Ok(count),
            other => Err(unexpected(&other)),
        }
    }

    fn wait_within(
        &self,
        within: Duration,
        call: impl Future<Output = Result<Answer, Failure>> + Send + 'static,
    ) -> Result<Answer, Failure> {
        self.wait(async move {
            let late = |_| Err(Failure::TimedOut(within));
            tokio::time::timeout(within, call).await.unwrap_or_else(late)
        })
    }

    fn wait(
        &self,
        call: impl Future<Output = Result<Answer, Failure>> + Send + 'static,
    ) -> Result<Answer, Failure> {
        let runtime = self.0.runtime.as_ref();
        let gone = || Failure::Unreachable("this process is closing it".to_owned());
        runtime.and_then(|runtime| wait(runtime, call)).ok_or_else(gone)?
    }
}

impl Backend for Database {
    fn call(&self, call: Call) -> Result<Answer, Failure> {
        let pool = Arc::clone(&self.0.pool);
        self.wait(async move { pool.call(&call).await })
    }

    fn pause(&self) {
        std::thread::sleep(Duration::from_millis(fastrand::u64(PAUSE_MS)));
    }

    fn draw(&self) -> Result<Uuid, String> {
        draw()
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Database").field(&self.shown()).finish()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Not waited for: it may be dropped within another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Connections that callers share.
struct Pool {
    settings: Settings,
    permits: Semaphore,
    idle: Mutex<Vec<Connection>>,
    pulse: Pulse,
    /// How late a statement is at first.
    late: Duration,
    /// For each kind of call: what keeps one from its end, such as a lock of a table, may be no
    /// obstacle to others.
    patience: Mutex<HashMap<Kind, Patience>>,
}

type Kind = Discriminant<Call>;

impl Pool {
    fn new(settings: Settings, size: usize, pulse: Pulse, late: Duration) -> Self {
        let (permits, idle, patience) = (Semaphore::new(size), Mutex::default(), Mutex::default());
        Self { settings, permits, idle, pulse, late, patience }
    }

    async fn call(&self, call: &Call) -> Result<Answer, Failure> {
        let Ok(_permit) = self.permits.acquire().await else {
            unreachable!("the semaphore is never closed");
        };
        let mut connection = self.newest();
        let kind = discriminant(call);
        let (gives_up, limit) = self.with_patience(kind, |it| (it.ends(), it.limit()));
        let outcome = execute(&self.settings, &mut connection, call, gives_up).await;
        let is_given_up = matches!(outcome, Err(Failure::TimedOut(_)));
        self.with_patience(kind, |it| {
            // Those that were sent together and are given up together count once.
            if !is_given_up || it.limit() == limit {
                it.ended(is_given_up);
            }
        });
        self.lock_idle().extend(connection);
        outcome
    }

    /// A connection that is idle. After another one failed, such as that of the heartbeats, those
    /// that are as old are not used: they may lead to a server that was left for its standby, lives
    /// on, and answers reads with what was there before.
    fn newest(&self) -> Option<Connection> {
        let mut idle = self.lock_idle();
        idle.retain(|it| it.is_as_new(&self.settings));
        idle.pop()
    }

    fn with_patience<T>(&self, kind: Kind, with: impl FnOnce(&mut Patience) -> T) -> T {
        let mut all = self.patience.lock().unwrap_or_else(PoisonError::into_inner);
        with(all.entry(kind).or_insert_with(|| Patience::new(self.pulse.clone(), self.late)))
    }

    fn lock_idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection, for statements whose callers do not wait for their end.
///
/// A statement that waits for a synchronous standby that is gone is not over when nobody listens:
/// it stays on the server, with its locks and its place among the connections. Who beats twice a
/// second and began anew each time would fill the server within minutes. So a statement that was
/// sent goes on without its caller, and the next one waits for it. It is given up all the same, in
/// case the connection is dead, but each time after twice as long.
struct Apart {
    settings: Settings,
    state: Arc<tokio::sync::Mutex<OneAtATime>>,
}

struct OneAtATime {
    connection: Option<Connection>,
    patience: Patience,
}

impl Apart {
    fn new(settings: Settings, late: Duration) -> Self {
        let patience = Patience::alone(late);
        let state = Arc::new(tokio::sync::Mutex::new(OneAtATime { connection: None, patience }));
        Self { settings, state }
    }

    /// Nothing is sent if this is dropped while it waits for an earlier call or connects.
    async fn call(&self, call: Call, within: Duration) -> Result<Answer, Failure> {
        let mut state = Arc::clone(&self.state).lock_owned().await;
        let open = match state.connection.take() {
            Some(open) => open,
            None => Connection::open(&self.settings).await?,
        };
        let settings = self.settings.clone();
        let sent = tokio::spawn(async move {
            let gives_up = state.patience.ends_after(within);
            let (outcome, open) = execute_on(&settings, open, &call, gives_up).await;
            state.patience.ended(matches!(outcome, Err(Failure::TimedOut(_))));
            state.connection = open;
            outcome
        });
        let ended = |error| Failure::Unreachable(format!("its task failed: {error}"));
        sent.await.map_err(ended)?
    }
}

/// Waits for a future on the runtime. `None` if the runtime ended.
fn wait<T: Send + 'static>(
    runtime: &Runtime,
    future: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let (done, waiting) = mpsc::sync_channel(1);
    runtime.spawn(async move {
        // Whoever asked waits for it.
        let _ = done.send(future.await);
    });
    waiting.recv().ok()
}

/// A random id.
pub(crate) fn draw() -> Result<Uuid, String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| format!("no random numbers: {error}"))?;
    Ok(uuid::Builder::from_random_bytes(bytes).into_uuid())
}
