//! PostgreSQL by tokio-postgres, with the pool deadpool-postgres.
//!
//! Statements go out unprepared, with their types: one exchange each, and nothing that a pooler
//! between us and the server would have to remember.

use deadpool_postgres::Object;
use tokio_postgres::GenericClient;
use tokio_postgres::types::{ToSql, Type};

use crate::error::Error;
use crate::inbox::{Found, Old};
use crate::sql::Dialect;
use crate::transaction::{Statement, Transaction as Statements, Value};
use crate::worker::Pool;

/// A transaction on a connection of the pool, handed to the handlers of
/// [`InTransaction`](crate::InTransaction). It is used as the
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

type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

fn parameters<'a>(statement: &'a Statement<'_>) -> Vec<Parameter<'a>> {
    let typed = |value: &'a Value<'_>| -> Parameter<'a> {
        match value {
            Value::Text(text) => (text, Type::TEXT),
            Value::Bytes(bytes) => (bytes, Type::BYTEA),
            Value::Int(number) => (number, Type::INT4),
            Value::Long(number) => (number, Type::INT8),
        }
    };
    statement.values().iter().map(typed).collect()
}

async fn execute(
    client: &(impl GenericClient + Sync),
    statement: &Statement<'_>,
) -> Result<u64, Error> {
    let sql = statement.sql(Dialect::Postgres);
    client.execute_typed(sql, &parameters(statement)).await.map_err(statement.failed())
}

async fn query(
    client: &(impl GenericClient + Sync),
    statement: &Statement<'_>,
) -> Result<Vec<tokio_postgres::Row>, Error> {
    let sql = statement.sql(Dialect::Postgres);
    client.query_typed(sql, &parameters(statement)).await.map_err(statement.failed())
}

fn found(row: &tokio_postgres::Row) -> Result<Found, tokio_postgres::Error> {
    Ok(Found::new(row.try_get(1)?, row.try_get(2)?))
}

fn old(row: &tokio_postgres::Row) -> Result<Old, tokio_postgres::Error> {
    Ok(Old::new(
        row.try_get(0)?,
        row.try_get(1)?,
        row.try_get(2)?,
        row.try_get(3)?,
        row.try_get(4)?,
    ))
}

/// The same statements for every type that is a connection, or leads to one.
macro_rules! statements {
    ($($transaction:ty, |$client:ident| $lead:expr;)+) => {$(
        impl Statements for $transaction {
            async fn execute(&mut self, statement: &Statement<'_>) -> Result<u64, Error> {
                let $client = self;
                execute($lead, statement).await
            }

            async fn find(&mut self, statement: &Statement<'_>) -> Result<Option<Found>, Error> {
                let $client = self;
                let rows = query($lead, statement).await?;
                rows.first().map(found).transpose().map_err(statement.failed())
            }

            async fn old(&mut self, statement: &Statement<'_>) -> Result<Vec<Old>, Error> {
                let $client = self;
                let rows = query($lead, statement).await?;
                let rows: Result<_, _> = rows.iter().map(old).collect();
                rows.map_err(statement.failed())
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
