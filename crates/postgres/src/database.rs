//! The database: its connections, and what all nodes share.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::appender::Appender;
use crate::call::{Answer, Backend, Call};
use crate::connection::Connection;
use crate::error::{Failure, Refused};
use crate::lane::{Lane, execute};
use crate::schema;
use crate::settings::Settings;

/// Appends of a node go over this many connections.
const LANES: usize = 2;
/// Claims, checkpoints, merges and reads share this many; members have one more.
const POOL: usize = 4;
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
    lanes: Vec<Arc<Lane>>,
    pool: Arc<Pool>,
    /// Of the members alone, so that no full pool keeps a heartbeat waiting.
    members: Arc<Pool>,
    runtime: Option<Runtime>,
}

impl Database {
    /// Connects and checks. Where the database is empty the broker is created in it, if `create` is
    /// given, and refused otherwise. Blocks.
    pub fn connect(settings: Settings, create: Option<&Create>) -> Result<Self, Refused> {
        let unreachable =
            |why: String| Refused::Unreachable { database: settings.shown().to_owned(), why };
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("hapax-postgres")
            .enable_all()
            .build()
            .map_err(|error| unreachable(error.to_string()))?;
        let (asked, create) = (settings.clone(), create.cloned());
        let checking = async move { schema::check(&asked, create.as_ref()).await };
        let shared = match wait(&runtime, checking) {
            Some(checked) => checked?,
            None => return Err(unreachable("its thread ended".to_owned())),
        };
        let lane = || Arc::new(Lane::new(shared.cluster, shared.lineage));
        let lanes: Vec<_> = (0..LANES).map(|_| lane()).collect();
        for lane in &lanes {
            runtime.spawn(Arc::clone(lane).run(settings.clone()));
        }
        let pool = |size| Arc::new(Pool::new(settings.clone(), size));
        let (pool, members) = (pool(POOL), pool(1));
        let runtime = Some(runtime);
        Ok(Self(Arc::new(Inner { settings, shared, lanes, pool, members, runtime })))
    }

    pub fn shared(&self) -> &Shared {
        &self.0.shared
    }

    /// The database in messages.
    pub fn shown(&self) -> &str {
        self.0.settings.shown()
    }

    /// Asks now how far the partitions of this node are, so that an idle owner that was replaced
    /// learns of it. Returns at once.
    pub fn check_owners(&self) {
        self.0.lanes.iter().for_each(|lane| lane.with(Appender::look));
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
        self.execute(&self.0.pool, call, Some(within))
    }

    /// The same over the members' connection.
    pub(crate) fn call_member(&self, call: Call, within: Duration) -> Result<Answer, Failure> {
        self.execute(&self.0.members, call, Some(within))
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

    fn execute(
        &self,
        pool: &Arc<Pool>,
        call: Call,
        within: Option<Duration>,
    ) -> Result<Answer, Failure> {
        let pool = Arc::clone(pool);
        let executed = async move {
            match within {
                Some(within) => tokio::time::timeout(within, pool.call(&call))
                    .await
                    .unwrap_or(Err(Failure::TimedOut(within))),
                None => pool.call(&call).await,
            }
        };
        let runtime = self.0.runtime.as_ref();
        let gone = || Failure::Unreachable("this process is closing it".to_owned());
        runtime.and_then(|runtime| wait(runtime, executed)).ok_or_else(gone)?
    }
}

impl Backend for Database {
    fn call(&self, call: Call) -> Result<Answer, Failure> {
        self.execute(&self.0.pool, call, None)
    }

    fn pause(&self) {
        std::thread::sleep(Duration::from_millis(fastrand::u64(PAUSE_MS)));
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
}

impl Pool {
    fn new(settings: Settings, size: usize) -> Self {
        Self { settings, permits: Semaphore::new(size), idle: Mutex::default() }
    }

    async fn call(&self, call: &Call) -> Result<Answer, Failure> {
        let Ok(_permit) = self.permits.acquire().await else {
            unreachable!("the semaphore is never closed");
        };
        let mut connection = self.lock_idle().pop();
        let outcome = execute(&self.settings, &mut connection, call).await;
        match &outcome {
            // The others are likely to be as old: the next calls connect anew.
            Err(failure) if failure.ends_connection() => self.lock_idle().clear(),
            _ => self.lock_idle().extend(connection),
        }
        outcome
    }

    fn lock_idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
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

pub(crate) fn unexpected(answer: &Answer) -> Failure {
    Failure::Refused(format!("it answered {answer:?}"))
}

/// A random id.
pub(crate) fn draw() -> Result<Uuid, String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| format!("no random numbers: {error}"))?;
    Ok(uuid::Builder::from_random_bytes(bytes).into_uuid())
}
