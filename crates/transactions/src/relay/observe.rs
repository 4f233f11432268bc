//! What goes on beside the moving, over a connection of its own: counting what is left, and writing
//! back how messages ended.
//!
//! The table of results is itself the list of what is waited for, written in the transaction that
//! deletes the row of the outbox: a relay that is killed goes on where it was. A page of it is
//! looked up at a time, so that however many wait, few are in memory.

use std::time::Duration;

use hapax_client::{Admin, Client, Code};
use hapax_wire::proto::{Key, KeyRequest, State};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::metrics::Metrics;

use super::source::{End, Name, Source, Table, storable};
use super::{now_ms, reopen, reopening};
use crate::error::Error;

/// How often is counted.
const COUNT_EVERY: Duration = Duration::from_secs(2);
/// Keys that are looked up at once.
const PAGE: i64 = 64;
/// How long the broker may wait for the end of a key, where one page is all there is.
const WAIT: Duration = Duration::from_secs(1);
/// Where nothing waits for a result, or something went wrong.
const PAUSE: Duration = Duration::from_millis(250);
const AWAY: Duration = Duration::from_secs(2);

/// Never ends, except with an error that no retry helps against.
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
        // Whoever stands by writes no results: the other does.
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

/// Looks up a page of those that wait. Tells whether there was any.
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
    // An error of one row is that row's; where nothing could be written the connection is to blame.
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

/// Writes how a message ended; without what it left behind where the database does not take that.
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

/// How a message ended, if it has. One that is parked has not: somebody will resolve it.
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
