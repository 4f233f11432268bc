//! The message to send.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use hapax_wire::{self as wire, lean};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;

/// A message to send.
///
/// A retry must repeat the key: make the key once per logical operation and store it with the
/// operation. A message without a key gets a new UUIDv7 when it is sent, which protects against
/// lost answers and broken connections, but not against the caller sending it again.
///
/// ```
/// use hapax_client::Message;
/// use std::time::Duration;
///
/// let message = Message::new("three lemons")
///     .key("order-42")
///     .content_type("text/plain")
///     .header("traceparent", "00-…")
///     .delay(Duration::from_secs(60));
/// assert_eq!(message.key_str(), Some("order-42"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    key: Option<String>,
    body: Bytes,
    /// Fields that most messages do not have, boxed to keep a message small.
    more: Option<Box<More>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct More {
    content_type: String,
    group: Option<String>,
    headers: BTreeMap<String, String>,
    delay_ms: Option<u64>,
    ttl_ms: Option<u64>,
    fingerprint: Option<String>,
    issued_at_ms: Option<u64>,
}

impl Message {
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), ..Self::default() }
    }

    /// Creates a message with a JSON body and its content type.
    pub fn json(body: &(impl Serialize + ?Sized)) -> Result<Self, Error> {
        Ok(Self::new(to_json(body)?).content_type(JSON))
    }

    /// The caller's name for the operation, 1 to 255 bytes. An empty one is not "no key": the send
    /// is refused.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.more().content_type = content_type.into();
        self
    }

    /// Sets the group. In queues with `order = group`, messages of one group are delivered in the
    /// order in which they were sent.
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.more().group = Some(group.into());
        self
    }

    /// Adds a header that is stored with the message and delivered to its worker.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.more().headers.insert(name.into(), value.into());
        self
    }

    /// Sets the delay before the first delivery.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.more().delay_ms = Some(ms(delay));
        self
    }

    /// Sets the time to live: the message is dead if it is not done by then.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.more().ttl_ms = Some(ms(ttl));
        self
    }

    /// Sets the fingerprint that distinguishes a retry from another operation, instead of body and
    /// group. For bodies that change between retries, such as by a timestamp.
    pub fn fingerprint(mut self, fingerprint: impl Into<String>) -> Self {
        self.more().fingerprint = Some(fingerprint.into());
        self
    }

    /// Sets when the operation was issued, for keys without a date. With it a retry that comes
    /// after the queue has forgotten the key is refused instead of being processed twice.
    pub fn issued_at(mut self, at: SystemTime) -> Self {
        self.more().issued_at_ms = Some(since_epoch(at));
        self
    }

    pub fn key_str(&self) -> Option<&str> {
        self.key.as_deref()
    }

    pub fn body(&self) -> &Bytes {
        &self.body
    }

    fn more(&mut self) -> &mut More {
        self.more.get_or_insert_default()
    }

    pub(crate) fn group_str(&self) -> &str {
        self.more.as_ref().and_then(|more| more.group.as_deref()).unwrap_or_default()
    }

    /// Its approximate size on the wire.
    pub(crate) fn bytes(&self) -> usize {
        let more = self.more.as_ref().map_or(0, |more| {
            let headers = more.headers.iter().map(|(name, value)| name.len() + value.len() + 8);
            let fingerprint = more.fingerprint.as_ref().map_or(0, String::len);
            let group = more.group.as_ref().map_or(0, String::len);
            more.content_type.len() + group + fingerprint + headers.sum::<usize>()
        });
        self.key.as_ref().map_or(0, String::len) + self.body.len() + more
    }

    /// The message with a key; generates one if it has none.
    pub(crate) fn keyed(mut self) -> Self {
        self.key.get_or_insert_with(new_key);
        self
    }

    /// All fields as slices, for writing it to a stream or to an outbox.
    #[doc(hidden)]
    pub fn view(&self, reference: u64) -> lean::Message<'_> {
        let view = lean::Message {
            reference,
            key: self.key.as_deref(),
            body: &self.body,
            ..lean::Message::default()
        };
        let Some(more) = &self.more else { return view };
        let headers = more.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        lean::Message {
            content_type: &more.content_type,
            group: more.group.as_deref(),
            headers: headers.collect(),
            delay_ms: more.delay_ms,
            ttl_ms: more.ttl_ms,
            fingerprint: more.fingerprint.as_deref(),
            issued_at_ms: more.issued_at_ms,
            ..view
        }
    }

    pub(crate) fn into_emit(self, queue: String, name: String) -> wire::Emit {
        let more = self.more.unwrap_or_default();
        wire::Emit {
            queue,
            name,
            key: self.key,
            body: self.body,
            content_type: more.content_type,
            group: more.group,
            headers: more.headers,
            delay_ms: more.delay_ms,
            ttl_ms: more.ttl_ms,
            fingerprint: more.fingerprint,
        }
    }
}

impl<B: Into<Bytes>> From<B> for Message {
    fn from(body: B) -> Self {
        Self::new(body)
    }
}

/// Generates a key: a UUIDv7. It contains its date, so that a retry that comes too late is refused
/// instead of being processed twice.
pub fn new_key() -> String {
    uuid::Uuid::now_v7().to_string()
}

const JSON: &str = "application/json";

pub(crate) fn to_json(body: &(impl Serialize + ?Sized)) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(body).map_err(|error| {
        Error::invalid(format!(
            "cannot be written as JSON: \
                                                                     {error}"
        ))
    })
}

pub(crate) fn from_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(body).map_err(|error| {
        Error::invalid(format!(
            "not the expected JSON: \
                                                                         {error}"
        ))
    })
}

/// Whole milliseconds, rounded up, so that a duration above zero stays above zero.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

pub(crate) fn since_epoch(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_without_a_key_gets_one_that_tells_its_age() {
        let key = Message::new("x").keyed().key.unwrap();
        assert_eq!(uuid::Uuid::parse_str(&key).unwrap().get_version_num(), 7);
        assert_eq!(Message::new("x").key("mine").keyed().key_str(), Some("mine"));
    }

    #[test]
    fn an_empty_key_is_a_key_that_the_broker_refuses_and_not_none() {
        let message = Message::new("x").key("").group("");
        assert_eq!(message.clone().keyed().view(0).key, Some(""));
        let emit = message.into_emit("q".to_owned(), "n".to_owned());
        assert_eq!((emit.key.as_deref(), emit.group.as_deref()), (Some(""), Some("")));
    }

    #[test]
    fn durations_are_rounded_up_to_milliseconds() {
        assert_eq!(ms(Duration::ZERO), 0);
        assert_eq!(ms(Duration::from_nanos(1)), 1);
        assert_eq!(ms(Duration::from_millis(7)), 7);
        assert_eq!(ms(Duration::MAX), u64::MAX);
    }
}
