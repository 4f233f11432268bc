//! What an inbox costs: a worker that writes rows in a transaction per message, without an inbox
//! and with one. The two take turns, so that a slow phase of the machine affects both. An inbox
//! adds two statements to every transaction, so its share shrinks as the handler's own work grows:
//! one row is the least a handler can do, five are more like an order with its items.
//!
//! Start a broker with `hapax dev`, then, with SQLite, or with a PostgreSQL database to write into:
//!
//! ```sh
//! cargo run --release -p hapax-transactions --example inbox-overhead
//! cargo run --release -p hapax-transactions --example inbox-overhead -- postgres://user@host/database
//! ```
#![expect(clippy::print_stdout, reason = "it is a program that shows something")]

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use hapax_client::{Admin, Client, Failure, Message, Queue, Worker};
use hapax_transactions::{Dialect, InTransaction, Pool};
use tokio::sync::Notify;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const MESSAGES: u64 = 5_000;
const ROUNDS: usize = 4;
const HANDLERS: usize = 16;
/// Rows that a handler writes for a message.
const ROWS: [usize; 2] = [1, 5];
const TABLE: &str = "CREATE TABLE IF NOT EXISTS example_effects (key TEXT, note TEXT)";
const EFFECT: &str = "INSERT INTO example_effects (key, note) VALUES ($1, $2)";

/// Signals when all messages of a round have been handled.
#[derive(Clone, Default)]
struct Count(Arc<(AtomicU64, Notify)>);

impl Count {
    fn one(&self) {
        if self.0.0.fetch_add(1, Ordering::Relaxed) + 1 == MESSAGES {
            self.0.1.notify_one();
        }
    }

    fn all(&self) -> impl Future<Output = ()> + Send + use<> {
        let all = self.clone();
        async move { all.0.1.notified().await }
    }
}

/// The same for every kind of pool; their transactions have no type in common.
macro_rules! rounds {
    ($pool:expr, $client:expr, $rows:expr) => {{
        let (pool, client, rows) = ($pool, $client, $rows);
        sqlx::query(TABLE).execute(&pool).await?;
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let (queue, count) =
                (filled(client, &format!("plain-{rows}-{round}")).await?, Count::default());
            let (counted, plain) = (count.clone(), pool.clone());
            let began = Instant::now();
            let handler = move |message: hapax_client::Delivery, _| {
                let (pool, counted) = (plain.clone(), counted.clone());
                async move {
                    let mut transaction = Pool::begin(&pool).await?;
                    for _ in 0..rows {
                        let insert = sqlx::query(EFFECT).bind(message.key()).bind("done");
                        insert.execute(&mut *transaction).await?;
                    }
                    transaction.commit().await?;
                    counted.one();
                    Ok::<_, Failure>("done")
                }
            };
            worker(&queue).run_until(count.all(), handler).await?;
            without.push(per_second(began));

            let (queue, count) =
                (filled(client, &format!("inbox-{rows}-{round}")).await?, Count::default());
            let counted = count.clone();
            let began = Instant::now();
            InTransaction::new(worker(&queue), pool.clone(), "overhead")
                .run_until(count.all(), move |tx, message| {
                    let counted = counted.clone();
                    Box::pin(async move {
                        for _ in 0..rows {
                            let insert = sqlx::query(EFFECT).bind(message.key()).bind("done");
                            insert.execute(&mut **tx).await?;
                        }
                        counted.one();
                        Ok::<_, Failure>("done")
                    })
                })
                .await?;
            with.push(per_second(began));
        }
        print(rows, without, with);
    }};
}

fn worker(queue: &Queue) -> Worker {
    Worker::new(queue.clone()).concurrency(HANDLERS).prefetch(4 * HANDLERS)
}

/// A queue with all messages in it.
async fn filled(client: &Client, name: &str) -> Result<Queue> {
    let name = format!("overhead-{}-{name}", std::process::id());
    Admin::new(client.clone()).put_queue(&name, "{}", None).await?;
    let queue = client.queue(&name);
    for answer in queue.send_all((0..MESSAGES).map(|_| Message::new("three lemons"))).await? {
        answer?;
    }
    Ok(queue)
}

fn per_second(began: Instant) -> u64 {
    (MESSAGES as f64 / began.elapsed().as_secs_f64()) as u64
}

fn median(mut rates: Vec<u64>) -> u64 {
    rates.sort_unstable();
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}

fn print(rows: usize, without: Vec<u64>, with: Vec<u64>) {
    println!("{rows} row(s) written for a message, with an inbox {with:?}, without {without:?}");
    let share = median(with) as f64 / median(without) as f64;
    println!("with an inbox {:.0} % of the rate without", 100.0 * share);
}

#[tokio::main]
async fn main() -> Result<()> {
    let server = std::env::var("HAPAX_SERVER").unwrap_or("http://127.0.0.1:4747".to_owned());
    let client = Client::connect(&server)?;
    println!(
        "{MESSAGES} messages a round, {ROUNDS} rounds, {HANDLERS} handlers; messages per second"
    );
    match std::env::args().nth(1) {
        Some(url) => {
            let options = sqlx::postgres::PgPoolOptions::new().max_connections(HANDLERS as u32);
            let pool = options.connect(&url).await?;
            sqlx::raw_sql(Dialect::Postgres.inbox()).execute(&pool).await?;
            for rows in ROWS {
                rounds!(pool.clone(), &client, rows);
            }
        }
        None => {
            let directory = tempfile::tempdir_in(".")?;
            let options = sqlx::sqlite::SqliteConnectOptions::new()
                .filename(directory.path().join("overhead.db"))
                .create_if_missing(true)
                .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
                .synchronous(sqlx::sqlite::SqliteSynchronous::Full);
            let pool = sqlx::SqlitePool::connect_with(options).await?;
            sqlx::raw_sql(Dialect::Sqlite.inbox()).execute(&pool).await?;
            for rows in ROWS {
                rounds!(pool.clone(), &client, rows);
            }
            pool.close().await;
        }
    }
    Ok(())
}
