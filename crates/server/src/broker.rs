//! Starts and stops a broker: data, engine, service, HTTP and gRPC, port. A stop goes in the
//! reverse order: no new leases, connections finish their requests, the writers write everything to
//! disk, and then the process may end. What takes too long is aborted; nothing that was confirmed
//! is lost.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax_core::Configure;
use hapax_postgres::{Database, Uuid};
use tokio::task::JoinSet;

use crate::auth::{self, Auth, SharedTokens, Tokens};
use crate::engine::{self, Data, Engine, Stopped};
use crate::lint::{self, Finding, Severity};
use crate::listen::{BindError, Limits, Listener, Tls, TlsError, TlsFiles};
use crate::metrics::Metrics;
use crate::options::{self, Options};
use crate::service::{self, Ceiling, Service};
use crate::tenants::{self, Tenants};
use crate::{doors, log};

/// The part of the stop timeout for connections; the rest is for the writers.
const DRAIN_SHARE: f64 = 0.6;

/// Open files that are not for connections: runtime, log, settings, a backup.
const FILES_RESERVED: usize = 64;
/// Open files of one partition: segments, and runs that are read, written and merged.
const FILES_PER_PARTITION: usize = 96;
/// The fewest connections, even if there are fewer files than the reserves need.
const CONNECTIONS_MIN: usize = 8;

/// A broker that is ready, but serves nobody yet.
#[derive(Debug)]
pub struct Broker {
    service: Service,
    listener: Listener,
    limits: Limits,
    tokens: Option<Arc<Tokens>>,
}

/// Why a broker cannot start, or had to stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Options that would leave the broker open to other machines.
    #[error("{}", lines(.0))]
    Options(Vec<Finding>),
    #[error(transparent)]
    Data(#[from] engine::Error),
    #[error(transparent)]
    Tokens(#[from] auth::Error),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Url(#[from] hapax_postgres::BadUrl),
    #[error(transparent)]
    Store(#[from] hapax_postgres::Refused),
    #[error(
        "{} is the directory of a node of the broker {broker}, and {found}. Nothing was changed. \
         Check the store's URL. A node that is to leave its broker gets an empty --data",
        directory.display()
    )]
    Elsewhere { directory: PathBuf, broker: Uuid, found: String },
    #[error("this node cannot join the others: {0}. Nothing was changed")]
    Join(#[from] hapax_postgres::Failure),
    /// The store was set back.
    #[error("halted: {0}")]
    Halted(String),
    #[error("the queue {queue} of the settings cannot be created or changed: {why}")]
    Queue { queue: String, why: String },
    #[error(
        "{0}; nothing was confirmed after that. Start the broker again: it recovers from its data"
    )]
    Failed(Stopped),
    #[error("a task of the broker failed: {0}")]
    Lost(#[from] tokio::task::JoinError),
}

impl Broker {
    /// Opens the data, creates the queues of the options, and opens the port.
    pub async fn start(options: &Options, log: Option<log::Handle>) -> Result<Self, Error> {
        refuse_reach(options)?;
        let tls = tls(options)?;
        // The port first: recovery may take long, and a second broker started by mistake is
        // detected at once.
        let listener = Listener::bind(options.listen, tls).await?;
        let metrics = Metrics::default();
        let engine = open(options, &metrics).await?;
        let (auth, tokens) = auth(options, engine.data().path())?;
        declare(&engine, options).await?;
        let service = service_on(engine, options, auth, metrics, log);
        service.metrics().watch_port(listener.stats());
        let limits = limits(options, service.engine().partitions());
        Ok(Self { service, listener, limits, tokens })
    }

