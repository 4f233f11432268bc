//! The task of a node: it carries out what [`State`] decides.

use std::future::pending;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax_postgres::node::{Act, Doing, Loss, State};
use hapax_postgres::{
    Create, Database, Failure, NodeState, Refused, Repeats, Secret, Seen, Settings, Uuid,
};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::beats::{Beats, Report};
use super::clock::{SharedClock, Told, boottime};
use super::open::{Ground, Lost, Serving};
use super::reason::{NO_ROOM, Trouble, View};
use crate::auth::Tokens;
use crate::broker::{self, Error};
use crate::doors::standby::{self, Reason, Standby};
use crate::doors::{self, Doors};
use crate::engine::{Data, cache_of};
use crate::listen::{Limits, Listener};
use crate::log;
use crate::metrics::Metrics;
use crate::options::{Options, StoreUrl};

/// How often it is written at most how far the partitions are.
const REMEMBER: Duration = Duration::from_secs(1);
/// How often it is checked whether heartbeats stay away.
const TICK: Duration = Duration::from_millis(250);
/// A node whose database has no room, and that gets nothing done for this long, answers nobody.
const HELD_AFTER: Duration = Duration::from_millis(2_500);
/// The highest level of features that this release knows.
const FEATURE: i32 = 1;

/// One of the nodes of a broker whose store is a database. It has joined, and serves nobody yet.
#[derive(Debug)]
pub struct Node {
    ground: Ground,
    listener: Listener,
    limits: Limits,
    tokens: Option<Arc<Tokens>>,
    beats: Beats,
    id: Uuid,
}

impl Node {
    /// Opens the port, checks the database, creates the broker in it if it is empty, and joins.
    pub async fn start(
        options: &Options,
        store: &StoreUrl,
        log: Option<log::Handle>,
    ) -> Result<Self, Error> {
        broker::refuse_reach(options)?;
        let listener = Listener::bind(options.listen, broker::tls(options)?).await?;
        Data::refuse_data(&options.data)?;
        let metrics = Metrics::default();
        metrics.watch_port(listener.stats());
        let cache = options.cache_dir.clone().unwrap_or_else(|| options.data.join("cache"));
        let scheme = if listener.is_encrypted() { "https" } else { "http" };
        let address = advertised(options, scheme, listener.local_addr());
        let name = options.node_name.clone().unwrap_or_else(machine);
        let (settings, asked) = (store.settings()?, options.clone());
        let database = tokio::task::spawn_blocking(move || connect(settings, &asked)).await??;
        if let Some(warning) = database.warning() {
            tracing::warn!("{warning}");
        }
        let (auth, tokens) = broker::shared_auth(options, &database).await?;
        let (data, directory) = (options.data.clone(), cache.clone());
        let joined = tokio::task::spawn_blocking(move || {
            Data::of_node(&data, database.shared().cluster)?;
            hapax_store::create_private_directory(&directory)
                .map_err(|error| io("create", &directory, error))?;
            let clock = Arc::new(SharedClock::start());
            let node = hapax_postgres::Node {
                name,
                address,
                release: env!("CARGO_PKG_VERSION").to_owned(),
                feature: FEATURE,
            };
            let witnesses = database.witnesses(|partition| cache_of(&directory, partition));
            let (beats, id) = Beats::start(&database, node, Arc::clone(&clock), witnesses.clone())?;
            Ok::<_, Error>((database, clock, witnesses, beats, id))
        });
        let (database, clock, witnesses, beats, id) = joined.await??;
        let limits = broker::limits(options, usize::from(database.shared().partitions));
        metrics.watch_cluster(database.clone());
        let options = Arc::new(options.clone());
        let ground = Ground { options, database, cache, witnesses, clock, auth, metrics, log };
        Ok(Self { ground, listener, limits, tokens, beats, id })
    }

    /// The address it listens on, with the chosen port if it was 0.
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    pub fn is_encrypted(&self) -> bool {
        self.listener.is_encrypted()
    }

