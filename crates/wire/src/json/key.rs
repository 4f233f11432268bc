//! One key: everything about it, and what an operator may do with it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::message::{Blob, Headers};
use super::read::List;
use super::text::{Id, State, Text, Timestamp};
use super::work::Points;

/// Everything about a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Key<'a> {
    /// The id where the message came without one.
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub key: Text<'a>,
    pub id: Id,
    pub state: State,
    pub attempts: u32,
    /// How often the key was replayed.
    pub generation: u32,
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>)]
    pub group: Option<Text<'a>>,
    pub accepted_at: Timestamp,
    #[serde(default)]
    pub finished_at: Option<Timestamp>,
    /// `null` while the message is alive, and where the key is remembered for ever.
    #[serde(default)]
    pub remembered_until: Option<Timestamp>,
    /// When the lease ends or the delay is over.
    #[serde(default)]
    pub deadline: Option<Timestamp>,
    /// Who had it last.
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>)]
    pub worker: Option<Text<'a>>,
    pub duplicates: u64,
    #[serde(borrow, default)]
    pub result: Option<Blob<'a>>,
    /// Of the last failure.
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>)]
    pub error: Option<Text<'a>>,
    #[serde(borrow, default)]
    #[schema(value_type = std::collections::BTreeMap<String, Blob>)]
    pub recovery_points: Points<'a>,
    /// The newest 64 events, in order.
    #[serde(borrow, default)]
    pub history: Vec<Event<'a>>,
    /// Of a message that is alive; a finished one's is gone.
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
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    pub headers: Option<Headers<'a>>,
}

/// One thing that happened to a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event<'a> {
    pub at: Timestamp,
    /// `sent`, `duplicate`, `leased`, `lost`, `failed`, `released`, `saved`, `begun`, `done`,
    /// `dead`, `parked`, `redriven`, `replayed`, `forgotten`, `discarded`, `resolved`, `claimed`,
    /// `freed` or `rerun`.
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub event: Text<'a>,
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>)]
    pub worker: Option<Text<'a>>,
    /// The error of a failure, the name of a recovery point, the count of duplicates.
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>)]
    pub detail: Option<Text<'a>>,
}

/// A page of messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Keys<'a> {
    #[serde(borrow)]
    pub messages: Vec<Key<'a>>,
    /// The `cursor` of the next page; `null` where this was the last one.
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>)]
    pub next: Option<Text<'a>>,
}

/// An operator changed something about a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "answer", rename = "ok")]
pub struct Changed<'a> {
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub key: Text<'a>,
    /// Where the message is now; absent where the key was forgotten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u32>,
}

/// What becomes of a parked message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Resolve<'a> {
    /// `done` or `retry`.
    #[serde(rename = "do", borrow)]
    #[schema(value_type = String)]
    pub verb: Text<'a>,
    /// Of `done`.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Blob<'a>>,
}

/// Which dead messages to put back: exactly one of `keys`, `filter` and `all`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Redrive<'a> {
    /// Repeated under one id, a redrive moves nothing twice; another one under it is a `conflict`.
    /// Generated where it is left out.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, max_length = 128)]
    pub id: Option<Text<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>, max_items = 1000)]
    pub keys: Option<List<Text<'a>, 1_000>>,
    /// The group of the `keys`, in a queue that deduplicates per group.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub group: Option<Text<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<RedriveFilter<'a>>,
    #[serde(default)]
    pub all: bool,
    /// Count what matches, and move nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// At most so many a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub per_s: Option<u32>,
}

/// What a dead message must be to be put back: at least one of these, and all that are given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RedriveFilter<'a> {
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub error_contains: Option<Text<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub group: Option<Text<'a>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_before: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_after: Option<Timestamp>,
}

/// How far a redrive has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RedriveProgress<'a> {
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub id: Text<'a>,
    pub matched: u64,
    pub moved: u64,
    /// How many dead messages, or keys, there were to look at; `null` where that is not known.
    #[serde(default)]
    pub total: Option<u64>,
    /// Of a redrive by keys: those that were not dead.
    #[serde(borrow, default)]
    #[schema(value_type = Vec<String>)]
    pub missing: Vec<Text<'a>>,
    pub done: bool,
    /// It was stopped; what it moved stays moved.
    #[serde(default)]
    pub cancelled: bool,
    pub dry_run: bool,
}
