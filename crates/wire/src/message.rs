//! Messages to send.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use utoipa::ToSchema;

use crate::blob::body;
use crate::json::List;
use crate::text::{null_is_empty, time_if_given};

/// The most messages in one batch.
pub const BATCH_MAX: usize = 1_000;
/// The most messages emitted by one settle.
pub const EMIT_MAX: usize = 64;

/// A message to send.
#[derive(Clone, PartialEq, prost::Message, Deserialize, ToSchema)]
pub struct Message {
    /// Chosen by the caller of a stream and returned with the answer.
    #[prost(uint64, tag = "1")]
    #[serde(skip)]
    pub r#ref: u64,
    /// The caller's name for the operation. May be left out in at-least-once queues only.
    #[prost(string, optional, tag = "2")]
    #[serde(default)]
    pub key: Option<String>,
    #[prost(bytes = "bytes", tag = "3")]
    #[serde(default, alias = "body_base64", deserialize_with = "body")]
    #[schema(value_type = Option<String>)]
    pub body: Bytes,
    #[prost(string, tag = "4")]
    #[serde(default, deserialize_with = "null_is_empty")]
    #[schema(value_type = Option<String>)]
    pub content_type: String,
    #[prost(string, optional, tag = "5")]
    #[serde(default)]
    pub group: Option<String>,
    #[prost(uint64, optional, tag = "7")]
    #[serde(default)]
    pub delay_ms: Option<u64>,
    #[prost(uint64, optional, tag = "8")]
    #[serde(default)]
    pub ttl_ms: Option<u64>,
    /// Your own fingerprint, instead of the digest of body and group.
    #[prost(string, optional, tag = "9")]
    #[serde(default)]
    pub fingerprint: Option<String>,
    /// When the operation was issued, for keys without a date.
    #[prost(uint64, optional, tag = "10")]
    #[serde(default, rename = "issued_at", deserialize_with = "time_if_given")]
    #[schema(value_type = Option<crate::text::Timestamp>)]
    pub issued_at_ms: Option<u64>,
    /// Stored with the message and delivered to the worker.
    #[prost(btree_map = "string, string", tag = "6")]
    #[serde(default, deserialize_with = "headers")]
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    pub headers: BTreeMap<String, String>,
}

/// Messages to send together. Each has its own answer.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
pub struct Batch {
    #[schema(value_type = Vec<Message>)]
    pub messages: List<Message, BATCH_MAX>,
}

/// A follow-up message.
#[derive(Clone, PartialEq, prost::Message, Deserialize, ToSchema)]
pub struct Emit {
    #[prost(string, tag = "1")]
    pub queue: String,
    /// The name from which, with the parent's queue, key and generation, the key is derived.
    #[prost(string, tag = "2")]
    #[serde(default, deserialize_with = "null_is_empty")]
    #[schema(value_type = Option<String>)]
    pub name: String,
    /// Replaces the derived key.
    #[prost(string, optional, tag = "3")]
    #[serde(default)]
    pub key: Option<String>,
    #[prost(bytes = "bytes", tag = "4")]
    #[serde(default, alias = "body_base64", deserialize_with = "body")]
    #[schema(value_type = Option<String>)]
    pub body: Bytes,
    #[prost(string, tag = "5")]
    #[serde(default, deserialize_with = "null_is_empty")]
    #[schema(value_type = Option<String>)]
    pub content_type: String,
    #[prost(string, optional, tag = "6")]
    #[serde(default)]
    pub group: Option<String>,
    #[prost(uint64, optional, tag = "8")]
    #[serde(default)]
    pub delay_ms: Option<u64>,
    #[prost(uint64, optional, tag = "9")]
    #[serde(default)]
    pub ttl_ms: Option<u64>,
    /// Your own fingerprint, instead of the digest of body and group.
    #[prost(string, optional, tag = "10")]
    #[serde(default)]
    pub fingerprint: Option<String>,
    #[prost(btree_map = "string, string", tag = "7")]
    #[serde(default, deserialize_with = "headers")]
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    pub headers: BTreeMap<String, String>,
}

/// More than any message may have.
pub(crate) const HEADERS_MAX: usize = 256;

/// Reads headers; refuses duplicates.
fn headers<'de, D: Deserializer<'de>>(d: D) -> Result<BTreeMap<String, String>, D::Error> {
    struct Read;
    impl<'de> Visitor<'de> for Read {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object of strings")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut headers = BTreeMap::new();
            while let Some((name, value)) = map.next_entry::<String, String>()? {
                if headers.contains_key(&name) {
                    return Err(A::Error::custom(format_args!("{name:?} is given twice")));
                }
                // Beyond this the message is refused anyway.
                if headers.len() < HEADERS_MAX {
                    headers.insert(name, value);
                }
            }
            Ok(headers)
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(BTreeMap::new())
        }

        fn visit_none<E>(self) -> Result<Self::Value, E> {
            Ok(BTreeMap::new())
        }

        fn visit_some<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
            d.deserialize_map(self)
        }
    }
    d.deserialize_option(Read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_field_by_field() {
        let json = r#"{"messages":[{"key":"k","body":"b","headers":{"b":"1","a":"2"},
            "issued_at":"2026-03-01T12:00:00Z"},{"key":null,"headers":null},{"group":""}]}"#;
        let batch: Batch = crate::json::read(json.as_bytes()).unwrap();
        let headers = [("a", "2"), ("b", "1")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        let first = Message {
            key: Some("k".to_owned()),
            body: "b".into(),
            headers: headers.into(),
            issued_at_ms: Some(1_772_366_400_000),
            ..Message::default()
        };
        let grouped = Message { group: Some(String::new()), ..Message::default() };
        assert_eq!(batch.messages.items, [first, Message::default(), grouped]);
    }

    #[test]
    fn a_header_that_is_there_twice_is_refused() {
        let json = br#"{"headers":{"a":"1","a":"1"}}"#;
        let error = crate::json::read::<Message>(json).unwrap_err().to_string();
        assert!(error.starts_with(r#"headers: "a" is given twice"#), "{error}");
    }
}
