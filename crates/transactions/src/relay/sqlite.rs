//! The outbox in SQLite.
//!
//! The lock is an operating-system lock on a file beside the database, so that it ends with the
//! process. New rows are detected by polling: a connection's `data_version` changes when another
//! has written, and reading it touches no page.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, params};
use tokio::time::Instant;

use super::now_ms;
use super::source::{
    BODY_BYTES_MAX, COUNT_MAX, Counts, End, Name, RETRY_MAX, Read, Refused, Row, Source, Table,
    headers, storable, too_large,
};
use crate::error::Error;
use crate::sqlite::Database;

/// How often the version is read.
const LOOK: Duration = Duration::from_millis(20);

const READ: &str = "
SELECT id, queue, message_key, message_group,
    CASE WHEN length(CAST(body AS BLOB)) <= ?4 THEN body END, content_type, headers, delay_ms,
    ttl_ms, fingerprint, coalesce(issued_at_ms, created_at_ms), ?2 - created_at_ms, tries,
    length(CAST(body AS BLOB))
FROM hapax_outbox o
WHERE parked_at_ms IS NULL
  AND (retry_at_ms IS NULL OR retry_at_ms <= ?2 OR retry_at_ms > ?2 + ?5)
  AND (message_group = '' OR NOT EXISTS (
      SELECT 1 FROM hapax_outbox w
      WHERE w.queue = o.queue AND w.message_group = o.message_group
        AND w.parked_at_ms IS NULL AND w.retry_at_ms > ?2 AND w.retry_at_ms <= ?2 + ?5))
  AND queue NOT IN (SELECT value FROM json_each(?3))
ORDER BY id LIMIT ?1";

const REFUSE: &str = "
UPDATE hapax_outbox SET tries = ?2, error = ?3, retry_at_ms = ?4, parked_at_ms = ?5 WHERE id = ?1";

const COUNT: &str = "
SELECT (SELECT count(*) FROM (SELECT 1 FROM hapax_outbox WHERE parked_at_ms IS NULL LIMIT ?1)),
    (SELECT count(*) FROM (SELECT 1 FROM hapax_outbox WHERE parked_at_ms IS NOT NULL LIMIT ?1)),
    coalesce((SELECT CAST(?2 - created_at_ms AS INTEGER) FROM hapax_outbox
        WHERE parked_at_ms IS NULL ORDER BY id LIMIT 1), 0)";

#[derive(Debug)]
pub(super) struct Sqlite {
    database: Database,
    results: Option<Table>,
    path: PathBuf,
    /// Held for its lock.
    lock: Option<File>,
    /// The last version that was read.
    version: Option<i64>,
}

impl Sqlite {
    /// Runs something on a thread that may block.
    async fn on<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let database = self.database.clone();
        let worked = tokio::task::spawn_blocking(move || database.with(work));
        worked.await.map_err(Error::database("a thread of the relay panicked"))?
    }

    /// Reports a missing table at once, with the command that creates it.
    async fn check(&self) -> Result<(), Error> {
        let mut tables = vec![("hapax_outbox".to_owned(), "outbox")];
        if let Some(results) = &self.results {
            tables.push((results.quoted().to_owned(), "results"));
        }
        let path = self.path.display().to_string();
        self.on(move |connection| {
            for (table, subject) in tables {
                let is_there = connection.prepare(&format!("SELECT queue FROM {table}"));
                is_there.map(drop).map_err(|error| {
                    Error::invalid(format!(
                        "{path}: {error}; create the table with: hapax sql {subject} --dialect \
                         sqlite | sqlite3 {path}"
                    ))
                })?;
            }
            Ok(())
        })
        .await
    }

    fn table(&self) -> String {
        self.results.as_ref().map_or("hapax_results", Table::quoted).to_owned()
    }

    async fn version(&self) -> Result<i64, Error> {
        self.on(|connection| {
            connection
                .query_row("PRAGMA data_version", [], |row| row.get(0))
                .map_err(Error::database("the database cannot be looked at"))
        })
        .await
    }
}

/// Opens the file to lock. Read permission is enough: another user may have created it.
fn lock_file(path: &Path) -> std::io::Result<File> {
    let made = File::options().create(true).truncate(false).write(true).open(path);
    match made {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => File::open(path),
        made => made,
    }
}

impl Source for Sqlite {
    type Address = PathBuf;

    async fn open(path: &PathBuf, results: Option<Table>) -> Result<Self, Error> {
        if !path.is_file() {
            return Err(Error::invalid(format!(
                "there is no SQLite database at {}",
                path.display()
            )));
        }
        let sqlite = Self {
            database: Database::of_others(path),
            results,
            lock: None,
            version: None,
            path: path.clone(),
        };
        sqlite.check().await?;
        Ok(sqlite)
    }

