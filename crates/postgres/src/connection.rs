//! One connection: executes calls, and notices the server's warnings.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use hapax_store::{Epoch, LogEnd};
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::{AbortHandle, JoinSet};
use tokio_postgres::error::Severity;
use tokio_postgres::types::{IsNull, ToSql, Type, accepts, to_sql_checked};
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, Row, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;
use uuid::Uuid;

use crate::call::{
    self, Answer, Appended, Beaten, Call, End, Ends, Owner, Part, Position, Watched,
};
use crate::error::Failure;
use crate::members::{Node, NodeRow, NodeState, OwnerRow, Seen};
use crate::settings::{CONNECT_TIMEOUT, Settings};
use crate::sql::{self, Sql};

/// How much later each host is tried than the one before it. A heartbeat takes a second at most,
/// and has to reach the second host by then.
const HOST_STEP: Duration = Duration::from_millis(200);

/// How long a check may take: a lock may keep it waiting for ever, or the server stand still.
const CHECK_WITHIN: Duration = Duration::from_secs(10);
/// How long a change of the schema may take, with its commit.
const CHANGE_WITHIN: Duration = Duration::from_secs(60);

/// A session, or with a pooler in between a place in its queue.
#[derive(Debug)]
pub(crate) struct Connection {
    client: Client,
    /// What the server warned of since the last statement began.
    warned: Arc<Mutex<Option<String>>>,
    /// By text; empty if statements are not prepared.
    prepared: HashMap<&'static str, Statement>,
    pooled: bool,
    driver: AbortHandle,
    /// How many there are.
    connections: Arc<AtomicUsize>,
    /// How many had failed when this one was begun.
    begun_after: usize,
    /// A statement is under way.
    is_busy: bool,
}

pub(crate) type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

impl Connection {
    /// Connects to the first host that takes writes; names are resolved anew.
    ///
    /// A host may accept a connection and never answer, as one whose machine stands still does, so
    /// the next one is tried soon beside it.
    pub(crate) async fn open(settings: &Settings) -> Result<Self, Failure> {
        let first = settings.preferred.load(Ordering::Relaxed);
        let mut attempts = JoinSet::new();
        for turn in 0..settings.hosts.len() {
            let host = (first + turn) % settings.hosts.len();
            let settings = settings.clone();
            let delay = HOST_STEP * u32::try_from(turn).unwrap_or(u32::MAX);
            attempts.spawn(async move {
                tokio::time::sleep(delay).await;
                (host, Self::open_host(&settings, host).await)
            });
        }
        let mut refused = None;
        while let Some(attempt) = attempts.join_next().await {
            match attempt {
                Ok((host, Ok(connection))) => {
                    settings.preferred.store(host, Ordering::Relaxed);
                    return Ok(connection);
                }
                // What the first host of the URL says is reported: the others may be standbys.
                Ok((host, Err(failure))) if host == 0 || refused.is_none() => {
                    refused = Some(failure);
                }
                _ => {}
            }
        }
        Err(refused.unwrap_or_else(|| Failure::Unreachable("it was not tried".to_owned())))
    }

