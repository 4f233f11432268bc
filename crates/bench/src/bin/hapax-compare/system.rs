//! The systems under comparison.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use hapax_bench::cpu::Times;
use hapax_bench::server::Server;
use hapax_bench::{Ledger, Messages};

use crate::hapax::{self, Binary, Hapax};
use crate::postgres::Postgres;
use crate::redis::Redis;

/// A queue that can run a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum System {
    Hapax(Binary),
    Redis { remembers_keys: bool },
    Postgres { remembers_keys: bool },
}

impl System {
    /// The name for `--only` and in the table.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Hapax(binary) => &binary.name,
            Self::Redis { remembers_keys: false } => "redis",
            Self::Redis { remembers_keys: true } => "redis-keys",
            Self::Postgres { remembers_keys: false } => "postgres",
            Self::Postgres { remembers_keys: true } => "postgres-keys",
        }
    }

    /// What it is, for the table.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Hapax(binary) if binary.name == hapax::NAME => "Hapax, exactly-once".to_owned(),
            Self::Hapax(binary) => format!("Hapax {}, exactly-once", binary.name),
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
        !matches!(self, Self::Hapax(_))
    }

    /// Starts its server, on a free port and with a new directory, and checks that it syncs
    /// everything before it confirms.
    pub(crate) fn start(&self, options: &Options) -> Result<Box<dyn Running>> {
        Ok(match self {
            Self::Hapax(binary) => Box::new(Hapax::start(&binary.path, options)?),
            Self::Redis { remembers_keys } => Box::new(Redis::start(*remembers_keys, options)?),
            Self::Postgres { remembers_keys } => {
                Box::new(Postgres::start(*remembers_keys, options)?)
            }
        })
    }
}

/// A system that was started.
pub(crate) trait Running {
    fn server(&self) -> &Server;

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
    pub(crate) cpu: Times,
}

impl Measured {
    /// The run is over; `before` was read when it began.
    pub(crate) fn since(before: Times, server: &Server, ledger: Ledger) -> Result<Self> {
        let cpu = Times::now(Some(server.process_id())).since(before);
        let time = ledger.close()?;
        ensure!(cpu.server.is_some(), "the process of the server is gone");
        Ok(Self { time, cpu })
    }
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
    #[arg(long, default_value = ".", hide_default_value = true)]
    pub(crate) dir: PathBuf,
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