    /// Takes part until `shutdown` is ready, and leaves in order: what it serves is released, so
    /// that another node takes over at once.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let standby = Standby::new(Reason::new("this node is starting"));
        let (metrics, auth) = (self.ground.metrics.clone(), self.ground.auth.clone());
        let standby = standby.with_metrics(metrics, auth);
        let doors = Doors::new(standby::routes(&standby));
        let (stop_port, port_stopped) = oneshot::channel::<()>();
        let port = self.listener.run(doors.clone(), self.limits, async {
            drop(port_stopped.await);
        });
        let port = tokio::spawn(port);
        let (catalog, catalogs) = watch::channel(u64::MAX);
        let following = self.tokens.map(|it| tokio::spawn(it.follow_catalog(catalogs)));
        broker::tell_manager(&[sd_notify::NotifyState::Ready]);
        let mut run = Run {
            state: State::new(self.id),
            id: self.id,
            ground: self.ground,
            beats: self.beats,
            catalog,
            standby,
            doors,
            seen: Seen::default(),
            told: Told::default(),
            serving: None,
            opening: None,
            closing: None,
            writing: None,
            is_held: false,
            full_at: Duration::ZERO,
            trouble: None,
            is_missing: false,
            is_cut_off: false,
            misses: Repeats::default(),
        };
        let mut shutdown = pin!(shutdown);
        while run.step(&mut shutdown).await {}
        broker::tell_manager(&[sd_notify::NotifyState::Stopping]);
        tracing::info!("stopping: requests in progress are finished, the partitions are released");
        run.drain();
        drop(stop_port);
        port.await?;
        if let Some(following) = following {
            following.abort();
        }
        run.leave().await
    }
}

/// What a node that takes part has.
struct Run {
    state: State,
    id: Uuid,
    ground: Ground,
    beats: Beats,
    /// Counts the changes of what nodes share, as of the last heartbeat.
    catalog: watch::Sender<u64>,
    standby: Standby,
    doors: Doors,
    /// What was read last.
    seen: Seen,
    told: Told,
    serving: Option<Serving>,
    opening: Option<JoinHandle<Result<Serving, Lost>>>,
    closing: Option<(JoinHandle<()>, Loss)>,
    /// Writes how far the partitions are, since when.
    writing: Option<(JoinHandle<()>, Instant)>,
    /// Nothing can be written: it serves, and says so to nobody.
    is_held: bool,
    /// When the database had no room last.
    full_at: Duration,
    /// Why it does not serve, if that is not simply because another node does.
    trouble: Option<Trouble>,
    /// The last heartbeat failed.
    is_missing: bool,
    /// Heartbeats have failed for so long that it does not know what became of the others.
    is_cut_off: bool,
    /// Heartbeats that failed, for the log.
    misses: Repeats,
}

/// What happened.
enum Event {
    Report(Report),
    Opened(Result<Serving, Lost>),
    Ended(Lost),
    Closed(Loss),
    Tick,
    Shutdown,
}

impl Run {
    /// Waits for one event and does what follows from it. Returns whether there will be another.
    async fn step(&mut self, shutdown: &mut (impl Future<Output = ()> + Unpin)) -> bool {
        let event = tokio::select! {
            () = shutdown => Event::Shutdown,
            report = self.beats.next() => Event::Report(report),
            opened = joined(&mut self.opening) => Event::Opened(opened),
            ended = ended(self.serving.as_ref()) => Event::Ended(ended),
            loss = closed(&mut self.closing) => Event::Closed(loss),
            () = tokio::time::sleep(TICK) => Event::Tick,
        };
        let now = boottime();
        let acts = match event {
            Event::Shutdown => return false,
            Event::Report(report) => self.heard(now, report),
            Event::Opened(opened) => self.opened(now, opened),
            Event::Ended((loss, why)) => self.lost(now, loss, why),
            Event::Closed(loss) => {
                self.state.closed(loss);
                self.beats.pause(false);
                Vec::new()
            }
            Event::Tick => self.state.tick(now),
        };
        acts.into_iter().for_each(|act| self.act(act));
        self.check_progress(now);
        self.beats.set_state(self.state.node_state());
        self.explain(now);
        true
    }

