//! What one caller waits for, alone: a duplicate and a new message, on disk and on PostgreSQL, one
//! after the other. And how many connections a node has under load.
//!
//! A duplicate appends nothing, but a node on PostgreSQL asks the database whether it still is the
//! owner before it answers: one round trip and one commit, which are measured beside it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hapax_bench::interrupt::unless_interrupted;
use hapax_bench::report::{histogram, table};
use hapax_bench::wire::{self, Shape};
use hapax_bench::{Ledger, Messages};
use hapax_client::{Admin, Client, Message, Queue};
use hdrhistogram::Histogram;
use tokio::runtime::Runtime;

use crate::hapax::{Binary, Hapax, Place};
use crate::postgres::cluster::Cluster;
use crate::system::{Options, Running};

/// The lives during which connections are counted.
const SHAPE: Shape = Shape {
    producers: 4,
    workers: 4,
    window: 1_024,
    batch: 256,
    has_keys: true,
    rate: None,
    piles_up: false,
};
const LIVES: u64 = 100_000;
const BACKLOG: u64 = 32_768;
/// Pause between two counts.
const INTERVAL: Duration = Duration::from_millis(20);

/// Measures a lone duplicate and a lone send on disk and on PostgreSQL, beside a round trip and a
/// commit of that database, and counts the connections of a node under load.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Calls of each kind, one after the other.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
}

pub(crate) fn run(arguments: &Arguments, options: &Options) -> Result<()> {
    let program = Binary::beside_this()?.path;
    let mut rows = Vec::new();
    for (name, place) in [("disk", Place::Directory), ("PostgreSQL", Place::Postgres)] {
        let hapax = Hapax::start(&program, place, options)?;
        let runtime = Runtime::new()?;
        let calls = calls(&hapax, arguments.count);
        let [duplicate, send] = runtime.block_on(unless_interrupted(calls))??;
        rows.push(row(&format!("duplicate, {name}"), &duplicate));
        rows.push(row(&format!("send, {name}"), &send));
        if let Some(database) = hapax.databases().first() {
            let base = bare(database, arguments.count);
            let [round_trip, commit] = runtime.block_on(unless_interrupted(base))??;
            rows.push(row("round trip of PostgreSQL", &round_trip));
            rows.push(row("its commit with a row lock", &commit));
            let most = runtime.block_on(unless_interrupted(connections(&hapax, database)))??;
            print(&rows, most);
        }
    }
    Ok(())
}

/// A known key again and again, and new ones.
async fn calls(hapax: &Hapax, count: u32) -> Result<[Histogram<u64>; 2]> {
    let client = Client::connect(hapax.address())?;
    Admin::new(client.clone()).put_queue("lone", "{}", None).await?;
    let queue = client.queue("lone");
    ensure!(send(&queue, "known").await?, "the first is new");
    let (mut duplicates, mut sends) = (histogram(), histogram());
    for number in 0..count {
        let begun = Instant::now();
        let is_new = send(&queue, "known").await?;
        duplicates.saturating_record(begun.elapsed().as_micros() as u64);
        ensure!(!is_new, "the key was forgotten");
        let begun = Instant::now();
        let is_new = send(&queue, &number.to_string()).await?;
        sends.saturating_record(begun.elapsed().as_micros() as u64);
        ensure!(is_new, "the key was known");
    }
    Ok([duplicates, sends])
}

async fn send(queue: &Queue, key: &str) -> Result<bool> {
    Ok(queue.send(Message::new("a body").key(key)).await?.is_new())
}

/// A statement that changes nothing, and one that locks a row, whose commit is synced.
async fn bare(database: &Cluster, count: u32) -> Result<[Histogram<u64>; 2]> {
    let client = database.connect().await?;
    let ask = client.prepare("SELECT 1").await?;
    client.batch_execute("CREATE TABLE lone AS SELECT 1 AS number").await?;
    let lock = client.prepare("SELECT number FROM lone FOR SHARE").await?;
    let (mut round_trips, mut commits) = (histogram(), histogram());
    for _ in 0..count {
        for (statement, times) in [(&ask, &mut round_trips), (&lock, &mut commits)] {
            let begun = Instant::now();
            client.query(statement, &[]).await?;
            times.saturating_record(begun.elapsed().as_micros() as u64);
        }
    }
    Ok([round_trips, commits])
}

/// The most connections of the node while it lives lives.
async fn connections(hapax: &Hapax, database: &Cluster) -> Result<i64> {
    let client = Client::connect(hapax.address())?;
    Admin::new(client).put_queue("load", "{}", None).await?;
    let asking = database.connect().await?;
    let asked = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'
                   AND pid <> pg_backend_pid()";
    let ledger = Arc::new(Ledger::open(Messages::new(LIVES, 100, 7), BACKLOG));
    let mut living =
        Box::pin(wire::run(SHAPE, "load", &ledger, || Ok(Client::connect(hapax.address())?)));
    let mut most = 0;
    loop {
        tokio::select! {
            lived = &mut living => return lived.map(|_| most),
            () = tokio::time::sleep(INTERVAL) => {
                most = most.max(asking.query_one(asked, &[]).await?.try_get(0)?);
            }
        }
    }
}

fn row(name: &str, times: &Histogram<u64>) -> [String; 4] {
    let at = |quantile: f64| format!("{:.2} ms", times.value_at_quantile(quantile) as f64 / 1e3);
    [name.to_owned(), at(0.5), at(0.9), at(0.99)]
}

#[expect(clippy::print_stdout, reason = "the program's output")]
fn print(rows: &[[String; 4]], connections: i64) {
    let header = ["one after the other", "p50", "p90", "p99"].map(str::to_owned);
    let lines: Vec<_> = std::iter::once(header).chain(rows.iter().cloned()).collect();
    println!("{}", table(&lines, 1).join("\n"));
    println!("connections of the node under load, at most: {connections}");
}
