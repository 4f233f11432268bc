//! Workers whose handlers run in a transaction of the user's database.
//!
//! Around every handler stand the same steps: begin, enter, run, store the result, commit, settle.
//! A handler that fails rolls everything back, its row included, and fails the attempt. A message
//! that was carried out before is settled with the stored result, and its handler is not called.
//! One that somebody newer has carried out is left alone.

#[cfg(feature = "sqlite")]
mod blocking;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hapax_client::{Delivery, Done, Failure, Worker};

use crate::error::Error;
use crate::inbox::{Consumer, Entered, Finished, Inbox, SWEEP_BATCH, retention_for};
use crate::transaction::Transaction;
#[cfg(feature = "sqlite")]
pub use blocking::RunInBlockingTransaction;

/// How often the rows are swept that are past their time.
const SWEEP_EVERY: Duration = Duration::from_secs(600);
/// Between two batches of a sweep: others want to write too.
const SWEEP_PAUSE: Duration = Duration::from_millis(50);
/// Older than any row: some hundred years, which every database can subtract from now.
const OLDEST_MS: i64 = 100 * 366 * 24 * 60 * 60 * 1_000;

/// What `Box::pin(async move { … })` makes.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Connections to the user's database: `deadpool_postgres::Pool`, `sqlx::PgPool`,
/// `sqlx::SqlitePool`. For rusqlite see `RunInBlockingTransaction`.
pub trait Pool: Clone + Send + Sync + 'static {
    type Transaction: Transaction + Send + 'static;

    fn begin(&self) -> impl Future<Output = Result<Self::Transaction, Error>> + Send;

    /// An error leaves open whether it is committed.
    fn commit(transaction: Self::Transaction) -> impl Future<Output = Result<(), Error>> + Send;

    fn rollback(transaction: Self::Transaction) -> impl Future<Output = Result<(), Error>> + Send;

    /// Deletes rows of the inbox that are older than so many milliseconds, at most so many. Tells
    /// how many there were.
    fn sweep(
        &self,
        inbox: &Inbox,
        older_ms: i64,
        most: i64,
    ) -> impl Future<Output = Result<u64, Error>> + Send;
}

/// Runs handlers in transactions, with an inbox.
pub trait RunInTransaction {
    /// Works for ever, or until there is an error that no retry helps against.
    ///
    /// The effect of a message is what its handler writes in the transaction, and it happens once:
    /// however often the message is delivered, whoever dies, and whenever. What a handler does
    /// besides, such as a call to another service, is done again with every attempt; use steps
    /// for that.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     orders: hapax_client::Queue, pool: sqlx::PgPool,
    /// # ) -> Result<(), hapax_transactions::Error> {
    /// use hapax_client::{Failure, Worker};
    /// use hapax_transactions::RunInTransaction;
    ///
    /// Worker::new(orders)
    ///     .run_in_transaction(pool, "billing", |tx, message| {
    ///         Box::pin(async move {
    ///             sqlx::query("UPDATE accounts SET balance = balance - 17 WHERE name = $1")
    ///                 .bind(message.text())
    ///                 .execute(&mut **tx)
    ///                 .await?;
    ///             Ok::<_, Failure>("charged")
    ///         })
    ///     })
    ///     .await
    /// # }
    /// ```
    fn run_in_transaction<P, H, R, E>(
        self,
        pool: P,
        consumer: impl Into<Consumer> + Send,
        handler: H,
    ) -> impl Future<Output = Result<(), Error>> + Send
    where
        P: Pool,
        H: for<'a> Fn(&'a mut P::Transaction, Delivery) -> BoxFuture<'a, Result<R, E>>
            + Send
            + Sync
            + 'static,
        R: Into<Finished> + Send + 'static,
        E: Into<Failure> + Send + 'static;

    /// As [`run_in_transaction`](Self::run_in_transaction), until `stop` is ready; see
    /// [`Worker::run_until`].
    fn run_in_transaction_until<P, H, R, E>(
        self,
        stop: impl Future<Output = ()> + Send,
        pool: P,
        consumer: impl Into<Consumer> + Send,
        handler: H,
    ) -> impl Future<Output = Result<(), Error>> + Send
    where
        P: Pool,
        H: for<'a> Fn(&'a mut P::Transaction, Delivery) -> BoxFuture<'a, Result<R, E>>
            + Send
            + Sync
            + 'static,
        R: Into<Finished> + Send + 'static,
        E: Into<Failure> + Send + 'static;
}

