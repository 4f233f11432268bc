//! PostgreSQL and SQLite by sqlx: the same calls for both, with the statements of each.
//!
//! Transactions of SQLite begin immediately: one that begins as a reader and turns into a writer
//! fails where another has written in between, whatever the busy timeout.

use hapax_client::Blob;
use sqlx::Row as _;

use crate::error::Error;
use crate::inbox::{Found, Names, Old, Page, Row};
use crate::outbox::Entry;
use crate::transaction::Transaction;
use crate::worker::Pool;

macro_rules! driver {
    (
        database: $database:ty, connection: $connection:ty, pool: $pool:ty,
        arguments: $arguments:ty, statements: $sql:path,
        begin: |$from:ident| $begin:expr, before_rollback: $before_rollback:expr,
    ) => {
        use $sql as sql;

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
                    // Refused where all is well.
                    let _ = sqlx::query(before).execute(&mut *transaction).await;
                }
                transaction.rollback().await.map_err(Error::database("the transaction cannot end"))
            }
        }

        impl Transaction for sqlx::Transaction<'_, $database> {
            async fn insert(&mut self, row: &Row<'_>) -> Result<bool, Error> {
                <$connection as Transaction>::insert(self, row).await
            }

            async fn find(&mut self, row: &Row<'_>) -> Result<Option<Found>, Error> {
                <$connection as Transaction>::find(self, row).await
            }

            async fn store(&mut self, row: &Row<'_>, result: Option<&Blob>) -> Result<bool, Error> {
                <$connection as Transaction>::store(self, row, result).await
            }

            async fn old(&mut self, names: &Names, page: &Page) -> Result<Vec<Old>, Error> {
                <$connection as Transaction>::old(self, names, page).await
            }

            async fn delete(&mut self, row: &Row<'_>) -> Result<bool, Error> {
                <$connection as Transaction>::delete(self, row).await
            }

            async fn append(&mut self, entry: &Entry<'_>) -> Result<(), Error> {
                <$connection as Transaction>::append(self, entry).await
            }
        }

        impl Transaction for $connection {
            async fn insert(&mut self, row: &Row<'_>) -> Result<bool, Error> {
                let inserted = names(sql::ENTER, row).bind(row.fence).execute(self).await;
                let inserted = inserted.map_err(Error::database("the inbox cannot be entered"))?;
                Ok(inserted.rows_affected() == 1)
            }

            async fn find(&mut self, row: &Row<'_>) -> Result<Option<Found>, Error> {
                let what = "the inbox cannot be read";
                let found = names(sql::FOUND, row).fetch_optional(self).await;
                let Some(found) = found.map_err(Error::database(what))? else { return Ok(None) };
                let body = found.try_get(1).map_err(Error::database(what))?;
                let content_type = found.try_get(2).map_err(Error::database(what))?;
                Ok(Some(Found::new(body, content_type)))
            }

            async fn store(&mut self, row: &Row<'_>, result: Option<&Blob>) -> Result<bool, Error> {
                let statement = names(sql::FINISH, row)
                    .bind(row.fence)
                    .bind(result.map(|result| result.body.to_vec()))
                    .bind(crate::inbox::content_type(result).map(str::to_owned));
                let stored = statement.execute(self).await;
                let stored = stored.map_err(Error::database("the result cannot be stored"))?;
                Ok(stored.rows_affected() == 1)
            }

            async fn old(&mut self, names: &Names, page: &Page) -> Result<Vec<Old>, Error> {
                let what = "the inbox cannot be swept";
                let statement = sqlx::query(sql::OLD)
                    .bind(names.consumer.clone())
                    .bind(names.tenant.clone())
                    .bind(names.queue.clone())
                    .bind(page.older_ms)
                    .bind(page.after.entered)
                    .bind(page.after.key.clone())
                    .bind(page.after.group.clone())
                    .bind(page.after.generation)
                    .bind(page.most);
                let found = statement.fetch_all(self).await.map_err(Error::database(what))?;
                let old = found.iter().map(|row| {
                    Ok(Old::new(
                        row.try_get(0)?,
                        row.try_get(1)?,
                        row.try_get(2)?,
                        row.try_get(3)?,
                        row.try_get(4)?,
                    ))
                });
                let old: Result<Vec<Old>, sqlx::Error> = old.collect();
                old.map_err(Error::database(what))
            }

            async fn delete(&mut self, row: &Row<'_>) -> Result<bool, Error> {
                let deleted = names(sql::SWEEP, row).bind(row.fence).execute(self).await;
                let deleted = deleted.map_err(Error::database("the inbox cannot be swept"))?;
                Ok(deleted.rows_affected() == 1)
            }

            async fn append(&mut self, entry: &Entry<'_>) -> Result<(), Error> {
                let statement = sqlx::query(sql::SEND)
                    .bind(entry.queue.to_owned())
                    .bind(entry.key.to_owned())
                    .bind(entry.group.to_owned())
                    .bind(entry.body.to_vec())
                    .bind(entry.content_type.to_owned())
                    .bind(entry.headers.clone())
                    .bind(entry.delay_ms)
                    .bind(entry.ttl_ms)
                    .bind(entry.fingerprint.map(str::to_owned))
                    .bind(entry.issued_at_ms);
                let appended = statement.execute(self).await;
                appended.map_err(Error::database("the outbox cannot be written")).map(drop)
            }
        }

        /// A statement with the names of a row as its first six parameters.
        fn names(
            statement: &'static str,
            row: &Row<'_>,
        ) -> sqlx::query::Query<'static, $database, $arguments> {
            sqlx::query(statement)
                .bind(row.consumer.to_owned())
                .bind(row.tenant.to_owned())
                .bind(row.queue.to_owned())
                .bind(row.key.to_owned())
                .bind(row.group.to_owned())
                .bind(row.generation)
        }
    };
}

#[cfg(feature = "sqlx-postgres")]
mod postgres {
    use super::*;

    driver! {
        database: sqlx::Postgres, connection: sqlx::PgConnection, pool: sqlx::PgPool,
        arguments: sqlx::postgres::PgArguments, statements: crate::sql::postgres,
        begin: |pool| sqlx::PgPool::begin(pool), before_rollback: None,
    }
}

#[cfg(feature = "sqlx-sqlite")]
mod sqlite {
    use super::*;

    // A statement that rolled the transaction back (`OR ROLLBACK`) leaves sqlx believing in it: its
    // own rollback fails then, and every later use of the connection. With a transaction begun for
    // it the two agree again.
    driver! {
        database: sqlx::Sqlite, connection: sqlx::SqliteConnection, pool: sqlx::SqlitePool,
        arguments: sqlx::sqlite::SqliteArguments, statements: crate::sql::sqlite,
        begin: |pool| pool.begin_with("BEGIN IMMEDIATE"), before_rollback: Some("BEGIN"),
    }
}
