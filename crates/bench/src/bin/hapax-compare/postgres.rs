//! A table of PostgreSQL as a queue: INSERT of many rows, SELECT … FOR UPDATE SKIP LOCKED, DELETE;
//! the keys, where they are remembered, in a table with a unique index.
//!
//! A lease is a row lock, held by the worker's open transaction: a worker that dies loses it.
//! Writing the lease into the row instead would outlive a connection, and cost a quarter more CPU.
//! Every statement takes a batch of messages. PostgreSQL syncs once for all transactions that
//! commit at about the same time, so several connections make its syncs rare.

pub(crate) mod cluster;
mod place;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hapax_bench::ledger::{BACKLOG_PAUSE, Ledger, REPEATED};
use hapax_bench::messages::Messages;
use hapax_bench::server::Server;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio_postgres::{Client, Row, Statement};
use uuid::Uuid;

use crate::system::{Before, Load, Measured, Options, Running, Tuning};
use cluster::Cluster;
use place::Place;

/// The table is vacuumed early and at full speed: the workers' scans start among its dead rows.
const SCHEMA: &str = "
DROP TABLE IF EXISTS messages, keys;
CREATE TABLE messages (
    id bigint GENERATED ALWAYS AS IDENTITY (CACHE 100) PRIMARY KEY,
    key uuid NOT NULL,
    body bytea NOT NULL
) WITH (
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = -1
);
CREATE TABLE keys (key uuid PRIMARY KEY, until timestamptz NOT NULL)";

const SEND: &str = "INSERT INTO messages (key, body) SELECT * FROM unnest($1::uuid[], $2::bytea[])";

/// A key is remembered as long as Hapax remembers a finished one by default. It has a table of its
/// own: left in the row of the message, it would have to be moved with it when that is settled.
const SEND_ONCE: &str = "
WITH fresh AS (
    INSERT INTO keys SELECT key, now() + interval '7 days' FROM unnest($1::uuid[]) key
    ON CONFLICT DO NOTHING RETURNING key
)
INSERT INTO messages (key, body)
SELECT key, body FROM unnest($1::uuid[], $2::bytea[]) sent (key, body) JOIN fresh USING (key)";

const CLAIM: &str =
    "SELECT ctid, key, body FROM messages ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED";

const SETTLE: &str = "DELETE FROM messages WHERE ctid = ANY($1)";

const LEFT: &str = "SELECT (SELECT count(*) FROM messages), (SELECT count(*) FROM keys)";

/// How long a worker waits when it found nothing.
const PAUSE: Duration = Duration::from_millis(2);

const TUNING: Tuning = Tuning { producers: 4, workers: 4, batch: 100, pipeline: 1 };

#[derive(Debug)]
pub(crate) struct Postgres {
    remembers_keys: bool,
    tuning: Tuning,
    runtime: Runtime,
    cluster: [Cluster; 1],
}

impl Postgres {
    pub(crate) fn start(remembers_keys: bool, options: &Options) -> Result<Self> {
        let runtime = Runtime::new()?;
        let cluster = [Cluster::start(&runtime, &options.dir)?];
        Ok(Self { remembers_keys, tuning: TUNING.or(options), runtime, cluster })
    }

    async fn connect(&self) -> Result<Client> {
        let [cluster] = &self.cluster;
        cluster.connect().await
    }

    async fn live(&self, load: &Load) -> Result<Measured> {
        let client = self.connect().await?;
        client.batch_execute(SCHEMA).await?;
        // Writes left over from the previous run must not happen in this one.
        client.batch_execute("CHECKPOINT").await?;
        let producers = self.producers().await?;
        let workers = self.workers().await?;
        let before = Before::now(self).await?;
        let ledger = Arc::new(load.ledger());
        let mut tasks = JoinSet::new();
        for producer in producers {
            let ledger = Arc::clone(&ledger);
            tasks.spawn(async move { ledger.ended(producer.produce(&ledger).await) });
        }
        for worker in workers {
            let ledger = Arc::clone(&ledger);
            tasks.spawn(async move { ledger.ended(worker.work(&ledger).await) });
        }
        while let Some(ended) = tasks.join_next().await {
            ended?;
        }
        let ledger = Arc::into_inner(ledger).context("a task that did not end")?;
        let measured = before.measured(self, ledger).await?;
        self.verify(client, &load.messages).await?;
        Ok(measured)
    }

    /// As many per connection as batches in flight: the connection sends them in turns.
    async fn producers(&self) -> Result<Vec<Producer>> {
        let mut producers = Vec::new();
        for _ in 0..self.tuning.producers {
            let producer = self.producer(self.connect().await?).await?;
            producers.resize(producers.len() + usize::from(self.tuning.pipeline), producer);
        }
        Ok(producers)
    }

