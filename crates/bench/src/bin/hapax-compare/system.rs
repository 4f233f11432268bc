//! The systems under comparison.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use hapax_bench::cpu::{self, Times};
use hapax_bench::server::Server;
use hapax_bench::{Ledger, Messages};

use crate::hapax::{Binary, Hapax, Place};
use crate::postgres::Postgres;
use crate::postgres::cluster::Cluster;
use crate::redis::Redis;

/// A queue that can run a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum System {
    Hapax(Binary, Place),
    Redis { remembers_keys: bool },
    Postgres { remembers_keys: bool },
}

impl System {
    /// The name for `--only` and in the table.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Hapax(binary, _) => &binary.name,
            Self::Redis { remembers_keys: false } => "redis",
            Self::Redis { remembers_keys: true } => "redis-keys",
            Self::Postgres { remembers_keys: false } => "postgres",
            Self::Postgres { remembers_keys: true } => "postgres-keys",
        }
    }

    /// What it is, for the table.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Hapax(binary, place) if place.names(&binary.name) => {
                format!("Hapax, exactly-once{}", place.describe())
            }
            Self::Hapax(binary, place) => {
                format!("Hapax {}, exactly-once{}", binary.name, place.describe())
            }
            Self::Redis { remembers_keys: false } => "Redis Streams".to_owned(),
            Self::Redis { remembers_keys: true } => {
                "Redis Streams, keys by SET NX in a script".to_owned()
            }
            Self::Postgres { remembers_keys: false } => "PostgreSQL SKIP LOCKED".to_owned(),
            Self::Postgres { remembers_keys: true } => {
                "PostgreSQL SKIP LOCKED, unique keys".to_owned()
            }
        }
    }

    /// Whether Hapax is compared with it.
    pub(crate) fn is_peer(&self) -> bool {
        !matches!(self, Self::Hapax(..))
    }

    /// Starts its server, on a free port and with a new directory, and checks that it syncs
    /// everything before it confirms.
    pub(crate) fn start(&self, options: &Options) -> Result<Box<dyn Running>> {
        Ok(match self {
            Self::Hapax(binary, place) => Box::new(Hapax::start(&binary.path, *place, options)?),
            Self::Redis { remembers_keys } => Box::new(Redis::start(*remembers_keys, options)?),
            Self::Postgres { remembers_keys } => {
                Box::new(Postgres::start(*remembers_keys, options)?)
            }
        })
    }
}

/// A system that was started.
pub(crate) trait Running {
    /// The process that clients talk to.
    fn server(&self) -> &Server;

    /// The databases that its data is in: one that takes writes, then its standby.
    fn databases(&self) -> &[Cluster] {
        &[]
    }

    /// Runs the load in an empty queue and measures it. Every message is confirmed, verified and
    /// removed, and if keys are remembered, a repeated one is refused.
    fn run(&self, load: &Load) -> Result<Measured>;
}

/// The messages of one run.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) messages: Messages,
    /// Number of messages that may be sent and not yet settled: at this many, producers wait.
    pub(crate) backlog: u64,
}

impl Load {
    /// Starts the clock.
    pub(crate) fn ledger(&self) -> Ledger {
        Ledger::open(self.messages.clone(), self.backlog)
    }
}

/// The measurements of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    /// The time from the first send to the confirmation of the last settle.
    pub(crate) time: Duration,
    /// In that time: the client, and the server with its databases.
    pub(crate) cpu: Times,
    pub(crate) database: Option<Spent>,
}

/// What a run cost the databases.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spent {
    /// CPU until the last settle was confirmed.
    pub(crate) cpu: Duration,
    /// CPU until everything was idle again: checkpoints, merges and vacuums are in it.
    pub(crate) cpu_to_idle: Duration,
    /// Bytes of the log until then, of the database that takes writes.
    pub(crate) wal_bytes: u64,
}

