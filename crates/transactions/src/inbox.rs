//! The inbox: effect and acknowledgement in one transaction.
//!
//! A delivery first inserts its row, then makes its own writes, then stores its result in the row,
//! and commits. So a visible row belongs to a committed effect; there is no row of half an effect,
//! and no state "begun" to clean up. Two deliveries at once meet at the unique key: the second
//! waits for the first and then finds its row, or, if the first rolled back, inserts the row
//! itself. A delivery that finds the row gets its result, whatever the fences are: after a restore
//! of the broker they may be lower than that of the row, and a worker that has lost its lease gets
//! `lease_lost` when it settles.

mod rules;
mod sweep;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use hapax_client::{Blob, Delivery};
use hapax_wire::DEFAULT_TENANT;

use crate::error::Error;
use crate::transaction::{Statement, Transaction, Value};

pub(crate) use rules::Rules;
pub use sweep::{Names, Old, Page, Rows};

/// How often a row may disappear between two statements before that is an error. This only happens
/// if rows of messages in delivery are deleted.
const TRIES: usize = 3;
/// The longest name, so that the whole primary key fits an index.
const NAME_BYTES_MAX: usize = 80;

/// The part of a program whose effects are counted as one.
///
/// Two consumers of one message, such as two services that both keep a copy of something, have an
/// effect each; two processes of the same service are one consumer. The name must stay the same as
/// long as the rows are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumer {
    name: String,
    tenant: Option<String>,
    retention: Retention,
}

/// The shortest time for which rows are kept. Rows of messages that have not ended are kept in any
/// case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retention {
    /// The retention of the queue.
    OfQueue,
    Of(Duration),
    Forever,
}

impl Consumer {
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), tenant: None, retention: Retention::OfQueue }
    }

    /// Sets the tenant, by default that of the deliveries. With it, deliveries of another tenant
    /// are refused. Nothing is compared across tenants.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = Some(tenant.into());
        self
    }

    /// Sets the shortest time for which rows are kept; by default the queue's retention. A shorter
    /// time is refused when the worker starts. The row of a message that has not ended is kept
    /// whatever its age.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = Retention::Of(retention);
        self
    }

    /// Never deletes rows.
    pub fn keep_for_ever(mut self) -> Self {
        self.retention = Retention::Forever;
        self
    }

    /// The inbox of this consumer for a queue.
    pub fn inbox(&self, queue: impl Into<String>) -> Result<Inbox, Error> {
        let queue = queue.into();
        let names = [("consumer", Some(&self.name)), ("tenant", self.tenant.as_ref())];
        for (what, name) in names.into_iter().chain([("queue", Some(&queue))]) {
            let Some(name) = name else { continue };
            if !(1..=NAME_BYTES_MAX).contains(&name.len()) {
                return Err(Error::invalid(format!(
                    "the name of a {what} has 1 to {NAME_BYTES_MAX} bytes, {name:?} has {}",
                    name.len()
                )));
            }
        }
        Ok(Inbox { consumer: self.clone(), queue, learnt: Arc::default() })
    }
}

impl From<&str> for Consumer {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl From<String> for Consumer {
    fn from(name: String) -> Self {
        Self::new(name)
    }
}

/// The inbox of one consumer for one queue. It holds only names: the rows are in the user's
/// database, and every call gets a transaction of the user.
///
/// ```no_run
/// # async fn example(
/// #     pool: sqlx::PgPool, delivery: hapax_client::Delivery,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use hapax_transactions::{Entered, Inbox};
///
/// let inbox = Inbox::new("billing", "orders")?;
/// let mut tx = pool.begin().await?;
/// match inbox.enter(&mut tx, &delivery).await? {
///     Entered::First => {
///         sqlx::query("UPDATE accounts SET balance = balance - 17").execute(&mut *tx).await?;
///         inbox.finish(&mut tx, &delivery, "charged").await?;
///         tx.commit().await?;
///         // Settle done with "charged".
///     }
///     Entered::Done(result) => { /* Settle done with the result. */ }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inbox {
    consumer: Consumer,
    queue: String,
    /// The tenant of the first delivery, if the consumer has none. Shared by clones.
    learnt: Arc<OnceLock<String>>,
}

/// Whether a message was processed before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entered {
    /// The message is new: process it in this transaction.
    First,
    /// It was processed before, with this result: settle done with it.
    Done(Option<Blob>),
}

/// The fields of a delivery that identify its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming<'a> {
    /// The tenant of the message. Empty with a broker of release 0.1.
    pub tenant: &'a str,
    pub key: std::borrow::Cow<'a, str>,
    /// Empty if there is none.
    pub group: &'a str,
    pub generation: u32,
    pub fence: u64,
}

impl<'a> From<&'a Delivery> for Incoming<'a> {
    fn from(delivery: &'a Delivery) -> Self {
        // A message without a key, which at-least-once queues allow, is identified by its id. Under
        // the empty key all of them would be one.
        let key = match delivery.key() {
            "" => delivery.id().to_string().into(),
            key => key.into(),
        };
        Self {
            tenant: delivery.tenant(),
            key,
            group: delivery.group().unwrap_or_default(),
            generation: delivery.generation(),
            fence: delivery.fence(),
        }
    }
}

