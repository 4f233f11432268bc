//! The outbox: state and send in one transaction.
//!
//! A message is a row that is written in the user's own transaction, so it exists if and only if
//! the transaction commits. The [relay](crate::relay), or `hapax relay`, sends it to the broker
//! under its key. A retry of an operation repeats its key, here as everywhere, and the broker
//! recognises the duplicate.

use hapax_client::{Message, new_key};
use serde_json::{Map, Value};

use crate::error::Error;
use crate::transaction::{Statement, Transaction};

/// Writes a message for a queue into the outbox, in this transaction. Returns its key, which is
/// generated if the message has none.
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use hapax_client::Message;
/// use hapax_transactions::outbox;
///
/// let mut tx = pool.begin().await?;
/// sqlx::query("INSERT INTO orders VALUES (42, 'lemons')").execute(&mut *tx).await?;
/// outbox::send(&mut tx, "orders", Message::new("three lemons").key("order-42")).await?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
pub async fn send<T: Transaction + ?Sized>(
    transaction: &mut T,
    queue: &str,
    message: impl Into<Message>,
) -> Result<String, Error> {
    let message = keyed(message.into());
    transaction.execute(&Statement::send(&Entry::of(queue, &message)?)).await?;
    Ok(message.key_str().unwrap_or_default().to_owned())
}

/// Like [`send`], for rusqlite: in one of its transactions, or on a connection on which one was
/// begun manually.
#[cfg(feature = "sqlite")]
pub fn send_blocking(
    transaction: &rusqlite::Connection,
    queue: &str,
    message: impl Into<Message>,
) -> Result<String, Error> {
    let message = keyed(message.into());
    crate::sqlite::execute(transaction, &Statement::send(&Entry::of(queue, &message)?))?;
    Ok(message.key_str().unwrap_or_default().to_owned())
}

/// A row of the outbox, as parameters of the statement.
#[derive(Clone, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) queue: &'a str,
    pub(crate) key: &'a str,
    pub(crate) group: &'a str,
    pub(crate) body: &'a [u8],
    pub(crate) content_type: &'a str,
    /// A JSON object of strings.
    pub(crate) headers: String,
    pub(crate) delay_ms: Option<i64>,
    pub(crate) ttl_ms: Option<i64>,
    pub(crate) fingerprint: Option<&'a str>,
    pub(crate) issued_at_ms: Option<i64>,
}

impl<'a> Entry<'a> {
    /// Refuses what every broker would refuse, while the transaction can still be rolled back. The
    /// relay gets other refusals.
    fn of(queue: &'a str, message: &'a Message) -> Result<Self, Error> {
        let view = message.view(0);
        if queue.is_empty() {
            return Err(Error::invalid("the queue is empty"));
        }
        let key = view.key.unwrap_or_default();
        hapax_wire::key::check(key).map_err(|error| Error::invalid(error.to_string()))?;
        if view.group == Some("") {
            return Err(Error::invalid("the group is empty"));
        }
        let headers = view.headers.iter();
        let headers = headers.map(|(name, value)| ((*name).to_owned(), Value::from(*value)));
        let headers: Map<String, Value> = headers.collect();
        Ok(Self {
            queue,
            key,
            group: view.group.unwrap_or_default(),
            body: view.body,
            content_type: view.content_type,
            headers: Value::Object(headers).to_string(),
            delay_ms: view.delay_ms.map(signed),
            ttl_ms: view.ttl_ms.map(signed),
            fingerprint: view.fingerprint,
            issued_at_ms: view.issued_at_ms.map(signed),
        })
    }
}

fn keyed(message: Message) -> Message {
    if message.key_str().is_some() { message } else { message.key(new_key()) }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn an_entry_has_everything_of_its_message() {
        let message = Message::new("body")
            .key("order-42")
            .group("customer-7")
            .content_type("text/plain")
            .header("trace", "a\"b")
            .delay(Duration::from_secs(1))
            .ttl(Duration::from_secs(2))
            .fingerprint("f")
            .issued_at(UNIX_EPOCH + Duration::from_millis(3));
        let entry = Entry::of("orders", &message).unwrap();
        assert_eq!((entry.queue, entry.key, entry.group), ("orders", "order-42", "customer-7"));
        assert_eq!((entry.body, entry.content_type), (&b"body"[..], "text/plain"));
        assert_eq!(entry.headers, r#"{"trace":"a\"b"}"#);
        assert_eq!((entry.delay_ms, entry.ttl_ms), (Some(1_000), Some(2_000)));
        assert_eq!((entry.fingerprint, entry.issued_at_ms), (Some("f"), Some(3)));
    }

    #[test]
    fn what_no_broker_would_take_is_refused_before_the_commit() {
        assert!(Entry::of("", &Message::new("x").key("k")).is_err());
        assert!(Entry::of("orders", &Message::new("x").key("k".repeat(256))).is_err());
        assert!(Entry::of("orders", &Message::new("x").key("a\nb")).is_err());
        assert!(Entry::of("orders", &keyed(Message::new("x").key(""))).is_err());
        assert!(Entry::of("orders", &Message::new("x").key("k").group("")).is_err());
        assert!(Entry::of("orders", &Message::new("x").key("k".repeat(255))).is_ok());
    }

    #[test]
    fn a_message_without_a_key_gets_one() {
        assert!(keyed(Message::new("x")).key_str().is_some());
        assert_eq!(keyed(Message::new("x").key("mine")).key_str(), Some("mine"));
    }
}