impl Measured {
    /// The run is over; `before` was read when it began.
    pub(crate) fn since(before: Times, server: &Server, ledger: Ledger) -> Result<Self> {
        let cpu = Times::now(Some(server.process_id())).since(before);
        let time = ledger.close()?;
        ensure!(cpu.server.is_some(), "the process of the server is gone");
        Ok(Self { time, cpu, database: None })
    }
}

/// The counters of a system with a database at the begin of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before {
    client: Duration,
    server: Duration,
    database: Duration,
    wal_bytes: u64,
}

impl Before {
    pub(crate) async fn now(system: &dyn Running) -> Result<Self> {
        let wal_bytes = wal_bytes(system).await?;
        let Times { client, .. } = Times::now(None);
        let (server, database) = spent(system)?;
        Ok(Self { client, server, database, wal_bytes })
    }

    /// The run is over. Waits until everything is idle.
    pub(crate) async fn measured(self, system: &dyn Running, ledger: Ledger) -> Result<Measured> {
        let (server, database) = spent(system)?;
        let client = Times::now(None).client.saturating_sub(self.client);
        let cpu = Times { client, server: Some(server.saturating_sub(self.server)) };
        let time = ledger.close()?;
        if system.databases().is_empty() {
            return Ok(Measured { time, cpu, database: None });
        }
        wait_until_idle(system)?;
        let (_, at_idle) = spent(system)?;
        let spent = Spent {
            cpu: database.saturating_sub(self.database),
            cpu_to_idle: at_idle.saturating_sub(self.database),
            wal_bytes: wal_bytes(system).await?.saturating_sub(self.wal_bytes),
        };
        Ok(Measured { time, cpu, database: Some(spent) })
    }
}

/// CPU time of the server with its databases, and of its databases.
fn spent(system: &dyn Running) -> Result<(Duration, Duration)> {
    let mut databases = Duration::ZERO;
    for database in system.databases() {
        databases += database.cpu()?;
    }
    let own = system.server().process_id();
    let is_database = system.databases().iter().any(|it| it.server().process_id() == own);
    let server = if is_database { Duration::ZERO } else { cpu::of_family(own)? };
    Ok((server + databases, databases))
}

async fn wal_bytes(system: &dyn Running) -> Result<u64> {
    match system.databases().first() {
        Some(database) => database.wal_bytes().await,
        None => Ok(0),
    }
}

/// Waits until the server and its databases are idle.
pub(crate) fn wait_until_idle(system: &dyn Running) -> Result<()> {
    cpu::wait_until_idle(system.server().process_id())?;
    for database in system.databases() {
        cpu::wait_until_idle(database.server().process_id())?;
    }
    Ok(())
}

/// Options for all systems; the defaults are what was found best for each.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Connections that send [default: what was found best for each system].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) producers: Option<u16>,
    /// Connections that receive and settle [default: what was found best for each system].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) workers: Option<u16>,
    /// Messages per batch [default: what was found best; 100 on PostgreSQL].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) batch: Option<u16>,
    /// Batches of one producer on their way [default: what was found best for each system].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) pipeline: Option<u16>,
    /// Where to put the data, which is removed afterwards [default: here]. Choose the disk that
    /// is meant: a directory in memory syncs for nothing.
    #[arg(long, global = true, default_value = ".", hide_default_value = true)]
    pub(crate) dir: PathBuf,
    /// Partitions of Hapax, on disk and on PostgreSQL [default: its own default].
    #[arg(long, global = true, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) partitions: Option<u16>,
}

/// How a system is driven.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    pub(crate) producers: u16,
    pub(crate) workers: u16,
    pub(crate) batch: u16,
    pub(crate) pipeline: u16,
}

impl Tuning {
    pub(crate) fn or(self, options: &Options) -> Self {
        Self {
            producers: options.producers.unwrap_or(self.producers),
            workers: options.workers.unwrap_or(self.workers),
            batch: options.batch.unwrap_or(self.batch),
            pipeline: options.pipeline.unwrap_or(self.pipeline),
        }
    }
}
