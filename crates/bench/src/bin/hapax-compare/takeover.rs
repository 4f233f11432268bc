//! Kills the node that serves, and measures how long its spare takes to answer: two real nodes on
//! one PostgreSQL, with `kill -9`.
//!
//! The parts come from the spare's own log: when it noticed, what the claim, the archive, the
//! journal's tail and the replay took. The answers afterwards are checked: known keys are known,
//! and no message is missing.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hapax_bench::cpu;
use hapax_bench::interrupt::unless_interrupted;
use hapax_bench::report::{grouped, table};
use hapax_bench::server::{Directory, Server};
use hapax_bench::wire::{self, Shape};
use hapax_bench::{Ledger, Messages};
use hapax_client::{Admin, Batch, Client, Message, Queue, Settle};
use serde::Serialize;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::hapax::Binary;
use crate::note;
use crate::postgres::cluster::Cluster;
use crate::system::Options;

/// Timeout for a node to answer at all.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// So often a call to the spare is begun, whatever became of those before, which may wait: the
/// error of the measurement.
const TRY: Duration = Duration::from_millis(50);
/// The longest takeover.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(120);

/// How lives and messages are driven before the kill.
const SHAPE: Shape = Shape {
    producers: 2,
    workers: 2,
    window: 4_096,
    batch: 1_024,
    has_keys: true,
    rate: None,
    piles_up: false,
};
const BACKLOG: u64 = 32_768;
/// Keys that the spare is asked for.
const REPEATED: u64 = 1_000;

/// The lines of a node that saw that nobody serves, and that took over.
const NOTICED: &str = "nobody serves";
const SERVES: &str = "this node serves: all";

/// Kills the serving one of two nodes on PostgreSQL and prints how long the other one takes to
/// answer, and what that is made of.
///
/// Without a number, four cases: 100 thousand keys, 10 million keys, 1 million unfinished messages,
/// and while 1 million are drained.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Keys that are remembered: lives before the kill.
    #[arg(long)]
    keys: Option<u64>,
    /// Messages that are sent before the kill.
    #[arg(long)]
    unfinished: Option<u64>,
    /// Number of them after which the node is killed while it drains them.
    #[arg(long)]
    drained: Option<u64>,
    /// Bytes of a body.
    #[arg(long, default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u32).range(8..=1_048_576))]
    size: u32,
    /// A release binary of Hapax [default: the one beside this program].
    #[arg(long, value_name = "PATH")]
    hapax: Option<PathBuf>,
    /// Print one JSON object per case instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    keys: u64,
    unfinished: u64,
    drained: u64,
}

impl Arguments {
    fn cases(&self) -> Vec<Case> {
        let case = |keys, unfinished, drained| Case { keys, unfinished, drained };
        match (self.keys, self.unfinished, self.drained) {
            (None, None, None) => vec![
                case(100_000, 0, 0),
                case(10_000_000, 0, 0),
                case(0, 1_000_000, 0),
                case(0, 1_000_000, 300_000),
            ],
            (keys, unfinished, drained) => {
                let drained = drained.unwrap_or(0);
                vec![case(keys.unwrap_or(0), unfinished.unwrap_or(0).max(drained), drained)]
            }
        }
    }
}

/// What a takeover took, in seconds.
#[derive(Clone, Debug, Default, Serialize)]
struct Took {
    keys: u64,
    unfinished: u64,
    drained: u64,
    /// From the kill to the answer to a send.
    total_s: f64,
    /// From the kill until the spare knew.
    noticed_s: f64,
    claim_s: f64,
    /// The manifest and the ends of all runs.
    archive_s: f64,
    tail_s: f64,
    tail_bytes: u64,
    /// Decoding and applying the tail, with the pieces of runs that it needs.
    replay_s: f64,
    pieces: u64,
    /// How long reads waited for pieces: a part of `archive_s` and `replay_s`.
    pieces_s: f64,
    /// From the last partition's opening to the answer.
    answer_s: f64,
    /// CPU of the spare and of all processes of the database since the kill. On a machine that is
    /// busy with something else the times above are longer, and these are not.
    spare_cpu_s: f64,
    database_cpu_s: f64,
}

pub(crate) fn run(arguments: &Arguments, options: &Options) -> Result<()> {
    let program = match &arguments.hapax {
        Some(path) => std::path::absolute(path)?,
        None => Binary::beside_this()?.path,
    };
    let mut all = Vec::new();
    for case in arguments.cases() {
        let took = measure(arguments, case, &program, options)?;
        print(&took, arguments.json)?;
        all.push(took);
    }
    if !arguments.json {
        print_table(&all);
    }
    Ok(())
}

