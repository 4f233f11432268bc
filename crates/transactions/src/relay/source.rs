//! The relay's interface to a database: rows to send, and their outcomes.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use hapax_client::Message;
use serde_json::{Map, Value};

use crate::error::Error;

/// One connection to an outbox.
///
/// After any error the connection must not be used again.
pub(super) trait Source: Send + Sized {
    /// The address of the outbox.
    type Address: Send + Sync;

    /// Opens a new connection. With a results table, every confirmed row inserts a waiting row
    /// there.
    fn open(
        address: &Self::Address,
        results: Option<Table>,
    ) -> impl Future<Output = Result<Self, Error>> + Send;

    /// Tries to take the lock of this outbox; returns false if another relay has it. It is held
    /// until the connection ends.
    fn lock(&mut self) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Returns rows that may be sent now, oldest first, up to a number of rows and about a number
    /// of bytes. Without parked rows, rows that wait for their next try, the rest of groups whose
    /// first row waits, and these queues. A row that cannot be read is returned as unreadable, not
    /// as an error.
    fn read(
        &mut self,
        rows: i64,
        bytes: i64,
        held: &[String],
    ) -> impl Future<Output = Result<Read, Error>> + Send;

    /// In one transaction, deletes the confirmed rows by their ids, and marks the refused rows with
    /// the time of their next try, or as parked.
    fn settle(
        &mut self,
        confirmed: &[Row],
        refused: &[Refused],
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Waits until there may be new rows, at most for this long.
    fn wait(&mut self, most: Duration) -> impl Future<Output = Result<(), Error>> + Send;

    fn count(&mut self) -> impl Future<Output = Result<Counts, Error>> + Send;

    /// Returns messages whose outcome is not known yet, in the order of their names, after this
    /// one.
    fn waiting(
        &mut self,
        after: &Name,
        most: i64,
    ) -> impl Future<Output = Result<Vec<Name>, Error>> + Send;

    /// Writes the outcome of a message, once.
    fn end(&mut self, name: &Name, end: &End) -> impl Future<Output = Result<(), Error>> + Send;
}

/// The result of a read.
#[derive(Clone, Debug, Default)]
pub(super) struct Read {
    pub(super) rows: Vec<Row>,
    /// Rows that are not valid messages, to be parked with their reason.
    pub(super) unreadable: Vec<Refused>,
}

impl Read {
    pub(super) fn push(&mut self, id: i64, row: Result<Row, String>) {
        match row {
            Ok(row) => self.rows.push(row),
            Err(reason) => {
                tracing::error!(id, reason, "a row of the outbox is invalid and is parked");
                let error = format!("not a message: {reason}");
                self.unreadable.push(Refused { id, tries: 1, error, retry_in: None });
            }
        }
    }
}

/// A row of the outbox.
#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    pub(super) id: i64,
    pub(super) name: Name,
    pub(super) body: Bytes,
    pub(super) content_type: String,
    pub(super) headers: Map<String, Value>,
    pub(super) delay_ms: Option<i64>,
    pub(super) ttl_ms: Option<i64>,
    pub(super) fingerprint: Option<String>,
    /// The date of the operation, by which the broker recognises a row that is sent again after its
    /// key was forgotten.
    pub(super) issued_at_ms: i64,
    /// The age of the row.
    pub(super) age_ms: i64,
    pub(super) tries: u32,
}

/// The name of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) queue: String,
    pub(super) key: String,
    /// Empty if there is none.
    pub(super) group: String,
}

/// A row that the broker refused.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    pub(super) id: i64,
    pub(super) tries: u32,
    pub(super) error: String,
    /// The time until the next try; `None` parks the row.
    pub(super) retry_in: Option<Duration>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) pending: i64,
    pub(super) parked: i64,
    /// The age of the oldest row that is not parked.
    pub(super) lag_ms: i64,
    pub(super) waiting: i64,
}

/// The outcome of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct End {
    pub(super) state: &'static str,
    pub(super) result: Option<Vec<u8>>,
    pub(super) result_type: Option<String>,
    pub(super) error: Option<String>,
    pub(super) finished_at_ms: i64,
}

/// The longest pause between two tries of a refused row. One that is due later than this from now
/// was refused before the clock was set back, and is due.
pub(super) const RETRY_MAX: Duration = Duration::from_secs(60);
/// The largest body that any queue allows.
pub(super) const BODY_BYTES_MAX: i64 = 16 * 1_024 * 1_024;
/// Rows are counted up to this number; counting more would cost a scan.
pub(super) const COUNT_MAX: i64 = 100_000;

