//! Dead messages put back.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::json::List;
use crate::text::{Timestamp, time_if_given};

/// Which dead messages to put back: exactly one of `keys`, `filter` and `all`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
pub struct Redrive {
    /// Repeated under one id, a redrive moves nothing twice; another one under it is a `conflict`.
    /// Generated where it is left out.
    #[serde(default)]
    #[schema(max_length = 128)]
    pub id: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>, max_items = 1000)]
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
    #[schema(minimum = 1)]
    pub per_s: Option<u32>,
}

/// What a dead message must be to be put back: at least one of these, and all that are given.
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

/// How far a redrive has come.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize, ToSchema)]
pub struct RedriveProgress {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(uint64, tag = "2")]
    pub matched: u64,
    #[prost(uint64, tag = "3")]
    pub moved: u64,
    /// How many dead messages, or keys, there were to look at; `null` where that is not known.
    #[prost(uint64, optional, tag = "6")]
    pub total: Option<u64>,
    /// For a redrive by keys: the keys that were not dead.
    #[prost(string, repeated, tag = "7")]
    #[schema(required = false)]
    pub missing: Vec<String>,
    #[prost(bool, tag = "4")]
    pub done: bool,
    /// It was stopped; what it moved stays moved.
    #[prost(bool, tag = "8")]
    #[schema(required = false)]
    pub cancelled: bool,
    #[prost(bool, tag = "5")]
    pub dry_run: bool,
}
