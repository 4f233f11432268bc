//! The relay: sends the rows of an outbox to the broker, under their keys.
//!
//! It reads rows, sends them, and deletes exactly those that the broker confirmed, by their ids. If
//! it is killed, rows that it sent and did not delete are sent again under the same keys and with
//! the same date, and the broker recognises them. Within a group one row is in flight at a time, so
//! order holds. A row that is refused is tried again later and blocks only its group. After a
//! number of tries it is parked in the table with its error, and the group continues. A full or
//! rate-limited queue is retried after a pause, which does not count as a try.
//!
//! One relay per outbox is active, by a lock; others stand by. The lock is an optimisation: two
//! relays would send the same rows, under the same keys, in the same order.

mod batch;
mod metrics;
mod observe;
#[cfg(feature = "postgres")]
mod postgres;
mod source;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "postgres")]
mod tls;

use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hapax_client::{Client, Retry};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::Error;
use batch::Senders;
pub use metrics::Metrics;
use source::{Read, Refused, Source, Table};

/// By default, how often a refused row is tried before it is parked.
const TRIES: u32 = 5;
/// By default, how often the table is polled.
const POLL: Duration = Duration::from_secs(1);
const POLL_MIN: Duration = Duration::from_millis(10);
/// The most retry times of refused rows in memory; others are found by polling.
const RETRIES_MAX: usize = 1_000;
/// The limits of one read.
const BATCH_ROWS: i64 = 1_000;
const BATCH_BYTES: i64 = 16 * 1_024 * 1_024;
/// How often a standby tries to take the lock.
const STAND_BY: Duration = Duration::from_secs(1);
/// The shortest and longest pause between two reconnects to the database.
const AGAIN_MIN: Duration = Duration::from_millis(200);
const AGAIN_MAX: Duration = Duration::from_secs(10);

/// Sends the rows of one outbox to a broker.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use hapax_client::Client;
/// use hapax_transactions::Relay;
///
/// let client = Client::connect("http://127.0.0.1:4747")?;
/// let relay = Relay::new(client, "postgres://shop@127.0.0.1/shop")?;
/// relay.run_until(async { drop(tokio::signal::ctrl_c().await) }).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Relay {
    client: Client,
    database: Database,
    options: Options,
    metrics: Arc<Metrics>,
}

#[derive(Clone, Debug)]
struct Options {
    tries: u32,
    poll: Duration,
    results: Option<Table>,
}

#[derive(Clone, Debug)]
enum Database {
    #[cfg(feature = "postgres")]
    Postgres(Box<tokio_postgres::Config>, Option<Arc<rustls::ClientConfig>>),
    #[cfg(feature = "sqlite")]
    Sqlite(std::path::PathBuf),
}

impl Relay {
    /// Creates a relay for a database: `postgres://…` or `sqlite://PATH`. The database needs the
    /// table of `hapax sql outbox`.
    pub fn new(client: Client, database: &str) -> Result<Self, Error> {
        Ok(Self {
            client,
            database: Database::parse(database)?,
            options: Options { tries: TRIES, poll: POLL, results: None },
            metrics: Arc::default(),
        })
    }

    /// Encrypts the connection to PostgreSQL. The server's certificate must be signed by one of
    /// these CA certificates, in PEM, and have the name of the address.
    #[cfg(feature = "postgres")]
    pub fn database_ca(mut self, pem: &[u8]) -> Result<Self, Error> {
        match &mut self.database {
            Database::Postgres(config, tls) => {
                config.ssl_mode(tokio_postgres::config::SslMode::Require);
                *tls = Some(tls::trusting(pem)?);
                Ok(self)
            }
            #[cfg(feature = "sqlite")]
            Database::Sqlite(_) => Err(Error::invalid("a SQLite database needs no certificate")),
        }
    }

    /// How often a refused row is tried before it is parked; 5 times by default.
    pub fn tries(mut self, tries: u32) -> Self {
        self.options.tries = tries.max(1);
        self
    }

