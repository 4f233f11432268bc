//! Receiving and settling.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::message::{Blob, Headers};
use super::read::List;
use super::text::{Fence, Id, State, Text, Timestamp};

/// Named data that a worker saved on the way.
pub type Points<'a> = BTreeMap<Text<'a>, Blob<'a>>;

/// What a worker asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Receive<'a> {
    #[schema(minimum = 1, maximum = 1000, default = 10)]
    pub max: u32,
    /// How long to wait for the first message.
    #[schema(maximum = 60_000)]
    pub wait_ms: u64,
    /// The queue's own where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// Told in the history of its messages.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, max_length = 64)]
    pub worker: Option<Text<'a>>,
    /// Retried within five minutes, it returns the same messages and leases.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, max_length = 128)]
    pub receive_id: Option<Text<'a>>,
    /// Take several messages of one group, in order.
    pub several_per_group: bool,
}

impl Default for Receive<'_> {
    fn default() -> Self {
        Self {
            max: 10,
            wait_ms: 0,
            lease_ms: None,
            worker: None,
            receive_id: None,
            several_per_group: false,
        }
    }
}

/// One message in a worker's hands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Delivery<'a> {
    /// Opaque; settle under it.
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub lease: Text<'a>,
    /// Grows with every lease of the key.
    pub fence: Fence,
    /// Whose message it is.
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub tenant: Text<'a>,
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub queue: Text<'a>,
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub key: Text<'a>,
    pub id: Id,
    pub attempt: u32,
    pub generation: u32,
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>)]
    pub group: Option<Text<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub body: Option<Text<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, content_encoding = "base64")]
    pub body_base64: Option<Text<'a>>,
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>)]
    pub content_type: Option<Text<'a>>,
    #[serde(borrow, default)]
    #[schema(value_type = BTreeMap<String, String>)]
    pub headers: Headers<'a>,
    pub accepted_at: Timestamp,
    /// How long the lease lasts from this answer on: a worker extends by it and its own clock.
    pub lease_ms: u64,
    /// By the broker's clock.
    pub deadline: Timestamp,
    #[serde(borrow, default)]
    #[schema(value_type = BTreeMap<String, Blob>)]
    pub recovery_points: Points<'a>,
    /// The queue deduplicates per group, so that the group is part of derived keys. Absent where
    /// it does not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keys_per_group: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Received<'a> {
    #[serde(borrow)]
    pub messages: Vec<Delivery<'a>>,
}

/// Settles in one request.
pub const SETTLE_MAX: usize = 1_000;
/// Messages emitted by one settle.
pub const EMIT_MAX: usize = 64;

/// What became of leases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Settle<'a> {
    #[serde(borrow)]
    #[schema(value_type = Vec<SettleItem>, max_items = 1000)]
    pub items: List<SettleItem<'a>, SETTLE_MAX>,
}

/// What became of one lease. Which fields count is told by `do`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SettleItem<'a> {
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub lease: Text<'a>,
    /// `done`, `fail`, `release`, `extend`, `begin`, `save` or `park`.
    #[serde(rename = "do", borrow)]
    #[schema(value_type = String)]
    pub verb: Text<'a>,
    /// Of `done`: what every later send under the key gets.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Blob<'a>>,
    /// Of `done`: messages that follow, exactly once.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Emit>>, max_items = 64)]
    pub emit: Option<List<Emit<'a>, EMIT_MAX>>,
    /// Of `fail` and `park`.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub error: Option<Text<'a>>,
    /// Of `fail` and `park`: instead of the queue's backoff.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// Of `fail`, and of a `park` that does not park: no further attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead: Option<bool>,
    /// Of `extend`: from now on; the queue's own where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// Of `save`.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, max_length = 128)]
    pub name: Option<Text<'a>>,
    /// Of `save`.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub body: Option<Text<'a>>,
    /// Of `save`.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, content_encoding = "base64")]
    pub body_base64: Option<Text<'a>>,
}

/// A message that follows another one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Emit<'a> {
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub queue: Text<'a>,
    /// What the key is derived from, with the parent's queue, key and generation.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, max_length = 255)]
    pub name: Option<Text<'a>>,
    /// Instead of the derived one.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, max_length = 255)]
    pub key: Option<Text<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub body: Option<Text<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, content_encoding = "base64")]
    pub body_base64: Option<Text<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub content_type: Option<Text<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub group: Option<Text<'a>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Instead of the digest of body and group.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, max_length = 255)]
    pub fingerprint: Option<Text<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    pub headers: Option<Headers<'a>>,
}

/// The answer to one settle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Settled<'a> {
    Ok {
        /// Of `fail`: where the message is now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state: Option<State>,
        /// The new deadline of an extended lease, the due time of a failed one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
    },
    /// Another lease is newer, or the message is finished. Nothing was changed.
    LeaseLost {
        /// `null` where the message is not known any more.
        #[serde(default)]
        state: Option<State>,
        /// The winner's, if there is one.
        #[serde(borrow, default)]
        result: Option<Blob<'a>>,
        /// There is a result, but it would have made this answer too large: look at the key.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        result_omitted: bool,
    },
    /// This settle was refused; the lease is as it was. Its neighbours were not.
    Error {
        /// One of the codes of `/errors`.
        #[serde(borrow)]
        #[schema(value_type = String)]
        code: Text<'a>,
        #[serde(borrow)]
        #[schema(value_type = String)]
        detail: Text<'a>,
        retryable: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
    },
}

/// The answers to settles, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Settles<'a> {
    #[serde(borrow)]
    pub answers: Vec<Settled<'a>>,
}
