//! Brings the data of a broker on disk into an empty database.
//!
//! The tables are filled while nobody takes them for a broker, are read back and compared, and
//! become a broker by one commit ([`Import::finish`]). What an interrupted import left is refused
//! by nodes, and replaced by the next import.
//!
//! Invariants:
//! - `hapax.cluster` has no row before everything was verified;
//! - the document `import` is the mark of one import: each of its statements counts it up, and does
//!   nothing where it is another's. So of two imports one goes on, and the other one is refused.
//!
//! Everything here blocks. It has a connection of its own, and must not be used within a runtime.

mod copy;
mod readback;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::connection::{Connection, Parameters};
use crate::database::{Create, draw};
use crate::error::{Failure, Refused};
use crate::log::lock;
use crate::schema::{self, Checks, FEATURE, FORMAT, Found, NAMES};
use crate::settings::Settings;
use crate::sql::{self, Sql};

pub use copy::{Copy, Place};

/// How often a statement is tried while the database cannot be reached, and the pause in between.
const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(400);
/// A living import counts its mark up within this time.
const WATCH: Duration = Duration::from_secs(5);
/// How often an import that only reads counts its mark up.
const BEAT: Duration = Duration::from_secs(1);

/// Why an import ended. The database holds no broker.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Failed(#[from] Failure),
    #[error("another import into the same database took the place of this one")]
    Replaced,
    #[error("what was read back differs from what was written: {0}")]
    Differs(String),
    #[error(transparent)]
    Store(#[from] hapax_store::Error),
    #[error(
        "it is not known whether the import was completed: {0}. hapax cluster status shows \
         whether the database holds a broker"
    )]
    Unknown(Failure),
}

/// An import that is under way. Dropped without [`Import::finish`] it is interrupted: what it wrote
/// stays, and is of no use to anybody.
#[derive(Clone)]
pub struct Import {
    inner: Arc<Inner>,
}

struct Inner {
    settings: Settings,
    mark: Mark,
    create: Create,
    cluster: Uuid,
    session: Mutex<Session>,
}

struct Session {
    runtime: Runtime,
    connection: Option<Connection>,
    beaten: Instant,
}

impl Import {
    /// Refuses a database that could not be imported into. Changes nothing.
    pub fn check(settings: &Settings) -> Result<(), Refused> {
        runtime(settings)?.block_on(async {
            let connection = schema::open(settings).await?;
            let checks = Checks { connection: &connection, database: settings.shown().to_owned() };
            checks.server().await?;
            match checks.tables().await {
                Ok(Found::Nothing { .. }) | Err(Refused::Importing { .. }) => Ok(()),
                Ok(Found::Broker) => Err(not_empty(settings)),
                Err(refused) => Err(refused),
            }
        })
    }

    /// Creates the tables. `from` names the source, in messages. What an interrupted import left is
    /// removed first.
    pub fn begin(settings: Settings, create: Create, from: &str) -> Result<Self, Refused> {
        let runtime = runtime(&settings)?;
        let random = |why: String| Refused::Unexpected { database: settings.shown().into(), why };
        let cluster = draw().map_err(random)?;
        let (connection, mark) = runtime.block_on(begin(&settings, &create, from))?;
        let session = Session { runtime, connection: Some(connection), beaten: Instant::now() };
        let session = Mutex::new(session);
        Ok(Self { inner: Arc::new(Inner { settings, mark, create, cluster, session }) })
    }

    /// Keeps a document for all nodes, such as tokens.
    pub fn document(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        self.write(&sql::IMPORT_DOCUMENT, &[&name, &bytes])?;
        let rows = self.read(&sql::DOCUMENT, &[&name])?;
        let found = rows.first().and_then(|row| row.try_get::<_, Vec<u8>>(0).ok());
        match found.as_deref() == Some(bytes) {
            true => Ok(()),
            false => Err(Error::Differs(format!("the document {name}"))),
        }
    }