    /// How often the table is polled, if there is no notification; every second by default. In
    /// PostgreSQL the trigger of the migration notifies the relay. For SQLite the relay watches the
    /// file's version, which costs almost nothing.
    pub fn poll(mut self, poll: Duration) -> Self {
        self.options.poll = poll.max(POLL_MIN);
        self
    }

    /// Writes the outcome of every message to a table with the columns of `hapax sql results`.
    pub fn results(mut self, table: &str) -> Result<Self, Error> {
        self.options.results = Some(Table::parse(table)?);
        Ok(self)
    }

    /// The metrics, while it runs and after.
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.metrics)
    }

    /// Runs for ever, or until a permanent error.
    pub async fn run(self) -> Result<(), Error> {
        self.run_until(std::future::pending()).await
    }

    /// Runs until `stop` resolves, and then waits for the answers to what it has sent.
    ///
    /// A database that cannot be reached at the start, or lacks the table, is an error. If the
    /// database or the broker becomes unreachable later, the relay waits for it.
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<(), Error> {
        let (told, stopping) = watch::channel(false);
        let run = async {
            match self.database.clone() {
                #[cfg(feature = "postgres")]
                Database::Postgres(config, tls) => {
                    let address = postgres::Address::new(*config, tls)?;
                    self.work::<postgres::Postgres>(&address, Stop(stopping)).await
                }
                #[cfg(feature = "sqlite")]
                Database::Sqlite(path) => self.work::<sqlite::Sqlite>(&path, Stop(stopping)).await,
            }
        };
        let mut run = pin!(run);
        tokio::select! {
            ended = &mut run => return ended,
            () = stop => drop(told.send(true)),
        }
        run.await
    }

    async fn work<S: Source>(&self, address: &S::Address, stop: Stop) -> Result<(), Error> {
        let mut source = S::open(address, self.options.results.clone()).await?;
        let observer = S::open(address, self.options.results.clone()).await?;
        let observing = observe::observe(
            observer,
            address,
            &self.client,
            self.options.results.clone(),
            &self.metrics,
        );
        let relaying = async {
            let mut retry = reopening();
            loop {
                let started = Instant::now();
                let ended = self.relay(&mut source, stop.clone()).await;
                self.metrics.set_active(false);
                match ended {
                    Ok(()) => return Ok(()),
                    Err(error @ Error::Database { .. }) => {
                        tracing::warn!(%error, "cannot work on the outbox; retrying");
                    }
                    Err(error) => return Err(error),
                }
                if started.elapsed() > AGAIN_MAX {
                    retry.reset();
                }
                tokio::select! {
                    () = stop.heard() => return Ok(()),
                    opened = reopen(address, &self.options.results, &mut retry) => source = opened,
                }
            }
        };
        tokio::select! {
            ended = relaying => ended,
            never = observing => never,
        }
    }

    /// Takes the lock, and sends rows until it is stopped.
    async fn relay<S: Source>(&self, source: &mut S, stop: Stop) -> Result<(), Error> {
        if !source.lock().await? {
            tracing::info!("another relay has the lock of this outbox; standing by");
            while !source.lock().await? {
                tokio::select! {
                    () = stop.heard() => return Ok(()),
                    () = tokio::time::sleep(STAND_BY) => {}
                }
            }
        }
        tracing::info!("moving rows");
        self.metrics.set_active(true);
        let mut senders = Senders::new(self.client.clone());
        let mut held = Held::default();
        while !stop.is_heard() {
            let Read { rows, unreadable } =
                source.read(BATCH_ROWS, BATCH_BYTES, &held.queues()).await?;
            if !unreadable.is_empty() {
                self.metrics.count_refused(&unreadable);
                source.settle(&[], &unreadable).await?;
                // The rows behind them can be read now.
                if rows.is_empty() {
                    continue;
                }
            }
            if rows.is_empty() {
                tokio::select! {
                    () = stop.heard() => break,
                    waited = source.wait(held.poll(self.options.poll)) => waited?,
                }
                continue;
            }
            let outcome = senders.send(rows, self.options.tries, &stop).await;
            self.metrics.count(&outcome);
            source.settle(&outcome.confirmed, &outcome.refused).await?;
            held.hold(outcome.held, &outcome.refused);
            if let Some(error) = outcome.fatal {
                return Err(error.into());
            }
        }
        Ok(())
    }
}

