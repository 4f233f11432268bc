//! Keys: their records, what an operator may do with them, and the header with the key.

mod header;

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use utoipa::ToSchema;

use crate::blob::{Blob, Points, put_content};
use crate::state::State;
use crate::text::{Id, Timestamp, or_null, some, time};

pub use header::{IDEMPOTENCY_KEY, KEY_BYTES_MAX, Malformed, check, look_alike, read};

/// Everything about a key.
#[derive(Clone, PartialEq, prost::Message, ToSchema)]
pub struct Key {
    /// The message's id if it came without a key.
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(bytes = "bytes", tag = "2")]
    #[schema(value_type = Id)]
    pub id: Bytes,
    #[prost(enumeration = "State", tag = "3")]
    #[schema(value_type = State)]
    pub state: i32,
    #[prost(uint32, tag = "4")]
    pub attempts: u32,
    /// The number of replays.
    #[prost(uint32, tag = "5")]
    pub generation: u32,
    #[prost(string, tag = "6")]
    #[schema(value_type = Option<String>, required = true)]
    pub group: String,
    #[prost(uint64, tag = "7")]
    #[schema(rename = "accepted_at", value_type = Timestamp)]
    pub accepted_at_ms: u64,
    #[prost(uint64, optional, tag = "8")]
    #[schema(rename = "finished_at", value_type = Option<Timestamp>, required = true)]
    pub finished_at_ms: Option<u64>,
    /// `null` while the message has not ended, and if the key is remembered for ever.
    #[prost(uint64, optional, tag = "9")]
    #[schema(rename = "remembered_until", value_type = Option<Timestamp>, required = true)]
    pub remembered_until_ms: Option<u64>,
    /// The time at which the lease or the delay ends.
    #[prost(uint64, optional, tag = "10")]
    #[schema(rename = "deadline", value_type = Option<Timestamp>, required = true)]
    pub deadline_ms: Option<u64>,
    /// The last worker.
    #[prost(string, tag = "18")]
    #[schema(value_type = Option<String>, required = true)]
    pub worker: String,
    #[prost(uint64, tag = "11")]
    pub duplicates: u64,
    #[prost(message, optional, tag = "12")]
    #[schema(required = true)]
    pub result: Option<Blob>,
    /// The error of the last failure.
    #[prost(string, tag = "13")]
    #[schema(value_type = Option<String>, required = true)]
    pub error: String,
    #[prost(btree_map = "string, bytes", tag = "14")]
    #[schema(value_type = BTreeMap<String, Blob>)]
    pub recovery_points: BTreeMap<String, Bytes>,
    /// The newest 64 events, in order.
    #[prost(message, repeated, tag = "15")]
    pub history: Vec<Event>,
    /// The body of an unfinished message; that of a finished one is not shown.
    #[prost(message, optional, tag = "16")]
    #[schema(rename = "body", value_type = Option<String>, nullable = false)]
    pub message: Option<Blob>,
    #[prost(btree_map = "string, string", tag = "17")]
    #[schema(value_type = Option<BTreeMap<String, String>>, nullable = false)]
    pub headers: BTreeMap<String, String>,
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(None)?;
        fields.serialize_entry("key", &self.key)?;
        fields.serialize_entry("id", &Id::of(&self.id))?;
        fields.serialize_entry("state", &self.state())?;
        fields.serialize_entry("attempts", &self.attempts)?;
        fields.serialize_entry("generation", &self.generation)?;
        fields.serialize_entry("group", &some(&self.group))?;
        fields.serialize_entry("accepted_at", &Timestamp(self.accepted_at_ms))?;
        fields.serialize_entry("finished_at", &self.finished_at_ms.map(Timestamp))?;
        fields.serialize_entry("remembered_until", &self.remembered_until_ms.map(Timestamp))?;
        fields.serialize_entry("deadline", &self.deadline_ms.map(Timestamp))?;
        fields.serialize_entry("worker", &some(&self.worker))?;
        fields.serialize_entry("duplicates", &self.duplicates)?;
        fields.serialize_entry("result", &self.result)?;
        fields.serialize_entry("error", &some(&self.error))?;
        fields.serialize_entry("recovery_points", &Points(&self.recovery_points))?;
        fields.serialize_entry("history", &self.history)?;
        if let Some(message) = &self.message {
            put_content(&mut fields, &message.body, &message.content_type, &self.headers)?;
        }
        fields.end()
    }
}

