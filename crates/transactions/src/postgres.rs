//! PostgreSQL by tokio-postgres, with the pool deadpool-postgres.
//!
//! Statements go out unprepared, with their types: one exchange each, and nothing that a pooler
//! between us and the server would have to remember.

use deadpool_postgres::Object;
use hapax_client::Blob;
use tokio_postgres::GenericClient;
use tokio_postgres::types::{ToSql, Type};

use crate::error::Error;
use crate::inbox::{Found, Names, Old, Page, Row};
use crate::outbox::Entry;
use crate::sql::postgres as sql;
use crate::transaction::Transaction as Statements;
use crate::worker::Pool;

/// A transaction on a connection of the pool, handed to the handlers of
/// [`run_in_transaction`](crate::RunInTransaction::run_in_transaction). It is used as the
/// connection it is: `tx.execute(…)`, `tx.query(…)`, `tx.prepare_cached(…)`. The worker ends it.
#[derive(Debug)]
pub struct Transaction(Option<Object>);

impl std::ops::Deref for Transaction {
    type Target = Object;

    #[expect(clippy::expect_used, reason = "only taken where the transaction itself is consumed")]
    fn deref(&self) -> &Object {
        self.0.as_ref().expect("an open transaction has its connection")
    }
}

impl Transaction {
    async fn end(mut self, how: &'static str) -> Result<(), Error> {
        self.batch_execute(how).await.map_err(Error::database("the transaction cannot end"))?;
        // The connection is clean, and goes back to the pool.
        drop(self.0.take());
        Ok(())
    }
}

impl Drop for Transaction {
    /// Dropped without an end, as when a worker is told to stop: the connection is closed, and the
    /// server rolls back. In the pool it would carry the open transaction to somebody else.
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            drop(Object::take(connection));
        }
    }
}

impl Pool for deadpool_postgres::Pool {
    type Transaction = Transaction;

    async fn begin(&self) -> Result<Transaction, Error> {
        let what = "no connection to the database";
        let connection = self.get().await.map_err(Error::database(what))?;
        // Wrapped first: if this is dropped half-way the connection is not given back.
        let transaction = Transaction(Some(connection));
        transaction.batch_execute("BEGIN").await.map_err(Error::database(what))?;
        Ok(transaction)
    }

    async fn commit(transaction: Transaction) -> Result<(), Error> {
        transaction.end("COMMIT").await
    }

    async fn rollback(transaction: Transaction) -> Result<(), Error> {
        transaction.end("ROLLBACK").await
    }
}

/// The names of a row as the first seven parameters.
fn names<'a>(row: &'a Row<'a>) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    vec![
        (&row.consumer, Type::TEXT),
        (&row.tenant, Type::TEXT),
        (&row.queue, Type::TEXT),
        (&row.key, Type::TEXT),
        (&row.group, Type::TEXT),
        (&row.generation, Type::INT4),
        (&row.fence, Type::INT8),
    ]
}

async fn insert(client: &(impl GenericClient + Sync), row: &Row<'_>) -> Result<bool, Error> {
    let inserted = client.execute_typed(sql::ENTER, &names(row)).await;
    Ok(inserted.map_err(Error::database("the inbox cannot be entered"))? == 1)
}

async fn find(client: &(impl GenericClient + Sync), row: &Row<'_>) -> Result<Option<Found>, Error> {
    let what = "the inbox cannot be read";
    let mut parameters = names(row);
    parameters.truncate(6);
    let found = client.query_typed(sql::FOUND, &parameters).await;
    let found = found.map_err(Error::database(what))?;
    let Some(found) = found.first() else { return Ok(None) };
    let body = found.try_get(1).map_err(Error::database(what))?;
    let content_type = found.try_get(2).map_err(Error::database(what))?;
    Ok(Some(Found::new(body, content_type)))
}