/// The result of a handler, which is stored in the row and settled with: nothing, text, bytes, or a
/// [`Blob`].
///
/// Not a [`Done`](hapax_client::Done), whose follow-up messages would be lost if the worker dies
/// between commit and settle. Follow-ups go into the [`outbox`](crate::outbox), in the same
/// transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finished(pub Option<Blob>);

impl From<()> for Finished {
    fn from((): ()) -> Self {
        Self(None)
    }
}

impl From<Blob> for Finished {
    fn from(result: Blob) -> Self {
        Self(Some(result))
    }
}

impl From<Option<Blob>> for Finished {
    fn from(result: Option<Blob>) -> Self {
        Self(result)
    }
}

macro_rules! finished_from_bytes {
    ($($bytes:ty),*) => {$(
        impl From<$bytes> for Finished {
            fn from(result: $bytes) -> Self {
                Self(Some(Blob::new(result)))
            }
        }
    )*};
}

finished_from_bytes!(Bytes, Vec<u8>, String, &'static str);

impl Inbox {
    pub fn new(consumer: impl Into<Consumer>, queue: impl Into<String>) -> Result<Self, Error> {
        consumer.into().inbox(queue)
    }

    pub fn consumer(&self) -> &str {
        &self.consumer.name
    }

    /// The tenant, if the consumer has one or a delivery has arrived.
    pub fn known_tenant(&self) -> Option<&str> {
        self.consumer.tenant.as_deref().or_else(|| self.learnt.get().map(String::as_str))
    }

    pub fn queue(&self) -> &str {
        &self.queue
    }

    pub(crate) fn wanted_retention(&self) -> Retention {
        self.consumer.retention
    }

    /// Inserts the row. The first call of a transaction, before any other write.
    ///
    /// After [`Entered::First`], what is written is committed together with the row. Otherwise roll
    /// the transaction back.
    pub async fn enter<'a, T: Transaction + ?Sized>(
        &self,
        transaction: &mut T,
        delivery: impl Into<Incoming<'a>>,
    ) -> Result<Entered, Error> {
        let incoming = delivery.into();
        let row = self.row(&incoming)?;
        for _ in 0..TRIES {
            if transaction.execute(&Statement::enter(&row)).await? == 1 {
                return Ok(Entered::First);
            }
            if let Some(found) = transaction.find(&Statement::found(&row)).await? {
                return Ok(Entered::Done(found.result));
            }
        }
        Err(vanishing(&incoming))
    }

    /// Like [`Inbox::enter`], for rusqlite: in one of its transactions, or on a connection on which
    /// one was begun manually.
    #[cfg(feature = "sqlite")]
    pub fn enter_blocking<'a>(
        &self,
        transaction: &rusqlite::Connection,
        delivery: impl Into<Incoming<'a>>,
    ) -> Result<Entered, Error> {
        if transaction.is_autocommit() {
            return Err(Error::invalid("the inbox is entered outside of a transaction"));
        }
        let incoming = delivery.into();
        let row = self.row(&incoming)?;
        for _ in 0..TRIES {
            if crate::sqlite::execute(transaction, &Statement::enter(&row))? == 1 {
                return Ok(Entered::First);
            }
            if let Some(found) = crate::sqlite::find(transaction, &Statement::found(&row))? {
                return Ok(Entered::Done(found.result));
            }
        }
        Err(vanishing(&incoming))
    }

    /// Stores the result, or that there is none, in the row. The last call before the commit. It is
    /// required: PostgreSQL rolls back a transaction in which a statement failed on `COMMIT` and
    /// reports no error. This call fails in that case.
    pub async fn finish<'a, T: Transaction + ?Sized>(
        &self,
        transaction: &mut T,
        delivery: impl Into<Incoming<'a>>,
        result: impl Into<Finished>,
    ) -> Result<(), Error> {
        let Finished(result) = result.into();
        let incoming = delivery.into();
        let finish = Statement::finish(&self.row(&incoming)?, result.as_ref());
        if transaction.execute(&finish).await? == 1 { Ok(()) } else { Err(not_entered(&incoming)) }
    }

    /// Like [`Inbox::finish`], for rusqlite.
    #[cfg(feature = "sqlite")]
    pub fn finish_blocking<'a>(
        &self,
        transaction: &rusqlite::Connection,
        delivery: impl Into<Incoming<'a>>,
        result: impl Into<Finished>,
    ) -> Result<(), Error> {
        if transaction.is_autocommit() {
            return Err(Error::invalid(crate::sqlite::ROLLED_BACK));
        }
        let Finished(result) = result.into();
        let incoming = delivery.into();
        let finish = Statement::finish(&self.row(&incoming)?, result.as_ref());
        if crate::sqlite::execute(transaction, &finish)? == 1 {
            Ok(())
        } else {
            Err(not_entered(&incoming))
        }
    }

    /// Returns the tenant of a delivery. An inbox has one tenant; a delivery of another is an
    /// error.
    fn tenant_of<'a>(&'a self, incoming: &'a Incoming<'_>) -> Result<&'a str, Error> {
        let told = Some(incoming.tenant).filter(|tenant| !tenant.is_empty());
        if let Some(told) = told
            && self.consumer.tenant.is_none()
        {
            self.learnt.get_or_init(|| told.to_owned());
        }
        match (self.known_tenant(), told) {
            (Some(known), Some(told)) if known != told => Err(Error::invalid(format!(
                "the inbox {} belongs to the tenant {known:?}, but {} belongs to the tenant \
                 {told:?}: use one inbox per tenant",
                self.consumer.name, incoming.key
            ))),
            (Some(known), _) => Ok(known),
            // Neither the consumer nor the delivery has one.
            (None, _) => Ok(DEFAULT_TENANT),
        }
    }

    /// Checks that a delivery belongs to the inbox's tenant.
    pub(crate) fn check_tenant(&self, delivery: &Delivery) -> Result<(), Error> {
        self.tenant_of(&delivery.into()).map(drop)
    }

    fn row<'a>(&'a self, incoming: &'a Incoming<'_>) -> Result<Row<'a>, Error> {
        if incoming.key.is_empty() {
            return Err(Error::invalid("a message without a key cannot be deduplicated"));
        }
        Ok(Row {
            consumer: &self.consumer.name,
            tenant: self.tenant_of(incoming)?,
            queue: &self.queue,
            key: &incoming.key,
            group: incoming.group,
            generation: i32::try_from(incoming.generation).unwrap_or(i32::MAX),
            fence: signed(incoming.fence),
        })
    }
}

