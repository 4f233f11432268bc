//! The tables, and the checks of a database before anything is changed in it.

use uuid::Uuid;

use crate::call::chain;
use crate::connection::{Connection, Parameters};
use crate::database::{Create, Secret, Shared, draw};
use crate::error::{Failure, Refused, Warning};
use crate::import::Mark;
use crate::settings::Settings;
use crate::sql;

/// The format of the tables that this release writes and reads.
pub(crate) const FORMAT: i32 = 1;
/// The highest level of features that this release knows.
pub const FEATURE: i32 = 1;
const VERSION_MIN: u32 = 140_000;
const TABLES: &str = include_str!("schema.sql");
pub(crate) const NAMES: [&str; 7] =
    ["cluster", "node", "partition", "journal", "manifest", "chunk", "document"];

/// A standby says how far it has replayed, and belongs to no database. What receives the log to
/// keep it, and subscribers of logical replication, never take over. A role that may not see the
/// state of others' sessions sees their names.
const ASYNCHRONOUS: &str = "
    select btrim(current_setting('synchronous_standby_names')) = '' and exists (
      select from pg_stat_replication r join pg_stat_activity a using (pid)
      where a.datid is null and case
        when r.state is null
          then coalesce(r.application_name, '') not in ('pg_basebackup', 'pg_receivewal')
        else r.replay_lsn is not null end)";

/// Connects, checks, and creates the tables if there are none and that is wanted.
pub(crate) async fn check(
    settings: &Settings,
    create: Option<&Create>,
) -> Result<(Shared, Option<Warning>), Refused> {
    let connection = open(settings).await?;
    let checks = Checks { connection: &connection, database: settings.shown().to_owned() };
    checks.server().await?;
    // Twice: another node may create it at the same time.
    for _ in 0..2 {
        match (checks.tables().await?, create) {
            (Found::Broker, _) => break,
            (Found::Nothing { .. }, None) => {
                return Err(Refused::Empty { database: checks.database });
            }
            (Found::Nothing { has_schema }, Some(create)) => {
                checks.create(create, has_schema).await?;
            }
        }
    }
    Ok((checks.shared().await?, checks.standbys().await))
}

/// Connects and checks to look on: settings that would lose data are a warning.
pub(crate) async fn look(settings: &Settings) -> Result<(Shared, Option<Warning>), Refused> {
    let connection = open(settings).await?;
    let checks = Checks { connection: &connection, database: settings.shown().to_owned() };
    let warning = match checks.server().await {
        Ok(()) => checks.standbys().await,
        Err(refused @ Refused::Unsafe { .. }) => Some(Warning::Unsafe(refused)),
        Err(refused) => return Err(refused),
    };
    match checks.tables().await? {
        Found::Broker => Ok((checks.shared().await?, warning)),
        Found::Nothing { .. } => Err(Refused::Empty { database: checks.database }),
    }
}

/// Connects; refuses a server that takes reads only.
pub(crate) async fn open(settings: &Settings) -> Result<Connection, Refused> {
    match Connection::open(settings).await {
        Ok(connection) => Ok(connection),
        Err(failure) if failure.to_string().contains("does not allow writes") => {
            Err(Refused::ReadOnly { database: settings.shown().to_owned() })
        }
        Err(failure) => Err(unreachable(settings, &failure)),
    }
}

fn unreachable(settings: &Settings, failure: &Failure) -> Refused {
    let text = match failure {
        // The refusal says that already.
        Failure::Unreachable(why) => why.clone(),
        failure => failure.to_string(),
    };
    let database = settings.shown().to_owned();
    let hint = match () {
        () if text.contains("3D000") => "; create it first: CREATE DATABASE …",
        () if text.contains("28P01") => "; check user and password in the URL",
        () if text.contains("password missing") => {
            "; put it into the URL, postgres://user:password@host/database: PGPASSWORD and .pgpass \
             are not read"
        }
        () if text.contains("error communicating with the server: bytes remaining")
            || text.contains("unexpected message from server") =>
        {
            "; is this PostgreSQL?"
        }
        () if text.contains("28000") => "; let this host and user in by pg_hba.conf",
        () if text.contains("UnknownIssuer") => "; name its CA by sslrootcert=/path/of/ca.pem",
        () => "",
    };
    Refused::Unreachable { database, why: format!("{text}{hint}") }
}

