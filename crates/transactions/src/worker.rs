//! Workers whose handlers run in a transaction of the user's database.
//!
//! For every message the worker takes the same steps: begin, enter, run the handler, store the
//! result, commit, settle. A handler that fails rolls everything back, including the row, and fails
//! the attempt. A message that was processed before is settled with the stored result, and its
//! handler is not called. A result that is too large for the queue is noticed before the commit:
//! then nothing is written, and the message is dead until its handler is fixed and it is redriven.

#[cfg(feature = "sqlite")]
mod blocking;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hapax_client::{Blob, Delivery, Done, Failure, Queue, Worker};
use tokio::sync::watch;

use crate::error::Error;
use crate::inbox::{Consumer, Entered, Finished, Inbox, Names, Old, Page, Rows, Rules};
use crate::transaction::{Statement, Transaction};

/// How often old rows are deleted.
const SWEEP_EVERY: Duration = Duration::from_secs(600);
/// The same, until the first delivery shows the tenant.
const LEARN_EVERY: Duration = Duration::from_secs(10);
/// The type of `Box::pin(async move { … })`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Connections to the user's database: `deadpool_postgres::Pool`, `sqlx::PgPool`,
/// `sqlx::SqlitePool`. rusqlite, which blocks, has
/// `sqlite::Database` instead.
pub trait Pool: Clone + Send + Sync + 'static {
    type Transaction: Transaction + Send + 'static;

    fn begin(&self) -> impl Future<Output = Result<Self::Transaction, Error>> + Send;

    /// After an error it is unknown whether the transaction is committed.
    fn commit(transaction: Self::Transaction) -> impl Future<Output = Result<(), Error>> + Send;

    fn rollback(transaction: Self::Transaction) -> impl Future<Output = Result<(), Error>> + Send;
}

impl<P: Pool> Rows for P {
    async fn old(&self, names: &Names, page: Page) -> Result<Vec<Old>, Error> {
        let mut transaction = self.begin().await?;
        let old = transaction.old(&Statement::old(names, &page)).await?;
        P::rollback(transaction).await?;
        Ok(old)
    }

    async fn delete(&self, names: &Names, rows: Vec<Old>) -> Result<u64, Error> {
        let mut transaction = self.begin().await?;
        let mut count = 0;
        for old in &rows {
            count += transaction.execute(&Statement::sweep(&names.row(old))).await?;
        }
        P::commit(transaction).await?;
        Ok(count)
    }
}

/// A worker whose handlers run in transactions, with an inbox.
///
/// What a handler writes in the transaction happens once, however often the message is delivered
/// and whichever process dies. Anything else that it does, such as a call to another service, is
/// repeated with every attempt; use steps for that.
///
/// The pool is the driver's: any [`Pool`], or `sqlite::Database` for rusqlite.
///
/// ```no_run
/// # async fn example(
/// #     orders: hapax_client::Queue, pool: sqlx::PgPool,
/// # ) -> Result<(), hapax_transactions::Error> {
/// use hapax_client::{Failure, Worker};
/// use hapax_transactions::InTransaction;
///
/// InTransaction::new(Worker::new(orders), pool, "billing")
///     .run(|tx, message| {
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
#[derive(Debug)]
pub struct InTransaction<P> {
    worker: Worker,
    pool: P,
    consumer: Consumer,
}

impl<P> InTransaction<P> {
    pub fn new(worker: Worker, pool: P, consumer: impl Into<Consumer>) -> Self {
        Self { worker, pool, consumer: consumer.into() }
    }
}