async fn old(
    client: &(impl GenericClient + Sync),
    names: &Names,
    page: &Page,
) -> Result<Vec<Old>, Error> {
    let what = "the inbox cannot be swept";
    let parameters: [(&(dyn ToSql + Sync), Type); 9] = [
        (&names.consumer, Type::TEXT),
        (&names.tenant, Type::TEXT),
        (&names.queue, Type::TEXT),
        (&page.older_ms, Type::INT8),
        (&page.after.entered, Type::INT8),
        (&page.after.key, Type::TEXT),
        (&page.after.group, Type::TEXT),
        (&page.after.generation, Type::INT4),
        (&page.most, Type::INT8),
    ];
    let found = client.query_typed(sql::OLD, &parameters).await.map_err(Error::database(what))?;
    let old = |row: &tokio_postgres::Row| {
        Ok(Old::new(
            row.try_get(0)?,
            row.try_get(1)?,
            row.try_get(2)?,
            row.try_get(3)?,
            row.try_get(4)?,
        ))
    };
    let old: Result<Vec<Old>, tokio_postgres::Error> = found.iter().map(old).collect();
    old.map_err(Error::database(what))
}

async fn delete(client: &(impl GenericClient + Sync), row: &Row<'_>) -> Result<bool, Error> {
    let deleted = client.execute_typed(sql::SWEEP, &names(row)).await;
    Ok(deleted.map_err(Error::database("the inbox cannot be swept"))? == 1)
}

async fn store(
    client: &(impl GenericClient + Sync),
    row: &Row<'_>,
    result: Option<&Blob>,
) -> Result<bool, Error> {
    let body = result.map(|result| &result.body[..]);
    let content_type = crate::inbox::content_type(result);
    let mut parameters = names(row);
    parameters.push((&body, Type::BYTEA));
    parameters.push((&content_type, Type::TEXT));
    let stored = client.execute_typed(sql::FINISH, &parameters).await;
    Ok(stored.map_err(Error::database("the result cannot be stored"))? == 1)
}

async fn append(client: &(impl GenericClient + Sync), entry: &Entry<'_>) -> Result<(), Error> {
    let parameters: [(&(dyn ToSql + Sync), Type); 10] = [
        (&entry.queue, Type::TEXT),
        (&entry.key, Type::TEXT),
        (&entry.group, Type::TEXT),
        (&entry.body, Type::BYTEA),
        (&entry.content_type, Type::TEXT),
        (&entry.headers, Type::TEXT),
        (&entry.delay_ms, Type::INT8),
        (&entry.ttl_ms, Type::INT8),
        (&entry.fingerprint, Type::TEXT),
        (&entry.issued_at_ms, Type::INT8),
    ];
    let appended = client.execute_typed(sql::SEND, &parameters).await;
    appended.map_err(Error::database("the outbox cannot be written")).map(drop)
}

/// The same statements for every type that is a connection, or leads to one.
macro_rules! statements {
    ($($transaction:ty, |$client:ident| $lead:expr;)+) => {$(
        impl Statements for $transaction {
            async fn insert(&mut self, row: &Row<'_>) -> Result<bool, Error> {
                let $client = self;
                insert($lead, row).await
            }

            async fn find(&mut self, row: &Row<'_>) -> Result<Option<Found>, Error> {
                let $client = self;
                find($lead, row).await
            }

            async fn store(
                &mut self,
                row: &Row<'_>,
                result: Option<&Blob>,
            ) -> Result<bool, Error> {
                let $client = self;
                store($lead, row, result).await
            }

            async fn old(&mut self, names: &Names, page: &Page) -> Result<Vec<Old>, Error> {
                let $client = self;
                old($lead, names, page).await
            }

            async fn delete(&mut self, row: &Row<'_>) -> Result<bool, Error> {
                let $client = self;
                delete($lead, row).await
            }

            async fn append(&mut self, entry: &Entry<'_>) -> Result<(), Error> {
                let $client = self;
                append($lead, entry).await
            }
        }
    )+};
}

statements! {
    tokio_postgres::Client, |client| &*client;
    tokio_postgres::Transaction<'_>, |client| &*client;
    deadpool_postgres::Transaction<'_>, |client| &**client;
    Object, |client| &***client;
    Transaction, |client| &****client;
}
