//! Queues: their configuration and statistics.

use std::borrow::Cow;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::text::{Timestamp, time};

/// A field of [`QueueConfig`], as references and error messages describe it.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    pub name: &'static str,
    doc: &'static str,
    /// Whether it is `true` or `false`.
    pub is_bool: bool,
    /// The allowed values of an enumeration.
    pub words: &'static [&'static str],
    /// Whether `null` is allowed.
    pub nullable: bool,
}

impl Field {
    /// Its meaning, as sentences.
    pub fn doc(&self) -> String {
        self.doc.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// The properties of a field that follow from its type.
trait Kind {
    const IS_BOOL: bool = false;
    const WORDS: &'static [&'static str] = &[];
    const NULLABLE: bool = false;
}

impl Kind for bool {
    const IS_BOOL: bool = true;
}

impl Kind for u32 {}
impl Kind for u64 {}

impl<T: Kind> Kind for Option<T> {
    const WORDS: &'static [&'static str] = T::WORDS;
    const NULLABLE: bool = true;
}

macro_rules! choices {
    ($($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $choice:ident $word:literal,)+ })+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name { $($(#[$doc])* #[serde(rename = $word)] $choice,)+ }

        impl Kind for $name {
            const WORDS: &'static [&'static str] = &[$($word,)+];
        }

        // Derived, it would have the names of the variants: a literal of a macro is not seen.
        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                let words = Self::WORDS.iter().copied();
                let schema = ObjectBuilder::new().schema_type(Type::String);
                schema.enum_values(Some(words)).build().into()
            }
        }

        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                stringify!($name).into()
            }
        }
    )+};
}

choices! {
    Guarantee {
        /// A key is required, and a message has one effect if its worker uses the key.
        #[default]
        ExactlyOnce "exactly-once",
        /// A key is optional.
        AtLeastOnce "at-least-once",
        /// A message is done when it is delivered.
        AtMostOnce "at-most-once",
    }
    Order {
        #[default]
        None "none",
        /// Messages of a group are delivered in order, one unfinished at a time.
        Group "group",
    }
    /// The scope in which a key is unique.
    DedupScope {
        #[default]
        Queue "queue",
        Group "group",
    }
    /// Whether keys without a date are accepted.
    UndatedKeys {
        #[default]
        Accept "accept",
        Refuse "refuse",
    }
    /// What a send under the key of a dead message gets.
    OnDead {
        /// The error.
        #[default]
        Pin "pin",
        /// The message is tried again.
        Rerun "rerun",
        /// The key is forgotten and the send is a new one.
        Release "release",
    }
    /// What a dead message does to the later messages of its group.
    OnGroupDead {
        #[default]
        Continue "continue",
        Park "park",
    }
    /// What happens to a begun message whose lease is lost.
    OnLost {
        #[default]
        Redeliver "redeliver",
        Park "park",
    }
}

