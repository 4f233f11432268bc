//! Redrives of dead messages.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::json::List;
use crate::text::{Timestamp, time_if_given};

/// Which dead messages to redrive: exactly one of `keys`, `filter` and `all`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
pub struct Redrive {
    /// A redrive repeated under its id moves nothing twice; another one under it is a `conflict`.
    /// Generated if it is left out.
    #[serde(default)]
    pub id: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    pub keys: Option<List<String, 1_000>>,
    /// The group of the `keys`, in a queue that deduplicates per group.
    #[serde(default)]
    pub group: Option<String>,
    #[serde(default)]
    pub filter: Option<RedriveFilter>,
    #[serde(default)]
    pub all: bool,
    /// Count what matches, and move nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// The most messages per second.
    #[serde(default)]
    pub per_s: Option<u32>,
}

/// Selects dead messages: at least one condition, and a message must meet all that are given.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Deserialize, ToSchema)]
pub struct RedriveFilter {
    #[prost(string, optional, tag = "1")]
    #[serde(default)]
    pub error_contains: Option<String>,
    #[prost(string, optional, tag = "2")]
    #[serde(default)]
    pub group: Option<String>,
    #[prost(uint64, optional, tag = "3")]
    #[serde(default, rename = "dead_before", deserialize_with = "time_if_given")]
    #[schema(value_type = Option<Timestamp>)]
    pub dead_before_ms: Option<u64>,
    #[prost(uint64, optional, tag = "4")]
    #[serde(default, rename = "dead_after", deserialize_with = "time_if_given")]
    #[schema(value_type = Option<Timestamp>)]
    pub dead_after_ms: Option<u64>,
}

/// The progress of a redrive.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize, ToSchema)]
pub struct RedriveProgress {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(uint64, tag = "2")]
    pub matched: u64,
    #[prost(uint64, tag = "3")]
    pub moved: u64,
    /// The number of dead messages, or keys, to look at; `null` if it is not known.
    #[prost(uint64, optional, tag = "6")]
    #[schema(required = true)]
    pub total: Option<u64>,
    /// For a redrive by keys: the keys that were not dead.
    #[prost(string, repeated, tag = "7")]
    pub missing: Vec<String>,
    #[prost(bool, tag = "4")]
    pub done: bool,
    /// Whether it was stopped. Messages that it has moved stay moved.
    #[prost(bool, tag = "8")]
    pub cancelled: bool,
    #[prost(bool, tag = "5")]
    pub dry_run: bool,
}