/// One takeover on a new database.
fn measure(arguments: &Arguments, case: Case, program: &Path, options: &Options) -> Result<Took> {
    let runtime = Runtime::new()?;
    let database = Cluster::start(&runtime, &options.dir)?;
    let (url, partitions) = (database.url(), options.partitions.unwrap_or(1).to_string());
    let node = |name: &str| {
        let flags = ["--store", &url, "--partitions", &partitions, "--node-name", name];
        let log = ["--log", "info", "--log-format", "json"];
        let directory = Directory::create(&options.dir, "takeover")?;
        Server::broker(program, directory, &[&flags[..], &log].concat())
    };
    let (first, address) = node("first")?;
    runtime.block_on(async { Client::connect(&address)?.ready(READY_TIMEOUT).await })?;
    let (spare, spare_address) = node("spare")?;
    let size = usize::try_from(arguments.size)?;
    let settled = Arc::default();
    let takeover = Takeover { case, size, address, spare, spare_address, database, settled };
    runtime.block_on(unless_interrupted(takeover.run(first)))?
}

struct Takeover {
    case: Case,
    size: usize,
    address: String,
    spare: Server,
    spare_address: String,
    /// Dropped after the nodes.
    database: Cluster,
    /// Settles that were sent, which is an upper bound, and that were confirmed.
    settled: Arc<[AtomicU64; 2]>,
}

impl Takeover {
    async fn run(self, first: Server) -> Result<Took> {
        let Case { keys, unfinished, drained } = self.case;
        let client = Client::connect(&self.address)?;
        let admin = Admin::new(client.clone());
        for queue in ["done", "unfinished"] {
            admin.put_queue(queue, "{}", None).await?;
        }
        note(&format!("{keys} lives, then {unfinished} messages of which {drained} are drained"));
        if keys > 0 {
            let ledger = Arc::new(Ledger::open(self.messages(keys), BACKLOG));
            wire::run(SHAPE, "done", &ledger, || Ok(Client::connect(&self.address)?)).await?;
        }
        send(&client.queue("unfinished"), &self.messages(unfinished)).await?;
        let settled = Arc::clone(&self.settled);
        let draining = tokio::spawn(drain(client.queue("unfinished"), settled));
        while drained > 0 && self.confirmed() < drained {
            ensure!(!draining.is_finished(), "the worker ended early");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if drained == 0 {
            draining.abort();
        }
        let before = self.cpu()?;
        let killed = Instant::now();
        drop(first); // Its signal is SIGKILL.
        let took = self.watch(killed).await?;
        let after = self.cpu()?;
        let since = |part: fn(&(Duration, Duration)) -> Duration| {
            part(&after).saturating_sub(part(&before)).as_secs_f64()
        };
        let (spare_cpu_s, database_cpu_s) = (since(|it| it.0), since(|it| it.1));
        let took = Took { spare_cpu_s, database_cpu_s, ..took };
        draining.abort();
        self.verify().await?;
        Ok(took)
    }

    fn messages(&self, count: u64) -> Messages {
        Messages::new(count, self.size, 1)
    }

    fn confirmed(&self) -> u64 {
        self.settled.get(1).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Asks the spare until it answers, and reads its log meanwhile.
    async fn watch(&self, killed: Instant) -> Result<Took> {
        let (mut noticed, mut opened) = (None, None);
        let mut calls = JoinSet::new();
        let answered = loop {
            // Of its own: one that was refused pauses longer and longer.
            let client =
                Client::builder(&self.spare_address).timeout(TAKEOVER_TIMEOUT).connect()?;
            let queue = client.queue("done");
            let message = Message::new("after").key("after the takeover");
            calls.spawn(async move { queue.send(message).await });
            let answer = tokio::time::timeout(TRY, calls.join_next()).await;
            let log = self.log()?;
            let is_there = |words: &str| log.contains(words).then(|| killed.elapsed());
            noticed = noticed.or_else(|| is_there(NOTICED));
            opened = opened.or_else(|| is_there(SERVES));
            if let Ok(Some(answer)) = answer {
                answer?.with_context(|| self.spare.end_of_log())?;
                break killed.elapsed();
            }
            let is_late = killed.elapsed() > TAKEOVER_TIMEOUT;
            ensure!(!is_late, "it does not answer:\n{}", self.spare.end_of_log());
        };
        calls.shutdown().await;
        let (noticed, opened) =
            (noticed.context("it noticed nothing")?, opened.context("it opened nothing")?);
        let Case { keys, unfinished, drained } = self.case;
        let parts = parts(&self.log()?);
        Ok(Took {
            keys,
            unfinished,
            drained,
            total_s: answered.as_secs_f64(),
            noticed_s: noticed.as_secs_f64(),
            answer_s: answered.saturating_sub(opened).as_secs_f64(),
            ..parts
        })
    }

    /// CPU of the spare and of the database so far.
    fn cpu(&self) -> Result<(Duration, Duration)> {
        Ok((cpu::of_family(self.spare.process_id())?, self.database.cpu()?))
    }

    fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(self.spare.directory().join("log"))?)
    }

    /// Nothing is lost, and nothing is forgotten.
    async fn verify(&self) -> Result<()> {
        let Case { keys, unfinished, .. } = self.case;
        let client = Client::connect(&self.spare_address)?;
        let messages = self.messages(keys);
        let repeated = (0..keys.min(REPEATED)).map(|number| {
            let key = messages.key(number).to_string();
            wire::message(&messages, number).key(key)
        });
        for answer in client.queue("done").send_all(repeated).await? {
            ensure!(!answer?.is_new(), "a key was forgotten");
        }
        let admin = Admin::new(client);
        let stats = admin.queue("unfinished").await?.stats.context("a queue without figures")?;
        let left = stats.ready + stats.delayed + stats.leased;
        let [sent, confirmed] = &*self.settled;
        let most = unfinished - confirmed.load(Ordering::Relaxed);
        let least = unfinished.saturating_sub(sent.load(Ordering::Relaxed));
        ensure!((least..=most).contains(&left), "{left} messages are left, not {least} to {most}");
        Ok(())
    }
}

