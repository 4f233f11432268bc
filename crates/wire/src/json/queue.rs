//! Queues: their rules, and what is in them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::text::{Text, Timestamp};

macro_rules! choices {
    ($($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $choice:ident,)+ })+) => {$(
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema,
        )]
        #[serde(rename_all = "kebab-case")]
        pub enum $name { $($(#[$doc])* $choice,)+ }
    )+};
}

choices! {
    Guarantee {
        /// A key is required, and one effect is promised to those who respect it.
        #[default]
        ExactlyOnce,
        /// A key is optional.
        AtLeastOnce,
        /// Done as it is handed out.
        AtMostOnce,
    }
    Order {
        #[default]
        None,
        /// Messages of a group are delivered in order, one unfinished at a time.
        Group,
    }
    /// Where a key is unique.
    DedupScope {
        #[default]
        Queue,
        Group,
    }
    /// Whether keys that tell no date are taken.
    UndatedKeys {
        #[default]
        Accept,
        Refuse,
    }
    /// What a send under the key of a dead message gets.
    OnDead {
        /// The error.
        #[default]
        Pin,
        /// The message is tried anew.
        Rerun,
        /// The key is forgotten and the send is a new one.
        Release,
    }
    /// What the death of a message means for the younger ones of its group.
    OnGroupDead {
        #[default]
        Continue,
        Park,
    }
    /// What becomes of a begun message whose lease is lost.
    OnLost {
        #[default]
        Redeliver,
        Park,
    }
}

/// The rules of a queue. Every field may be left out, and has its default then; unknown fields
/// are refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(default)]
pub struct QueueConfig {
    pub guarantee: Guarantee,
    /// Cannot change once the queue exists.
    pub order: Order,
    /// Cannot change either.
    pub dedup_scope: DedupScope,
    /// How long a finished key is remembered, counted from its end; `null` for ever. At least
    /// twice `retry_horizon_ms`.
    pub retention_ms: Option<u64>,
    /// The longest time after the end at which anything upstream may still retry.
    pub retry_horizon_ms: u64,
    pub undated_keys: UndatedKeys,
    pub lease_ms: u64,
    pub max_attempts: u32,
    pub backoff_min_ms: u64,
    pub backoff_max_ms: u64,
    pub delay_ms: u64,
    pub ttl_ms: Option<u64>,
    pub on_dead: OnDead,
    pub on_group_dead: OnGroupDead,
    pub on_lost: OnLost,
    /// Finished keys keep their messages, so that a replay needs no body.
    pub keep_bodies: bool,
    pub max_body_bytes: u64,
    pub max_messages: Option<u64>,
    pub max_bytes: Option<u64>,
    pub sends_per_s: Option<u32>,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            guarantee: Guarantee::default(),
            order: Order::default(),
            dedup_scope: DedupScope::default(),
            retention_ms: Some(604_800_000),
            retry_horizon_ms: 86_400_000,
            undated_keys: UndatedKeys::default(),
            lease_ms: 30_000,
            max_attempts: 10,
            backoff_min_ms: 1_000,
            backoff_max_ms: 600_000,
            delay_ms: 0,
            ttl_ms: None,
            on_dead: OnDead::default(),
            on_group_dead: OnGroupDead::default(),
            on_lost: OnLost::default(),
            keep_bodies: false,
            max_body_bytes: 1_048_576,
            max_messages: None,
            max_bytes: None,
            sends_per_s: None,
        }
    }
}

/// A queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Queue<'a> {
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub queue: Text<'a>,
    pub config: QueueConfig,
    pub stats: Stats,
    /// Nothing is handed out; sends and settles go on.
    pub paused: bool,
    pub created_at: Timestamp,
    /// Changes with every change of the configuration; for `If-Match`.
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub etag: Text<'a>,
}

/// What is in a queue, and what has happened to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stats {
    /// In the state `ready`, those of `held` included.
    pub ready: u64,
    /// Of `ready`: those that wait for another message of their group.
    #[serde(default)]
    pub held: u64,
    pub delayed: u64,
    pub leased: u64,
    pub parked: u64,
    pub dead: u64,
    /// Finished keys that are still remembered.
    pub keys: u64,
    /// Of the oldest message that can be received; `null` where none can.
    #[serde(default)]
    pub oldest_ready_age_ms: Option<u64>,
    pub sent_total: u64,
    pub duplicate_total: u64,
    pub done_total: u64,
    pub failed_total: u64,
    pub lease_lost_total: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Queues<'a> {
    #[serde(borrow)]
    pub queues: Vec<Queue<'a>>,
    /// The partitions that did not answer in time: their part of the figures is an earlier one, or
    /// missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<u32>,
}

/// The body of a request that says nothing more than its path does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Nothing {}

/// Which part of a queue to purge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Purge {
    /// Forget every key of the queue too.
    #[serde(default)]
    pub keys: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_reference() {
        let reference = r#"{"guarantee":"exactly-once","order":"none","dedup_scope":"queue",
            "retention_ms":604800000,"retry_horizon_ms":86400000,"undated_keys":"accept",
            "lease_ms":30000,"max_attempts":10,"backoff_min_ms":1000,"backoff_max_ms":600000,
            "delay_ms":0,"ttl_ms":null,"on_dead":"pin","on_group_dead":"continue",
            "on_lost":"redeliver","keep_bodies":false,"max_body_bytes":1048576,
            "max_messages":null,"max_bytes":null,"sends_per_s":null}"#;
        let read: QueueConfig = serde_json::from_str(reference).unwrap();
        assert_eq!(read, QueueConfig::default());
        assert_eq!(serde_json::from_str::<QueueConfig>("{}").unwrap(), read);
        let shown = serde_json::to_value(&read).unwrap();
        assert_eq!(shown, serde_json::from_str::<serde_json::Value>(reference).unwrap());
    }
}
