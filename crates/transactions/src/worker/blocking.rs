//! Handlers that block: the same steps on threads where that is allowed, for rusqlite.

use std::future::Future;
use std::sync::Arc;

use hapax_client::{Blob, Delivery, Done, Failure, Worker};

use super::Guard;
use crate::error::Error;
use crate::inbox::{Consumer, Entered, Finished};
use crate::sqlite::Database;

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
        let guard = Arc::new(Guard::open(&database, consumer.into(), self.queue()).await?);
        let shared = Arc::new((database.clone(), Arc::clone(&guard), handler));
        let sweeping = guard.sweep_on(&database);
        let stop = guard.or_refused(stop);
        let worker = self
            .run_until(stop, move |delivery, _context| carry_out(Arc::clone(&shared), delivery));
        tokio::select! {
            ended = worker => guard.ended(ended),
            () = sweeping => Ok(()),
        }
    }
}

async fn carry_out<H, R, E>(
    shared: Arc<(Database, Arc<Guard>, H)>,
    delivery: Delivery,
) -> Result<Done, Failure>
where
    H: Fn(&rusqlite::Transaction<'_>, &Delivery) -> Result<R, E> + Send + Sync + 'static,
    R: Into<Finished> + Send + 'static,
    E: Into<Failure> + Send + 'static,
{
    let guard = Arc::clone(&shared.1);
    guard.admit(&delivery)?;
    let runtime = tokio::runtime::Handle::current();
    let worked = tokio::task::spawn_blocking(move || -> Result<Worked, Failure> {
        let (database, guard, handler) = &*shared;
        database.transaction(|transaction| {
            match guard.inbox.enter_blocking(transaction, &delivery)? {
                Entered::First => {}
                Entered::Done(result) => return Ok(Worked::Before(result)),
            }
            let finished: Finished = handler(transaction, &delivery).map_err(Into::into)?.into();
            runtime.block_on(guard.check_again(&finished))?;
            guard.inbox.finish_blocking(transaction, &delivery, finished.clone())?;
            Ok(Worked::Now(finished))
        })
    });
    match worked.await {
        Ok(Ok(Worked::Now(finished))) => Ok(finished.0.into()),
        Ok(Ok(Worked::Before(result))) => Ok(guard.done(result).await),
        Ok(Err(failure)) => Err(failure),
        Err(error) => Err(Failure::new(format!("the handler did not return: {error}"))),
    }
}

/// How a transaction ended.
enum Worked {
    /// With the effect of this delivery.
    Now(Finished),
    /// Without one: it was there, with this result.
    Before(Option<Blob>),
}
