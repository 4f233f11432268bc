//! PostgreSQL and SQLite with sqlx: the same code for both, with the statements of each dialect.
//!
//! Transactions of SQLite use `BEGIN IMMEDIATE`: one that begins as a reader and becomes a writer
//! fails if another has written in between, whatever the busy timeout.

use sqlx::Row as _;

use crate::error::Error;
use crate::inbox::{Found, Old};
use crate::sql::Dialect;
use crate::transaction::{self, Statement, Transaction, Value};
use crate::worker::Pool;

macro_rules! driver {
    (
        database: $database:ty, connection: $connection:ty, pool: $pool:ty,
        arguments: $arguments:ty, dialect: $dialect:expr,
        begin: |$from:ident| $begin:expr, before_rollback: $before_rollback:expr,
    ) => {
        impl Pool for $pool {
            type Transaction = sqlx::Transaction<'static, $database>;

            async fn begin(&self) -> Result<Self::Transaction, Error> {
                let $from = self;
                $begin.await.map_err(Error::database("no transaction in the database"))
            }

            async fn commit(transaction: Self::Transaction) -> Result<(), Error> {
                transaction.commit().await.map_err(Error::database("the transaction cannot end"))
            }

            async fn rollback(mut transaction: Self::Transaction) -> Result<(), Error> {
                let before: Option<&'static str> = $before_rollback;
                if let Some(before) = before {
                    // This fails if the transaction is intact, which is fine.
                    let _ = sqlx::query(before).execute(&mut *transaction).await;
                }
                transaction.rollback().await.map_err(Error::database("the transaction cannot end"))
            }
        }

        impl Transaction for sqlx::Transaction<'_, $database> {
            async fn execute(&mut self, statement: &Statement<'_>) -> Result<u64, Error> {
                <$connection as Transaction>::execute(self, statement).await
            }

            async fn find(&mut self, statement: &Statement<'_>) -> Result<Option<Found>, Error> {
                <$connection as Transaction>::find(self, statement).await
            }

            async fn old(&mut self, statement: &Statement<'_>) -> Result<Vec<Old>, Error> {
                <$connection as Transaction>::old(self, statement).await
            }
        }

        impl Transaction for $connection {
            async fn execute(&mut self, statement: &Statement<'_>) -> Result<u64, Error> {
                let executed = query(statement).execute(self).await.map_err(statement.failed())?;
                Ok(executed.rows_affected())
            }

            async fn find(&mut self, statement: &Statement<'_>) -> Result<Option<Found>, Error> {
                let row = query(statement).fetch_optional(self).await;
                let found = row
                    .map_err(statement.failed())?
                    .map(|row| Ok::<_, sqlx::Error>(transaction::found!(row, try_get)));
                found.transpose().map_err(statement.failed())
            }

            async fn old(&mut self, statement: &Statement<'_>) -> Result<Vec<Old>, Error> {
                let rows = query(statement).fetch_all(self).await.map_err(statement.failed())?;
                let old = rows.iter().map(|row| Ok(transaction::old!(row, try_get)));
                let old: Result<Vec<Old>, sqlx::Error> = old.collect();
                old.map_err(statement.failed())
            }
        }

        /// The statement with its values.
        fn query(statement: &Statement<'_>) -> sqlx::query::Query<'static, $database, $arguments> {
            let query = sqlx::query(statement.sql($dialect));
            statement.values().iter().fold(query, |query, value| match value {
                Value::Text(text) => query.bind(text.map(str::to_owned)),
                Value::Bytes(bytes) => query.bind(bytes.map(<[u8]>::to_vec)),
                Value::Int(number) => query.bind(*number),
                Value::Long(number) => query.bind(*number),
            })
        }
    };
}

#[cfg(feature = "sqlx-postgres")]
mod postgres {
    use super::*;

    driver! {
        database: sqlx::Postgres, connection: sqlx::PgConnection, pool: sqlx::PgPool,
        arguments: sqlx::postgres::PgArguments, dialect: Dialect::Postgres,
        begin: |pool| sqlx::PgPool::begin(pool), before_rollback: None,
    }
}

#[cfg(feature = "sqlx-sqlite")]
mod sqlite {
    use super::*;

    // After a statement that rolled the transaction back (`OR ROLLBACK`) sqlx still assumes an open
    // one: its own rollback would fail, and every later use of the connection. Beginning a
    // transaction makes the two agree again.
    driver! {
        database: sqlx::Sqlite, connection: sqlx::SqliteConnection, pool: sqlx::SqlitePool,
        arguments: sqlx::sqlite::SqliteArguments, dialect: Dialect::Sqlite,
        begin: |pool| pool.begin_with("BEGIN IMMEDIATE"), before_rollback: Some("BEGIN"),
    }
}
