//! `hapax bench`: producers and workers over real connections, every message verified.
//!
//! A life is a send that was confirmed, a delivery, and a settle that was confirmed. Without
//! `--latency` as many lives as go through are lived; with it messages are sent at a fixed rate,
//! and latencies count from the moment a message should have been sent, whether or not the one
//! before was answered: a broker that stalls cannot hide it.

mod broker;
mod cpu;
mod disk;
mod ledger;
mod load;
mod report;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use hapax_client::{Admin, Client};
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::{Output, progress};
use crate::session::Connection;
use broker::Own;
use ledger::Ledger;
use load::{Load, Shape};
use report::Report;

pub(crate) const HELP: &str = "Without --server a broker is started for it, on this machine, with \
its data in --dir, and removed afterwards; the sync latency of that disk is measured before and \
after, with --latency at the same rate.

Examples:
  hapax bench
  hapax bench --producers 4 --workers 4 --size 1024 --count 2000000 -o json
  hapax bench --dedup off
  hapax bench --latency --rate 200 --count 4000
  hapax bench --server http://127.0.0.1:4747 --count 100000";

#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// Producers, with a connection each.
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    producers: usize,
    /// Workers, with a connection each.
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    workers: usize,
    /// Bytes of a body, at least 8.
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    size: usize,
    /// Messages in all.
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000)]
    count: u64,
    /// Messages that a producer has on their way at once, and a worker in its hands.
    #[arg(long, value_name = "COUNT", default_value_t = 4_096)]
    window: usize,
    /// Messages that are sent and not yet done: beyond this, producers wait for workers.
    #[arg(long, value_name = "COUNT", default_value_t = 32_768)]
    backlog: u64,
    /// With `off`, messages without keys in an at-least-once queue.
    #[arg(long, value_name = "ON|OFF", value_parser = ["on", "off"], default_value = "on")]
    dedup: String,
    /// Send at a fixed rate, and count latencies from when a message should have been sent.
    #[arg(long)]
    latency: bool,
    /// Messages per second, with --latency.
    #[arg(long, value_name = "COUNT", default_value_t = 100, requires = "latency")]
    rate: u64,
    /// The same as -o json.
    #[arg(long, hide = true)]
    json: bool,
    /// A broker that runs already. A queue is made for the run and deleted afterwards.
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// The API token for that broker.
    #[arg(long, env = "HAPAX_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// The process of that broker, if it is on this machine: its processor time is told then.
    #[arg(long, value_name = "PID", requires = "server")]
    server_pid: Option<u32>,
    /// Where the broker that is started keeps its data: a disk to be measured.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// How many partitions that broker has.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    partitions: u16,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn run(bench: &Bench) -> Result<Exit, Failure> {
    check(bench)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            measured = measure(bench) => measured,
            // What is dropped here ends its broker and removes its data.
            _ = tokio::signal::ctrl_c() => Err(Failure::new(Exit::Failure, "broken off")),
            _ = terminate.recv() => Err(Failure::new(Exit::Failure, "broken off")),
        }
    })
}

fn check(bench: &Bench) -> Result<(), Failure> {
    let few = |name: &str| Failure::usage(format!("{name} must be at least 1"));
    let rules = [
        (bench.producers == 0, "--producers"),
        (bench.workers == 0, "--workers"),
        (bench.count == 0, "--count"),
        (bench.window == 0, "--window"),
        (bench.backlog == 0, "--backlog"),
        (bench.rate == 0, "--rate"),
    ];
    if let Some((_, name)) = rules.iter().find(|(is_wrong, _)| *is_wrong) {
        return Err(few(name));
    }
    if bench.size < ledger::NUMBER_BYTES {
        return Err(Failure::usage("--size must be at least 8: a body carries its number"));
    }
    Ok(())
}

async fn measure(bench: &Bench) -> Result<Exit, Failure> {
    let own = match &bench.server {
        Some(_) => None,
        None => Some(Own::start(&bench.dir, bench.partitions).await?),
    };
    let server = match (&bench.server, &own) {
        (Some(server), _) => server.clone(),
        (None, own) => own.as_ref().map(Own::url).context("a broker was started")?,
    };
    let connection = Connection::to(server.clone(), bench.token.clone());
    let admin = Admin::new(connection.client()?);
    let ready = admin.client().ready(Duration::from_secs(30)).await;
    ready.map_err(|error| {
        Failure::from(error).next("check --server, or leave it out to start a broker for the run")
    })?;
    let queue = format!("bench-{}", uuid::Uuid::now_v7().simple());
    admin.put_queue(&queue, rules(bench), None).await?;
    let measured = live(bench, &connection, &queue, own.as_ref()).await;
    // The run is over either way; what is left of it is not to stay in somebody's broker.
    if own.is_none() {
        admin.delete_queue(&queue).await?;
    }
    let report = measured?;
    let screen = bench.output.screen();
    match bench.json || screen.is_json() {
        true => screen.json(&report)?,
        false => report.print(screen)?,
    }
    Ok(if report.verified { Exit::Ok } else { Exit::Failure })
}

/// Without keys nothing is deduplicated; everything else is the same.
fn rules(bench: &Bench) -> &'static str {
    match bench.dedup.as_str() {
        "off" => r#"{"guarantee":"at-least-once","max_body_bytes":16777216}"#,
        _ => r#"{"max_body_bytes":16777216}"#,
    }
}

async fn live(
    bench: &Bench,
    connection: &Connection,
    queue: &str,
    own: Option<&Own>,
) -> Result<Report, Failure> {
    let shape = Shape {
        producers: bench.producers,
        workers: bench.workers,
        window: bench.window,
        backlog: bench.backlog,
        has_keys: bench.dedup == "on",
        rate: bench.latency.then_some(bench.rate),
    };
    let mut syncs = disk::Syncs::default();
    if let Some(own) = own {
        syncs.measure(own.directory(), shape.rate)?;
    }
    let pid = own.map(Own::pid).or(bench.server_pid);
    let ledger = Arc::new(Ledger::new(bench.count, bench.size));
    let clients = || -> Result<Client, Failure> { connection.client() };
    let load = Load::new(shape, queue, Arc::clone(&ledger));
    let before = cpu::Times::now(pid);
    let start = Instant::now();
    let watching = tokio::spawn(watch(Arc::clone(&ledger), bench.count));
    let lived = load.run(&clients).await;
    watching.abort();
    let lived = lived?;
    let cpu = cpu::Times::now(pid).since(before);
    if let Some(own) = own {
        syncs.measure(own.directory(), shape.rate)?;
    }
    Ok(Report::new(bench, &ledger, lived, cpu, start, &syncs))
}

/// A bar on a terminal.
async fn watch(ledger: Arc<Ledger>, count: u64) {
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