/// What is in the schema `hapax`.
pub(crate) enum Found {
    Broker,
    Nothing { has_schema: bool },
}

pub(crate) struct Checks<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) database: String,
}

impl Checks<'_> {
    async fn row(&self, text: &str) -> Result<Vec<String>, Refused> {
        let rows = self.connection.text(text).await.map_err(|failure| self.unexpected(&failure))?;
        let none = || self.unexpected(&Failure::Refused("no row".to_owned()));
        rows.into_iter().next().ok_or_else(none)
    }

    pub(crate) fn unexpected(&self, failure: &Failure) -> Refused {
        let (database, why) = (self.database.clone(), failure.to_string());
        match failure {
            Failure::Unreachable(_) => Refused::Unreachable { database, why },
            Failure::TimedOut(_) => {
                let cause = "a lock of somebody else, or a synchronous standby that is gone, may \
                             keep it waiting: see pg_stat_activity";
                Refused::Unreachable { database, why: format!("{why}; {cause}") }
            }
            _ => Refused::Unexpected { database, why },
        }
    }

    /// The server and its settings.
    pub(crate) async fn server(&self) -> Result<(), Refused> {
        let database = self.database.clone();
        let row = self.row("select version()").await?;
        let version = row.first().cloned().unwrap_or_default();
        if !version.starts_with("PostgreSQL ") || version.contains("-YB-") {
            return Err(Refused::NotPostgres { database, found: version });
        }
        let row = self
            .row(
                "select current_setting('server_version_num'), current_setting('server_version'),
                   pg_is_in_recovery() or current_setting('transaction_read_only') = 'on',
                   current_setting('fsync'), current_setting('full_page_writes'),
                   current_setting('synchronous_commit')",
            )
            .await?;
        let column = |at: usize| row.get(at).map_or("", String::as_str);
        if column(0).parse::<u32>().is_ok_and(|number| number < VERSION_MIN) {
            return Err(Refused::TooOld { database, found: column(1).to_owned() });
        }
        if column(2) != "f" {
            return Err(Refused::ReadOnly { database });
        }
        for (at, setting) in [(3, "fsync"), (4, "full_page_writes"), (5, "synchronous_commit")] {
            if column(at) == "off" {
                let value = column(at).to_owned();
                return Err(Refused::Unsafe { database, setting, value, remedy: "on" });
            }
        }
        Ok(())
    }

    /// Whether there are standbys, and all of them replicate asynchronously. Only a look: where the
    /// server does not show its standbys there is nothing to warn of.
    async fn standbys(&self) -> Option<Warning> {
        let row = self.row(ASYNCHRONOUS).await.ok()?;
        let is_asynchronous = row.first().is_some_and(|column| column == "t");
        is_asynchronous.then(|| Warning::Asynchronous { database: self.database.clone() })
    }

    /// What the schema holds, and whether it may be used.
    pub(crate) async fn tables(&self) -> Result<Found, Refused> {
        let row = self
            .row(
                "select count(distinct n.oid), count(c.oid),
                   coalesce(bool_or(c.relname = 'cluster'), false), quote_ident(current_user),
                   has_database_privilege(current_database(), 'CREATE'),
                   coalesce(bool_or(has_schema_privilege(n.oid, 'USAGE')), false),
                   coalesce(bool_or(has_schema_privilege(n.oid, 'CREATE')), false)
                 from pg_namespace n left join pg_class c on c.relnamespace = n.oid
                 where n.nspname = 'hapax'",
            )
            .await?;
        let column = |at: usize| row.get(at).map_or("", String::as_str);
        let (has_schema, is_empty) = (column(0) != "0", column(1) == "0");
        let user = column(3).to_owned();
        let rights = |why: &str, remedy: String| Refused::Rights {
            database: self.database.clone(),
            user: user.clone(),
            why: why.to_owned(),
            remedy,
        };
        if has_schema && column(5) != "t" {
            let needed = if is_empty && column(6) != "t" { "USAGE, CREATE" } else { "USAGE" };
            let remedy = format!("GRANT {needed} ON SCHEMA hapax TO {user}");
            return Err(rights("it may not use the schema hapax", remedy));
        }
        if has_schema && is_empty && column(6) != "t" {
            let remedy = format!("GRANT CREATE ON SCHEMA hapax TO {user}");
            return Err(rights("it may not create tables in the schema hapax", remedy));
        }
        if !has_schema && column(4) != "t" {
            let remedy = format!("CREATE SCHEMA hapax AUTHORIZATION {user}");
            return Err(rights("it may not create a schema", remedy));
        }
        if is_empty {
            return Ok(Found::Nothing { has_schema });
        }
        if column(2) != "t" {
            let why = "it has no table named cluster".to_owned();
            return Err(Refused::Foreign { database: self.database.clone(), why });
        }
        self.format(&user).await.map(|()| Found::Broker)
    }

    /// The format first: a newer one may look different in everything else.
    async fn format(&self, user: &str) -> Result<(), Refused> {
        let database = self.database.clone();
        let grant = || {
            let tables: Vec<_> = NAMES.iter().map(|name| format!("hapax.{name}")).collect();
            format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {} TO {user}", tables.join(", "))
        };
        let read = self.connection.text("select format from hapax.cluster").await;
        let row = match read {
            Ok(rows) => rows.into_iter().next(),
            Err(Failure::Refused(why)) if why.contains("42501") => {
                let (user, remedy) = (user.to_owned(), grant());
                return Err(Refused::Rights { database, user, why, remedy });
            }
            Err(Failure::Refused(why)) => return Err(Refused::Foreign { database, why }),
            Err(failure) => return Err(self.unexpected(&failure)),
        };
        if row.is_none()
            && let Some(import) = self.import().await?
        {
            return Err(Refused::Importing { database, from: import.from });
        }
        let format = row.and_then(|row| row.first()?.parse::<i32>().ok());
        match format {
            Some(found) if found > FORMAT => {
                return Err(Refused::Newer { database, found, known: FORMAT });
            }
            Some(1..) => {}
            _ => {
                let why = "its table cluster has no format".to_owned();
                return Err(Refused::Foreign { database, why });
            }
        }
        let missing = NAMES.map(|name| {
            format!(
                "case when to_regclass('hapax.{name}') is null then 'no'
                   when has_table_privilege('hapax.{name}', 'SELECT')
                    and has_table_privilege('hapax.{name}', 'INSERT')
                    and has_table_privilege('hapax.{name}', 'UPDATE')
                    and has_table_privilege('hapax.{name}', 'DELETE') then '' else 'rights' end"
            )
        });
        let row = self.row(&format!("select {}", missing.join(", "))).await?;
        for (name, state) in NAMES.iter().zip(&row) {
            let database = self.database.clone();
            match state.as_str() {
                "" => {}
                "no" => {
                    let why = format!("its table {name} is missing");
                    return Err(Refused::Foreign { database, why });
                }
                _ => {
                    let why = format!("it may not read and change hapax.{name}");
                    let (user, remedy) = (user.to_owned(), grant());
                    return Err(Refused::Rights { database, user, why, remedy });
                }
            }
        }
        Ok(())
    }

    /// An import that is under way or was interrupted.
    pub(crate) async fn import(&self) -> Result<Option<Mark>, Refused> {
        let asked = "select encode(bytes, 'hex'), version from hapax.document
                     where name = 'import' and not exists (select 1 from hapax.cluster)";
        match self.connection.text(asked).await {
            Ok(rows) => Ok(rows.first().and_then(|row| Mark::parse(row.first()?, row.get(1)?))),
            // There is no such table: it is not an import's.
            Err(Failure::Refused(_)) => Ok(None),
            Err(failure) => Err(self.unexpected(&failure)),
        }
    }

    /// All tables in one transaction, with the row that makes a broker of them.
    async fn create(&self, create: &Create, has_schema: bool) -> Result<(), Refused> {
        let unexpected = |why: String| Refused::Unexpected { database: self.database.clone(), why };
        let (cluster, lineage) = (draw().map_err(unexpected)?, draw().map_err(unexpected)?);
        let partitions = i32::from(create.partitions);
        let fingerprints = create.fingerprints.as_ref().map(|secret| secret.0.to_vec());
        let (leases, links) = (create.leases.0.as_slice(), create.links.0.as_slice());
        let row: Parameters<'_> =
            &[&FORMAT, &FEATURE, &cluster, &lineage, &partitions, &fingerprints, &leases, &links];
        self.create_tables(has_schema, &rows(create.partitions, cluster), Some(row)).await
    }

    /// The tables for an import: no row of `hapax.cluster`, so that nobody takes them for a broker.
    pub(crate) async fn create_import(
        &self,
        mark: &Mark,
        partitions: u16,
        has_schema: bool,
    ) -> Result<(), Refused> {
        let mut rows: String = (0..partitions).map(journal_table).collect();
        let mark = mark.hex();
        rows.push_str(&format!(
            "insert into hapax.document values ('import', 1, decode('{mark}', 'hex'));"
        ));
        self.create_tables(has_schema, &rows, None).await
    }

    async fn create_tables(
        &self,
        has_schema: bool,
        rows: &str,
        broker: Option<Parameters<'_>>,
    ) -> Result<(), Refused> {
        match self.create_all(has_schema, rows, broker).await {
            Ok(()) => Ok(()),
            // The connection is busy, and closed by whoever has it.
            Err(failure @ Failure::TimedOut(_)) => Err(self.unexpected(&failure)),
            // Somebody else is creating it: the schema or a table exists, or is about to.
            Err(Failure::Refused(why))
                if ["42P06", "42P07", "23505"].iter().any(|state| why.contains(state)) =>
            {
                let _ = self.connection.batch("rollback").await;
                Ok(())
            }
            Err(failure) => {
                let _ = self.connection.batch("rollback").await;
                Err(self.unexpected(&failure))
            }
        }
    }

    async fn create_all(
        &self,
        has_schema: bool,
        rows: &str,
        broker: Option<Parameters<'_>>,
    ) -> Result<(), Failure> {
        let tables = match has_schema {
            true => TABLES.replacen("create schema hapax;", "", 1),
            false => TABLES.to_owned(),
        };
        self.connection.batch(&format!("begin; {tables} {rows}")).await?;
        if let Some(broker) = broker {
            self.connection.change(&sql::CREATE, broker).await?;
        }
        self.connection.batch("commit").await
    }

    async fn shared(&self) -> Result<Shared, Refused> {
        let row = self
            .row(
                "select format, feature, id, lineage, partitions,
                   coalesce(encode(fingerprints, 'hex'), ''), encode(leases, 'hex'),
                   encode(links, 'hex') from hapax.cluster",
            )
            .await?;
        let column = |at: usize| row.get(at).map_or("", String::as_str);
        let parsed = || {
            Some(Shared {
                format: column(0).parse().ok()?,
                feature: column(1).parse().ok()?,
                cluster: Uuid::parse_str(column(2)).ok()?,
                lineage: Uuid::parse_str(column(3)).ok()?,
                partitions: column(4).parse().ok()?,
                fingerprints: match column(5) {
                    "" => None,
                    text => Some(secret(text)?),
                },
                leases: secret(column(6))?,
                links: secret(column(7))?,
            })
        };
        let why = || "its row in hapax.cluster makes no sense".to_owned();
        let shared = parsed()
            .ok_or_else(|| Refused::Foreign { database: self.database.clone(), why: why() })?;
        match shared.feature > FEATURE {
            true => Err(Refused::Newer {
                database: self.database.clone(),
                found: shared.feature,
                known: FEATURE,
            }),
            false => Ok(shared),
        }
    }
}

