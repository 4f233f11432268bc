//! Blocking handlers, for rusqlite: the same steps on threads for blocking calls.

use std::future::Future;
use std::sync::Arc;

#[cfg(doc)]
use hapax_client::Worker;
use hapax_client::{Blob, Delivery, Done, Failure};

use super::{Guard, InTransaction};
use crate::error::Error;
use crate::inbox::{Entered, Finished};
use crate::sqlite::Database;

/// For blocking handlers. SQLite has one writer at a time, so they run one after the other.
///
/// ```no_run
/// # async fn example(orders: hapax_client::Queue) -> Result<(), hapax_transactions::Error> {
/// use hapax_client::{Failure, Worker};
/// use hapax_transactions::{InTransaction, sqlite::Database};
///
/// let database = Database::open("shop.db")?;
/// InTransaction::new(Worker::new(orders), database, "billing")
///     .run(|tx, message| {
///         tx.execute("INSERT INTO charges VALUES (?1)", [message.key()])?;
///         Ok::<_, Failure>("charged")
///     })
///     .await
/// # }
/// ```
impl InTransaction<Database> {
    /// Runs for ever, or until a permanent error.
    pub async fn run<H, R, E>(self, handler: H) -> Result<(), Error>
    where
        H: Fn(&rusqlite::Transaction<'_>, &Delivery) -> Result<R, E> + Send + Sync + 'static,
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
        H: Fn(&rusqlite::Transaction<'_>, &Delivery) -> Result<R, E> + Send + Sync + 'static,
        R: Into<Finished> + Send + 'static,
        E: Into<Failure> + Send + 'static,
    {
        let handler = Arc::new(handler);
        let carry_out = move |database, guard, delivery| {
            carry_out(database, guard, Arc::clone(&handler), delivery)
        };
        self.work(stop, carry_out).await
    }
}

async fn carry_out<H, R, E>(
    database: Database,
    guard: Arc<Guard>,
    handler: Arc<H>,
    delivery: Delivery,
) -> Result<Done, Failure>
where
    H: Fn(&rusqlite::Transaction<'_>, &Delivery) -> Result<R, E> + Send + Sync + 'static,
    R: Into<Finished> + Send + 'static,
    E: Into<Failure> + Send + 'static,
{
    guard.admit(&delivery)?;
    let guarded = Arc::clone(&guard);
    let runtime = tokio::runtime::Handle::current();
    let worked = tokio::task::spawn_blocking(move || -> Result<Worked, Failure> {
        let guard = guarded;
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
    /// Committed with the effect of this delivery.
    Now(Finished),
    /// Without an effect: the message was processed before, with this result.
    Before(Option<Blob>),
}