    async fn lock(&mut self) -> Result<bool, Error> {
        if self.lock.is_some() {
            return Ok(true);
        }
        let what = "the lock beside the database cannot be taken";
        // Resolve symbolic links, so that all paths to the file share one lock.
        let path = std::fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let mut path = path.into_os_string();
        path.push("-relay-lock");
        let file = lock_file(path.as_ref()).map_err(Error::database(what))?;
        match file.try_lock() {
            Ok(()) => self.lock = Some(file),
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(Error::database(what)(error)),
        }
        Ok(true)
    }

    async fn read(&mut self, rows: i64, bytes: i64, held: &[String]) -> Result<Read, Error> {
        let what = "the outbox cannot be read";
        // Read first, so that rows written in between are noticed later.
        self.version = Some(self.version().await?);
        let held = serde_json::Value::from(held.to_vec()).to_string();
        self.on(move |connection| {
            let statement = connection.prepare_cached(READ);
            let mut statement = statement.map_err(Error::database(what))?;
            let retry_ms_max = RETRY_MAX.as_millis() as i64;
            let values = params![rows, now_ms(), held, BODY_BYTES_MAX, retry_ms_max];
            let mut found = statement.query(values).map_err(Error::database(what))?;
            let (mut read, mut total) = (Read::default(), 0);
            while total < bytes
                && let Some(row) = found.next().map_err(Error::database(what))?
            {
                let id = row.get(0).map_err(Error::database(what))?;
                let row = row_of(id, row);
                total += row.as_ref().map_or(0, |row| row.body.len() as i64);
                read.push(id, row);
            }
            Ok(read)
        })
        .await
    }

    async fn settle(&mut self, confirmed: &[Row], refused: &[Refused]) -> Result<(), Error> {
        let what = "the outbox cannot be written";
        let waiting = self.results.is_some().then(|| {
            format!(
                "INSERT INTO {} (queue, message_key, message_group) VALUES (?1, ?2, ?3)
                 ON CONFLICT DO NOTHING",
                self.table()
            )
        });
        let confirmed: Vec<(i64, Name)> =
            confirmed.iter().map(|row| (row.id, row.name.clone())).collect();
        let refused = refused.to_vec();
        let database = self.database.clone();
        let settled = tokio::task::spawn_blocking(move || {
            database.transaction(|transaction| {
                let write = || -> Result<(), rusqlite::Error> {
                    let delete = "DELETE FROM hapax_outbox WHERE id = ?1";
                    let mut delete = transaction.prepare_cached(delete)?;
                    for (id, name) in &confirmed {
                        if let Some(waiting) = &waiting {
                            let names = params![name.queue, name.key, name.group];
                            transaction.prepare_cached(waiting)?.execute(names)?;
                        }
                        delete.execute([id])?;
                    }
                    let mut refuse = transaction.prepare_cached(REFUSE)?;
                    for row in &refused {
                        let now = now_ms();
                        let retry_at = row.retry_in.map(|pause| now + pause.as_millis() as i64);
                        let parked_at = retry_at.is_none().then_some(now);
                        let values =
                            params![row.id, row.tries, storable(&row.error), retry_at, parked_at];
                        refuse.execute(values)?;
                    }
                    Ok(())
                };
                write().map_err(Error::database(what))
            })
        });
        settled.await.map_err(Error::database("a thread of the relay panicked"))?
    }

    async fn wait(&mut self, most: Duration) -> Result<(), Error> {
        let until = Instant::now() + most;
        while Instant::now() < until {
            let version = self.version().await?;
            if self.version.replace(version).is_some_and(|before| before != version) {
                return Ok(());
            }
            tokio::time::sleep(LOOK.min(most)).await;
        }
        Ok(())
    }

    async fn count(&mut self) -> Result<Counts, Error> {
        let what = "the outbox cannot be counted";
        let waiting = self.results.is_some().then(|| {
            let table = self.table();
            format!("SELECT count(*) FROM (SELECT 1 FROM {table} WHERE state = 'waiting' LIMIT ?1)")
        });
        self.on(move |connection| {
            let counted = connection.query_row(COUNT, [COUNT_MAX, now_ms()], |row| {
                let lag_ms: i64 = row.get(2)?;
                let (pending, parked) = (row.get(0)?, row.get(1)?);
                Ok(Counts { pending, parked, lag_ms: lag_ms.max(0), waiting: 0 })
            });
            let mut counts = counted.map_err(Error::database(what))?;
            if let Some(waiting) = waiting {
                let counted = connection.query_row(&waiting, [COUNT_MAX], |row| row.get(0));
                counts.waiting = counted.map_err(Error::database(what))?;
            }
            Ok(counts)
        })
        .await
    }

