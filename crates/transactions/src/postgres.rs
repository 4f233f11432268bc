//! PostgreSQL with tokio-postgres and the pool deadpool-postgres.
//!
//! Statements are sent unprepared, with their types: one round trip each, and no state that a
//! pooler in between would have to keep.

use deadpool_postgres::Object;
use tokio_postgres::GenericClient;
use tokio_postgres::types::{ToSql, Type};

use crate::error::Error;
use crate::inbox::{Found, Old};
use crate::sql::Dialect;
use crate::transaction::{self, Statement, Transaction as Statements, Value};
use crate::worker::Pool;

/// A transaction on a connection of the pool, passed to the handlers of
/// [`InTransaction`](crate::InTransaction). Use it like a connection: `tx.execute(…)`,
/// `tx.query(…)`, `tx.prepare_cached(…)`. The worker ends it.
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
        // The connection has no open transaction and returns to the pool.
        drop(self.0.take());
        Ok(())
    }
}

impl Drop for Transaction {
    /// If it is dropped before its end, for example because the worker stops, the connection is
    /// closed and the server rolls back. In the pool it would pass the open transaction to another
    /// user.
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
        // Wrapped first, so that the connection does not return to the pool if this is cancelled.
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
    Ok(transaction::found!(row, try_get))
}

fn old(row: &tokio_postgres::Row) -> Result<Old, tokio_postgres::Error> {
    Ok(transaction::old!(row, try_get))
}

/// Implements the same statements for every type that is, or contains, a connection.
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
