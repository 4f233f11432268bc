//! The databases that the tests run on, by every driver, each with the tables and a place for
//! effects.

use std::path::Path;

use hapax_transactions::sqlite::Database;
use hapax_transactions::{Dialect, Incoming};

use hapax_testing::Postgres;

/// What the handlers of the tests write to: every effect is a row.
const EFFECTS: &str = "CREATE TABLE effects (name text NOT NULL);";

pub(crate) fn postgres() -> Option<Postgres> {
    let postgres = Postgres::start()?;
    for sql in [Dialect::Postgres.inbox_page(), Dialect::Postgres.outbox_page()] {
        postgres.sql(&sql);
    }
    postgres.sql(Dialect::Postgres.results());
    postgres.sql(EFFECTS);
    Some(postgres)
}

pub(crate) fn deadpool(postgres: &Postgres) -> deadpool_postgres::Pool {
    let config = postgres.url().parse().unwrap();
    let manager = deadpool_postgres::Manager::new(config, tokio_postgres::NoTls);
    deadpool_postgres::Pool::builder(manager).max_size(16).build().unwrap()
}

pub(crate) async fn sqlx_postgres(postgres: &Postgres) -> sqlx::PgPool {
    sqlx::PgPool::connect(&postgres.url()).await.unwrap()
}

pub(crate) fn sqlite(directory: &Path) -> Database {
    let database = Database::open(directory.join("shop.db")).unwrap();
    for sql in [
        Dialect::Sqlite.inbox_page(),
        Dialect::Sqlite.outbox_page(),
        Dialect::Sqlite.results().to_owned(),
        EFFECTS.to_owned(),
    ] {
        database.execute_batch(&sql).unwrap();
    }
    database
}

/// The same file by sqlx.
pub(crate) async fn sqlx_sqlite(database: &Database) -> sqlx::SqlitePool {
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(database.path())
        .busy_timeout(hapax_testing::PATIENCE);
    sqlx::SqlitePool::connect_with(options).await.unwrap()
}

/// A number that a statement finds.
pub(crate) fn number(database: &Database, sql: &str) -> i64 {
    let number = |connection: &mut rusqlite::Connection| {
        Ok(connection.query_row(sql, [], |row| row.get(0)).unwrap())
    };
    database.with(number).unwrap()
}

pub(crate) fn incoming(key: &str, fence: u64) -> Incoming<'_> {
    Incoming { tenant: "", key: key.into(), group: "", generation: 0, fence }
}
