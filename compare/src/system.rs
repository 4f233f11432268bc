//! What a system under comparison has to do.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::load::Load;

/// A queue that can live the lives of a load.
pub(crate) trait System {
    /// As `--only` and the table name it.
    fn name(&self) -> &'static str;

    /// What it is, for the table.
    fn describe(&self) -> &'static str;

    /// Starts its server, on a free port and with a new directory, and demands of it that
    /// everything is synced before it is confirmed.
    fn start(&mut self) -> Result<()>;

    /// Lives all lives of the load in an empty queue and says how long it took. Every message
    /// is confirmed, verified and gone in the end, and where keys are remembered, a repeated
    /// one is refused.
    fn run(&mut self, load: Load) -> Result<Duration>;
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
