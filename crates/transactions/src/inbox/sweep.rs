//! The sweep: deletes the rows whose message has ended, and no other.
//!
//! A message that was processed and not settled may wait in its queue for any time: workers may be
//! down, the queue paused, the message dead until it is redriven. So the age of a row only decides
//! when the broker is asked whether the message can still be delivered. A row is deleted if its key
//! is done, discarded, of a later generation, or unknown, or if its queue does not exist. A message
//! that has ended is not delivered again under its generation, so nothing can change between the
//! question and the delete.

use std::future::Future;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use hapax_client::{Admin, Code, Queue};
use hapax_wire::DEFAULT_TENANT;
use hapax_wire::proto::{Key, KeyRequest, State};

use super::rules::Rules;
use super::{Inbox, Row};
use crate::error::Error;

/// The most rows that are read, and deleted, at once.
const PAGE: i64 = 1_000;
/// Concurrent requests to the broker.
const ASKED_AT_ONCE: usize = 16;
/// The pause between two pages, for other writers.
const PAUSE: Duration = Duration::from_millis(50);
/// Older than any row: a hundred years, which every database can subtract from now.
const OLDEST_MS: i64 = 100 * 366 * 24 * 60 * 60 * 1_000;

/// A row that is old enough to ask the broker about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Old {
    pub key: String,
    /// Empty if there is none.
    pub group: String,
    pub generation: i32,
    pub fence: i64,
    /// The time of insertion, in the units of its database.
    pub entered: i64,
}

impl Old {
    pub(crate) fn new(
        key: String,
        group: String,
        generation: i32,
        fence: i64,
        entered: i64,
    ) -> Self {
        Self { key, group, generation, fence, entered }
    }
}

/// The parameters of a page of old rows.
#[derive(Clone, Debug)]
pub struct Page {
    pub older_ms: i64,
    /// The last row of the previous page; for the first page a value before every row.
    pub after: Old,
    pub most: i64,
}

impl Page {
    /// The first page of at most `most` rows that are older than `older_ms`.
    pub fn first(older_ms: i64, most: i64) -> Self {
        Self { older_ms, after: Old::default(), most }
    }
}

/// The inbox rows of a database. Implemented by every [`Pool`](crate::Pool) and `sqlite::Database`.
pub trait Rows: Send + Sync {
    /// Returns old rows of an inbox, oldest first.
    fn old(
        &self,
        names: &Names,
        page: Page,
    ) -> impl Future<Output = Result<Vec<Old>, Error>> + Send;

    /// Deletes rows, each only if its fence is unchanged, and returns the number of deleted rows.
    fn delete(
        &self,
        names: &Names,
        rows: Vec<Old>,
    ) -> impl Future<Output = Result<u64, Error>> + Send;
}

/// The names that identify an inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    pub consumer: String,
    pub tenant: String,
    pub queue: String,
}

impl Names {
    pub fn new(
        consumer: impl Into<String>,
        tenant: impl Into<String>,
        queue: impl Into<String>,
    ) -> Self {
        Self { consumer: consumer.into(), tenant: tenant.into(), queue: queue.into() }
    }

    pub(crate) fn row<'a>(&'a self, old: &'a Old) -> Row<'a> {
        Row {
            consumer: &self.consumer,
            tenant: &self.tenant,
            queue: &self.queue,
            key: &old.key,
            group: &old.group,
            generation: old.generation,
            fence: old.fence,
        }
    }
}

impl Inbox {
    /// Deletes the rows that are older than the queue's retention, or the consumer's own, and whose
    /// message has ended. Returns the number of deleted rows.
    ///
    /// The workers of this crate call it automatically; call it from time to time in a loop of your
    /// own. It asks the broker for the queue's configuration and for every old key, as the tenant
    /// of the client's token. If the inbox does not know its tenant yet, neither from its consumer
    /// nor from a delivery, nothing is deleted, because the rows might belong to another tenant.
    pub async fn sweep(&self, rows: &impl Rows, queue: &Queue) -> Result<u64, Error> {
        let rules = Rules::of(self, queue).await?;
        self.sweep_by(&rules, rows, queue).await
    }