    /// Makes a broker of what was copied and verified.
    pub fn finish(self) -> Result<(), Error> {
        let Create { partitions, fingerprints, leases, links } = &self.inner.create;
        let lineage = draw().map_err(Failure::Refused)?;
        let partitions = i32::from(*partitions);
        let fingerprints = fingerprints.as_ref().map(|secret| secret.0.to_vec());
        let (leases, links) = (leases.0.as_slice(), links.0.as_slice());
        let mark = self.inner.mark.bytes();
        let columns: Parameters<'_> = &[
            &mark,
            &FORMAT,
            &FEATURE,
            &self.inner.cluster,
            &lineage,
            &partitions,
            &fingerprints,
            &leases,
            &links,
        ];
        let mut tries = TRIES;
        loop {
            let finished = match self.once(&sql::IMPORT_FINISH, columns) {
                Ok(rows) if !rows.is_empty() => return Ok(()),
                // An earlier try may have done it, of which the answer was lost.
                Ok(_) => Ok(()),
                Err(failure) => Err(failure),
            };
            match self.once(&sql::IMPORT_PROVE, &[&self.inner.cluster]) {
                Ok(rows) if !rows.is_empty() => return Ok(()),
                Ok(_) if finished.is_ok() => return Err(Error::Replaced),
                Ok(_) => {}
                Err(failure) if tries <= 1 => return Err(Error::Unknown(failure)),
                Err(_) => {}
            }
            if let Err(failure) = finished
                && tries <= 1
            {
                return Err(failure.into());
            }
            tries -= 1;
            std::thread::sleep(PAUSE);
        }
    }

    /// Removes everything that the import created.
    pub fn abandon(self) -> Result<(), Failure> {
        let text = self.inner.mark.removal();
        let mut session = lock(&self.inner.session);
        session.connected(&self.inner.settings)?;
        let Session { runtime, connection: Some(connection), .. } = &*session else {
            unreachable!("it was connected above");
        };
        runtime.block_on(connection.batch(&text))
    }

    /// Executes a statement of the import, also repeatedly: twice is once.
    fn write(&self, sql: &Sql, rest: Parameters<'_>) -> Result<(), Error> {
        let mark = self.inner.mark.bytes();
        let mut columns: Vec<&(dyn ToSql + Sync)> = vec![&mark];
        columns.extend_from_slice(rest);
        let rows = self.again(sql, &columns)?;
        lock(&self.inner.session).beaten = Instant::now();
        match rows.first().map(|row| row.try_get::<_, i64>(0)) {
            Some(Ok(1)) => Ok(()),
            _ => Err(Error::Replaced),
        }
    }

    /// Reads, and says now and then that this import lives.
    fn read(&self, sql: &Sql, columns: Parameters<'_>) -> Result<Vec<Row>, Error> {
        let is_due = lock(&self.inner.session).beaten.elapsed() >= BEAT;
        if is_due {
            self.write(&sql::IMPORT_BEAT, &[])?;
        }
        Ok(self.again(sql, columns)?)
    }

    fn again(&self, sql: &Sql, columns: Parameters<'_>) -> Result<Vec<Row>, Failure> {
        let mut tries = TRIES;
        loop {
            match self.once(sql, columns) {
                Ok(rows) => return Ok(rows),
                Err(failure @ (Failure::Full(_) | Failure::Damaged(_) | Failure::Refused(_))) => {
                    return Err(failure);
                }
                Err(failure) if tries <= 1 => return Err(failure),
                Err(_) => {
                    tries -= 1;
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    fn once(&self, sql: &Sql, columns: Parameters<'_>) -> Result<Vec<Row>, Failure> {
        let mut session = lock(&self.inner.session);
        session.connected(&self.inner.settings)?;
        let Session { runtime, connection: Some(connection), .. } = &mut *session else {
            unreachable!("it was connected above");
        };
        let outcome = runtime.block_on(connection.rows(sql, columns));
        if outcome.as_ref().is_err_and(Failure::ends_connection) {
            session.connection = None;
        }
        outcome
    }
}

impl Session {
    fn connected(&mut self, settings: &Settings) -> Result<(), Failure> {
        if self.connection.is_none() {
            self.connection = Some(self.runtime.block_on(Connection::open(settings))?);
        }
        Ok(())
    }
}

impl fmt::Debug for Import {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Import").field(&self.inner.settings.shown()).finish()
    }
}

fn runtime(settings: &Settings) -> Result<Runtime, Refused> {
    let built = Builder::new_current_thread().enable_all().build();
    let database = settings.shown().to_owned();
    built.map_err(|error| Refused::Unreachable { database, why: error.to_string() })
}

fn not_empty(settings: &Settings) -> Refused {
    Refused::NotEmpty { database: settings.shown().to_owned() }
}

async fn begin(
    settings: &Settings,
    create: &Create,
    from: &str,
) -> Result<(Connection, Mark), Refused> {
    let connection = schema::open(settings).await?;
    let database = settings.shown().to_owned();
    let checks = Checks { connection: &connection, database: database.clone() };
    checks.server().await?;
    let random = |why: String| Refused::Unexpected { database: database.clone(), why };
    let id = draw().map_err(random)?;
    // What an earlier import left is removed, and then there is nothing; another process may
    // create something at any time.
    for _ in 0..3 {
        match checks.tables().await {
            Ok(Found::Broker) => return Err(not_empty(settings)),
            Ok(Found::Nothing { has_schema }) => {
                let mark = Mark::new(id, !has_schema, from);
                checks.create_import(&mark, create.partitions, has_schema).await?;
                if checks.import().await?.is_some_and(|found| found.text == mark.text) {
                    return Ok((connection, mark));
                }
            }
            Err(Refused::Importing { .. }) => remove_interrupted(&checks).await?,
            Err(refused) => return Err(refused),
        }
    }
    Err(Refused::ImportRunning { database, from: "another directory".to_owned() })
}

/// Removes what an import left that does not live. It is watched twice: the last statement of one
/// that was killed may have run to its end meanwhile.
async fn remove_interrupted(checks: &Checks<'_>) -> Result<(), Refused> {
    let Some(mut before) = checks.import().await? else { return Ok(()) };
    for _ in 0..2 {
        tokio::time::sleep(WATCH).await;
        let Some(after) = checks.import().await? else { return Ok(()) };
        if (&after.text, after.version) == (&before.text, before.version) {
            let removed = checks.connection.batch(&after.removal()).await;
            return removed.map_err(|failure| checks.unexpected(&failure));
        }
        before = after;
    }
    Err(Refused::ImportRunning { database: checks.database.clone(), from: before.from })
}

/// The document `import`: which one it is, whether it created the schema, and from where.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    text: String,
    creates_schema: bool,
    pub(crate) from: String,
    version: u64,
}

impl Mark {
    fn new(id: Uuid, creates_schema: bool, from: &str) -> Self {
        let word = if creates_schema { "schema" } else { "tables" };
        let text = format!("{id} {word} {from}");
        Self { text, creates_schema, from: from.to_owned(), version: 1 }
    }

    /// Reads it from the database; the text is hexadecimal.
    pub(crate) fn parse(hex: &str, version: &str) -> Option<Self> {
        let digits = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
        let bytes = digits.map(|pair| u8::from_str_radix(pair?, 16).ok());
        let text = String::from_utf8(bytes.collect::<Option<_>>()?).ok()?;
        let mut words = text.splitn(3, ' ');
        Uuid::parse_str(words.next()?).ok()?;
        let creates_schema = words.next()? == "schema";
        let from = words.next()?.to_owned();
        Some(Self { text, creates_schema, from, version: version.parse().ok()? })
    }

    fn bytes(&self) -> &[u8] {
        self.text.as_bytes()
    }

    pub(crate) fn hex(&self) -> String {
        self.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The statement that removes what the import created, if it is still this one's.
    fn removal(&self) -> String {
        let tables: Vec<_> = NAMES.iter().map(|name| format!("hapax.{name}")).collect();
        let schema = if self.creates_schema { "drop schema hapax;" } else { "" };
        format!(
            "do $$ begin
               perform 1 from hapax.document
                 where name = 'import' and bytes = decode('{}', 'hex') for update;
               if found then drop table {}; {schema} end if;
             end $$",
            self.hex(),
            tables.join(", ")
        )
    }
}
