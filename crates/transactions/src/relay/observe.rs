//! Runs beside the sending, over a separate connection: counts the remaining rows, and writes back
//! the outcomes of messages.
//!
//! The results table is itself the list of messages to wait for, written in the transaction that
//! deletes the row of the outbox. So a relay that is killed continues where it was. It is processed
//! in pages, so that few rows are in memory however many wait.

use std::time::Duration;

use hapax_client::{Admin, Client, Code};
use hapax_wire::proto::{Key, KeyRequest, State};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::metrics::Metrics;

use super::source::{End, Name, Source, Table, storable};
use super::{now_ms, reopen, reopening};
use crate::error::Error;

/// How often rows are counted.
const COUNT_EVERY: Duration = Duration::from_secs(2);
/// The number of keys looked up at once.
const PAGE: i64 = 64;
/// How long the broker waits for the end of a key, if there is only one page.
const WAIT: Duration = Duration::from_secs(1);
/// The pause if no message waits for a result, and after an error.
const PAUSE: Duration = Duration::from_millis(250);
const AWAY: Duration = Duration::from_secs(2);

/// Runs until a permanent error.
pub(super) async fn observe<S: Source>(
    mut source: S,
    address: &S::Address,
    client: &Client,
    results: Option<Table>,
    metrics: &Metrics,
) -> Result<(), Error> {
    let admin = Admin::new(client.clone());
    loop {
        match watch(&mut source, &admin, results.is_some(), metrics).await {
            Error::Database { what, source } => {
                tracing::warn!(what, error = %source, "cannot count rows or write results now; \
                                                       retrying");
            }
            error => return Err(error),
        }
        source = reopen(address, &results, &mut reopening()).await;
    }
}

/// Works until there is an error.
async fn watch<S: Source>(
    source: &mut S,
    admin: &Admin,
    has_results: bool,
    metrics: &Metrics,
) -> Error {
    let mut counted: Option<Instant> = None;
    let mut after = Name::default();
    loop {
        if counted.is_none_or(|counted| counted.elapsed() >= COUNT_EVERY) {
            match source.count().await {
                Ok(counts) => metrics.counted(&counts),
                Err(error) => return error,
            }
            counted = Some(Instant::now());
        }
        // A standby writes no results; the active relay does.
        if !has_results || !metrics.is_active() {
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        match look(source, admin, &mut after, metrics).await {
            Ok(true) => {}
            Ok(false) => tokio::time::sleep(PAUSE).await,
            Err(error) => return error,
        }
    }
}

/// Looks up a page of waiting messages. Returns whether there was any.
async fn look<S: Source>(
    source: &mut S,
    admin: &Admin,
    after: &mut Name,
    metrics: &Metrics,
) -> Result<bool, Error> {
    let is_first = *after == Name::default();
    let page = source.waiting(after, PAGE).await?;
    let is_last = (page.len() as i64) < PAGE;
    let is_empty = page.is_empty();
    let wait = if is_first && is_last { WAIT } else { Duration::ZERO };
    *after = if is_last { Name::default() } else { page.last().cloned().unwrap_or_default() };
    let mut looks = JoinSet::new();
    for name in page {
        let admin = admin.clone();
        looks.spawn(async move {
            let key = KeyRequest {
                queue: name.queue.clone(),
                key: name.key.clone(),
                group: name.group.clone(),
            };
            let found = admin.key(key, wait).await;
            (name, found)
        });
    }
    let (mut is_away, mut is_written, mut failed) = (false, false, None);
    while let Some(looked) = looks.join_next().await {
        let Ok((name, found)) = looked else { continue };
        let end = match found {
            Ok(key) => ended(key),
            Err(error) => match error.code() {
                Code::NoSuchKey | Code::NoSuchQueue => Some(forgotten(&error)),
                Code::Unauthorized | Code::Forbidden => return Err(error.into()),
                _ => {
                    is_away = true;
                    None
                }
            },
        };
        let Some(end) = end else { continue };
        match write(source, &name, &end).await {
            Ok(()) => {
                is_written = true;
                metrics.result_written();
            }
            Err(error) => {
                let Name { queue, key, .. } = &name;
                tracing::warn!(%error, queue, key, "cannot write a result");
                failed = Some(error);
            }
        }
    }
    // If nothing at all could be written, the connection is assumed to be broken.
    if let Some(error) = failed
        && !is_written
    {
        return Err(error);
    }
    if is_away {
        tokio::time::sleep(AWAY).await;
    }
    Ok(!is_empty)
}

/// Writes the outcome of a message; without its result if the database refuses that.
async fn write<S: Source>(source: &mut S, name: &Name, end: &End) -> Result<(), Error> {
    let Err(error) = source.end(name, end).await else { return Ok(()) };
    let bare = End {
        state: end.state,
        error: Some(storable(&format!("the outcome cannot be stored: {error}"))),
        finished_at_ms: end.finished_at_ms,
        ..End::default()
    };
    source.end(name, &bare).await
}

/// The outcome of a message that has ended. A parked one has not: an operator will resolve it.
fn ended(key: Key) -> Option<End> {
    let state = match key.state() {
        State::Done => "done",
        State::Dead => "dead",
        State::Discarded => "discarded",
        _ => return None,
    };
    let finished = key.finished_at_ms.and_then(|ms| i64::try_from(ms).ok());
    let (result, result_type) = match key.result {
        Some(result) => (
            Some(result.body.to_vec()),
            Some(storable(&result.content_type)).filter(|content_type| !content_type.is_empty()),
        ),
        None => (None, None),
    };
    let error = Some(storable(&key.error)).filter(|error| !error.is_empty());
    let finished_at_ms = finished.unwrap_or_else(now_ms);
    Some(End { state, result, result_type, error, finished_at_ms })
}

fn forgotten(error: &hapax_client::Error) -> End {
    let error = Some(error.to_string());
    End { state: "forgotten", error, finished_at_ms: now_ms(), ..End::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_ended_is_written() {
        let key = |state: State| Key { state: state.into(), ..Key::default() };
        for state in [State::Ready, State::Delayed, State::Leased, State::Parked] {
            assert_eq!(ended(key(state)), None);
        }
        let states = [State::Done, State::Dead, State::Discarded];
        let told = states.map(|state| ended(key(state)).unwrap().state);
        assert_eq!(told, ["done", "dead", "discarded"]);
    }
}