impl<P: Pool> InTransaction<P> {
    /// Runs for ever, or until a permanent error.
    pub async fn run<H, R, E>(self, handler: H) -> Result<(), Error>
    where
        H: for<'a> Fn(&'a mut P::Transaction, Delivery) -> BoxFuture<'a, Result<R, E>>
            + Send
            + Sync
            + 'static,
        R: Into<Finished> + Send + 'static,
        E: Into<Failure> + Send + 'static,
    {
        self.run_until(std::future::pending(), handler).await
    }

    /// Like [`run`](Self::run), until `stop` resolves; see [`Worker::run_until`].
    pub async fn run_until<H, R, E>(
        self,
        stop: impl Future<Output = ()> + Send,
        handler: H,
    ) -> Result<(), Error>
    where
        H: for<'a> Fn(&'a mut P::Transaction, Delivery) -> BoxFuture<'a, Result<R, E>>
            + Send
            + Sync
            + 'static,
        R: Into<Finished> + Send + 'static,
        E: Into<Failure> + Send + 'static,
    {
        let handler = Arc::new(handler);
        let carry_out = move |pool: P, guard: Arc<Guard>, delivery| {
            let handler = Arc::clone(&handler);
            async move { carry_out(&pool, &guard, &*handler, delivery).await }
        };
        self.work(stop, carry_out).await
    }
}

impl<P: Rows + Clone + 'static> InTransaction<P> {
    /// Processes messages, and deletes old rows meanwhile.
    async fn work<F>(
        self,
        stop: impl Future<Output = ()> + Send,
        carry_out: impl Fn(P, Arc<Guard>, Delivery) -> F + Send + Sync + 'static,
    ) -> Result<(), Error>
    where
        F: Future<Output = Result<Done, Failure>> + Send + 'static,
    {
        let Self { worker, pool, consumer } = self;
        let guard = Arc::new(Guard::open(&pool, consumer, worker.queue()).await?);
        let sweeping = guard.sweep_on(&pool);
        let stop = guard.or_refused(stop);
        let (handed, guarded) = (pool.clone(), Arc::clone(&guard));
        let worker = worker.run_until(stop, move |delivery, _context| {
            carry_out(handed.clone(), Arc::clone(&guarded), delivery)
        });
        tokio::select! {
            ended = worker => guard.ended(ended),
            () = sweeping => Ok(()),
        }
    }
}

/// What the handlers of one worker share: the inbox, and the queue's configuration.
pub(crate) struct Guard {
    inbox: Inbox,
    queue: Queue,
    /// The largest result that the queue allows, when it was last read.
    result_bytes_max: AtomicU64,
    /// Why the worker must stop, if it must.
    refusal: watch::Sender<Option<String>>,
}

impl Guard {
    /// Fails now, and not with every message, if the table is missing or the retention is too
    /// short.
    pub(crate) async fn open(
        rows: &impl Rows,
        consumer: Consumer,
        queue: &Queue,
    ) -> Result<Self, Error> {
        let inbox = consumer.inbox(queue.name())?;
        let rules = Rules::of(&inbox, queue).await?;
        inbox.check_table(rows).await?;
        let result_bytes_max = AtomicU64::new(rules.result_bytes_max);
        Ok(Self {
            inbox,
            queue: queue.clone(),
            result_bytes_max,
            refusal: watch::Sender::new(None),
        })
    }

    /// Checks that a delivery belongs to the inbox's tenant. A worker with the token of another
    /// tenant stops at its first message, because every message would fail until it is dead.
    fn admit(&self, delivery: &Delivery) -> Result<(), Failure> {
        let Err(error) = self.inbox.check_tenant(delivery) else { return Ok(()) };
        self.refusal.send_replace(Some(error.to_string()));
        Err(error.into())
    }

    /// Resolves when the worker is stopped, or must stop.
    async fn or_refused(&self, stop: impl Future<Output = ()>) {
        let mut refusal = self.refusal.subscribe();
        tokio::select! {
            () = stop => {}
            _ = refusal.wait_for(Option::is_some) => {}
        }
    }

    /// The result of a worker that has ended.
    fn ended(&self, ended: Result<(), hapax_client::Error>) -> Result<(), Error> {
        ended?;
        match &*self.refusal.borrow() {
            Some(refusal) => Err(Error::invalid(refusal.clone())),
            None => Ok(()),
        }
    }

    async fn rules(&self) -> Result<Rules, Error> {
        let rules = Rules::of(&self.inbox, &self.queue).await?;
        self.result_bytes_max.store(rules.result_bytes_max, Ordering::Relaxed);
        Ok(rules)
    }

