//! The configuration of a queue: defaults, bounds, and combinations that would break a guarantee.

use crate::limits;

/// The rules of one queue. The defaults are the safe ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub guarantee: Guarantee,
    pub order: Order,
    pub dedup_scope: DedupScope,
    /// How long a finished key is remembered; `None` means forever.
    pub retention_ms: Option<u64>,
    /// The longest time after completion during which anything upstream may still retry.
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
    pub max_body_bytes: u64,
    pub max_messages: Option<u64>,
    pub max_bytes: Option<u64>,
    pub sends_per_s: Option<u32>,
    /// A finished key keeps its message, so that a replay needs no body.
    pub keep_bodies: bool,
}

macro_rules! choices {
    ($(#[$meta:meta])* $name:ident {
        $($(#[$doc:meta])* $choice:ident = $number:literal,)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum $name { $($(#[$doc])* $choice = $number,)+ }

        impl $name {
            /// Every choice, in the order of their numbers on disk.
            pub const ALL: &[Self] = &[$(Self::$choice,)+];
        }
    };
}

choices!(Guarantee {
    /// A key is required; consumers that respect it get one effect.
    #[default]
    ExactlyOnce = 0,
    /// A key is optional; a message without one is forgotten when it ends.
    AtLeastOnce = 1,
    /// A message is done when it is delivered.
    AtMostOnce = 2,
});

choices!(Order {
    #[default]
    None = 0,
    /// Messages of a group are delivered in order, one unfinished at a time.
    Group = 1,
});

choices!(DedupScope {
    #[default]
    Queue = 0,
    Group = 1,
});

choices!(UndatedKeys {
    #[default]
    Accept = 0,
    Refuse = 1,
});

choices!(
    /// How a send under the key of a dead message is answered.
    OnDead {
    #[default]
    Pin = 0,
    Rerun = 1,
    Release = 2,
});

choices!(
    /// Whether a dead message blocks the younger messages of its group.
    OnGroupDead {
    #[default]
    Continue = 0,
    Park = 1,
});

choices!(
    /// What happens to a begun message whose lease is lost.
    OnLost {
    #[default]
    Redeliver = 0,
    Park = 1,
});

impl Default for Config {
    fn default() -> Self {
        Self {
            guarantee: Guarantee::default(),
            order: Order::default(),
            dedup_scope: DedupScope::default(),
            retention_ms: Some(7 * 24 * 60 * 60 * 1_000),
            retry_horizon_ms: 24 * 60 * 60 * 1_000,
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
            max_body_bytes: 1_024 * 1_024,
            max_messages: None,
            max_bytes: None,
            sends_per_s: None,
            keep_bodies: false,
        }
    }
}

/// Why a configuration is refused: the field, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct InvalidConfig {
    pub field: &'static str,
    pub reason: String,
}

impl Config {
    /// Checks every bound and every combination that would weaken a guarantee.
    pub fn check(&self) -> Result<(), InvalidConfig> {
        self.check_bounds()?;
        if let Some(retention) = self.retention_ms
            && retention < self.retry_horizon_ms.saturating_mul(2)
        {
            return refuse(
                "retention_ms",
                format!(
                    "{retention} ms is less than twice the retry horizon of {} ms: a late retry \
                     of a forgotten key would run again. Raise retention_ms to {} or lower \
                     retry_horizon_ms",
                    self.retry_horizon_ms,
                    self.retry_horizon_ms.saturating_mul(2)
                ),
            );
        }
        if self.backoff_min_ms > self.backoff_max_ms {
            let (min, max) = (self.backoff_min_ms, self.backoff_max_ms);
            return refuse(
                "backoff_min_ms",
                format!(
                    "{min} is above backoff_max_ms, which is {max}. Lower it, or raise \
                     backoff_max_ms"
                ),
            );
        }
        if self.on_group_dead == OnGroupDead::Park && self.order != Order::Group {
            return refuse("on_group_dead", "\"park\" needs order = \"group\"".into());
        }
        if self.on_lost == OnLost::Park && self.guarantee == Guarantee::AtMostOnce {
            return refuse(
                "on_lost",
                "an at-most-once queue has no leases to lose; leave it at \"redeliver\"".into(),
            );
        }
        Ok(())
    }

    /// Whether a queue may change from `self` to `next`: fields that determine keys and their
    /// partition cannot change once there are messages.
    pub fn check_change(&self, next: &Self) -> Result<(), InvalidConfig> {
        let fixed = [
            ("order", self.order == next.order),
            ("dedup_scope", self.dedup_scope == next.dedup_scope),
        ];
        for (field, same) in fixed {
            if !same {
                return refuse(
                    field,
                    "cannot be changed, because keys and order depend on it. Create another queue"
                        .into(),
                );
            }
        }
        Ok(())
    }

    /// Every number with its name, value, minimum and maximum; `None` has no bounds.
    pub fn bounds(&self) -> [(&'static str, Option<u64>, u64, u64); 12] {
        use limits::*;
        [
            ("retention_ms", self.retention_ms, RETENTION_MS_MIN, RETENTION_MS_MAX),
            ("retry_horizon_ms", Some(self.retry_horizon_ms), 0, RETENTION_MS_MAX),
            ("lease_ms", Some(self.lease_ms), LEASE_MS_MIN, LEASE_MS_MAX),
            ("max_attempts", Some(self.max_attempts.into()), 1, ATTEMPTS_MAX.into()),
            ("backoff_min_ms", Some(self.backoff_min_ms), 0, BACKOFF_MS_MAX),
            ("backoff_max_ms", Some(self.backoff_max_ms), 0, BACKOFF_MS_MAX),
            ("delay_ms", Some(self.delay_ms), 0, DELAY_MS_MAX),
            ("ttl_ms", self.ttl_ms, 1, RETENTION_MS_MAX),
            ("max_body_bytes", Some(self.max_body_bytes), 1, BODY_BYTES_MAX),
            ("max_messages", self.max_messages, 1, COUNT_MAX),
            ("max_bytes", self.max_bytes, 1, COUNT_MAX),
            ("sends_per_s", self.sends_per_s.map(u64::from), 1, u32::MAX.into()),
        ]
    }

    fn check_bounds(&self) -> Result<(), InvalidConfig> {
        for (field, value, min, max) in self.bounds() {
            if let Some(value) = value
                && !(min..=max).contains(&value)
            {
                return refuse(field, format!("{value} is not between {min} and {max}"));
            }
        }
        Ok(())
    }
}

fn refuse(field: &'static str, reason: String) -> Result<(), InvalidConfig> {
    Err(InvalidConfig { field, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k6_retention_below_twice_the_retry_horizon_is_refused_with_an_explanation() {
        let hour = 60 * 60 * 1_000;
        let config = Config {
            retention_ms: Some(47 * hour),
            retry_horizon_ms: 24 * hour,
            ..Config::default()
        };
        let refused = config.check().unwrap_err();
        assert_eq!(refused.field, "retention_ms");
        assert!(refused.reason.contains("twice the retry horizon"), "{refused}");
        let config = Config { retention_ms: Some(48 * hour), ..config };
        assert_eq!(config.check(), Ok(()));
        assert_eq!(Config { retention_ms: None, ..config }.check(), Ok(()));
    }

    #[test]
    fn the_defaults_are_valid_and_every_bound_is_checked() {
        assert_eq!(Config::default().check(), Ok(()));
        let field = |config: Config| config.check().unwrap_err().field;
        assert_eq!(field(Config { lease_ms: 1, ..Config::default() }), "lease_ms");
        assert_eq!(field(Config { max_attempts: 0, ..Config::default() }), "max_attempts");
        assert_eq!(
            field(Config { backoff_min_ms: 700_000, ..Config::default() }),
            "backoff_min_ms"
        );
        let parks = Config { on_group_dead: OnGroupDead::Park, ..Config::default() };
        assert_eq!(field(parks), "on_group_dead");
    }

    #[test]
    fn order_and_scope_cannot_change() {
        let before = Config::default();
        let after = Config { order: Order::Group, ..Config::default() };
        assert_eq!(before.check_change(&after).unwrap_err().field, "order");
        assert_eq!(before.check_change(&Config { lease_ms: 500, ..before.clone() }), Ok(()));
    }
}