    fn heard(&mut self, now: Duration, report: Report) -> Vec<Act> {
        match report {
            Report::Registered(id) => {
                self.id = id;
                self.state.renamed(id);
                Vec::new()
            }
            Report::Beaten { begun, heartbeat, seen, set_back } => {
                self.ground.clock.read(&heartbeat, Instant::now());
                self.remember();
                let mut acts = Vec::new();
                if let Some(error) = set_back {
                    acts.extend(self.set_back(now, error.to_string()));
                }
                if let Some(meters) = self.ground.metrics.cluster() {
                    meters.beaten(&seen, self.ground.clock.offset_s(Instant::now()));
                }
                self.told.note(now, &self.seen, &seen);
                acts.extend(self.state.beaten(begun, now, &seen));
                self.seen = seen;
                self.is_missing = false;
                self.recover(now);
                let catalog = heartbeat.catalog;
                self.catalog.send_if_modified(|last| std::mem::replace(last, catalog) != catalog);
                acts
            }
            Report::Missed(why) => self.missed(now, &why),
        }
    }

    fn missed(&mut self, now: Duration, why: &Failure) -> Vec<Act> {
        if let Some(not_logged) = self.misses.count(Instant::now()) {
            tracing::warn!(%why, not_logged, "a heartbeat failed");
        }
        if let Some(meters) = self.ground.metrics.cluster() {
            meters.missed();
        }
        self.is_missing = true;
        self.state.missed(now)
    }

    /// What went wrong is over where another node serves and this one could take over from it.
    fn recover(&mut self, now: Duration) {
        let is_spare = self.state.doing() == Doing::Standby && self.view(now).serving().is_some();
        if is_spare && self.state.may_claim(now) {
            self.trouble = None;
        }
    }

    /// A node that gets nothing done is not ready, and gives up in the end.
    fn check_progress(&mut self, now: Duration) {
        let Some(serving) = &self.serving else { return };
        // A full database is full for everybody, and counts for nobody.
        let is_full = self.ground.database.is_full();
        self.full_at = if is_full { now } else { self.full_at };
        let is_late = serving.stalled() >= HELD_AFTER;
        let stalled = serving.stalled().min(now.saturating_sub(self.full_at));
        let (is_stalled, acts) = self.state.progress(now, stalled);
        let engine = serving.service.engine();
        if is_stalled != engine.is_stalled() {
            let stalled_s = stalled.as_secs();
            match is_stalled {
                true => tracing::error!(stalled_s, "a partition gets nothing done: not ready"),
                false => tracing::info!("the partitions go on"),
            }
            engine.set_stalled(is_stalled);
        }
        acts.into_iter().for_each(|act| self.act(act));
        self.hold(is_late && (is_full || self.is_held));
    }

    /// What waits for a database without room waits for as long as that takes, and so does every
    /// answer after it: callers are told instead that the outcome is not known.
    fn hold(&mut self, is_held: bool) {
        let is_serving = self.state.doing() == (Doing::Serving { is_cut_off: false });
        let Some(serving) = self.serving.as_ref().filter(|_| is_serving) else { return };
        match (self.is_held, is_held) {
            (false, true) => {
                tracing::error!("the database has no room: nothing is answered until it has some");
                self.stand_by(NO_ROOM);
            }
            (true, false) => {
                tracing::info!("the database has room again: this node serves on");
                self.doors.exchange(doors::routes(&serving.service), None);
            }
            _ => {}
        }
        self.is_held = is_held;
    }

    /// Writes how far the partitions are, at most once a second and not on this thread.
    fn remember(&mut self) {
        let is_due = |(task, since): &(JoinHandle<()>, Instant)| {
            task.is_finished() && since.elapsed() >= REMEMBER
        };
        if self.writing.as_ref().is_none_or(is_due) {
            let witnesses = self.ground.witnesses.clone();
            let task = tokio::task::spawn_blocking(move || witnesses.write());
            self.writing = Some((task, Instant::now()));
        }
    }

    /// The database lost what it had confirmed, whoever served then.
    fn set_back(&mut self, now: Duration, why: String) -> Vec<Act> {
        let before = self.state.doing();
        let acts = self.state.set_back(now);
        if self.state.doing() != before {
            tracing::error!(why, "the database was set back: this node halts");
            // The next start has to know it, too.
            self.ground.witnesses.write();
            self.trouble = Some(Trouble::of(Loss::Regressed, why));
        }
        acts
    }