/// One event in the history of a key.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize, ToSchema)]
#[schema(as = HistoryEvent)]
pub struct Event {
    #[prost(uint64, tag = "1")]
    #[serde(rename = "at", serialize_with = "time")]
    #[schema(value_type = Timestamp)]
    pub at_ms: u64,
    /// `sent`, `duplicate`, `leased`, `lost`, `failed`, `released`, `saved`, `begun`, `done`,
    /// `dead`, `parked`, `redriven`, `replayed`, `forgotten`, `discarded`, `resolved`, `claimed`,
    /// `freed` or `rerun`.
    #[prost(string, tag = "2")]
    pub event: String,
    #[prost(string, tag = "3")]
    #[serde(serialize_with = "or_null")]
    #[schema(value_type = Option<String>, required = true)]
    pub worker: String,
    /// The error of a failure, the name of a recovery point, the count of duplicates.
    #[prost(string, tag = "4")]
    #[serde(serialize_with = "or_null")]
    #[schema(value_type = Option<String>, required = true)]
    pub detail: String,
}

/// A page of messages.
#[derive(Clone, PartialEq, prost::Message, Serialize, ToSchema)]
#[schema(as = Keys)]
pub struct BrowseReply {
    #[prost(message, repeated, tag = "1")]
    pub messages: Vec<Key>,
    /// The `cursor` of the next page; `null` on the last page.
    #[prost(string, tag = "2")]
    #[serde(serialize_with = "or_null")]
    #[schema(value_type = Option<String>, required = true)]
    pub next: String,
}

/// The answer to an operator's change of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(tag = "answer", rename = "ok")]
pub struct Changed<'a> {
    pub key: &'a str,
    /// The state of the message now; absent if the key was forgotten.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub state: Option<State>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub generation: Option<u32>,
}

/// How an operator resolves a parked message.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
pub struct Resolve {
    /// `done` or `retry`.
    #[serde(rename = "do")]
    pub verb: String,
    /// The result, for `done`.
    #[serde(default)]
    pub result: Option<Blob>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_written_with_its_message_while_it_has_one() {
        let event = Event { event: "sent".to_owned(), ..Event::default() };
        let key = Key {
            key: "k".to_owned(),
            id: vec![1; 16].into(),
            state: State::Ready.into(),
            history: vec![event],
            headers: [("a".to_owned(), "b".to_owned())].into(),
            message: Some(Blob::new("x").content_type("text/plain")),
            ..Key::default()
        };
        let start = concat!(
            r#"{"key":"k","id":"01010101-0101-0101-0101-010101010101","state":"ready","#,
            r#""attempts":0,"generation":0,"group":null,"accepted_at":"1970-01-01T00:00:00.000Z","#,
            r#""finished_at":null,"remembered_until":null,"deadline":null,"worker":null,"#,
            r#""duplicates":0,"result":null,"error":null,"recovery_points":{},"history":[{"#,
            r#""at":"1970-01-01T00:00:00.000Z","event":"sent","worker":null,"detail":null}]"#
        );
        let message = r#","body":"x","content_type":"text/plain","headers":{"a":"b"}}"#;
        assert_eq!(serde_json::to_string(&key).unwrap(), format!("{start}{message}"));
        let untyped =
            Key { message: Some(Blob::new("x")), headers: BTreeMap::new(), ..key.clone() };
        let message = r#","body":"x","content_type":null,"headers":{}}"#;
        assert_eq!(serde_json::to_string(&untyped).unwrap(), format!("{start}{message}"));
        let gone = Key { message: None, headers: BTreeMap::new(), ..key };
        assert_eq!(serde_json::to_string(&gone).unwrap(), format!("{start}}}"));
    }
}
