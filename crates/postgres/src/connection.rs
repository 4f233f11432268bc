//! One connection: executes calls, and notices the server's warnings.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};

use hapax_store::{Epoch, LogEnd};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::error::Severity;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, NoTls, Row, Statement};
use uuid::Uuid;

use crate::call::{self, Answer, Appended, Call, End, Ends, Owner, Part, Position};
use crate::error::Failure;
use crate::members::{Node, NodeRow, NodeState, OwnerRow, Seen};
use crate::settings::Settings;
use crate::sql::{self, Sql};

/// A session, or with a pooler in between a place in its queue.
#[derive(Debug)]
pub(crate) struct Connection {
    client: Client,
    /// What the server warned of since the last statement began.
    warned: Arc<Mutex<Option<String>>>,
    /// By text; empty if statements are not prepared.
    prepared: HashMap<&'static str, Statement>,
    pooled: bool,
}

type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

impl Connection {
    /// Connects to the first host that takes writes; names are resolved anew.
    pub(crate) async fn open(settings: &Settings) -> Result<Self, Failure> {
        let warned = Arc::new(Mutex::new(None));
        let client = match &settings.tls {
            Some(tls) => {
                let connected = settings.config.connect(tls.clone()).await;
                let (client, connection) = connected.map_err(|error| failure(&error))?;
                tokio::spawn(drive(connection, Arc::clone(&warned)));
                client
            }
            None => {
                let connected = settings.config.connect(NoTls).await;
                let (client, connection) = connected.map_err(|error| failure(&error))?;
                tokio::spawn(drive(connection, Arc::clone(&warned)));
                client
            }
        };
        Ok(Self { client, warned, prepared: HashMap::new(), pooled: settings.pooled })
    }

    /// Executes several statements of text, for the schema.
    pub(crate) async fn batch(&self, text: &str) -> Result<(), Failure> {
        self.client.batch_execute(text).await.map_err(|error| failure(&error))
    }

    /// Executes a statement without parameters and returns its rows as text.
    pub(crate) async fn text(&self, text: &str) -> Result<Vec<Vec<String>>, Failure> {
        let answered = self.client.simple_query(text).await.map_err(|error| failure(&error))?;
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
        let rows = if self.pooled {
            let typed: Vec<_> =
                parameters.iter().zip(sql.types).map(|(it, of)| (*it, of.clone())).collect();
            self.client.query_typed(sql.text, &typed).await
        } else {
            if !self.prepared.contains_key(sql.text) {
                let prepared = self.client.prepare_typed(sql.text, sql.types).await;
                self.prepared.insert(sql.text, prepared.map_err(|error| failure(&error))?);
            }
            match self.prepared.get(sql.text) {
                Some(statement) => self.client.query(statement, parameters).await,
                None => unreachable!("it was prepared above"),
            }
        };
        // The driver saw a warning before it passed on the end of the statement.
        match (rows, self.lock_warned().take()) {
            (Ok(_), Some(warning)) => Err(Failure::Warned(warning)),
            (rows, _) => rows.map_err(|error| failure(&error)),
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
            Call::Remove { owner, run } => {
                let (number, epoch, claim) = owner_columns(owner);
                let columns: Parameters<'_> = &[&number, &epoch, &claim, &run.cast_signed()];
                self.count(&sql::REMOVE, columns).await.map(Answer::Changed)
            }
            _ => unreachable!("the others are not of runs"),
        }
    }

    async fn call_shared(&mut self, call: &Call) -> Result<Answer, Failure> {
        match call {
            Call::Register { id, node } => {
                let Node { name, address, release, feature } = node;
                self.changed(&sql::REGISTER, &[id, name, address, release, feature]).await
            }
            Call::Heartbeat { id, state, told_ms } => {
                let (state, told) = (*state as i16, told_ms.cast_signed());
                let rows = self.rows(&sql::HEARTBEAT, &[id, &state, &told]).await?;
                let beat = |row: &Row| {
                    Ok((unsigned(row, 0)?, unsigned(row, 1)?, unsigned(row, 2)?, get(row, 3)?))
                };
                Ok(Answer::Heartbeat(rows.first().map(beat).transpose()?))
            }
            Call::Members => {
                let nodes = self.rows(&sql::NODES, &[]).await?;
                let owners = self.rows(&sql::OWNERS, &[]).await?;
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
        let (mut new_chains, mut batches) = (Vec::new(), Vec::new());
        for (place, part) in (1_i64..).zip(parts) {
            for batch in &part.batches {
                places.push(place);
                sequences.push(batch.at.sequence.cast_signed());
                new_chains.push(batch.at.chain.cast_signed());
                batches.push(&*batch.bytes);
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
            &batches,
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
        let end = |row: &Row| {
            Ok(End {
                partition: number_of(get(row, 2)?)?,
                epoch: epoch_of(get(row, 3)?)?,
                claim: get(row, 4)?,
                owner: get(row, 5)?,
                last: LogEnd {
                    epoch: epoch_of(get(row, 6)?)?,
                    sequence: unsigned(row, 7)?,
                    chain: unsigned(row, 8)?,
                },
            })
        };
        let ends = rows.iter().map(end).collect::<Result<_, Failure>>()?;
        Ok(Answer::Ends(Ends { cluster, lineage, ends }))
    }
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
