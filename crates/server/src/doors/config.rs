//! A queue's configuration as JSON, the same through every door.

use std::fmt;

use hapax_core::{Config, DedupScope, Guarantee, OnDead, OnGroupDead, OnLost, Order, UndatedKeys};
use hapax_wire::{self as wire, Code, json};
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::problem::Problem;
use crate::settings::{Dialect, Plain, config_from_fields};

/// Far more than there are fields.
const FIELDS_MAX: usize = 100;

/// Reads a configuration. What is left out has its default; what is unknown is refused, since a
/// typo must not weaken a guarantee. Nothing at all is a configuration of defaults.
pub fn read(json: &[u8]) -> Result<Config, Problem> {
    if json.trim_ascii().is_empty() {
        return Ok(Config::default());
    }
    let fields: Fields<'_> =
        json::read(json).map_err(|error| Problem::invalid(error.to_string()))?;
    let fields = fields.0.iter().map(|(name, value)| (&**name, Plain::from(value)));
    config_from_fields(Dialect::Json, fields)
        .map_err(|error| Problem::new(Code::InvalidConfig, error.to_string()))
}

/// A configuration as it is shown, in JSON.
pub fn json(config: &Config) -> String {
    // A document of texts and numbers can be written.
    serde_json::to_string(&show(config)).unwrap_or_default()
}

/// A configuration as it is shown.
pub fn show(config: &Config) -> wire::QueueConfig {
    wire::QueueConfig {
        guarantee: match config.guarantee {
            Guarantee::ExactlyOnce => wire::Guarantee::ExactlyOnce,
            Guarantee::AtLeastOnce => wire::Guarantee::AtLeastOnce,
            Guarantee::AtMostOnce => wire::Guarantee::AtMostOnce,
        },
        order: match config.order {
            Order::None => wire::Order::None,
            Order::Group => wire::Order::Group,
        },
        dedup_scope: match config.dedup_scope {
            DedupScope::Queue => wire::DedupScope::Queue,
            DedupScope::Group => wire::DedupScope::Group,
        },
        retention_ms: config.retention_ms,
        retry_horizon_ms: config.retry_horizon_ms,
        undated_keys: match config.undated_keys {
            UndatedKeys::Accept => wire::UndatedKeys::Accept,
            UndatedKeys::Refuse => wire::UndatedKeys::Refuse,
        },
        lease_ms: config.lease_ms,
        max_attempts: config.max_attempts,
        backoff_min_ms: config.backoff_min_ms,
        backoff_max_ms: config.backoff_max_ms,
        delay_ms: config.delay_ms,
        ttl_ms: config.ttl_ms,
        on_dead: match config.on_dead {
            OnDead::Pin => wire::OnDead::Pin,
            OnDead::Rerun => wire::OnDead::Rerun,
            OnDead::Release => wire::OnDead::Release,
        },
        on_group_dead: match config.on_group_dead {
            OnGroupDead::Continue => wire::OnGroupDead::Continue,
            OnGroupDead::Park => wire::OnGroupDead::Park,
        },
        on_lost: match config.on_lost {
            OnLost::Redeliver => wire::OnLost::Redeliver,
            OnLost::Park => wire::OnLost::Park,
        },
        keep_bodies: config.keep_bodies,
        max_body_bytes: config.max_body_bytes,
        max_messages: config.max_messages,
        max_bytes: config.max_bytes,
        sends_per_s: config.sends_per_s,
    }
}

/// The fields of an object, each once, in their order.
struct Fields<'a>(Vec<(wire::Text<'a>, Value)>);

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with the fields of a queue's configuration")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields: Vec<(wire::Text<'de>, Value)> = Vec::new();
                while let Some((name, value)) = map.next_entry::<wire::Text<'de>, Value>()? {
                    if fields.iter().any(|(known, _)| *known == name) {
                        return Err(A::Error::custom(format!("{} is there twice", &*name)));
                    }
                    if fields.len() >= FIELDS_MAX {
                        return Err(A::Error::custom("there are too many fields"));
                    }
                    fields.push((name, value));
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_reads_back() {
        assert_eq!(show(&Config::default()), wire::QueueConfig::default());
        let config = Config {
            guarantee: Guarantee::AtLeastOnce,
            order: Order::Group,
            dedup_scope: DedupScope::Group,
            retention_ms: None,
            undated_keys: UndatedKeys::Refuse,
            max_attempts: 3,
            ttl_ms: Some(77),
            on_dead: OnDead::Release,
            on_group_dead: OnGroupDead::Park,
            on_lost: OnLost::Park,
            max_messages: Some(5),
            sends_per_s: Some(9),
            keep_bodies: true,
            ..Config::default()
        };
        let shown = serde_json::to_vec(&show(&config)).unwrap();
        assert_eq!(read(&shown), Ok(config));
        assert_eq!(read(b" "), Ok(Config::default()));
    }

    #[test]
    fn what_is_wrong_is_refused_with_its_field() {
        let refused = |json: &str| read(json.as_bytes()).unwrap_err();
        let typo = refused(r#"{"retention":5}"#);
        assert_eq!(typo.code, Code::InvalidConfig);
        assert!(typo.detail.contains("retention_ms is meant"), "{typo}");
        let value = refused(r#"{"lease_ms":null}"#);
        assert_eq!(value.code, Code::InvalidConfig);
        assert!(value.detail.starts_with("lease_ms"), "{value}");
        for json in ["[]", "5", "{", r#"{"lease_ms":500,"lease_ms":600}"#, "\u{0}"] {
            assert_eq!(refused(json).code, Code::Invalid, "{json}");
        }
    }
}