/// The partitions of a new broker. Every journal begins with a row, so that every append has one to
/// follow.
fn rows(partitions: u16, cluster: Uuid) -> String {
    let of_partition = |number| {
        let chain = chain(cluster, number, 0, 0, &[]).cast_signed();
        let table = journal_table(number);
        format!(
            "{table} insert into hapax.partition (number) values ({number});
             insert into hapax.journal values ({number}, 0, 0, {chain}, '');
             insert into hapax.manifest values ({number}, 0, 0, {chain}, '');"
        )
    };
    (0..partitions).map(of_partition).collect()
}

/// The table of one partition's journal.
fn journal_table(number: u16) -> String {
    format!(
        "create table hapax.journal_{number:04} partition of hapax.journal
           for values in ({number}) with (autovacuum_vacuum_scale_factor = 0,
           autovacuum_vacuum_threshold = 200, toast.autovacuum_vacuum_scale_factor = 0,
           toast.autovacuum_vacuum_threshold = 20000, vacuum_truncate = off,
           toast.vacuum_truncate = off);
         alter table hapax.journal_{number:04} alter batch set storage external;"
    )
}

fn secret(hex: &str) -> Option<Secret> {
    blake3::Hash::from_hex(hex).ok().map(|hash| Secret(hash.into()))
}