    async fn producer(&self, client: Client) -> Result<Producer> {
        let send = client.prepare(if self.remembers_keys { SEND_ONCE } else { SEND }).await?;
        Ok(Producer { client: Arc::new(client), send, batch: self.tuning.batch })
    }

    async fn workers(&self) -> Result<Vec<Worker>> {
        let mut workers = Vec::new();
        for _ in 0..self.tuning.workers {
            let client = self.connect().await?;
            let claim = client.prepare(CLAIM).await?;
            let settle = client.prepare(SETTLE).await?;
            workers.push(Worker { client, claim, settle, batch: self.tuning.batch });
        }
        Ok(workers)
    }

    /// Nothing is left, and keys that were sent are known.
    async fn verify(&self, client: Client, messages: &Messages) -> Result<()> {
        let producer = self.producer(client).await?;
        if self.remembers_keys {
            let accepted = producer.send(messages, 0..messages.count().min(REPEATED)).await?;
            ensure!(accepted == 0, "{accepted} repeated keys were accepted again");
        }
        let row = producer.client.query_one(LEFT, &[]).await?;
        let (left, keys): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        ensure!(left == 0, "{left} messages are left in the table");
        let expected = if self.remembers_keys { messages.count() } else { 0 };
        ensure!(u64::try_from(keys)? == expected, "PostgreSQL has {keys} keys, not {expected}");
        Ok(())
    }
}

impl Running for Postgres {
    fn server(&self) -> &Server {
        let [cluster] = &self.cluster;
        cluster.server()
    }

    fn databases(&self) -> &[Cluster] {
        &self.cluster
    }

    fn run(&self, load: &Load) -> Result<Measured> {
        self.runtime.block_on(self.live(load))
    }
}

#[derive(Clone)]
struct Producer {
    client: Arc<Client>,
    send: Statement,
    batch: u16,
}

impl Producer {
    async fn produce(&self, ledger: &Ledger) -> Result<()> {
        loop {
            ledger.check()?;
            let batch = u64::from(self.batch);
            let Some(numbers) = ledger.take(batch, batch) else {
                if ledger.is_taken() {
                    return Ok(());
                }
                tokio::time::sleep(BACKLOG_PAUSE).await;
                continue;
            };
            let accepted = self.send(ledger.messages(), numbers.clone()).await?;
            let is_all = accepted == numbers.end - numbers.start;
            ensure!(is_all, "a new key was refused as known");
            numbers.for_each(|number| ledger.sent(number, None));
        }
    }

    /// One statement, one transaction: how many of the messages were accepted.
    async fn send(&self, messages: &Messages, numbers: Range<u64>) -> Result<u64> {
        let mut keys = Vec::new();
        let mut bodies = Vec::new();
        for number in numbers {
            keys.push(messages.key(number));
            bodies.push(messages.body(number));
        }
        Ok(self.client.execute(&self.send, &[&keys, &bodies]).await?)
    }
}

struct Worker {
    client: Client,
    claim: Statement,
    settle: Statement,
    batch: u16,
}

impl Worker {
    /// Settles what it got and asks for more in one exchange.
    async fn work(&self, ledger: &Ledger) -> Result<()> {
        let (mut places, mut numbers) = (Vec::new(), Vec::new());
        self.client.batch_execute("BEGIN").await?;
        while !ledger.is_complete() {
            ledger.check()?;
            let rows = self.exchange(&places).await?;
            ledger.settled(numbers.drain(..));
            places.clear();
            for row in &rows {
                places.push(row.try_get(0)?);
                let key: Uuid = row.try_get(1)?;
                numbers.push(ledger.delivered(Some(key), row.try_get(2)?, None)?);
            }
            if rows.is_empty() {
                tokio::time::sleep(PAUSE).await;
            }
        }
        Ok(())
    }

    /// The settles are confirmed by the COMMIT. The statements go out together, in this order.
    async fn exchange(&self, places: &[Place]) -> Result<Vec<Row>> {
        let limit = i64::from(self.batch);
        let settle = async {
            if places.is_empty() {
                return Ok(0);
            }
            self.client.execute(&self.settle, &[&places]).await
        };
        let commit = self.client.batch_execute("COMMIT; BEGIN");
        let claim = async { self.client.query(&self.claim, &[&limit]).await };
        let (settled, (), rows) = tokio::try_join!(biased; settle, commit, claim)?;
        let messages = places.len() as u64;
        ensure!(settled == messages, "{settled} of {messages} messages were settled");
        Ok(rows)
    }
}