    /// Deletes old rows periodically, by the current configuration. Errors are retried the next
    /// time.
    pub(crate) async fn sweep_on(&self, rows: &impl Rows) {
        loop {
            let swept = async {
                let rules = self.rules().await?;
                self.inbox.sweep_by(&rules, rows, &self.queue).await
            };
            if let Err(error) = swept.await {
                tracing::warn!(%error, "cannot delete old inbox rows now; retrying later");
            }
            // Without a tenant there has been no message yet.
            let is_known = self.inbox.known_tenant().is_some();
            tokio::time::sleep(if is_known { SWEEP_EVERY } else { LEARN_EVERY }).await;
        }
    }

    /// Refuses a result that is too large for the queue, while the effect can still be rolled back.
    fn check(&self, finished: &Finished) -> Result<(), TooLarge> {
        let bytes = finished.0.as_ref().map_or(0, |result| result.body.len() as u64);
        let max = self.result_bytes_max.load(Ordering::Relaxed);
        if bytes <= max { Ok(()) } else { Err(TooLarge { bytes, max }) }
    }

    /// Like [`Guard::check`], but reads the queue's configuration again before it refuses.
    async fn check_again(&self, finished: &Finished) -> Result<(), Failure> {
        if self.check(finished).is_ok() {
            return Ok(());
        }
        self.rules().await?;
        // The handler would return the same result again.
        self.check(finished).map_err(|error| Failure::dead(format!("{error}; nothing was written")))
    }

    /// The settle of a message that was processed before. A result that is now too large for the
    /// queue is left out, because a refusal would keep the message from being done.
    async fn done(&self, result: Option<Blob>) -> Done {
        let finished = Finished(result);
        if finished.0.is_some()
            && let Err(error) = self.rules().await
        {
            tracing::debug!(%error, "cannot read the queue's configuration again");
        }
        match self.check(&finished) {
            Ok(()) => finished.0.into(),
            Err(too_large) => {
                tracing::warn!(error = %too_large, "the result of a message was too large and was \
                                                    not sent");
                Done::new()
            }
        }
    }
}

#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the result has {bytes} bytes, the queue allows {max}")]
struct TooLarge {
    bytes: u64,
    max: u64,
}

async fn carry_out<P, H, R, E>(
    pool: &P,
    guard: &Guard,
    handler: &H,
    delivery: Delivery,
) -> Result<Done, Failure>
where
    P: Pool,
    H: for<'a> Fn(&'a mut P::Transaction, Delivery) -> BoxFuture<'a, Result<R, E>>,
    R: Into<Finished>,
    E: Into<Failure>,
{
    guard.admit(&delivery)?;
    let inbox = &guard.inbox;
    let mut transaction = pool.begin().await?;
    match inbox.enter(&mut transaction, &delivery).await? {
        Entered::First => {}
        Entered::Done(result) => {
            // The message is done whether or not the empty transaction can be rolled back.
            let _ = P::rollback(transaction).await;
            return Ok(guard.done(result).await);
        }
    }
    let finished: Finished = match handler(&mut transaction, delivery.clone()).await {
        Ok(finished) => finished.into(),
        Err(error) => {
            let failure = error.into();
            if let Err(error) = P::rollback(transaction).await {
                tracing::debug!(%error, "cannot roll back a transaction; the database will");
            }
            return Err(failure);
        }
    };
    if let Err(failure) = guard.check_again(&finished).await {
        let _ = P::rollback(transaction).await;
        return Err(failure);
    }
    if let Err(error) = inbox.finish(&mut transaction, &delivery, finished.clone()).await {
        let _ = P::rollback(transaction).await;
        return Err(error.into());
    }
    let Err(error) = P::commit(transaction).await else { return Ok(finished.0.into()) };
    look_up(pool, inbox, &delivery, error).await
}

/// Asks the database for the outcome of a commit whose answer was lost. The insert waits for a
/// commit that is still in progress.
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
        Entered::First => Err(error.into()),
    }
}