/// Sends all messages, and waits for their answers.
async fn send(queue: &Queue, messages: &Messages) -> Result<()> {
    let mut sender = queue.sender().window(SHAPE.window);
    let (mut next, mut answers) = (0, Vec::new());
    while next < messages.count() || sender.unanswered() > 0 {
        while next < messages.count() && sender.room() > 0 {
            let key = messages.key(next).to_string();
            sender.push(wire::message(messages, next).key(key), next);
            next += 1;
        }
        sender.answers(&mut answers).await?;
        for answered in answers.drain(..) {
            ensure!(answered.answer?.is_new(), "message {} was there before", answered.tag);
        }
    }
    Ok(())
}

/// Settles everything, and counts what was sent and confirmed, until the node is gone.
async fn drain(queue: Queue, settled: Arc<[AtomicU64; 2]>) -> Result<()> {
    let [sent, confirmed] = &*settled;
    let mut work = queue.work().worker("drain").open();
    work.credit(u32::try_from(SHAPE.window)?);
    let mut batch = Batch::default();
    loop {
        work.next(&mut batch).await?;
        sent.fetch_add(batch.deliveries.len() as u64, Ordering::Relaxed);
        for delivery in batch.deliveries.drain(..) {
            work.settle(delivery.lease(), Settle::done(), 0);
        }
        let count = batch.settled.len();
        for answered in batch.settled.drain(..) {
            ensure!(answered.answer?.is_ok(), "a settle was refused");
        }
        confirmed.fetch_add(count as u64, Ordering::Relaxed);
        work.credit(u32::try_from(count)?);
    }
}

/// The parts, which the spare logs when it serves, summed over the partitions.
fn parts(log: &str) -> Took {
    let serves = log.lines().rfind(|line| line.contains(SERVES));
    let line = serves.and_then(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let field = |name: &str| {
        let line = line.as_ref()?;
        let field = line.get("fields").and_then(|fields| fields.get(name));
        field.or_else(|| line.get(name)).and_then(serde_json::Value::as_u64)
    };
    let seconds = |name: &str| field(name).unwrap_or(0) as f64 / 1e3;
    Took {
        claim_s: seconds("claim_ms"),
        archive_s: seconds("archive_ms"),
        tail_s: seconds("tail_ms"),
        tail_bytes: field("tail_bytes").unwrap_or(0),
        replay_s: seconds("replay_ms"),
        pieces: field("pieces").unwrap_or(0),
        pieces_s: seconds("pieces_ms"),
        ..Took::default()
    }
}

#[expect(clippy::print_stdout, reason = "the program's output")]
fn print(took: &Took, as_json: bool) -> Result<()> {
    match as_json {
        true => println!("{}", serde_json::to_string(took)?),
        false => note(&format!("answered after {:.2} s", took.total_s)),
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the program's output")]
fn print_table(all: &[Took]) {
    let header = [
        "keys",
        "unfinished",
        "drained",
        "answer after",
        "noticed after",
        "claim",
        "archive",
        "tail",
        "of",
        "replay",
        "pieces",
        "waited for",
        "answer",
        "CPU of spare",
        "of database",
    ];
    let mut lines = vec![header.map(str::to_owned)];
    lines.extend(all.iter().map(|took| {
        let seconds = |seconds: f64| format!("{seconds:.2} s");
        [
            grouped(took.keys as f64),
            grouped(took.unfinished as f64),
            grouped(took.drained as f64),
            seconds(took.total_s),
            seconds(took.noticed_s),
            seconds(took.claim_s),
            seconds(took.archive_s),
            seconds(took.tail_s),
            format!("{:.1} MB", took.tail_bytes as f64 / 1e6),
            seconds(took.replay_s),
            took.pieces.to_string(),
            seconds(took.pieces_s),
            seconds(took.answer_s),
            seconds(took.spare_cpu_s),
            seconds(took.database_cpu_s),
        ]
    }));
    println!("{}", table(&lines, 0).join("\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_from_the_log_of_the_spare() {
        let line = r#"{"level":"INFO","fields":{"message":"this node serves: all are open",
            "took_ms":900,"claim_ms":10,"archive_ms":200,"tail_ms":300,"tail_bytes":77,
            "replay_ms":350,"pieces":5,"pieces_ms":40}}"#;
        let log = format!("not json\n{}\n", line.replace('\n', ""));
        let took = parts(&log);
        assert_eq!((took.tail_bytes, took.pieces), (77, 5));
        assert!((took.replay_s - 0.35).abs() < 1e-9, "{took:?}");
        assert!((took.claim_s - 0.01).abs() < 1e-9, "{took:?}");
    }
}