    async fn open_host(settings: &Settings, host: usize) -> Result<Self, Failure> {
        let Some(config) = settings.hosts.get(host) else {
            return Err(Failure::Unreachable("it has no host".to_owned()));
        };
        let within = config.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT);
        let connecting = Self::connect(settings, config);
        let late = |_| Failure::Unreachable(format!("it was silent for {within:?}"));
        tokio::time::timeout(within, connecting).await.map_err(late)?
    }

    async fn connect(settings: &Settings, config: &Config) -> Result<Self, Failure> {
        let warned = Arc::new(Mutex::new(None));
        let begun_after = settings.failed.load(Ordering::Relaxed);
        let (client, driver) = match &settings.tls {
            Some(tls) => {
                let tls = MakeRustlsConnect::new(ClientConfig::clone(tls));
                let connected = config.connect(tls).await;
                let (client, connection) = connected.map_err(|error| failure(&error))?;
                (client, tokio::spawn(drive(connection, Arc::clone(&warned))))
            }
            None => {
                let connected = config.connect(NoTls).await;
                let (client, connection) = connected.map_err(|error| failure(&error))?;
                (client, tokio::spawn(drive(connection, Arc::clone(&warned))))
            }
        };
        let (driver, pooled, prepared) = (driver.abort_handle(), settings.pooled, HashMap::new());
        let connections = Arc::clone(&settings.connections);
        connections.fetch_add(1, Ordering::Relaxed);
        let is_busy = false;
        Ok(Self { client, warned, prepared, pooled, driver, connections, begun_after, is_busy })
    }

    /// Whether no other one has failed since this one was begun.
    pub(crate) fn is_as_new(&self, settings: &Settings) -> bool {
        self.begun_after == settings.failed.load(Ordering::Relaxed)
    }

    /// Executes several statements of text, for the schema.
    pub(crate) async fn batch(&self, text: &str) -> Result<(), Failure> {
        within(CHANGE_WITHIN, self.client.batch_execute(text)).await
    }

    /// Executes a statement with parameters among them.
    pub(crate) async fn change(
        &self,
        sql: &Sql,
        parameters: Parameters<'_>,
    ) -> Result<(), Failure> {
        let typed: Vec<_> =
            parameters.iter().zip(sql.types).map(|(it, of)| (*it, of.clone())).collect();
        within(CHANGE_WITHIN, self.client.query_typed(sql.text, &typed)).await.map(drop)
    }

    /// Executes a statement without parameters and returns its rows as text, for checks.
    pub(crate) async fn text(&self, text: &str) -> Result<Vec<Vec<String>>, Failure> {
        let answered = within(CHECK_WITHIN, self.client.simple_query(text)).await?;
        let rows = answered.iter().filter_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let columns = |row: &tokio_postgres::SimpleQueryRow| {
            (0..row.len()).map(|at| row.get(at).unwrap_or_default().to_owned()).collect()
        };
        Ok(rows.map(columns).collect())
    }

    /// Executes a statement. The rows come when it is committed; a warning makes its outcome
    /// unknown.
    pub(crate) async fn rows(
        &mut self,
        sql: &Sql,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, Failure> {
        *self.lock_warned() = None;
        self.is_busy = true;
        let rows = self.query(sql, parameters).await;
        self.is_busy = false;
        // The driver saw a warning before it passed on the end of the statement.
        match (rows, self.lock_warned().take()) {
            (Ok(_), Some(warning)) => Err(Failure::Warned(warning)),
            (rows, _) => rows.map_err(|error| failure(&error)),
        }
    }

    async fn query(
        &mut self,
        sql: &Sql,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        if self.pooled {
            let typed: Vec<_> =
                parameters.iter().zip(sql.types).map(|(it, of)| (*it, of.clone())).collect();
            self.client.query_typed(sql.text, &typed).await
        } else {
            if !self.prepared.contains_key(sql.text) {
                let prepared = self.client.prepare_typed(sql.text, sql.types).await?;
                self.prepared.insert(sql.text, prepared);
            }
            match self.prepared.get(sql.text) {
                Some(statement) => self.client.query(statement, parameters).await,
                None => unreachable!("it was prepared above"),
            }
        }
    }

    fn lock_warned(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.warned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn count(&mut self, sql: &Sql, parameters: Parameters<'_>) -> Result<u64, Failure> {
        let rows = self.rows(sql, parameters).await?;
        let count = rows.first().map(|row| row.try_get::<_, i64>(0)).transpose();
        count.map(|count| count.unwrap_or(0).cast_unsigned()).map_err(|error| failure(&error))
    }

    /// The number of rows that came back.
    async fn changed(&mut self, sql: &Sql, parameters: Parameters<'_>) -> Result<Answer, Failure> {
        Ok(Answer::Changed(self.rows(sql, parameters).await?.len() as u64))
    }

    pub(crate) async fn call(&mut self, call: &Call) -> Result<Answer, Failure> {
        match call {
            Call::Append(parts) => self.append(parts).await,
            Call::Ends(partitions) => self.ends(partitions).await,
            Call::Claim { partition, seen, least, claim, node } => {
                let (number, seen, least) = (i32::from(*partition), signed(*seen), signed(*least));
                let rows = self.rows(&sql::CLAIM, &[&number, &seen, &least, claim, node]).await?;
                let epoch = rows.first().map(|row| get::<i64>(row, 0)).transpose()?;
                Ok(Answer::Claimed(epoch.map(epoch_of).transpose()?))
            }
            Call::Release { owner, intended } => {
                let (number, epoch, claim) = owner_columns(owner);
                self.changed(&sql::RELEASE, &[&number, &epoch, &claim, intended]).await
            }
            Call::Read { .. }
            | Call::First { .. }
            | Call::Truncate { .. }
            | Call::Manifest { .. }
            | Call::Swap { .. } => self.call_journal(call).await,
            Call::Keep { .. } | Call::Pieces { .. } | Call::Fetch { .. } | Call::Remove { .. } => {
                self.call_pieces(call).await
            }
            Call::Register { .. }
            | Call::Heartbeat { .. }
            | Call::Members
            | Call::Forget { .. }
            | Call::Document { .. }
            | Call::Replace { .. }
            | Call::AcceptLoss { .. } => self.call_shared(call).await,
        }
    }

    async fn call_journal(&mut self, call: &Call) -> Result<Answer, Failure> {
        match call {
            Call::Read { partition, from, bytes } => {
                let number = i32::from(*partition);
                let rows = self
                    .rows(&sql::READ, &[&number, &from.cast_signed(), &bytes.cast_signed()])
                    .await?;
                rows.iter().map(journal_row).collect::<Result<_, _>>().map(Answer::Rows)
            }
            Call::First { partition } => {
                let rows = self.rows(&sql::FIRST, &[&i32::from(*partition)]).await?;
                let first = rows.first().map(|row| unsigned(row, 0)).transpose()?;
                Ok(Answer::First(first))
            }
            Call::Truncate { partition, from, to } => {
                let number = i32::from(*partition);
                let columns: Parameters<'_> = &[&number, &from.cast_signed(), &to.cast_signed()];
                self.count(&sql::TRUNCATE, columns).await.map(Answer::Changed)
            }
            Call::Manifest { partition } => {
                let rows = self.rows(&sql::MANIFEST, &[&i32::from(*partition)]).await?;
                let row = rows.first().ok_or_else(|| missing("its manifest row"))?;
                let (version, through) = (unsigned(row, 0)?, unsigned(row, 1)?);
                Ok(Answer::Manifest { version, through, bytes: get(row, 2)? })
            }
            Call::Swap { owner, version, through, bytes, runs, size } => {
                let (number, epoch, claim) = owner_columns(owner);
                let runs: Vec<i64> = runs.iter().map(|run| run.cast_signed()).collect();
                let (version, through) = (version.cast_signed(), through.cast_signed());
                let (size, bytes) = (size.cast_signed(), &**bytes);
                let columns: Parameters<'_> =
                    &[&number, &epoch, &claim, &version, &through, &bytes, &runs, &size];
                self.changed(&sql::SWAP, columns).await
            }
            _ => unreachable!("the others are not of a journal"),
        }
    }

    async fn call_pieces(&mut self, call: &Call) -> Result<Answer, Failure> {
        match call {
            Call::Keep { owner, piece } => {
                let (number, epoch, claim) = owner_columns(owner);
                let (run, at, bytes) =
                    (piece.run.cast_signed(), piece.at.cast_signed(), &*piece.bytes);
                let columns: Parameters<'_> = &[&number, &epoch, &claim, &run, &at, &bytes];
                Ok(Answer::Owned(self.count(&sql::KEEP, columns).await? == 1))
            }
            Call::Pieces { partition } => {
                let rows = self.rows(&sql::PIECES, &[&i32::from(*partition)]).await?;
                let piece =
                    |row: &Row| Ok((unsigned(row, 0)?, unsigned(row, 1)?, unsigned(row, 2)?));
                rows.iter().map(piece).collect::<Result<_, _>>().map(Answer::Pieces)
            }
            Call::Fetch { partition, run, at } => {
                let (number, run, at) =
                    (i32::from(*partition), run.cast_signed(), at.cast_signed());
                let rows = self.rows(&sql::FETCH, &[&number, &run, &at]).await?;
                Ok(Answer::Bytes(rows.first().map(|row| get(row, 0)).transpose()?))
            }
            Call::Remove { owner, run, version } => {
                let (number, epoch, claim) = owner_columns(owner);
                let (run, version) = (run.cast_signed(), version.cast_signed());
                let columns: Parameters<'_> = &[&number, &epoch, &claim, &run, &version];
                self.count(&sql::REMOVE, columns).await.map(Answer::Changed)
            }
            _ => unreachable!("the others are not of runs"),
        }
    }

    async fn call_shared(&mut self, call: &Call) -> Result<Answer, Failure> {
        match call {
            Call::Register { cluster, id, node } => {
                let Node { name, address, release, feature } = node;
                let columns: Parameters<'_> = &[id, name, address, release, feature, cluster];
                self.changed(&sql::REGISTER, columns).await
            }
            Call::Heartbeat { id, state, told_ms, known } => {
                let (state, told) = (*state as i16, told_ms.cast_signed());
                let numbers: Vec<i32> = known.iter().map(|(it, _)| i32::from(*it)).collect();
                let sequences: Vec<i64> = known.iter().map(|(_, it)| it.cast_signed()).collect();
                let columns: Parameters<'_> = &[id, &state, &told, &numbers, &sequences];
                beaten(&self.rows(&sql::HEARTBEAT, columns).await?).map(Answer::Heartbeat)
            }
            Call::Members => {
                // In this order: a node that joins and claims in between owns nothing yet.
                let owners = self.rows(&sql::OWNERS, &[]).await?;
                let nodes = self.rows(&sql::NODES, &[]).await?;
                let nodes = nodes.iter().map(node_row).collect::<Result<_, _>>()?;
                let partitions = owners.iter().map(owner_row).collect::<Result<_, _>>()?;
                Ok(Answer::Seen(Seen { nodes, partitions }))
            }
            Call::Forget { id, heartbeat } => {
                let heartbeat = heartbeat.map_or(-1, u64::cast_signed);
                self.changed(&sql::FORGET, &[id, &heartbeat]).await
            }
            Call::Document { name } => {
                let rows = self.rows(&sql::DOCUMENT, &[name]).await?;
                match rows.first() {
                    Some(row) => Ok(Answer::Document(get(row, 0)?, unsigned(row, 1)?)),
                    None => Ok(Answer::Document(Vec::new(), 0)),
                }
            }
            Call::Replace { name, version, bytes } => {
                let columns: Parameters<'_> = &[name, &version.cast_signed(), &&**bytes];
                self.changed(&sql::REPLACE, columns).await
            }
            Call::AcceptLoss { lineage } => self.changed(&sql::ACCEPT_LOSS, &[lineage]).await,
            _ => unreachable!("the others are of a partition"),
        }
    }

    async fn append(&mut self, parts: &[Part]) -> Result<Answer, Failure> {
        let partitions: Vec<i32> = parts.iter().map(|it| it.owner.partition.into()).collect();
        let epochs: Vec<i64> = parts.iter().map(|it| signed(it.owner.epoch)).collect();
        let claims: Vec<Uuid> = parts.iter().map(|it| it.owner.claim).collect();
        let afters: Vec<i64> = parts.iter().map(|it| it.after.sequence.cast_signed()).collect();
        let chains: Vec<i64> = parts.iter().map(|it| it.after.chain.cast_signed()).collect();
        let (mut places, mut sequences) = (Vec::new(), Vec::new());
        let (mut new_chains, mut starts, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
        let mut start = 1;
        for (place, part) in (1_i64..).zip(parts) {
            for batch in &part.batches {
                places.push(place);
                sequences.push(batch.at.sequence.cast_signed());
                new_chains.push(batch.at.chain.cast_signed());
                let length = batch.bytes.len() as i32;
                starts.push(start);
                lengths.push(length);
                start += length;
            }
        }
        let columns: Parameters<'_> = &[
            &partitions,
            &epochs,
            &claims,
            &afters,
            &chains,
            &places,
            &sequences,
            &new_chains,
            &starts,
            &lengths,
            &Batches(parts),
        ];
        let rows = self.rows(&sql::APPEND, columns).await?;
        let mut answers = vec![Appended::default(); parts.len()];
        for row in &rows {
            let (place, kind, number) =
                (get::<i64>(row, 0)?, get::<i32>(row, 1)?, unsigned(row, 2)?);
            let place = usize::try_from(place - 1).ok();
            let Some(answer) = place.and_then(|place| answers.get_mut(place)) else {
                return Err(Failure::Refused("a place that was not asked".to_owned()));
            };
            match kind {
                0 => {
                    answer.owned = true;
                    answer.unsafe_setting = match number {
                        3 => None,
                        1 => Some("full_page_writes"),
                        _ => Some("fsync"),
                    };
                }
                1 => answer.follows = true,
                _ => answer.inserted.push(number),
            }
        }
        Ok(Answer::Appended(answers))
    }

    async fn ends(&mut self, partitions: &[u16]) -> Result<Answer, Failure> {
        let numbers: Vec<i32> = partitions.iter().map(|number| i32::from(*number)).collect();
        let rows = self.rows(&sql::ENDS, &[&numbers]).await?;
        let first = rows.first().ok_or_else(|| missing("its partitions"))?;
        let (cluster, lineage) = (get(first, 0)?, get(first, 1)?);
        let ends = rows.iter().map(|row| end(row, 2)).collect::<Result<_, Failure>>()?;
        Ok(Answer::Ends(Ends { cluster, lineage, ends }))
    }
}

impl Drop for Connection {
    /// A connection with a statement under way is closed at once: the driver would wait for the
    /// answer. The statement is not cancelled.
    fn drop(&mut self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
        if self.is_busy {
            self.driver.abort();
        }
    }
}

/// The batches of an append, one after the other, as one value.
#[derive(Debug)]
struct Batches<'a>(&'a [Part]);