impl RunInTransaction for Worker {
    async fn run_in_transaction<P, H, R, E>(
        self,
        pool: P,
        consumer: impl Into<Consumer> + Send,
        handler: H,
    ) -> Result<(), Error>
    where
        P: Pool,
        H: for<'a> Fn(&'a mut P::Transaction, Delivery) -> BoxFuture<'a, Result<R, E>>
            + Send
            + Sync
            + 'static,
        R: Into<Finished> + Send + 'static,
        E: Into<Failure> + Send + 'static,
    {
        self.run_in_transaction_until(std::future::pending(), pool, consumer, handler).await
    }

    async fn run_in_transaction_until<P, H, R, E>(
        self,
        stop: impl Future<Output = ()> + Send,
        pool: P,
        consumer: impl Into<Consumer> + Send,
        handler: H,
    ) -> Result<(), Error>
    where
        P: Pool,
        H: for<'a> Fn(&'a mut P::Transaction, Delivery) -> BoxFuture<'a, Result<R, E>>
            + Send
            + Sync
            + 'static,
        R: Into<Finished> + Send + 'static,
        E: Into<Failure> + Send + 'static,
    {
        let inbox = consumer.into().inbox(self.queue().name())?;
        let retention = retention_for(&inbox, self.queue()).await?;
        // A table that is not there is told now, and not with every message.
        pool.sweep(&inbox, OLDEST_MS, 0).await?;
        let shared = Arc::new((pool, inbox, handler));
        let kept = Arc::clone(&shared);
        let (pool, inbox, _) = &*kept;
        let sweeping = sweep_on(retention, |older_ms, most| pool.sweep(inbox, older_ms, most));
        let worker = self.run_until(stop, move |delivery, _context| {
            let shared = Arc::clone(&shared);
            async move {
                let (pool, inbox, handler) = &*shared;
                carry_out(pool, inbox, handler, delivery).await
            }
        });
        tokio::select! {
            ended = worker => Ok(ended?),
            () = sweeping => Ok(()),
        }
    }
}

async fn carry_out<P, H, R, E>(
    pool: &P,
    inbox: &Inbox,
    handler: &H,
    delivery: Delivery,
) -> Result<Done, Failure>
where
    P: Pool,
    H: for<'a> Fn(&'a mut P::Transaction, Delivery) -> BoxFuture<'a, Result<R, E>>,
    R: Into<Finished>,
    E: Into<Failure>,
{
    let mut transaction = pool.begin().await?;
    match inbox.enter(&mut transaction, &delivery).await? {
        Entered::First => {}
        Entered::Done(result) => {
            // It is done whether or not the empty transaction can be ended.
            let _ = P::rollback(transaction).await;
            return Ok(result.into());
        }
        Entered::Stale { fence } => {
            let _ = P::rollback(transaction).await;
            return Err(stale(&delivery, fence));
        }
    }
    let finished: Finished = match handler(&mut transaction, delivery.clone()).await {
        Ok(finished) => finished.into(),
        Err(error) => {
            let failure = error.into();
            if let Err(error) = P::rollback(transaction).await {
                tracing::debug!(%error, "a transaction was left to the database to roll back");
            }
            return Err(failure);
        }
    };
    inbox.finish(&mut transaction, &delivery, finished.clone()).await?;
    let Err(error) = P::commit(transaction).await else { return Ok(finished.0.into()) };
    look_up(pool, inbox, &delivery, error).await
}

/// The answer to the commit was lost: the database is asked, never guessed about. A commit that is
/// still under way is waited for by the insert.
async fn look_up<P: Pool>(
    pool: &P,
    inbox: &Inbox,
    delivery: &Delivery,
    error: Error,
) -> Result<Done, Failure> {
    let mut transaction = pool.begin().await?;
    let entered = inbox.enter(&mut transaction, delivery).await?;
    let _ = P::rollback(transaction).await;
    match entered {
        Entered::Done(result) => Ok(result.into()),
        Entered::First | Entered::Stale { .. } => Err(error.into()),
    }
}

/// Somebody newer has carried it out, so this lease is lost: nothing is written, and the broker
/// refuses whatever is settled under it.
fn stale(delivery: &Delivery, fence: u64) -> Failure {
    tracing::warn!(
        ours = delivery.fence(),
        newer = fence,
        "woke up too late: a newer delivery has carried the message out; nothing was written"
    );
    Failure::new("a newer delivery has carried it out; nothing was written")
}

/// Sweeps now and then, for ever; or never, where rows are kept for ever. A sweep is told how old
/// rows must be, and how many it may delete.
async fn sweep_on<F>(retention: Option<Duration>, sweep: impl Fn(i64, i64) -> F)
where
    F: Future<Output = Result<u64, Error>>,
{
    let Some(retention) = retention else { return std::future::pending().await };
    let older_ms = i64::try_from(retention.as_millis()).unwrap_or(OLDEST_MS);
    loop {
        let pause = match sweep(older_ms, SWEEP_BATCH).await {
            Ok(swept) if swept >= SWEEP_BATCH as u64 => SWEEP_PAUSE,
            Ok(_) => SWEEP_EVERY,
            Err(error) => {
                tracing::warn!(%error, "the inbox is swept later");
                SWEEP_EVERY
            }
        };
        tokio::time::sleep(pause).await;
    }
}
