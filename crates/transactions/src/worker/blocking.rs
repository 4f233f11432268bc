//! Handlers that block: the same steps on threads where that is allowed, for rusqlite.

use std::future::Future;
use std::sync::Arc;

use hapax_client::{Delivery, Done, Failure, Worker};

use super::{OLDEST_MS, stale, sweep_on};
use crate::error::Error;
use crate::inbox::{Consumer, Entered, Finished, Inbox, retention_for};
use crate::sqlite::{self, Database};

/// Runs handlers in transactions of rusqlite, with an inbox.
pub trait RunInBlockingTransaction {
    /// As
    /// [`run_in_transaction`](crate::RunInTransaction::run_in_transaction), for handlers that
    /// block. SQLite has one writer at a time, so handlers run one after the other.
    ///
    /// ```no_run
    /// # async fn example(orders: hapax_client::Queue) -> Result<(), hapax_transactions::Error> {
    /// use hapax_client::{Failure, Worker};
    /// use hapax_transactions::{RunInBlockingTransaction, sqlite::Database};
    ///
    /// let database = Database::open("shop.db")?;
    /// Worker::new(orders)
    ///     .run_in_blocking_transaction(database, "billing", |tx, message| {
    ///         tx.execute("INSERT INTO charges VALUES (?1)", [message.key()])?;
    ///         Ok::<_, Failure>("charged")
    ///     })
    ///     .await
    /// # }
    /// ```
    fn run_in_blocking_transaction<H, R, E>(
        self,
        database: Database,
        consumer: impl Into<Consumer> + Send,
        handler: H,
    ) -> impl Future<Output = Result<(), Error>> + Send
    where
        H: Fn(&rusqlite::Transaction<'_>, &Delivery) -> Result<R, E> + Send + Sync + 'static,
        R: Into<Finished> + Send + 'static,
        E: Into<Failure> + Send + 'static;

    /// As above, until `stop` is ready; see [`Worker::run_until`].
    fn run_in_blocking_transaction_until<H, R, E>(
        self,
        stop: impl Future<Output = ()> + Send,
        database: Database,
        consumer: impl Into<Consumer> + Send,
        handler: H,
    ) -> impl Future<Output = Result<(), Error>> + Send
    where
        H: Fn(&rusqlite::Transaction<'_>, &Delivery) -> Result<R, E> + Send + Sync + 'static,
        R: Into<Finished> + Send + 'static,
        E: Into<Failure> + Send + 'static;
}

impl RunInBlockingTransaction for Worker {
    async fn run_in_blocking_transaction<H, R, E>(
        self,
        database: Database,
        consumer: impl Into<Consumer> + Send,
        handler: H,
    ) -> Result<(), Error>
    where
        H: Fn(&rusqlite::Transaction<'_>, &Delivery) -> Result<R, E> + Send + Sync + 'static,
        R: Into<Finished> + Send + 'static,
        E: Into<Failure> + Send + 'static,
    {
        let stop = std::future::pending();
        self.run_in_blocking_transaction_until(stop, database, consumer, handler).await
    }

    async fn run_in_blocking_transaction_until<H, R, E>(
        self,
        stop: impl Future<Output = ()> + Send,
        database: Database,
        consumer: impl Into<Consumer> + Send,
        handler: H,
    ) -> Result<(), Error>
    where
        H: Fn(&rusqlite::Transaction<'_>, &Delivery) -> Result<R, E> + Send + Sync + 'static,
        R: Into<Finished> + Send + 'static,
        E: Into<Failure> + Send + 'static,
    {
        let inbox = consumer.into().inbox(self.queue().name())?;
        let retention = retention_for(&inbox, self.queue()).await?;
        sweep(&database, &inbox, OLDEST_MS, 0).await?;
        let shared = Arc::new((database, inbox, handler));
        let kept = Arc::clone(&shared);
        let (database, inbox, _) = &*kept;
        let sweeping = sweep_on(retention, |older_ms, most| sweep(database, inbox, older_ms, most));
        let worker = self
            .run_until(stop, move |delivery, _context| carry_out(Arc::clone(&shared), delivery));
        tokio::select! {
            ended = worker => Ok(ended?),
            () = sweeping => Ok(()),
        }
    }
}

async fn carry_out<H, R, E>(
    shared: Arc<(Database, Inbox, H)>,
    delivery: Delivery,
) -> Result<Done, Failure>
where
    H: Fn(&rusqlite::Transaction<'_>, &Delivery) -> Result<R, E> + Send + Sync + 'static,
    R: Into<Finished> + Send + 'static,
    E: Into<Failure> + Send + 'static,
{
    let handed = delivery.clone();
    let worked = tokio::task::spawn_blocking(move || -> Result<Entered, Failure> {
        let (database, inbox, handler) = &*shared;
        database.transaction(|transaction| {
            match inbox.enter_blocking(transaction, &handed)? {
                Entered::First => {}
                found => return Ok(found),
            }
            let finished = handler(transaction, &handed).map_err(Into::into)?;
            let Finished(result) = finished.into();
            inbox.finish_blocking(transaction, &handed, result.clone())?;
            Ok(Entered::Done(result))
        })
    });
    match worked.await {
        Ok(Ok(Entered::Stale { fence })) => Err(stale(&delivery, fence)),
        Ok(Ok(Entered::Done(result))) => Ok(result.into()),
        Ok(Ok(Entered::First)) => Err(Failure::new("the transaction ended without an end")),
        Ok(Err(failure)) => Err(failure),
        Err(error) => Err(Failure::new(format!("the handler did not return: {error}"))),
    }
}

async fn sweep(database: &Database, inbox: &Inbox, older_ms: i64, most: i64) -> Result<u64, Error> {
    let (database, inbox) = (database.clone(), inbox.clone());
    let swept = tokio::task::spawn_blocking(move || {
        database.with(|connection| sqlite::sweep(connection, &inbox, older_ms, most))
    });
    swept.await.map_err(Error::database("the inbox cannot be swept"))?
}