    async fn waiting(&mut self, after: &Name, most: i64) -> Result<Vec<Name>, Error> {
        let what = "the table of results cannot be read";
        let sql = format!(
            "SELECT queue, message_key, message_group FROM {} WHERE state = 'waiting'
               AND (queue, message_key, message_group) > (?1, ?2, ?3)
             ORDER BY queue, message_key, message_group LIMIT ?4",
            self.table()
        );
        let after = after.clone();
        self.on(move |connection| {
            let mut statement = connection.prepare_cached(&sql).map_err(Error::database(what))?;
            let values = params![after.queue, after.key, after.group, most];
            let found = statement.query_map(values, |row| {
                Ok(Name { queue: row.get(0)?, key: row.get(1)?, group: row.get(2)? })
            });
            let found = found.map_err(Error::database(what))?;
            found.map(|name| name.map_err(Error::database(what))).collect()
        })
        .await
    }

    async fn end(&mut self, name: &Name, end: &End) -> Result<(), Error> {
        let sql = format!(
            "UPDATE {} SET state = ?4, result = ?5, result_type = ?6, error = ?7,
                 finished_at_ms = ?8
             WHERE queue = ?1 AND message_key = ?2 AND message_group = ?3 AND state = 'waiting'",
            self.table()
        );
        let (name, end) = (name.clone(), end.clone());
        self.on(move |connection| {
            let values = params![
                name.queue,
                name.key,
                name.group,
                end.state,
                end.result,
                end.result_type,
                end.error,
                end.finished_at_ms
            ];
            let updated = connection.execute(&sql, values);
            updated.map_err(Error::database("the table of results cannot be written")).map(drop)
        })
        .await
    }
}

/// SQLite stores values of any type in any column. A value of the wrong type makes the row invalid,
/// with that reason.
fn row_of(id: i64, row: &rusqlite::Row<'_>) -> Result<Row, String> {
    let columns = Columns(row);
    if let Some(bytes) = columns.optional_integer(13, "body")?
        && bytes > BODY_BYTES_MAX
    {
        return Err(too_large(bytes));
    }
    // Read before the date of the operation, which defaults to it.
    let age_ms = columns.integer(11, "created_at_ms")?;
    Ok(Row {
        id,
        name: Name {
            queue: columns.text(1, "queue")?,
            key: columns.text(2, "message_key")?,
            group: columns.text(3, "message_group")?,
        },
        body: bytes(columns.value(4)?).into(),
        content_type: columns.text(5, "content_type")?,
        headers: headers(&columns.text(6, "headers")?)?,
        delay_ms: columns.optional_integer(7, "delay_ms")?,
        ttl_ms: columns.optional_integer(8, "ttl_ms")?,
        fingerprint: columns.optional_text(9, "fingerprint")?,
        issued_at_ms: columns.integer(10, "issued_at_ms")?,
        age_ms,
        tries: u32::try_from(columns.integer(12, "tries")?).unwrap_or(0),
    })
}

/// The columns of a row, and the reason if one has the wrong type.
struct Columns<'a, 'r>(&'a rusqlite::Row<'r>);

impl Columns<'_, '_> {
    fn value(&self, place: usize) -> Result<ValueRef<'_>, String> {
        self.0.get_ref(place).map_err(|error| error.to_string())
    }

    fn optional_text(&self, place: usize, name: &str) -> Result<Option<String>, String> {
        match self.value(place)? {
            ValueRef::Null => Ok(None),
            ValueRef::Text(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Ok(Some(text.to_owned())),
                Err(_) => Err(format!("{name} is not UTF-8")),
            },
            other => Err(format!("{name} is of the type {}, not text", other.data_type())),
        }
    }

    fn text(&self, place: usize, name: &str) -> Result<String, String> {
        self.optional_text(place, name)?.ok_or_else(|| format!("{name} is missing"))
    }

    fn optional_integer(&self, place: usize, name: &str) -> Result<Option<i64>, String> {
        match self.value(place)? {
            ValueRef::Null => Ok(None),
            ValueRef::Integer(number) => Ok(Some(number)),
            other => Err(format!("{name} is of the type {}, not an integer", other.data_type())),
        }
    }

    fn integer(&self, place: usize, name: &str) -> Result<i64, String> {
        self.optional_integer(place, name)?.ok_or_else(|| format!("{name} is missing"))
    }
}

/// A body may be of any type.
fn bytes(value: ValueRef<'_>) -> Vec<u8> {
    match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.to_vec(),
        ValueRef::Integer(number) => number.to_string().into_bytes(),
        ValueRef::Real(number) => number.to_string().into_bytes(),
        ValueRef::Null => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn two_paths_to_one_database_have_one_lock() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("outbox.db"), directory.path().join("link.db"));
        std::fs::write(&path, "").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let source = |path: &Path| Sqlite {
            database: Database::of_others(path),
            results: None,
            lock: None,
            version: None,
            path: path.to_owned(),
        };
        let mut first = source(&path);
        assert!(first.lock().await.unwrap());
        assert!(!source(&link).lock().await.unwrap(), "it is the same database");
        drop(first);
        assert!(source(&link).lock().await.unwrap());
    }
}