impl Row {
    /// The message to send. Delay and time to live count from when the row was written.
    pub(super) fn message(&self) -> Message {
        let mut message = Message::new(self.body.clone()).key(&self.name.key);
        if !self.name.group.is_empty() {
            message = message.group(&self.name.group);
        }
        if !self.content_type.is_empty() {
            message = message.content_type(&self.content_type);
        }
        for (name, value) in &self.headers {
            let value = match value {
                Value::String(value) => value.clone(),
                other => other.to_string(),
            };
            message = message.header(name.clone(), value);
        }
        // A clock that was set back makes a row younger than nothing; its times are not longer.
        let left = |ms: i64| ms.saturating_sub(self.age_ms.max(0));
        if let Some(delay) = self.delay_ms.map(left).and_then(positive) {
            message = message.delay(delay);
        }
        if let Some(ttl) = self.ttl_ms {
            message = message.ttl(positive(left(ttl).max(1)).unwrap_or_default());
        }
        if let Some(fingerprint) = &self.fingerprint {
            message = message.fingerprint(fingerprint);
        }
        let issued = positive(self.issued_at_ms).unwrap_or_default();
        message.issued_at(std::time::UNIX_EPOCH + issued)
    }
}

/// The headers of a row.
pub(super) fn headers(json: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(json)
        .map_err(|error| format!("headers is not a JSON object of strings: {error}"))
}

/// The error of a row that is too large; its body was not read.
pub(super) fn too_large(bytes: i64) -> String {
    format!("the body has {bytes} bytes, at most {BODY_BYTES_MAX} are allowed")
}

/// Text that every database can store: PostgreSQL accepts no NUL.
pub(super) fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn positive(ms: i64) -> Option<Duration> {
    u64::try_from(ms).ok().filter(|ms| *ms > 0).map(Duration::from_millis)
}

/// The quoted name of a user's table, optionally with its schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table(String);

impl Table {
    pub(super) fn parse(name: &str) -> Result<Self, Error> {
        let parts: Vec<&str> = name.split('.').collect();
        if parts.len() > 2 || parts.iter().any(|part| part.is_empty() || part.contains('\0')) {
            return Err(Error::invalid(format!("{name:?} is not the name of a table")));
        }
        let quoted = parts.iter().map(|part| format!("\"{}\"", part.replace('"', "\"\"")));
        Ok(Self(quoted.collect::<Vec<_>>().join(".")))
    }

    /// The quoted name for a statement.
    pub(super) fn quoted(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_about_time_counts_from_the_row() {
        let row = |delay_ms, ttl_ms, age_ms| Row {
            name: Name { key: "k".to_owned(), ..Name::default() },
            delay_ms,
            ttl_ms,
            age_ms,
            issued_at_ms: 7,
            ..Row::default()
        };
        let sent = |row: Row| {
            let message = row.message();
            let view = message.view(0);
            (view.delay_ms, view.ttl_ms, view.issued_at_ms)
        };
        assert_eq!(sent(row(Some(1_000), Some(5_000), 400)), (Some(600), Some(4_600), Some(7)));
        assert_eq!(sent(row(Some(1_000), Some(5_000), 9_000)), (None, Some(1), Some(7)));
        assert_eq!(sent(row(None, None, 9_000)), (None, None, Some(7)));
        let set_back = row(Some(1_000), Some(5_000), -3_600_000);
        assert_eq!(sent(set_back), (Some(1_000), Some(5_000), Some(7)));
    }

    #[test]
    fn no_time_of_a_row_is_too_large_to_count_with() {
        let row =
            Row { delay_ms: Some(i64::MIN), ttl_ms: Some(i64::MIN), age_ms: 1, ..Row::default() };
        assert_eq!(row.message().view(0).ttl_ms, Some(1));
        let row = Row { delay_ms: Some(i64::MAX), age_ms: -1, ..Row::default() };
        assert_eq!(row.message().view(0).delay_ms, u64::try_from(i64::MAX).ok());
    }

    #[test]
    fn the_name_of_a_table_cannot_say_anything_else() {
        assert_eq!(Table::parse("shop.answers").unwrap().quoted(), "\"shop\".\"answers\"");
        let name = Table::parse("a\"; DROP TABLE b").unwrap();
        assert_eq!(name.quoted(), "\"a\"\"; DROP TABLE b\"");
        assert!(Table::parse("").is_err() && Table::parse("a.b.c").is_err());
    }
}