    fn opened(&mut self, now: Duration, opened: Result<Serving, Lost>) -> Vec<Act> {
        match opened {
            Ok(serving) => {
                self.trouble = None;
                self.doors.exchange(doors::routes(&serving.service), None);
                self.serving = Some(serving);
                self.state.opened(now, Ok(()))
            }
            Err((loss, why)) => {
                if loss == Loss::Outrun {
                    tracing::info!(why, "the partitions were not opened");
                } else {
                    tracing::error!(why, "the partitions cannot be opened");
                    self.trouble = Some(Trouble::of(loss, why));
                }
                self.state.opened(now, Err(loss))
            }
        }
    }

    fn lost(&mut self, now: Duration, loss: Loss, why: String) -> Vec<Act> {
        if loss != Loss::Fenced {
            tracing::error!(why, "the partitions have stopped");
        }
        self.trouble = Some(Trouble::of(loss, why)).filter(|_| loss != Loss::Fenced);
        self.state.lost(now, loss)
    }

    fn act(&mut self, act: Act) {
        // The doors are exchanged by these.
        self.is_held &= matches!(act, Act::Forget(..));
        match act {
            Act::Open { epochs } => {
                tracing::info!(?epochs, "nobody serves: this node claims the partitions");
                let (told, detection) = (self.told.at(boottime()), self.told.age(boottime()));
                self.ground.clock.limit_start(told, Instant::now());
                let opening = self.ground.clone().open(self.id, epochs, detection);
                self.opening = Some(tokio::spawn(opening));
            }
            Act::Close(loss) => {
                if let Some(serving) = self.serving.take() {
                    // Whether a heartbeat told it, or a partition.
                    if loss == Loss::Fenced {
                        tracing::warn!("another node took over from this one");
                    }
                    if loss == Loss::Stalled {
                        let why = "it got nothing done although the database answers";
                        tracing::error!(why, "this node gives up, so that another one may serve");
                        self.trouble = Some(Trouble::of(loss, why.to_owned()));
                        // What hangs may never be closed: others wait for its lease only.
                        self.beats.pause(true);
                    }
                    // An idle owner has to learn that it was replaced.
                    self.ground.database.check_owners();
                    self.stand_by("another node took over from this one");
                    self.closing = Some((tokio::spawn(serving.close()), loss));
                }
            }
            Act::Suspend => {
                tracing::error!("cut off from the database: nothing is answered until it is back");
                self.stand_by("this node is cut off from the database");
            }
            Act::Resume => {
                tracing::info!("the database answers again: this node serves on");
                if let Some(serving) = &self.serving {
                    self.ground.database.check_owners();
                    self.doors.exchange(doors::routes(&serving.service), None);
                }
            }
            Act::Forget(id, heartbeat) => self.beats.forget(id, heartbeat),
        }
    }

    /// Exchanges the doors for those of a node that does not serve. What is open is answered.
    fn stand_by(&self, why: &str) {
        self.standby.set(Reason::new(why));
        self.doors.exchange(standby::routes(&self.standby), Some(why));
    }

