//! Receives and deliveries.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use utoipa::ToSchema;

use crate::blob::{Blob, Points, put_content};
use crate::text::{Fence, Id, Lease, Timestamp, null_is_empty, some};

/// A worker's request for messages.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Deserialize, ToSchema)]
#[schema(as = Receive)]
pub struct ReceiveRequest {
    #[prost(string, tag = "1")]
    #[serde(skip)]
    pub queue: String,
    #[prost(uint32, tag = "2")]
    #[serde(default = "ten")]
    #[schema(default = 10)]
    pub max: u32,
    /// How long to wait for the first message. Values above 60000 count as 60000.
    #[prost(uint64, tag = "3")]
    #[serde(default)]
    #[schema(default = 0)]
    pub wait_ms: u64,
    /// By default the queue's `lease_ms`.
    #[prost(uint64, optional, tag = "4")]
    #[serde(default)]
    pub lease_ms: Option<u64>,
    /// The worker's name, shown in the history of its messages.
    #[prost(string, tag = "5")]
    #[serde(default, deserialize_with = "null_is_empty")]
    #[schema(value_type = Option<String>)]
    pub worker: String,
    /// A receive repeated under its id within five minutes gets the same messages and leases.
    #[prost(string, optional, tag = "6")]
    #[serde(default)]
    pub receive_id: Option<String>,
    /// Allow several messages of one group, in order.
    #[prost(bool, tag = "7")]
    #[serde(default)]
    #[schema(default = false)]
    pub several_per_group: bool,
}

fn ten() -> u32 {
    10
}

/// One message delivered to a worker.
#[derive(Clone, PartialEq, prost::Message, ToSchema)]
pub struct Delivery {
    /// The lease to settle with; opaque.
    #[prost(bytes = "bytes", tag = "1")]
    #[schema(value_type = String)]
    pub lease: Bytes,
    /// Grows with every lease of the key.
    #[prost(uint64, tag = "2")]
    #[schema(value_type = Fence)]
    pub fence: u64,
    /// The tenant of the message.
    // On a Work stream only the first deliveries have it, like the other values that are the same
    // for all: queue, length of the lease, keys per group.
    #[prost(string, tag = "14")]
    pub tenant: String,
    #[prost(string, tag = "15")]
    pub queue: String,
    #[prost(string, tag = "3")]
    pub key: String,
    #[prost(bytes = "bytes", tag = "4")]
    #[schema(value_type = Id)]
    pub id: Bytes,
    #[prost(uint32, tag = "5")]
    pub attempt: u32,
    #[prost(uint32, tag = "6")]
    pub generation: u32,
    #[prost(string, tag = "7")]
    #[schema(value_type = Option<String>, required = true)]
    pub group: String,
    #[prost(bytes = "bytes", tag = "8")]
    #[schema(value_type = Option<String>, nullable = false)]
    pub body: Bytes,
    #[prost(string, tag = "9")]
    #[schema(value_type = Option<String>, required = true)]
    pub content_type: String,
    #[prost(btree_map = "string, string", tag = "10")]
    pub headers: BTreeMap<String, String>,
    #[prost(uint64, tag = "11")]
    #[schema(rename = "accepted_at", value_type = Timestamp)]
    pub accepted_at_ms: u64,
    /// The length of the lease, counted from this answer. With it a worker can schedule its extends
    /// by its own clock.
    #[prost(uint64, tag = "16")]
    pub lease_ms: u64,
    /// The end of the lease, by the broker's clock.
    #[prost(uint64, tag = "12")]
    #[schema(rename = "deadline", value_type = Timestamp)]
    pub deadline_ms: u64,
    #[prost(btree_map = "string, bytes", tag = "13")]
    #[schema(value_type = BTreeMap<String, Blob>)]
    pub recovery_points: BTreeMap<String, Bytes>,
    /// Whether the queue deduplicates per group. Then the group is part of derived keys. Absent if
    /// false.
    #[prost(bool, tag = "17")]
    #[schema(required = false)]
    pub keys_per_group: bool,
}

impl Serialize for Delivery {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(None)?;
        fields.serialize_entry("lease", &Lease(&self.lease))?;
        fields.serialize_entry("fence", &Fence(self.fence))?;
        fields.serialize_entry("tenant", &self.tenant)?;
        fields.serialize_entry("queue", &self.queue)?;
        fields.serialize_entry("key", &self.key)?;
        fields.serialize_entry("id", &Id::of(&self.id))?;
        fields.serialize_entry("attempt", &self.attempt)?;
        fields.serialize_entry("generation", &self.generation)?;
        fields.serialize_entry("group", &some(&self.group))?;
        put_content(&mut fields, &self.body, &self.content_type, &self.headers)?;
        fields.serialize_entry("accepted_at", &Timestamp(self.accepted_at_ms))?;
        fields.serialize_entry("lease_ms", &self.lease_ms)?;
        fields.serialize_entry("deadline", &Timestamp(self.deadline_ms))?;
        fields.serialize_entry("recovery_points", &Points(&self.recovery_points))?;
        if self.keys_per_group {
            fields.serialize_entry("keys_per_group", &true)?;
        }
        fields.end()
    }
}

#[derive(Clone, PartialEq, prost::Message, Serialize, ToSchema)]
#[schema(as = Received)]
pub struct ReceiveReply {
    #[prost(message, repeated, tag = "1")]
    pub messages: Vec<Delivery>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_is_written_with_everything_a_worker_needs() {
        let delivery = Delivery {
            lease: b"\xff\xfe"[..].into(),
            fence: u64::MAX,
            tenant: "acme".to_owned(),
            queue: "orders".to_owned(),
            key: "k".to_owned(),
            id: vec![1; 16].into(),
            attempt: 2,
            body: b"\xff"[..].into(),
            headers: [("a".to_owned(), "b".to_owned())].into(),
            lease_ms: 30_000,
            recovery_points: [("p".to_owned(), "x".into())].into(),
            ..Delivery::default()
        };
        let expected = concat!(
            r#"{"lease":"__4","fence":"18446744073709551615","tenant":"acme","queue":"orders","#,
            r#""key":"k","id":"01010101-0101-0101-0101-010101010101","attempt":2,"generation":0,"#,
            r#""group":null,"body_base64":"/w==","content_type":null,"headers":{"a":"b"},"#,
            r#""accepted_at":"1970-01-01T00:00:00.000Z","lease_ms":30000,"#,
            r#""deadline":"1970-01-01T00:00:00.000Z","recovery_points":{"p":{"body":"x"}}}"#
        );
        assert_eq!(serde_json::to_string(&delivery).unwrap(), expected);
    }

    #[test]
    fn a_receive_that_says_nothing_asks_for_ten() {
        let asked: ReceiveRequest = crate::json::read(b"{}").unwrap();
        assert_eq!(asked, ReceiveRequest { max: 10, ..ReceiveRequest::default() });
        assert!(crate::json::read::<ReceiveRequest>(br#"{"queue":"q"}"#).is_err());
    }
}