/// The backoff of reconnects to the database.
fn reopening() -> Retry {
    Retry::forever().pauses(AGAIN_MIN, AGAIN_MAX)
}

/// Reconnects to the database, retrying for ever.
async fn reopen<S: Source>(address: &S::Address, results: &Option<Table>, retry: &mut Retry) -> S {
    loop {
        retry.pause(None).await;
        match S::open(address, results.clone()).await {
            Ok(opened) => return opened,
            Err(error) => tracing::warn!(%error, "still cannot work on the outbox"),
        }
    }
}

/// What to retry, and when: queues that are full or rate-limited, and refused rows, whose times are
/// in the table too.
#[derive(Debug, Default)]
struct Held {
    queues: HashMap<String, Instant>,
    rows: BTreeSet<Instant>,
}

impl Held {
    fn hold(&mut self, queues: HashMap<String, Duration>, rows: &[Refused]) {
        let now = Instant::now();
        self.queues.extend(queues.into_iter().map(|(queue, pause)| (queue, now + pause)));
        let times = rows.iter().filter_map(|row| Some(now + row.retry_in?));
        self.rows.extend(times.take(RETRIES_MAX.saturating_sub(self.rows.len())));
    }

    /// Queues that must not be tried yet.
    fn queues(&mut self) -> Vec<String> {
        let now = Instant::now();
        self.queues.retain(|_, until| *until > now);
        self.rows = self.rows.split_off(&now);
        self.queues.keys().cloned().collect()
    }

    /// The time to wait, at most until the first of them may be retried.
    fn poll(&self, poll: Duration) -> Duration {
        let first = self.queues.values().chain(self.rows.first()).min();
        let left = first.map(|until| until.saturating_duration_since(Instant::now()));
        left.map_or(poll, |left| left.min(poll).max(POLL_MIN))
    }
}

/// Whether the relay must stop.
#[derive(Clone, Debug)]
struct Stop(watch::Receiver<bool>);

impl Stop {
    fn is_heard(&self) -> bool {
        *self.0.borrow()
    }

    async fn heard(&self) {
        let mut told = self.0.clone();
        if told.wait_for(|is_told| *is_told).await.is_err() {
            // The sender is gone, so there will be no stop.
            std::future::pending().await
        }
    }
}

/// Milliseconds since 1970, by the clock of this machine.
fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

impl Database {
    fn parse(address: &str) -> Result<Self, Error> {
        match address.split_once(':') {
            #[cfg(feature = "postgres")]
            Some(("postgres" | "postgresql", _)) => {
                let config = address.parse::<tokio_postgres::Config>();
                let config = config.map_err(Error::database("not a valid PostgreSQL address"))?;
                Ok(Self::Postgres(Box::new(config), None))
            }
            #[cfg(feature = "sqlite")]
            Some(("sqlite", path)) => {
                let path = path.strip_prefix("//").unwrap_or(path);
                if path.is_empty() {
                    return Err(Error::invalid("sqlite:// is followed by the path of a file"));
                }
                Ok(Self::Sqlite(path.into()))
            }
            _ => Err(Error::invalid(
                "the database is given as postgres://USER@HOST/NAME or sqlite://PATH",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_is_known_by_its_address() {
        assert!(matches!(Database::parse("postgres://a@b/c"), Ok(Database::Postgres(..))));
        for (address, path) in [("sqlite://a/b.db", "a/b.db"), ("sqlite:///a.db", "/a.db")] {
            let Ok(Database::Sqlite(parsed)) = Database::parse(address) else { panic!() };
            assert_eq!(parsed, std::path::PathBuf::from(path));
        }
        for wrong in ["mysql://a@b/c", "shop.db", "sqlite://", ""] {
            let error = Database::parse(wrong).unwrap_err();
            assert!(error.to_string().contains("sqlite://"), "{error}");
        }
    }
}
