//! The service's tables: orders, payments, inbox and outbox, in SQLite or PostgreSQL, with the same
//! statements.
//!
//! The table of payments has no unique key, on purpose: a second payment should be visible.

use std::str::FromStr;
use std::time::Duration;

use anyhow::{Result, ensure};
use hapax_client::{Blob, Delivery, Message};
use hapax_transactions::{Dialect, Entered, Inbox, Pool, outbox};
use sqlx::postgres::PgPool;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};

use crate::api::Order;

/// How long a process waits for another one's transaction.
const BUSY: Duration = Duration::from_secs(30);

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS example_orders (
        run TEXT NOT NULL,
        number BIGINT NOT NULL,
        cents BIGINT NOT NULL,
        receipt TEXT,
        PRIMARY KEY (run, number)
    );
    CREATE TABLE IF NOT EXISTS example_payments (
        run TEXT NOT NULL,
        number BIGINT NOT NULL,
        receipt TEXT NOT NULL
    );";

#[derive(Clone, Debug)]
pub(crate) enum Database {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

/// The same for both.
macro_rules! on {
    ($database:expr, $pool:ident => $work:expr) => {
        match $database {
            Database::Sqlite($pool) => $work,
            Database::Postgres($pool) => $work,
        }
    };
}

/// The result of placing an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    Now,
    /// Placed before, by a process that died before it answered.
    Before,
}

/// The result of a payment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Paid {
    Now,
    /// Paid before, by an earlier delivery, with this result.
    Before(Option<Blob>),
}

/// The progress of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) placed: u32,
    /// Orders that have at least one payment.
    pub(crate) paid: u32,
    /// All payments.
    pub(crate) payments: u32,
}

impl Database {
    /// A `postgres://` URL, or `sqlite://` and the path of a file.
    pub(crate) async fn open(url: &str) -> Result<Self> {
        if url.starts_with("postgres") {
            return Ok(Self::Postgres(PgPool::connect(url).await?));
        }
        let options = SqliteConnectOptions::from_str(url)?
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY);
        let pool = SqlitePoolOptions::new().max_connections(4).connect_with(options).await?;
        Ok(Self::Sqlite(pool))
    }

    pub(crate) async fn migrate(&self) -> Result<()> {
        let dialect = match self {
            Self::Sqlite(_) => Dialect::Sqlite,
            Self::Postgres(_) => Dialect::Postgres,
        };
        for text in [TABLES, dialect.inbox(), dialect.outbox()] {
            on!(self, pool => { sqlx::raw_sql(text).execute(pool).await?; });
        }
        Ok(())
    }

    /// Places an order: its row, and the message that requests its payment, in one transaction.
    pub(crate) async fn place(&self, run: &str, order: Order) -> Result<Placed> {
        let insert = "INSERT INTO example_orders (run, number, cents) VALUES ($1, $2, $3)
                      ON CONFLICT DO NOTHING";
        on!(self, pool => {
            let mut transaction = Pool::begin(pool).await?;
            let inserted = sqlx::query(insert)
                .bind(run)
                .bind(i64::from(order.number))
                .bind(i64::try_from(order.cents)?)
                .execute(&mut *transaction)
                .await?;
            if inserted.rows_affected() == 0 {
                return Ok(Placed::Before);
            }
            outbox::send(&mut transaction, "orders", message(run, order)?).await?;
            transaction.commit().await?;
            Ok(Placed::Now)
        })
    }

    /// Records a payment, once per message however often it is delivered.
    pub(crate) async fn pay(
        &self,
        run: &str,
        order: Order,
        receipt: &str,
        inbox: &Inbox,
        delivery: &Delivery,
    ) -> Result<Paid> {
        let update = "UPDATE example_orders SET receipt = $3 WHERE run = $1 AND number = $2";
        let insert = "INSERT INTO example_payments (run, number, receipt) VALUES ($1, $2, $3)";
        on!(self, pool => {
            let mut transaction = Pool::begin(pool).await?;
            match inbox.enter(&mut transaction, delivery).await? {
                Entered::First => {}
                Entered::Done(result) => return Ok(Paid::Before(result)),
            }
            for statement in [update, insert] {
                let changed = sqlx::query(statement)
                    .bind(run)
                    .bind(i64::from(order.number))
                    .bind(receipt)
                    .execute(&mut *transaction)
                    .await?;
                ensure!(changed.rows_affected() == 1, "there is no order {}", order.number);
            }
            inbox.finish(&mut transaction, delivery, receipt.to_owned()).await?;
            transaction.commit().await?;
            Ok(Paid::Now)
        })
    }

    pub(crate) async fn totals(&self, run: &str) -> Result<Totals> {
        let orders = "SELECT COUNT(*) FROM example_orders WHERE run = $1";
        let paid = "SELECT COUNT(DISTINCT number) FROM example_payments WHERE run = $1";
        let payments = "SELECT COUNT(*) FROM example_payments WHERE run = $1";
        let mut counts = [0; 3];
        for (count, statement) in counts.iter_mut().zip([orders, paid, payments]) {
            let found: i64 = on!(self, pool => {
                sqlx::query_scalar(statement).bind(run).fetch_one(pool).await?
            });
            *count = u32::try_from(found)?;
        }
        let [placed, paid, payments] = counts;
        Ok(Totals { placed, paid, payments })
    }

    /// Some orders that are paid: the broker knows their messages.
    pub(crate) async fn some_paid(&self, run: &str, most: u32) -> Result<Vec<Order>> {
        let statement = "SELECT number, cents FROM example_orders
                         WHERE run = $1 AND receipt IS NOT NULL ORDER BY number DESC LIMIT $2";
        let rows: Vec<(i64, i64)> = on!(self, pool => {
            sqlx::query_as(statement).bind(run).bind(i64::from(most)).fetch_all(pool).await?
        });
        let order = |(number, cents)| -> Result<Order> {
            Ok(Order { number: u32::try_from(number)?, cents: u64::try_from(cents)? })
        };
        rows.into_iter().map(order).collect()
    }
}

/// The message that requests the payment of an order: one key, one body.
pub(crate) fn message(run: &str, order: Order) -> Result<Message> {
    Ok(Message::json(&order)?.key(format!("{run}/{}", order.number)))
}
