//! Consume, transform, produce: `orders` → `invoices` → `letters`, with the broker and the workers
//! as processes that are killed again and again. At the end there is one letter for every order.
//!
//! See `invoice` and `letter`: a follow-up is emitted by the `done` of its message, so that both
//! happen or neither does. docs/guides/pipelines.md explains.
#![expect(clippy::print_stdout, reason = "a program speaks by printing")]

mod children;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, Subcommand};
use hapax_client::{Admin, Client, Delivery, Done, Emit, Failure, Message, Settle, Worker};
use hapax_server::Broker;
use hapax_server::options::{Auth, Options};
use serde::{Deserialize, Serialize};

use children::{Children, end_with_parent, free_address};

const QUEUES: [&str; 3] = ["orders", "invoices", "letters"];
/// Short leases, so that the messages of a killed worker are redelivered soon; attempts are
/// practically unlimited.
const RULES: &str = r#"{"lease_ms":1000,"max_attempts":100000,
                        "backoff_min_ms":0,"backoff_max_ms":50}"#;
/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(120);

/// Sends orders through three queues while broker and workers are killed with kill -9, and shows
/// that every order ends as exactly one letter.
#[derive(Debug, Parser)]
#[command(name = "hapax-example-pipeline", version)]
struct Arguments {
    /// Number of orders.
    #[arg(long, default_value_t = 500)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    inputs: u32,
    /// Number of kills.
    #[arg(long, default_value_t = 20)]
    kills: u32,
    /// The seed: the same seed kills the same processes.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    #[command(subcommand)]
    part: Option<Part>,
}

/// The role of a child process.
#[derive(Debug, Subcommand)]
enum Part {
    #[command(hide = true)]
    Broker { listen: SocketAddr, data: PathBuf },
    #[command(hide = true)]
    Worker { queue: String, server: String },
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Runtime::new()?;
    match arguments.part {
        None => runtime.block_on(show(&arguments)),
        Some(part) => {
            end_with_parent()?;
            runtime.block_on(play(part))
        }
    }
}