/// Declares the struct, its defaults and its [`Field`]s.
macro_rules! fields {
    ($(#[$meta:meta])* $name:ident {
        $($(#[doc = $doc:literal])+ $field:ident: $kind:ty = $default:expr,)+
    }) => {
        $(#[$meta])*
        pub struct $name { $($(#[doc = $doc])+ pub $field: $kind,)+ }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }

        impl $name {
            /// Every field, in the order of the reference.
            pub const FIELDS: &[Field] = &[$(Field {
                name: stringify!($field),
                doc: concat!($($doc),+),
                is_bool: <$kind as Kind>::IS_BOOL,
                words: <$kind as Kind>::WORDS,
                nullable: <$kind as Kind>::NULLABLE,
            },)+];
        }
    };
}

fields! {
    /// The configuration of a queue. A field that is left out has its default; unknown fields are
    /// refused.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[serde(default, deny_unknown_fields)]
    #[schema(default)]
    QueueConfig {
        /// The delivery guarantee. `exactly-once`: every message has a key and one effect.
        /// `at-least-once`: a key is optional. `at-most-once`: a message is done when it is
        /// delivered.
        guarantee: Guarantee = Guarantee::default(),
        /// Whether the messages of a group are delivered in order, one at a time. Cannot be changed
        /// later.
        order: Order = Order::default(),
        /// Whether a key is unique in the whole queue or only in its group. Cannot be changed
        /// later.
        dedup_scope: DedupScope = DedupScope::default(),
        /// How long a finished key is remembered, counted from the end of its message. At least
        /// twice `retry_horizon_ms`.
        retention_ms: Option<u64> = Some(604_800_000),
        /// The longest time after the end of a message at which a caller may still retry it.
        retry_horizon_ms: u64 = 86_400_000,
        /// Whether keys without a date are accepted. UUIDv7 and ULID keys and sends with
        /// `issued_at` have a date: such a retry is refused, not run again, if it arrives after its
        /// key was forgotten.
        undated_keys: UndatedKeys = UndatedKeys::default(),
        /// The length of a lease (visibility timeout): how long a worker may work on a message
        /// without extending the lease.
        lease_ms: u64 = 30_000,
        /// The number of attempts before a message is dead.
        max_attempts: u32 = 10,
        /// The shortest wait before the next attempt.
        backoff_min_ms: u64 = 1_000,
        /// The longest wait before the next attempt. The upper bound of the wait doubles with every
        /// attempt, and the wait is random between the bounds.
        backoff_max_ms: u64 = 600_000,
        /// How long a message waits before its first delivery. A send can override it.
        delay_ms: u64 = 0,
        /// How long after its acceptance a message is tried. Then it is dead. A send can override
        /// it.
        ttl_ms: Option<u64> = None,
        /// What a send under the key of a dead message does. `pin`: it gets the error. `rerun`: the
        /// message is tried again. `release`: the key is forgotten and the send is a new message.
        on_dead: OnDead = OnDead::default(),
        /// What a dead message does to its group. `continue`: later messages are delivered. `park`:
        /// they wait until it is redriven or discarded; needs `order` = `group`.
        on_group_dead: OnGroupDead = OnGroupDead::default(),
        /// What happens to a message whose worker has called `begin` and then lost its lease.
        /// `redeliver`: it is delivered again. `park`: it is parked until an operator resolves it.
        on_lost: OnLost = OnLost::default(),
        /// Whether the body of a finished message is kept as long as its key, so that a replay
        /// needs no body.
        keep_bodies: bool = false,
        /// The largest body of a message.
        max_body_bytes: u64 = 1_048_576,
        /// The most unfinished messages, including dead ones.
        max_messages: Option<u64> = None,
        /// The most bytes of the bodies of unfinished messages.
        max_bytes: Option<u64> = None,
        /// The most messages sent per second.
        sends_per_s: Option<u32> = None,
    }
}

/// A queue.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Serialize, ToSchema)]
pub struct Queue {
    #[prost(string, tag = "1")]
    pub queue: String,
    // JSON in protobuf too.
    #[prost(string, tag = "2")]
    #[serde(rename = "config", serialize_with = "as_it_is")]
    #[schema(value_type = QueueConfig)]
    pub config_json: String,
    #[prost(message, optional, tag = "3")]
    #[schema(value_type = QueueStats)]
    pub stats: Option<QueueStats>,
    /// Whether the queue is paused: nothing is delivered, while sends and settles continue.
    #[prost(bool, tag = "4")]
    pub paused: bool,
    #[prost(uint64, tag = "5")]
    #[serde(rename = "created_at", serialize_with = "time")]
    #[schema(value_type = Timestamp)]
    pub created_at_ms: u64,
    /// Changes with every change of the configuration; for `If-Match`.
    #[prost(string, tag = "6")]
    pub etag: String,
    /// Set by PutQueue: the queue did not exist before. Over HTTP the status shows it.
    #[prost(bool, tag = "7")]
    #[serde(skip)]
    pub created: bool,
}

impl Queue {
    /// The configuration. Fields of a newer broker are left out.
    pub fn config(&self) -> serde_json::Result<QueueConfig> {
        let mut fields: Map<String, Value> = serde_json::from_str(&self.config_json)?;
        fields.retain(|name, _| QueueConfig::FIELDS.iter().any(|field| field.name == name));
        QueueConfig::deserialize(fields)
    }
}

/// Writes a value that is JSON already; `null` if it is not valid JSON.
fn as_it_is<S: Serializer>(json: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serde_json::from_str::<&RawValue>(json).ok().serialize(serializer)
}

/// The message counts and totals of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message, Serialize, ToSchema)]
#[schema(as = Stats)]
pub struct QueueStats {
    /// Messages in the state `ready`, including those counted in `held`.
    #[prost(uint64, tag = "1")]
    pub ready: u64,
    /// The `ready` messages that wait for another message of their group.
    #[prost(uint64, tag = "13")]
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
    /// The age of the oldest message that can be received; `null` if there is none.
    #[prost(uint64, optional, tag = "7")]
    #[schema(required = true)]
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
#[schema(as = QueueList)]
pub struct ListQueuesReply {
    #[prost(message, repeated, tag = "1")]
    pub queues: Vec<Queue>,
    /// The partitions that did not answer in time: their share of the counts is outdated or
    /// missing.
    #[prost(uint32, repeated, tag = "2")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub unanswered: Vec<u32>,
}

/// The options of a purge.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Deserialize, ToSchema)]
#[schema(as = Purge)]
pub struct PurgeRequest {
    #[prost(string, tag = "1")]
    #[serde(skip)]
    pub queue: String,
    /// Forget all keys of the queue too.
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
            etag: "\"3.7\"".to_owned(),
            created: true,
            ..Queue::default()
        };
        let expected = concat!(
            r#"{"queue":"orders","config":{"lease_ms":5},"stats":{"ready":3,"held":0,"delayed":0,"#,
            r#""leased":0,"parked":0,"dead":0,"keys":0,"oldest_ready_age_ms":null,"sent_total":0,"#,
            r#""duplicate_total":0,"done_total":0,"failed_total":0,"lease_lost_total":0},"#,
            r#""paused":false,"created_at":"1970-01-01T00:00:00.000Z","etag":"\"3.7\""}"#
        );
        assert_eq!(serde_json::to_string(&queue).unwrap(), expected);
        let unread = Queue { config_json: String::new(), ..queue };
        assert!(serde_json::to_string(&unread).unwrap().contains(r#""config":null"#));
    }

    #[test]
    fn the_rules_of_a_newer_broker_are_read_as_far_as_they_are_known() {
        let queue = |config: &str| Queue { config_json: config.to_owned(), ..Queue::default() };
        let read = queue(r#"{"lease_ms":5,"on_lost":"park","sharding":[1,{}]}"#).config().unwrap();
        let expected = QueueConfig { lease_ms: 5, on_lost: OnLost::Park, ..QueueConfig::default() };
        assert_eq!(read, expected);
        assert!(queue(r#"{"on_lost":"explode"}"#).config().is_err());
        assert!(queue("").config().is_err());
    }
}