    /// The address it listens on, with the chosen port if it was 0.
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    pub fn is_encrypted(&self) -> bool {
        self.listener.is_encrypted()
    }

    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Serves until `shutdown` is ready or a partition fails, and stops in order.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let engine = self.service.engine().clone();
        let doors = doors::routes(&self.service);
        let mut tasks = JoinSet::new();
        tasks.spawn(housekeep(self.service.clone()));
        if let Some(tokens) = self.tokens {
            tasks.spawn(tokens.follow());
        }
        tell_manager(&[sd_notify::NotifyState::Ready]);
        let failed = engine.clone();
        let mut failure = None;
        let until = async {
            tokio::select! {
                () = shutdown => {}
                why = failed.failed() => failure = Some(why),
            }
            tell_manager(&[sd_notify::NotifyState::Stopping]);
            tracing::info!("stopping: no new leases are given, requests in progress are finished");
            failed.drain();
        };
        self.listener.run(doors, self.limits, until).await;
        tasks.shutdown().await;
        let stopping = engine.clone();
        tokio::task::spawn_blocking(move || stopping.stop()).await?;
        match failure {
            Some(why) => Err(Error::Failed(why)),
            None => {
                tracing::info!("stopped; all data is on disk");
                Ok(())
            }
        }
    }
}

/// Refuses options that would leave the broker open to other machines.
pub(crate) fn refuse_reach(options: &Options) -> Result<(), Error> {
    let mut refused = lint::reach(options);
    refused.retain(|finding| finding.severity() == Severity::Error);
    if refused.is_empty() { Ok(()) } else { Err(Error::Options(refused)) }
}

/// How callers are authenticated, and the tokens to follow.
pub(crate) fn auth(options: &Options, data: &Path) -> Result<(Auth, Option<Arc<Tokens>>), Error> {
    match options.auth {
        options::Auth::Off => Ok((Auth::off(), None)),
        options::Auth::Tokens => {
            let tokens = Tokens::open(data)?;
            if tokens.is_empty() {
                tracing::warn!(
                    "there are no tokens, so every request is refused: create one with `hapax \
                     token create`"
                );
            }
            Ok(by(tokens))
        }
    }
}

/// The same for a node, whose tokens are in the database.
pub(crate) async fn shared_auth(
    options: &Options,
    database: &Database,
) -> Result<(Auth, Option<Arc<Tokens>>), Error> {
    match options.auth {
        options::Auth::Off => Ok((Auth::off(), None)),
        options::Auth::Tokens => {
            let (shared, data) = (SharedTokens::new(database.clone()), options.data.clone());
            let opened = tokio::task::spawn_blocking(move || {
                shared.adopt_file(&data)?;
                Tokens::shared(shared)
            });
            let tokens = opened.await??;
            if tokens.is_empty() {
                tracing::warn!(
                    "the database has no tokens, so every request is refused: create one with \
                     `hapax token create --store URL`"
                );
            }
            Ok(by(tokens))
        }
    }
}

fn by(tokens: Tokens) -> (Auth, Option<Arc<Tokens>>) {
    let tokens = Arc::new(tokens);
    (Auth::Tokens(Arc::clone(&tokens)), Some(tokens))
}

pub(crate) fn service_on(
    engine: Engine,
    options: &Options,
    auth: Auth,
    metrics: Metrics,
    log: Option<log::Handle>,
) -> Service {
    let service = service::Options {
        auth,
        tenants: tenants(options),
        ceilings: ceilings(options),
        metrics,
        log,
        budget_bytes: usize::try_from(options.request_bytes).unwrap_or(usize::MAX),
    };
    Service::new(engine, service)
}

/// The limits of connections.
pub(crate) fn limits(options: &Options, partitions: usize) -> Limits {
    Limits {
        connections_max: connections_max(
            options.max_connections as usize,
            open_files_max(),
            partitions,
        ),
        drain: options.stop_timeout.mul_f64(DRAIN_SHARE),
        ..Limits::default()
    }
}

/// As many connections as the limit of open files allows, with a reserve: a partition that cannot
/// open files accepts no more messages.
fn connections_max(wanted: usize, files: usize, partitions: usize) -> usize {
    let reserve = FILES_RESERVED + partitions.saturating_mul(FILES_PER_PARTITION);
    let most = files.saturating_sub(reserve).max(CONNECTIONS_MIN);
    if most < wanted {
        tracing::warn!(
            files,
            connections = most,
            "the limit of open files allows fewer connections than max_connections; raise it \
             (ulimit -n, LimitNOFILE)"
        );
    }
    wanted.min(most)
}

