//! Queues: their rules, and what is in them.

use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::text::{Timestamp, time};

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
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize, ToSchema)]
pub struct Queue {
    #[prost(string, tag = "1")]
    pub queue: String,
    // JSON in both forms of the shape.
    #[prost(string, tag = "2")]
    #[serde(rename = "config", serialize_with = "as_it_is")]
    #[schema(value_type = QueueConfig)]
    pub config_json: String,
    #[prost(message, optional, tag = "3")]
    #[schema(value_type = QueueStats)]
    pub stats: Option<QueueStats>,
    /// Nothing is handed out; sends and settles go on.
    #[prost(bool, tag = "4")]
    pub paused: bool,
    #[prost(uint64, tag = "5")]
    #[serde(rename = "created_at", serialize_with = "time")]
    #[schema(value_type = Timestamp)]
    pub created_at_ms: u64,
    /// Changes with every change of the configuration; for `If-Match`.
    #[prost(string, tag = "6")]
    pub etag: String,
    /// By PutQueue: it did not exist before. HTTP says so by its status.
    #[prost(bool, tag = "7")]
    #[serde(skip)]
    pub created: bool,
}

/// Writes what is JSON already; `null` where it is not.
fn as_it_is<S: Serializer>(json: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serde_json::from_str::<&RawValue>(json).ok().serialize(serializer)
}

/// What is in a queue, and what has happened to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message, Serialize, ToSchema)]
#[schema(as = Stats)]
pub struct QueueStats {
    /// In the state `ready`, those of `held` included.
    #[prost(uint64, tag = "1")]
    pub ready: u64,
    /// Of `ready`: those that wait for another message of their group.
    #[prost(uint64, tag = "13")]
    #[schema(required = false)]
    pub held: u64,
    #[prost(uint64, tag = "2")]
    pub delayed: u64,
    #[prost(uint64, tag = "3")]
    pub leased: u64,
    #[prost(uint64, tag = "4")]
    pub parked: u64,
    #[prost(uint64, tag = "5")]
    pub dead: u64,
    /// Finished keys that are still remembered.
    #[prost(uint64, tag = "6")]
    pub keys: u64,
    /// Of the oldest message that can be received; `null` where none can.
    #[prost(uint64, optional, tag = "7")]
    pub oldest_ready_age_ms: Option<u64>,
    #[prost(uint64, tag = "8")]
    pub sent_total: u64,
    #[prost(uint64, tag = "9")]
    pub duplicate_total: u64,
    #[prost(uint64, tag = "10")]
    pub done_total: u64,
    #[prost(uint64, tag = "11")]
    pub failed_total: u64,
    #[prost(uint64, tag = "12")]
    pub lease_lost_total: u64,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, ToSchema)]
#[schema(as = Queues)]
pub struct ListQueuesReply {
    #[prost(message, repeated, tag = "1")]
    pub queues: Vec<Queue>,
    /// The partitions that did not answer in time: their part of the figures is an earlier one, or
    /// missing.
    #[prost(uint32, repeated, tag = "2")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub unanswered: Vec<u32>,
}

/// Which part of a queue to purge.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Deserialize, ToSchema)]
#[schema(as = Purge)]
pub struct PurgeRequest {
    #[prost(string, tag = "1")]
    #[serde(skip)]
    pub queue: String,
    /// Forget every key of the queue too.
    #[prost(bool, tag = "2")]
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

    #[test]
    fn a_queue_is_written_with_its_rules_as_they_are() {
        let queue = Queue {
            queue: "orders".to_owned(),
            config_json: r#"{"lease_ms":5}"#.to_owned(),
            stats: Some(QueueStats { ready: 3, ..QueueStats::default() }),
            etag: "\"7\"".to_owned(),
            created: true,
            ..Queue::default()
        };
        let expected = concat!(
            r#"{"queue":"orders","config":{"lease_ms":5},"stats":{"ready":3,"held":0,"delayed":0,"#,
            r#""leased":0,"parked":0,"dead":0,"keys":0,"oldest_ready_age_ms":null,"sent_total":0,"#,
            r#""duplicate_total":0,"done_total":0,"failed_total":0,"lease_lost_total":0},"#,
            r#""paused":false,"created_at":"1970-01-01T00:00:00.000Z","etag":"\"7\""}"#
        );
        assert_eq!(serde_json::to_string(&queue).unwrap(), expected);
        let unread = Queue { config_json: String::new(), ..queue };
        assert!(serde_json::to_string(&unread).unwrap().contains(r#""config":null"#));
    }
}