async fn play(part: Part) -> Result<()> {
    match part {
        Part::Broker { listen, data } => {
            let options = Options { listen, data, auth: Auth::Off, ..Options::default() };
            Ok(Broker::start(&options, None).await?.run(std::future::pending()).await?)
        }
        Part::Worker { queue, server } => {
            let worker = Worker::new(Client::connect(&server)?.queue(&queue)).concurrency(4);
            match queue.as_str() {
                "orders" => worker.run(|order, _| invoice(order)).await?,
                _ => worker.run(|invoice, _| letter(invoice)).await?,
            }
            Ok(())
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    number: u32,
    cents: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Invoice {
    order: u32,
    total_cents: u64,
}

/// An order becomes an invoice: done and sent, or neither.
async fn invoice(message: Delivery) -> Result<Done, Failure> {
    let order: Order = message.parse_json()?;
    let invoice = Invoice { order: order.number, total_cents: order.cents * 119 / 100 };
    Ok(Done::new().emit(Emit::new("invoices", "invoice", Message::json(&invoice)?)))
}

/// An invoice becomes a letter, in the same way.
async fn letter(message: Delivery) -> Result<Done, Failure> {
    let Invoice { order, total_cents } = message.parse_json()?;
    let text = format!("{order}: please pay {}.{:02}", total_cents / 100, total_cents % 100);
    Ok(Done::new().emit(Emit::new("letters", "letter", Message::new(text))))
}

async fn show(arguments: &Arguments) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(arguments.seed);
    let directory = tempfile::tempdir()?;
    let address = free_address(&mut fastrand::Rng::new())?;
    let (listen, server) = (address.to_string(), format!("http://{address}"));
    let data = directory.path().join("data");
    let data = data.to_str().context("the directory's name is no text")?;
    let mut children = Children::default();
    children.start("broker", &["broker", &listen, data])?;
    let client = Client::builder(&server).timeout(PATIENCE).connect()?;
    make_queues(&client).await?;
    for (number, queue) in ["orders", "orders", "invoices", "invoices"].iter().enumerate() {
        children.start(&format!("worker {number} of {queue}"), &["worker", queue, &server])?;
    }
    let producer = tokio::spawn(produce(client.clone(), arguments.inputs));
    for kill in 0..arguments.kills {
        // The kills are spread over the run: wait for this many messages.
        let wanted = u64::from(arguments.inputs) * u64::from(kill) / u64::from(arguments.kills + 1);
        until(|| async { Ok(came_in(&client, "letters").await? >= wanted) }).await?;
        tokio::time::sleep(Duration::from_millis(random.u64(..30))).await;
        children.are_alive()?;
        let names: Vec<String> = children.kills().map(|(name, _)| name.to_owned()).collect();
        let victim = random.choice(&names).context("there are no processes")?;
        children.kill(|name, _| name == victim)?;
        println!("after {wanted:>6} letters: killed {victim}");
    }
    producer.await??;
    let inputs = u64::from(arguments.inputs);
    until(|| async { Ok(came_in(&client, "letters").await? >= inputs) }).await?;
    for queue in ["orders", "invoices"] {
        until(|| is_empty(&client, queue)).await?;
    }
    let letters = read_letters(&client, arguments.inputs).await?;
    report(arguments, &children, &letters)
}

async fn make_queues(client: &Client) -> Result<()> {
    let admin = Admin::new(client.clone());
    for queue in QUEUES {
        until(|| async { Ok(admin.put_queue(queue, RULES, None).await.is_ok()) }).await?;
    }
    Ok(())
}

/// Sends every order under its number, and one in five twice.
async fn produce(client: Client, inputs: u32) -> Result<()> {
    let orders = client.queue("orders");
    for number in 0..inputs {
        let order = Order { number, cents: 100 + u64::from(number) };
        for _ in 0..=u32::from(number % 5 == 0) {
            let message = Message::json(&order)?.key(format!("order-{number}"));
            orders.send(message).await?;
        }
    }
    Ok(())
}

/// Messages that a queue has accepted in total.
async fn came_in(client: &Client, queue: &str) -> Result<u64> {
    let found = Admin::new(client.clone()).queue(queue).await?;
    Ok(found.stats.unwrap_or_default().sent_total)
}

async fn is_empty(client: &Client, queue: &str) -> Result<bool> {
    let stats = Admin::new(client.clone()).queue(queue).await?.stats.unwrap_or_default();
    Ok(stats.ready + stats.delayed + stats.leased == 0)
}

/// Waits for a condition. While the broker is down it does not count.
async fn until<F: Future<Output = Result<bool>>>(mut is_so: impl FnMut() -> F) -> Result<()> {
    let start = Instant::now();
    while !is_so().await.unwrap_or(false) {
        ensure!(start.elapsed() < PATIENCE, "it takes far too long");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// All letters, by the order they came from.
async fn read_letters(client: &Client, inputs: u32) -> Result<BTreeMap<u32, Vec<String>>> {
    let mut letters: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    // A long lease: a redelivered letter would look like a second one.
    let mut work = client.queue("letters").work().lease(5 * PATIENCE).open();
    let mut batch = hapax_client::Batch::default();
    let mut left = came_in(client, "letters").await?;
    work.credit(u32::try_from(left)?.max(inputs));
    while left > 0 {
        work.next(&mut batch).await?;
        for letter in batch.deliveries.drain(..) {
            let text = letter.text().context("a letter is text")?;
            let (order, _) = text.split_once(':').context("a letter tells its order")?;
            letters.entry(order.parse()?).or_default().push(text.to_owned());
            work.settle(letter.lease(), Settle::done(), letter.fence());
        }
        left = left.saturating_sub(batch.settled.drain(..).count() as u64);
    }
    Ok(letters)
}

fn report(
    arguments: &Arguments,
    children: &Children,
    letters: &BTreeMap<u32, Vec<String>>,
) -> Result<()> {
    for (name, kills) in children.kills() {
        println!("{name:<22} killed {kills} times");
    }
    let doubled = letters.values().filter(|texts| texts.len() > 1).count();
    let missing = arguments.inputs as usize - letters.len();
    println!(
        "{} orders, {} letters; {missing} missing, {doubled} doubled (seed {})",
        arguments.inputs,
        letters.values().map(Vec::len).sum::<usize>(),
        arguments.seed
    );
    ensure!(missing == 0 && doubled == 0, "an order did not end as exactly one letter");
    Ok(())
}