fn lines(findings: &[Finding]) -> String {
    findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// How many files the process may have open.
fn open_files_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

async fn open(options: &Options, metrics: &Metrics) -> Result<Engine, Error> {
    let (path, metrics) = (options.data.clone(), metrics.clone());
    let options = engine::Options {
        partitions: options.partitions,
        memory_bytes: usize::try_from(options.memory_bytes).unwrap_or(usize::MAX),
    };
    let opened = tokio::task::spawn_blocking(move || {
        let started = Instant::now();
        let data = Data::open(&path, options.partitions)?;
        let engine = Engine::open(data, options, Box::new(move |_, beat| metrics.beat(beat)))?;
        let took_ms = started.elapsed().as_millis() as u64;
        tracing::info!(data = %path.display(), took_ms, "the data is open");
        Ok::<_, engine::Error>(engine)
    });
    Ok(opened.await??)
}

/// Creates or changes the queues that the options name. Changes made by requests are reverted and
/// logged.
pub(crate) async fn declare(engine: &Engine, options: &Options) -> Result<(), Error> {
    for declared in &options.queues {
        let queue = declared.name.clone();
        let name = queue.queue.to_string();
        let before = engine.show(&queue).await.map_err(Error::Failed)?.ok();
        let configure = Configure { queue, config: declared.config.clone(), if_version: None };
        let told = engine.configure(configure).await.map_err(Error::Failed)?;
        if let Err(refusal) = told {
            return Err(Error::Queue { queue: name, why: refusal.to_string() });
        }
        if let Some(before) = before
            && let fields = doors::config::differing(&before.config, &declared.config)
            && !fields.is_empty()
        {
            let fields = fields.join(", ");
            tracing::warn!(
                queue = name,
                fields,
                "the settings overwrote the queue's configuration"
            );
        }
    }
    Ok(())
}

/// Reads the files of TLS that the options name, as a start does.
pub fn check_files(options: &Options) -> Result<(), TlsError> {
    tls(options).map(drop)
}

pub(crate) fn tls(options: &Options) -> Result<Option<Tls>, TlsError> {
    let (Some(certificate), Some(key)) = (&options.tls_cert, &options.tls_key) else {
        return Ok(None);
    };
    let files = TlsFiles {
        certificate: certificate.clone(),
        key: key.clone(),
        client_ca: options.tls_client_ca.clone(),
    };
    Tls::load(files).map(Some)
}

fn tenants(options: &Options) -> Tenants {
    let given = options.tenants.iter().map(|(name, limits)| {
        let limits = tenants::Limits {
            sends_per_s: limits.sends_per_s.map(u64::from),
            max_queues: limits.max_queues.map(u64::from),
        };
        (name.as_str().into(), limits)
    });
    Tenants::new(tenants::Limits::default(), given.collect(), Instant::now())
}

fn ceilings(options: &Options) -> BTreeMap<Box<str>, Ceiling> {
    let ceilings = options.tenants.iter().map(|(name, limits)| {
        let options::Limits { max_messages, max_bytes, .. } = *limits;
        (name.as_str().into(), Ceiling { max_messages, max_bytes })
    });
    ceilings.collect()
}

/// The work done every second.
pub(crate) async fn housekeep(service: Service) {
    let mut every = tokio::time::interval(Duration::from_secs(1));
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        service.weigh_tenants().await;
    }
}

/// Notifies systemd, if it started us.
pub(crate) fn tell_manager(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "cannot notify the service manager");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_the_store_its_files() {
        assert_eq!(connections_max(4_096, 20_000, 1), 4_096);
        assert_eq!(connections_max(4_096, usize::MAX, 16), 4_096);
        assert_eq!(connections_max(4_096, 1_024, 1), 864);
        assert_eq!(connections_max(4_096, 1_024, 4), 576);
        assert_eq!(connections_max(4_096, 100, 4), CONNECTIONS_MIN);
    }

    #[tokio::test]
    async fn a_broker_does_not_start_open_to_other_machines() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        let listen = "0.0.0.0:0".parse().unwrap();
        let options = Options { listen, data: data.clone(), ..Options::default() };
        let Err(Error::Options(refused)) = Broker::start(&options, None).await else {
            panic!("it started");
        };
        assert_eq!(refused.iter().map(|it| it.rule.name()).collect::<Vec<_>>(), ["no-tls"]);
        assert!(!data.exists(), "nothing was made");
    }
}