    fn view(&self, now: Duration) -> View<'_> {
        let Self { id, state, seen, is_held, is_cut_off, .. } = self;
        let (id, is_held, is_cut_off) = (*id, *is_held, *is_cut_off);
        View { id, now, state, seen, trouble: self.trouble.as_ref(), is_held, is_cut_off }
    }

    /// Keeps what is answered by a node that does not serve.
    fn explain(&mut self, now: Duration) {
        let is_cut_off = self.is_missing && self.state.is_cut_off(now);
        // A node that serves logs it where it stops to answer.
        let is_serving = matches!(self.state.doing(), Doing::Serving { .. });
        if is_cut_off != self.is_cut_off && !is_serving {
            match is_cut_off {
                true => tracing::error!("cut off from the database: it is not known who serves"),
                false => tracing::info!("the database answers again"),
            }
        }
        self.is_cut_off = is_cut_off;
        if let Some(meters) = self.ground.metrics.cluster() {
            meters.set_halted(self.state.doing() == Doing::Halted);
        }
        let reason = self.view(now).reason();
        if *self.standby.reason() != reason {
            self.standby.set(reason);
        }
    }

    /// Grants no more leases: what is in progress may finish.
    fn drain(&self) {
        if let Some(serving) = &self.serving {
            serving.service.engine().drain();
        }
        self.beats.set_state(NodeState::Draining);
    }

    async fn leave(mut self) -> Result<(), Error> {
        self.state.stop();
        if let Some(opening) = self.opening.take()
            && let Ok(Ok(serving)) = opening.await
        {
            self.serving = Some(serving);
        }
        if let Some(serving) = self.serving.take() {
            serving.close().await;
        }
        if let Some((closing, _)) = self.closing.take() {
            closing.await?;
        }
        let witnesses = self.ground.witnesses;
        let leaving = move || {
            witnesses.write();
            self.beats.leave();
        };
        tokio::task::spawn_blocking(leaving).await?;
        match (self.state.doing(), self.trouble) {
            (Doing::Halted, Some(trouble)) => Err(Error::Halted(trouble.why)),
            _ => {
                tracing::info!("stopped; everything is in the database");
                Ok(())
            }
        }
    }
}

async fn joined(opening: &mut Option<JoinHandle<Result<Serving, Lost>>>) -> Result<Serving, Lost> {
    let Some(task) = opening else { return pending().await };
    let opened = task.await;
    *opening = None;
    opened.unwrap_or_else(|error| Err((Loss::Failed, format!("a task failed: {error}"))))
}

async fn ended(serving: Option<&Serving>) -> Lost {
    match serving {
        Some(serving) => serving.ended().await,
        None => pending().await,
    }
}

async fn closed(closing: &mut Option<(JoinHandle<()>, Loss)>) -> Loss {
    let Some((task, loss)) = closing else { return pending().await };
    let loss = *loss;
    if let Err(error) = task.await {
        tracing::error!(%error, "the partitions were not closed in order");
    }
    *closing = None;
    loss
}

/// What a new broker gets.
/// Connects to the node's own broker, or to any, and creates one where there is none, if this node
/// has none yet. Blocks.
fn connect(settings: Settings, options: &Options) -> Result<Database, Error> {
    let Some(broker) = Data::broker_of_node(&options.data)? else {
        return Ok(Database::connect(settings, Some(&creation(options.partitions)?))?);
    };
    let elsewhere = |found| Error::Elsewhere { directory: options.data.clone(), broker, found };
    // Its own broker is in another database, or was removed: an empty one would accept again what
    // that one has done.
    let database = Database::connect(settings, None).map_err(|refused| match refused {
        Refused::Empty { database } => elsewhere(format!("{database} holds no broker")),
        other => other.into(),
    })?;
    match database.shared().cluster {
        found if found == broker => Ok(database),
        found => Err(elsewhere(format!("{} holds the broker {found}", database.shown()))),
    }
}

fn creation(partitions: u16) -> Result<Create, Error> {
    let secret = || {
        let mut secret = [0; 32];
        let filled = getrandom::fill(&mut secret).map_err(std::io::Error::other);
        filled.map_err(|error| io("make a secret for", Path::new("the database"), error))?;
        Ok::<_, Error>(Secret(secret))
    };
    let (fingerprints, leases, links) = (Some(secret()?), secret()?, secret()?);
    Ok(Create { partitions, fingerprints, leases, links })
}

fn io(doing: &'static str, path: &Path, error: std::io::Error) -> Error {
    Error::Data(crate::engine::Error::Io { doing, path: path.to_owned(), error })
}

/// Where others reach this node.
fn advertised(options: &Options, scheme: &str, listen: SocketAddr) -> String {
    match &options.advertise {
        Some(address) if address.contains("://") => address.clone(),
        Some(address) => format!("{scheme}://{address}"),
        None if listen.ip().is_unspecified() => {
            format!("{scheme}://{}:{}", machine(), listen.port())
        }
        None => format!("{scheme}://{listen}"),
    }
}

/// The name of this machine.
fn machine() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
