//! What a system under comparison has to do.

use std::path::PathBuf;
use std::process;
use std::time::Duration;

use anyhow::Result;

use crate::cpu;
use crate::load::Load;

/// A queue that can live the lives of a load.
pub(crate) trait System {
    /// As `--only` and the table name it.
    fn name(&self) -> &'static str;

    /// What it is, for the table.
    fn describe(&self) -> &'static str;

    /// Whether Hapax is compared with it.
    fn is_peer(&self) -> bool;

    /// Starts its server, on a free port and with a new directory, and demands of it that
    /// everything is synced before it is confirmed.
    fn start(&mut self) -> Result<()>;

    /// The process of its server, once it was started.
    fn process_id(&self) -> Option<u32>;

    /// Lives all lives of the load in an empty queue and says what it took. Every message
    /// is confirmed, verified and gone in the end, and where keys are remembered, a repeated
    /// one is refused.
    fn run(&mut self, load: Load) -> Result<Measured>;
}

/// What the lives of one run took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    /// From the first send to the confirmation of the last settle.
    pub(crate) time: Duration,
    /// CPU time of the server with all its processes.
    pub(crate) server_cpu: Duration,
    /// CPU time of producers and workers: this program.
    pub(crate) client_cpu: Duration,
}

/// The CPU time that was used before a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before {
    server: u32,
    server_cpu: Duration,
    client_cpu: Duration,
}

impl Before {
    pub(crate) fn look(server: u32) -> Result<Self> {
        let client_cpu = cpu::used_by(process::id())?;
        Ok(Self { server, server_cpu: cpu::used_by_family(server)?, client_cpu })
    }

    /// The lives are over and took that long.
    pub(crate) fn measured(self, time: Duration) -> Result<Measured> {
        let now = Self::look(self.server)?;
        Ok(Measured {
            time,
            server_cpu: now.server_cpu.saturating_sub(self.server_cpu),
            client_cpu: now.client_cpu.saturating_sub(self.client_cpu),
        })
    }
}

/// What the user may set for all systems; what is not set is what was found best for each.
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
    /// The release binary of Hapax [default: beside this program].
    #[arg(long, value_name = "PATH")]
    pub(crate) hapax: Option<PathBuf>,
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