    pub(crate) async fn sweep_by(
        &self,
        rules: &Rules,
        rows: &impl Rows,
        queue: &Queue,
    ) -> Result<u64, Error> {
        let (Some(kept), Some(tenant)) = (rules.kept, self.known_tenant()) else { return Ok(0) };
        let names = self.names(tenant);
        let older_ms = i64::try_from(kept.as_millis()).unwrap_or(OLDEST_MS);
        let mut page = Page::first(older_ms, PAGE);
        let mut swept = 0;
        loop {
            let old = rows.old(&names, page.clone()).await?;
            let Some(last) = old.last().cloned() else { return Ok(swept) };
            let is_last = (old.len() as i64) < PAGE;
            let ended = ended(rules, queue, old).await?;
            if !ended.is_empty() {
                swept += rows.delete(&names, ended).await?;
            }
            if is_last {
                return Ok(swept);
            }
            page.after = last;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Fails if the table does not exist, before the first message is received.
    pub(crate) async fn check_table(&self, rows: &impl Rows) -> Result<(), Error> {
        let page = Page::first(OLDEST_MS, 0);
        rows.old(&self.names(DEFAULT_TENANT), page).await.map(drop)
    }

    fn names(&self, tenant: &str) -> Names {
        Names::new(self.consumer(), tenant, self.queue())
    }
}

/// Returns the rows whose message cannot be delivered again.
async fn ended(rules: &Rules, queue: &Queue, old: Vec<Old>) -> Result<Vec<Old>, Error> {
    let admin = Admin::new(queue.client().clone());
    let asked = old.into_iter().map(|old| {
        let admin = admin.clone();
        let (queue, key, group) = (queue.name().to_owned(), old.key.clone(), old.group.clone());
        async move {
            let found = admin.key(KeyRequest { queue, key, group }, Duration::ZERO).await;
            let has_ended = match found {
                Ok(key) => key_has_ended(&key, &old),
                Err(error) => match error.code() {
                    Code::NoSuchKey => is_forgotten(rules, &old),
                    Code::NoSuchQueue => true,
                    _ => return Err(Error::from(error)),
                },
            };
            Ok(has_ended.then_some(old))
        }
    });
    let ended: Vec<Option<Old>> =
        stream::iter(asked).buffer_unordered(ASKED_AT_ONCE).try_collect().await?;
    Ok(ended.into_iter().flatten().collect())
}

fn key_has_ended(key: &Key, old: &Old) -> bool {
    match key.state() {
        State::Done | State::Discarded => true,
        State::Unspecified
        | State::Ready
        | State::Delayed
        | State::Leased
        | State::Parked
        | State::Dead => i64::from(key.generation) > i64::from(old.generation),
    }
}

/// Whether the row of an unknown key can be deleted. If it may be the id of a message without a
/// key, which the broker cannot be asked about, the row stays while the queue has any message.
fn is_forgotten(rules: &Rules, old: &Old) -> bool {
    let may_be_an_id = rules.allows_no_key && is_id(&old.key);
    !may_be_an_id || rules.is_empty
}

/// Whether a key has the form of a message id: a UUID with hyphens.
fn is_id(key: &str) -> bool {
    let is_hyphen = |place: usize| matches!(place, 8 | 13 | 18 | 23);
    key.len() == 36
        && key.bytes().enumerate().all(|(place, byte)| match is_hyphen(place) {
            true => byte == b'-',
            false => byte.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn old(key: &str, generation: i32) -> Old {
        Old { key: key.to_owned(), generation, ..Old::default() }
    }

    #[test]
    fn a_row_goes_only_when_its_message_cannot_come() {
        let key =
            |state: State, generation| Key { state: state.into(), generation, ..Key::default() };
        for state in [State::Ready, State::Delayed, State::Leased, State::Parked, State::Dead] {
            assert!(!key_has_ended(&key(state, 0), &old("k", 0)), "{state:?}");
            assert!(key_has_ended(&key(state, 1), &old("k", 0)), "{state:?} of the next life");
        }
        for state in [State::Done, State::Discarded] {
            assert!(key_has_ended(&key(state, 0), &old("k", 0)), "{state:?}");
        }
    }

    #[test]
    fn the_row_of_a_message_without_a_key_stays_while_the_queue_has_messages() {
        let id = "01a1de2f-3f24-7000-8000-000000000001";
        let rules = |allows_no_key, is_empty| Rules {
            kept: None,
            result_bytes_max: 0,
            allows_no_key,
            is_empty,
        };
        assert!(is_forgotten(&rules(false, false), &old(id, 0)));
        assert!(!is_forgotten(&rules(true, false), &old(id, 0)));
        assert!(is_forgotten(&rules(true, true), &old(id, 0)));
        assert!(is_forgotten(&rules(true, false), &old("order-42", 0)));
    }
}
