//! A queue's rules as flags, and as people read them. The fields are those of the HTTP door.

use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value};

use crate::duration::{milliseconds, parse, parse_endless, short};
use crate::size;

/// Only what is given is sent; the broker has the defaults and the bounds.
#[derive(Debug, Args)]
#[command(next_help_heading = "Rules")]
pub(super) struct Rules {
    /// Whether a key is required, optional, or nothing is promised.
    #[arg(long, value_parser = ["exactly-once", "at-least-once", "at-most-once"])]
    guarantee: Option<String>,
    /// `group` delivers the messages of a group in order, one at a time. Cannot change.
    #[arg(long, value_parser = ["none", "group"])]
    order: Option<String>,
    /// What a key is unique in. Cannot change.
    #[arg(long, value_parser = ["queue", "group"])]
    dedup_scope: Option<String>,
    /// How long a finished key is remembered, or `forever`.
    #[arg(long, value_name = "DURATION", value_parser = endless)]
    retention: Option<Endless>,
    /// The longest time after the end at which anything upstream may still retry.
    #[arg(long, value_name = "DURATION", value_parser = parse)]
    retry_horizon: Option<Duration>,
    /// Whether keys that do not tell their age are taken.
    #[arg(long, value_parser = ["accept", "refuse"])]
    undated_keys: Option<String>,
    /// How long a worker may keep a message without extending.
    #[arg(long, value_name = "DURATION", value_parser = parse)]
    lease: Option<Duration>,
    /// A message is dead after this many attempts.
    #[arg(long, value_name = "COUNT")]
    max_attempts: Option<u32>,
    /// The shortest wait after a failure.
    #[arg(long, value_name = "DURATION", value_parser = parse)]
    backoff_min: Option<Duration>,
    /// The longest wait after a failure.
    #[arg(long, value_name = "DURATION", value_parser = parse)]
    backoff_max: Option<Duration>,
    /// How long a message waits before its first delivery.
    #[arg(long, value_name = "DURATION", value_parser = parse)]
    delay: Option<Duration>,
    /// After this a message that nobody took is dead, or `none`.
    #[arg(long, value_name = "DURATION", value_parser = endless)]
    ttl: Option<Endless>,
    /// What a send under the key of a dead message does.
    #[arg(long, value_parser = ["pin", "rerun", "release"])]
    on_dead: Option<String>,
    /// Whether a dead message holds back the younger ones of its group.
    #[arg(long, value_parser = ["continue", "park"])]
    on_group_dead: Option<String>,
    /// What becomes of a begun message whose lease is lost.
    #[arg(long, value_parser = ["redeliver", "park"])]
    on_lost: Option<String>,
    /// The largest body.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    max_body_bytes: Option<u64>,
    /// The most messages at a time, or `none`.
    #[arg(long, value_name = "COUNT", value_parser = limit)]
    max_messages: Option<Limit>,
    /// The most bytes at a time, or `none`.
    #[arg(long, value_name = "SIZE", value_parser = limit_bytes)]
    max_bytes: Option<Limit>,
    /// The most sends per second, or `none`.
    #[arg(long, value_name = "COUNT", value_parser = limit)]
    sends_per_s: Option<Limit>,
    /// Whether a finished key keeps its message, so that a replay needs no body.
    #[arg(long, value_name = "BOOL")]
    keep_bodies: Option<bool>,
}

/// A duration in milliseconds, or without an end.
#[derive(Clone, Copy, Debug)]
struct Endless(Option<u64>);

fn endless(text: &str) -> Result<Endless, String> {
    parse_endless(text).map(|duration| Endless(duration.map(milliseconds)))
}

/// A number, or no limit.
#[derive(Clone, Copy, Debug)]
struct Limit(Option<u64>);

fn limit(text: &str) -> Result<Limit, String> {
    match text {
        "none" => Ok(Limit(None)),
        _ => {
            let number = text.parse().map_err(|_| "give a number, or `none`".to_owned())?;
            Ok(Limit(Some(number)))
        }
    }
}

fn limit_bytes(text: &str) -> Result<Limit, String> {
    match text {
        "none" => Ok(Limit(None)),
        _ => size::parse(text).map(|bytes| Limit(Some(bytes))),
    }
}

impl Rules {
    /// The fields that were given.
    pub(super) fn fields(&self) -> Map<String, Value> {
        let word = |text: &Option<String>| text.clone().map(Value::from);
        let span = |duration: Option<Duration>| duration.map(|it| milliseconds(it).into());
        let endless = |endless: Option<Endless>| endless.map(|Endless(ms)| ms.into());
        let limit = |limit: Option<Limit>| limit.map(|Limit(count)| count.into());
        let fields = [
            ("guarantee", word(&self.guarantee)),
            ("order", word(&self.order)),
            ("dedup_scope", word(&self.dedup_scope)),
            ("retention_ms", endless(self.retention)),
            ("retry_horizon_ms", span(self.retry_horizon)),
            ("undated_keys", word(&self.undated_keys)),
            ("lease_ms", span(self.lease)),
            ("max_attempts", self.max_attempts.map(Value::from)),
            ("backoff_min_ms", span(self.backoff_min)),
            ("backoff_max_ms", span(self.backoff_max)),
            ("delay_ms", span(self.delay)),
            ("ttl_ms", endless(self.ttl)),
            ("on_dead", word(&self.on_dead)),
            ("on_group_dead", word(&self.on_group_dead)),
            ("on_lost", word(&self.on_lost)),
            ("max_body_bytes", self.max_body_bytes.map(Value::from)),
            ("max_messages", limit(self.max_messages)),
            ("max_bytes", limit(self.max_bytes)),
            ("sends_per_s", limit(self.sends_per_s)),
            ("keep_bodies", self.keep_bodies.map(Value::from)),
        ];
        let given = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        given.collect()
    }
}

/// A rule's value as a word, with durations in a unit that fits.
pub(super) fn readable(name: &str, value: &Value) -> String {
    match value {
        Value::Null if name == "retention_ms" => "forever".to_owned(),
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_u64().filter(|_| name.ends_with("_ms")) {
            Some(ms) => format!("{number} ({})", short(ms)),
            None => number.to_string(),
        },
        other => other.to_string(),
    }
}