impl ToSql for Batches<'_> {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        let batches = || self.0.iter().flat_map(|part| &part.batches);
        out.reserve(batches().map(|batch| batch.bytes.len()).sum());
        batches().for_each(|batch| out.extend_from_slice(&batch.bytes));
        Ok(IsNull::No)
    }

    accepts!(BYTEA);
    to_sql_checked!();
}

/// Moves the bytes of a connection, and keeps its warnings.
async fn drive<S, T>(
    mut connection: tokio_postgres::Connection<S, T>,
    warned: Arc<Mutex<Option<String>>>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
        match message {
            Ok(AsyncMessage::Notice(notice)) => {
                let is_warning = notice.parsed_severity() == Some(Severity::Warning);
                if is_warning || notice.code().code().starts_with("01") {
                    let text = format!("{} (SQLSTATE {})", notice.message(), notice.code().code());
                    *warned.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
                }
            }
            Ok(_) => {}
            Err(_) => return, // Whoever waits for an answer learns of it.
        }
    }
}

/// What a check or a change of the schema brings, if that takes no longer. It is not cancelled.
async fn within<T>(
    most: Duration,
    asked: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Failure> {
    let answered = tokio::time::timeout(most, asked).await;
    answered.map_err(|_| Failure::TimedOut(most))?.map_err(|error| failure(&error))
}

/// What an error of the driver means.
pub(crate) fn failure(error: &tokio_postgres::Error) -> Failure {
    if let Some(error) = error.as_db_error() {
        let state = error.code().code();
        return match state {
            // The session is not the one that prepared the statement, or the tables changed.
            "26000" | "42P05" | "08P01" => Failure::Unreachable(format!(
                "{} (SQLSTATE {state}): if a pooler is in between, add pooled=true to the URL",
                error.message()
            )),
            "0A000" => Failure::Unreachable(error.message().to_owned()),
            _ => Failure::of_state(state, error.message()),
        };
    }
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    Failure::Unreachable(text)
}

fn missing(what: &str) -> Failure {
    Failure::Refused(format!("{what} are missing"))
}

fn get<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, at: usize) -> Result<T, Failure> {
    row.try_get(at).map_err(|error| failure(&error))
}

