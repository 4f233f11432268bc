//! The interface of inbox and outbox to the transaction of any driver.
//!
//! It has few statements and no logic; that is in [`inbox`](crate::inbox). The user begins and ends
//! the transaction; nothing here does.

use std::future::Future;

use hapax_client::Blob;

use crate::error::Error;
use crate::inbox::{Found, Names, Old, Page, Row, content_type};
use crate::outbox::Entry;
use crate::sql::Dialect;

/// An open transaction of an asynchronous driver: those of tokio-postgres, deadpool-postgres and
/// sqlx, and a connection on which one was begun manually.
///
/// Its methods are for [`Inbox`](crate::Inbox) and [`outbox`](crate::outbox); call those.
pub trait Transaction: Send {
    /// Runs a statement that changes rows, and returns how many it changed. An insert waits for
    /// another transaction that has inserted the same row and is still open.
    fn execute(
        &mut self,
        statement: &Statement<'_>,
    ) -> impl Future<Output = Result<u64, Error>> + Send;

    /// Returns the inbox row that a statement selects, if it exists. The columns are fence, result
    /// and content type; only the last two are used.
    fn find(
        &mut self,
        statement: &Statement<'_>,
    ) -> impl Future<Output = Result<Option<Found>, Error>> + Send;

    /// Returns the inbox rows that a statement selects: key, group, generation, fence, and the time
    /// of insertion.
    fn old(
        &mut self,
        statement: &Statement<'_>,
    ) -> impl Future<Output = Result<Vec<Old>, Error>> + Send;
}

/// A statement and its values, as a driver runs it.
#[derive(Clone, Debug)]
pub struct Statement<'a> {
    kind: Kind,
    values: Vec<Value<'a>>,
}

/// A value of a statement.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    Text(Option<&'a str>),
    Bytes(Option<&'a [u8]>),
    /// 32 bits.
    Int(i32),
    /// 64 bits.
    Long(Option<i64>),
}

/// The statements. Their texts are in `sql/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Enter,
    Found,
    Finish,
    Old,
    Sweep,
    Send,
}

impl<'a> Statement<'a> {
    /// Inserts the row, unless it exists.
    pub(crate) fn enter(row: &Row<'a>) -> Self {
        Self { kind: Kind::Enter, values: row.values() }
    }

    /// Selects the row, whatever its fence.
    pub(crate) fn found(row: &Row<'a>) -> Self {
        let mut values = row.values();
        values.pop();
        Self { kind: Kind::Found, values }
    }

    /// Stores the result, or that there is none, in the row of this fence.
    pub(crate) fn finish(row: &Row<'a>, result: Option<&'a Blob>) -> Self {
        let mut values = row.values();
        values.push(Value::Bytes(result.map(|result| &result.body[..])));
        values.push(Value::Text(content_type(result)));
        Self { kind: Kind::Finish, values }
    }

    /// Selects a page of old rows.
    pub(crate) fn old(names: &'a Names, page: &'a Page) -> Self {
        let values = vec![
            Value::text(&names.consumer),
            Value::text(&names.tenant),
            Value::text(&names.queue),
            Value::Long(Some(page.older_ms)),
            Value::Long(Some(page.after.entered)),
            Value::text(&page.after.key),
            Value::text(&page.after.group),
            Value::Int(page.after.generation),
            Value::Long(Some(page.most)),
        ];
        Self { kind: Kind::Old, values }
    }

    /// Deletes the row of this fence.
    pub(crate) fn sweep(row: &Row<'a>) -> Self {
        Self { kind: Kind::Sweep, values: row.values() }
    }

    /// Puts a message into the outbox.
    pub(crate) fn send(entry: &'a Entry<'_>) -> Self {
        let values = vec![
            Value::text(entry.queue),
            Value::text(entry.key),
            Value::text(entry.group),
            Value::Bytes(Some(entry.body)),
            Value::text(entry.content_type),
            Value::text(&entry.headers),
            Value::Long(entry.delay_ms),
            Value::Long(entry.ttl_ms),
            Value::Text(entry.fingerprint),
            Value::Long(entry.issued_at_ms),
        ];
        Self { kind: Kind::Send, values }
    }

    /// Its SQL.
    pub fn sql(&self, dialect: Dialect) -> &'static str {
        dialect.statement(self.kind)
    }

    /// Its values, in the order of its parameters.
    pub fn values(&self) -> &[Value<'a>] {
        &self.values
    }

    /// For `map_err`: adds what was being done.
    pub fn failed<E>(&self) -> impl FnOnce(E) -> Error + use<E>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        Error::database(match self.kind {
            Kind::Enter => "the inbox cannot be entered",
            Kind::Found => "the inbox cannot be read",
            Kind::Finish => "the result cannot be stored",
            Kind::Old | Kind::Sweep => "the inbox cannot be swept",
            Kind::Send => "the outbox cannot be written",
        })
    }
}

/// Reads the row of the inbox that [`Transaction::find`] found, by the driver's own accessor. Fails
/// with the driver's error.
macro_rules! found {
    ($row:expr, $get:ident) => {
        $crate::inbox::Found::new($row.$get(1)?, $row.$get(2)?)
    };
}

/// Reads a row of the inbox for [`Transaction::old`], likewise.
macro_rules! old {
    ($row:expr, $get:ident) => {{
        let row = $row;
        $crate::inbox::Old::new(
            row.$get(0)?,
            row.$get(1)?,
            row.$get(2)?,
            row.$get(3)?,
            row.$get(4)?,
        )
    }};
}

pub(crate) use {found, old};

impl<'a> Value<'a> {
    pub(crate) fn text(text: &'a str) -> Self {
        Self::Text(Some(text))
    }
}
