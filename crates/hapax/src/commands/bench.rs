//! `hapax bench`: producers and workers over real connections, every message verified. A life is a
//! confirmed send, a delivery and a confirmed settle. The load, the ledger and the other
//! measurements are in crates/bench.

mod report;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use hapax_bench::Ledger;
use hapax_bench::cpu::Times;
use hapax_bench::disk::{Probe, Syncs};
use hapax_bench::interrupt::{self, unless_interrupted};
use hapax_bench::messages::{Messages, NUMBER_BYTES};
use hapax_bench::server::{Directory, Server};
use hapax_bench::wire::{self, Shape};
use hapax_client::Admin;
use hapax_core::limits;

use crate::counts;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::{Output, progress};
use crate::session::Connection;
use report::Report;

/// The disk is measured with this many syncs of the size of a small journal batch, with at most
/// this pause between them.
const SYNCS: u64 = 300;
const SYNC_BYTES: u64 = 4_096;
const PAUSE_MAX: Duration = Duration::from_millis(10);

pub(crate) const HELP: &str = "A life is a confirmed send, a delivery and a confirmed settle of \
one message. Without --server, a broker is started on this machine with its \
data in --dir, and removed afterwards. The sync latency of that disk is measured before and \
after, with --latency at the same rate.

Examples:
  hapax bench
  hapax bench --producers 4 --workers 4 --size 1024 --count 2000000 -o json
  hapax bench --dedup off
  hapax bench --count 1200000 --backlog 1000000 --pile-up
  hapax bench --latency --rate 200 --count 4000
  hapax bench --server http://127.0.0.1:4747 --count 100000";

#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// Number of producers, each with its own connection.
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    #[arg(value_parser = counts::any::<usize>)]
    producers: usize,
    /// Number of workers, each with its own connection.
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    #[arg(value_parser = counts::any::<usize>)]
    workers: usize,
    /// Size of a body, at least 8.
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    size: usize,
    /// Total number of messages.
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000)]
    #[arg(value_parser = counts::any::<u64>)]
    count: u64,
    /// How many unanswered messages a producer may have, and how many unsettled ones a worker.
    #[arg(long, value_name = "COUNT", default_value_t = 4_096)]
    #[arg(value_parser = counts::any::<usize>)]
    window: usize,
    /// How many messages may be sent and not yet done. Above that, producers wait for workers.
    #[arg(long, value_name = "COUNT", default_value_t = 32_768)]
    #[arg(value_parser = counts::any::<u64>)]
    backlog: u64,
    /// Start the workers when the backlog is full, so that a queue of that length is drained.
    #[arg(long, conflicts_with = "latency")]
    pile_up: bool,
    /// `off` sends messages without keys to an at-least-once queue.
    #[arg(long, value_name = "ON|OFF", value_parser = ["on", "off"], default_value = "on")]
    dedup: String,
    /// Send at a fixed rate, and measure latencies from the time at which each message was due.
    #[arg(long)]
    latency: bool,
    /// Messages per second, with --latency.
    #[arg(long, value_name = "COUNT", default_value_t = 100, requires = "latency")]
    #[arg(value_parser = counts::any::<u64>)]
    rate: u64,
    /// The same as -o json.
    #[arg(long, hide = true)]
    json: bool,
    /// The address of a running broker. A queue is created for the run and deleted afterwards.
    /// HAPAX_SERVER is not read, so that no broker is loaded by mistake.
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// The API token for that broker.
    #[arg(long, env = "HAPAX_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// The process id of that broker, if it runs on this machine, to measure its CPU time.
    #[arg(long, value_name = "PID", requires = "server")]
    server_pid: Option<u32>,
    /// The directory for the data of the broker that is started, on the disk to measure.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Number of partitions of that broker.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    #[arg(value_parser = counts::up_to::<u16>(limits::PARTITIONS_MAX.into()))]
    partitions: u16,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn run(bench: &Bench) -> Result<Exit, Failure> {
    check(bench)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    interrupt::on_signal()?;
    runtime.block_on(measure(bench))
}

impl Bench {
    fn has_keys(&self) -> bool {
        self.dedup == "on"
    }

    fn shape(&self) -> Shape {
        Shape {
            producers: self.producers,
            workers: self.workers,
            window: self.window,
            batch: 1,
            has_keys: self.has_keys(),
            rate: self.latency.then_some(self.rate),
            piles_up: self.pile_up,
        }
    }