fn unsigned(row: &Row, at: usize) -> Result<u64, Failure> {
    get::<i64>(row, at).map(i64::cast_unsigned)
}

fn signed(epoch: Epoch) -> i64 {
    i64::from(epoch)
}

fn epoch_of(number: i64) -> Result<Epoch, Failure> {
    Epoch::try_from(number).map_err(|_| Failure::Refused(format!("{number} is no epoch")))
}

fn number_of(number: i32) -> Result<u16, Failure> {
    u16::try_from(number).map_err(|_| Failure::Refused(format!("{number} is no partition")))
}

/// The columns of an end, from this one on.
fn end(row: &Row, at: usize) -> Result<End, Failure> {
    Ok(End {
        partition: number_of(get(row, at)?)?,
        epoch: epoch_of(get(row, at + 1)?)?,
        claim: get(row, at + 2)?,
        owner: get(row, at + 3)?,
        last: log_end(row, at + 4)?,
    })
}

fn log_end(row: &Row, at: usize) -> Result<LogEnd, Failure> {
    let epoch = epoch_of(get(row, at)?)?;
    Ok(LogEnd { epoch, sequence: unsigned(row, at + 1)?, chain: unsigned(row, at + 2)? })
}

/// The rows of a heartbeat: one for each partition, or none if the node's is gone.
fn beaten(rows: &[Row]) -> Result<Option<Beaten>, Failure> {
    let Some(first) = rows.first() else { return Ok(None) };
    let watched = |row: &Row| {
        let is_kept = get::<Option<i64>>(row, 11)?.is_some();
        let kept = is_kept.then(|| log_end(row, 11)).transpose()?;
        Ok(Watched { end: end(row, 4)?, kept })
    };
    Ok(Some(Beaten {
        count: unsigned(first, 0)?,
        database_ms: unsigned(first, 1)?,
        catalog: unsigned(first, 2)?,
        lineage: get(first, 3)?,
        watched: rows.iter().map(watched).collect::<Result<_, Failure>>()?,
    }))
}

fn owner_columns(owner: &Owner) -> (i32, i64, Uuid) {
    (owner.partition.into(), signed(owner.epoch), owner.claim)
}

fn journal_row(row: &Row) -> Result<call::Row, Failure> {
    let at = Position { sequence: unsigned(row, 0)?, chain: unsigned(row, 2)? };
    Ok(call::Row { epoch: epoch_of(get(row, 1)?)?, at, bytes: get(row, 3)? })
}

fn node_row(row: &Row) -> Result<NodeRow, Failure> {
    Ok(NodeRow {
        id: get(row, 0)?,
        name: get(row, 1)?,
        address: get(row, 2)?,
        release: get(row, 3)?,
        feature: get(row, 4)?,
        state: NodeState::of(get(row, 5)?),
        heartbeat: unsigned(row, 6)?,
        told_ms: unsigned(row, 7)?,
    })
}

fn owner_row(row: &Row) -> Result<OwnerRow, Failure> {
    Ok(OwnerRow {
        partition: number_of(get(row, 0)?)?,
        epoch: epoch_of(get(row, 1)?)?,
        owner: get(row, 2)?,
        intended: get(row, 3)?,
    })
}