/// The columns of a row, as parameters of the statements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    consumer: &'a str,
    tenant: &'a str,
    queue: &'a str,
    key: &'a str,
    group: &'a str,
    generation: i32,
    fence: i64,
}

impl<'a> Row<'a> {
    /// The six columns of the primary key, and the fence.
    pub(crate) fn values(&self) -> Vec<Value<'a>> {
        let Self { consumer, tenant, queue, key, group, generation, fence } = *self;
        let names = [consumer, tenant, queue, key, group].map(Value::text);
        names.into_iter().chain([Value::Int(generation), Value::Long(Some(fence))]).collect()
    }
}

/// A row that existed before.
#[derive(Clone, Debug)]
pub struct Found {
    pub result: Option<Blob>,
}

impl Found {
    pub fn new(body: Option<Vec<u8>>, content_type: Option<String>) -> Self {
        let content_type = content_type.unwrap_or_default();
        Self { result: body.map(|body| Blob { body: body.into(), content_type }) }
    }
}

/// The content type of a result, for its column.
pub(crate) fn content_type(result: Option<&Blob>) -> Option<&str> {
    result.map(|result| &*result.content_type).filter(|text| !text.is_empty())
}

/// Fences fit into an i64: their epochs are below 2^23.
fn signed(fence: u64) -> i64 {
    i64::try_from(fence).unwrap_or(i64::MAX)
}

fn vanishing(incoming: &Incoming<'_>) -> Error {
    Error::invalid(format!(
        "the inbox row of {} was deleted while its message was being delivered: check who deletes \
         from the table",
        incoming.key
    ))
}

fn not_entered(incoming: &Incoming<'_>) -> Error {
    Error::invalid(format!(
        "{} is finished in another transaction than the one that entered it",
        incoming.key
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inbox_takes_its_tenant_from_the_deliveries_and_refuses_a_second_one() {
        let of = |tenant| Incoming { tenant, key: "k".into(), group: "", generation: 0, fence: 1 };
        let inbox = Inbox::new("billing", "orders").unwrap();
        assert_eq!(inbox.known_tenant(), None);
        assert_eq!(inbox.row(&of("")).unwrap().tenant, "default");
        assert_eq!(inbox.known_tenant(), None, "a broker that says nothing teaches nothing");
        assert_eq!(inbox.clone().row(&of("acme")).unwrap().tenant, "acme");
        assert_eq!(inbox.known_tenant(), Some("acme"));
        let error = inbox.row(&of("globex")).unwrap_err().to_string();
        assert!(error.contains("acme") && error.contains("globex"), "{error}");

        let said = Consumer::new("billing").tenant("acme").inbox("orders").unwrap();
        assert_eq!(said.row(&of("")).unwrap().tenant, "acme");
        assert!(said.row(&of("globex")).is_err());
    }

    #[test]
    fn names_that_fit_no_index_are_refused() {
        let error = Inbox::new("x".repeat(81), "orders").unwrap_err();
        assert!(error.to_string().contains("1 to 80 bytes"), "{error}");
        assert!(Inbox::new("billing", "").is_err());
        assert!(Inbox::new("billing", "orders").is_ok());
    }
}
