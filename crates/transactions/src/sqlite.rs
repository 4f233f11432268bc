//! SQLite with rusqlite, which blocks: calls are made on threads for blocking calls, never on
//! tokio's own.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::types::ToSqlOutput;
use rusqlite::{Connection, OptionalExtension, ToSql, TransactionBehavior, params_from_iter};

use crate::error::Error;
use crate::inbox::{Found, Names, Old, Page, Rows};
use crate::sql::Dialect;
use crate::transaction::{self, Statement, Value};

/// How long a writer waits for another. SQLite has one at a time.
const BUSY: Duration = Duration::from_secs(30);
/// The most idle connections.
const IDLE_MAX: usize = 8;
const OURS: &str =
    "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;";
/// The error if the transaction was rolled back before the handler ended.
pub(crate) const ROLLED_BACK: &str =
    "a statement has rolled the transaction back; nothing is committed";
const SWEEP: &str = "the inbox cannot be swept";
const OF_OTHERS: &str = "PRAGMA synchronous = FULL;";

/// A database file and connections to it. Cheap to clone; clones share their connections.
///
/// Every connection uses WAL, syncs at every commit (`synchronous = FULL`), waits for other
/// writers, and enforces foreign keys.
#[derive(Clone, Debug)]
pub struct Database(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    /// Executed on every new connection.
    settings: &'static str,
    idle: Mutex<Vec<Connection>>,
    /// Held while a transaction is open, so that writers of this process queue here instead of
    /// polling SQLite.
    writing: Mutex<()>,
}

impl Database {
    /// Opens the file, and creates it if it does not exist.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let database = Self::with_settings(path.as_ref(), OURS);
        database.give_back(database.connect()?);
        Ok(database)
    }

    /// Opens a file of another application, without changing its journal mode.
    pub(crate) fn of_others(path: &Path) -> Self {
        Self::with_settings(path, OF_OTHERS)
    }

    fn with_settings(path: &Path, settings: &'static str) -> Self {
        Self(Arc::new(Inner {
            path: path.to_owned(),
            settings,
            idle: Mutex::default(),
            writing: Mutex::default(),
        }))
    }

    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Runs something on a connection. Blocks: from asynchronous code call it inside
    /// `tokio::task::spawn_blocking`.
    pub fn with<T>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut connection = match self.idle().pop() {
            Some(connection) => connection,
            None => self.connect()?,
        };
        let worked = work(&mut connection)?;
        // A connection that failed is not reused.
        self.give_back(connection);
        Ok(worked)
    }

    /// Runs SQL that returns nothing, such as a migration. Blocks.
    pub fn execute_batch(&self, sql: &str) -> Result<(), Error> {
        self.with(|connection| connection.execute_batch(sql).map_err(Error::from))
    }

    /// Runs something in a transaction, which is committed unless it fails.
    ///
    /// It is atomic: if a statement itself rolls the transaction back (`OR ROLLBACK`,
    /// `RAISE(ROLLBACK)`, a full disk) and the error is ignored, the statements after it would each
    /// be committed on their own. They are refused, and the whole call fails.
    pub fn transaction<T, E: From<Error>>(
        &self,
        work: impl FnOnce(&rusqlite::Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let _turn = self.0.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kept = None;
        let outcome = self.with(|connection| {
            let begun = connection.transaction_with_behavior(TransactionBehavior::Immediate);
            let transaction = begun.map_err(Error::database("no transaction in the database"))?;
            // Every commit before the closure has returned is turned into a rollback.
            transaction.commit_hook(Some(|| true));
            let worked = work(&transaction);
            transaction.commit_hook(None::<fn() -> bool>);
            let is_gone = transaction.is_autocommit();
            let ended = match &worked {
                Ok(_) if is_gone => return Err(Error::invalid(ROLLED_BACK)),
                Ok(_) => transaction.commit(),
                Err(_) if is_gone => Ok(()),
                Err(_) => transaction.rollback(),
            };
            ended.map_err(Error::database("the transaction cannot end"))?;
            kept = Some(worked);
            Ok(())
        });
        outcome?;
        kept.unwrap_or_else(|| Err(Error::invalid("the transaction did not run").into()))
    }

    fn connect(&self) -> Result<Connection, Error> {
        let what = "the SQLite database cannot be opened";
        let connection = Connection::open(&self.0.path).map_err(Error::database(what))?;
        connection.busy_timeout(BUSY).map_err(Error::database(what))?;
        connection.execute_batch(self.0.settings).map_err(Error::database(what))?;
        Ok(connection)
    }

    fn give_back(&self, connection: Connection) {
        let mut idle = self.idle();
        if idle.len() < IDLE_MAX && connection.is_autocommit() {
            idle.push(connection);
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rows for Database {
    async fn old(&self, names: &Names, page: Page) -> Result<Vec<Old>, Error> {
        let (database, names) = (self.clone(), names.clone());
        let read =
            move || database.with(|connection| old(connection, &Statement::old(&names, &page)));
        tokio::task::spawn_blocking(read).await.map_err(Error::database(SWEEP))?
    }

    async fn delete(&self, names: &Names, rows: Vec<Old>) -> Result<u64, Error> {
        let (database, names) = (self.clone(), names.clone());
        let delete = move || {
            database.transaction(|transaction| {
                rows.iter().try_fold(0, |count, old| {
                    Ok(count + execute(transaction, &Statement::sweep(&names.row(old)))? as u64)
                })
            })
        };
        tokio::task::spawn_blocking(delete).await.map_err(Error::database(SWEEP))?
    }
}

/// Runs a statement that changes rows, and returns how many it changed.
pub(crate) fn execute(connection: &Connection, statement: &Statement<'_>) -> Result<usize, Error> {
    let prepared = connection.prepare_cached(statement.sql(Dialect::Sqlite));
    let mut prepared = prepared.map_err(statement.failed())?;
    prepared.execute(params_from_iter(statement.values())).map_err(statement.failed())
}

pub(crate) fn find(
    connection: &Connection,
    statement: &Statement<'_>,
) -> Result<Option<Found>, Error> {
    let prepared = connection.prepare_cached(statement.sql(Dialect::Sqlite));
    let mut prepared = prepared.map_err(statement.failed())?;
    let found = prepared
        .query_row(params_from_iter(statement.values()), |row| Ok(transaction::found!(row, get)));
    found.optional().map_err(statement.failed())
}

fn old(connection: &Connection, statement: &Statement<'_>) -> Result<Vec<Old>, Error> {
    let prepared = connection.prepare_cached(statement.sql(Dialect::Sqlite));
    let mut prepared = prepared.map_err(statement.failed())?;
    let found = prepared
        .query_map(params_from_iter(statement.values()), |row| Ok(transaction::old!(row, get)));
    let found = found.map_err(statement.failed())?;
    found.map(|old| old.map_err(statement.failed())).collect()
}

impl ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Self::Text(text) => text.to_sql(),
            Self::Bytes(bytes) => bytes.to_sql(),
            Self::Int(number) => number.to_sql(),
            Self::Long(number) => number.to_sql(),
        }
    }
}