    /// Without keys nothing is deduplicated; everything else is the same.
    fn rules(&self) -> &'static str {
        match self.has_keys() {
            true => r#"{"max_body_bytes":16777216}"#,
            false => r#"{"guarantee":"at-least-once","max_body_bytes":16777216}"#,
        }
    }

    /// Probes the disk at the rate of the load, if there is one.
    fn probe(&self) -> Probe {
        let pause = Duration::from_secs_f64(1.0 / self.rate as f64).min(PAUSE_MAX);
        let pause = self.latency.then_some(pause);
        Probe { writes: SYNCS, write_bytes: SYNC_BYTES, pause }
    }
}

fn check(bench: &Bench) -> Result<(), Failure> {
    if bench.size < NUMBER_BYTES {
        return Err(Failure::usage("--size must be at least 8: a body carries its number"));
    }
    Ok(())
}

async fn measure(bench: &Bench) -> Result<Exit, Failure> {
    let (own, server) = match &bench.server {
        Some(server) => (None, server.clone()),
        None => {
            let (own, url) = start_broker(bench)?;
            (Some(own), url)
        }
    };
    let connection = Connection::to(server, bench.token.clone());
    let admin = Admin::new(connection.client()?);
    // Only a broker of its own is about to start.
    let ready = async {
        match own {
            Some(_) => admin.client().ready(Duration::from_secs(30)).await,
            None => admin.queues().await.map(drop),
        }
    };
    unless_interrupted(ready).await?.map_err(|error| {
        Failure::from(error).next("check --server, or leave it out to start a broker for the run")
    })?;
    let queue = format!("bench-{}", uuid::Uuid::now_v7().simple());
    admin.put_queue(&queue, bench.rules(), None).await?;
    let measured = unless_interrupted(live(bench, &connection, &queue, own.as_ref())).await;
    // The run is over either way; its queue must not stay in a foreign broker.
    if own.is_none() {
        admin.delete_queue(&queue).await?;
    }
    let report = measured??;
    let screen = bench.output.screen();
    match bench.json || screen.is_json() {
        true => screen.json(&report)?,
        false => report.print(screen)?,
    }
    Ok(if report.verified { Exit::Ok } else { Exit::Failure })
}

/// A broker for this run: another process of this program.
fn start_broker(bench: &Bench) -> Result<(Server, String), Failure> {
    let directory = Directory::create(&bench.dir, "bench")?;
    let partitions = bench.partitions.to_string();
    let program = std::env::current_exe()?;
    Ok(Server::broker(&program, directory, &["--partitions", &partitions])?)
}

async fn live(
    bench: &Bench,
    connection: &Connection,
    queue: &str,
    own: Option<&Server>,
) -> Result<Report, Failure> {
    let mut syncs = Syncs::default();
    if let Some(own) = own {
        syncs.measure(own.directory(), bench.probe())?;
    }
    let process = own.map(Server::process_id).or(bench.server_pid);
    // At a fixed rate producers do not wait for workers.
    let backlog = if bench.latency { u64::MAX } else { bench.backlog };
    let messages = Messages::new(bench.count, bench.size, 0);
    let before = Times::now(process);
    let ledger = Arc::new(Ledger::open_with_ids(messages, backlog));
    let watching = tokio::spawn(watch(Arc::clone(&ledger)));
    let connect = || connection.client().map_err(|failure| anyhow!(failure.what));
    let lived = wire::run(bench.shape(), queue, &ledger, connect).await;
    watching.abort();
    let lived = lived.map_err(|error| match own.map(Server::end_of_log) {
        Some(log) if !log.is_empty() => {
            error.context(format!("the last lines of the broker's log:\n{log}"))
        }
        _ => error,
    })?;
    let cpu = Times::now(process).since(before);
    if let Some(own) = own {
        syncs.measure(own.directory(), bench.probe())?;
    }
    Ok(Report::new(bench, &ledger, &lived, cpu, &syncs))
}

/// Shows a progress bar on a terminal.
async fn watch(ledger: Arc<Ledger>) {
    let count = ledger.messages().count();
    let bar = progress(count, "{bar:40} {human_pos}/{human_len} lives, {rate}, {eta} left");
    let mut every = tokio::time::interval(Duration::from_millis(200));
    loop {
        every.tick().await;
        bar.set_position(ledger.done());
        if ledger.done() >= count {
            bar.finish_and_clear();
            return;
        }
    }
}
