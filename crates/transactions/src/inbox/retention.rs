//! How long an inbox must remember, by the rules of its queue.
//!
//! A message comes again as long as it has attempts left, each with its lease and its backoff, and
//! its key is known for the queue's retention after that. An inbox that forgets earlier would carry
//! out twice what the queue still takes for one operation.

use std::time::Duration;

use hapax_client::{Admin, Queue};
use serde_json::Value;

use super::{Inbox, Retention};
use crate::error::{Error, human};

/// How long the rows are kept; `None` for ever. Asks the broker for the queue's rules.
pub(crate) async fn retention_for(inbox: &Inbox, queue: &Queue) -> Result<Option<Duration>, Error> {
    let known = Admin::new(queue.client().clone()).queue(queue.name()).await?;
    let config: Value = serde_json::from_str(&known.config_json)
        .map_err(|error| Error::invalid(format!("the rules of {}: {error}", queue.name())))?;
    decide(inbox, &config)
}

fn decide(inbox: &Inbox, config: &Value) -> Result<Option<Duration>, Error> {
    let needed = Needed::of(config);
    match (inbox.wanted_retention(), needed.total()) {
        (Retention::Forever, _) | (Retention::OfQueue, None) => Ok(None),
        (Retention::OfQueue, Some(total)) => Ok(Some(total)),
        (Retention::Of(kept), Some(total)) if kept >= total => Ok(Some(kept)),
        (Retention::Of(kept), total) => Err(Error::ForgetsTooEarly {
            consumer: inbox.consumer().to_owned(),
            queue: inbox.queue().to_owned(),
            kept,
            needed: total,
            why: needed.why(),
        }),
    }
}

/// The times of a queue that count here.
#[derive(Debug)]
struct Needed {
    /// `None` for ever.
    retention: Option<Duration>,
    attempts: u32,
    /// Of one attempt: its lease and the longest backoff after it.
    attempt: Duration,
    ttl: Option<Duration>,
}

impl Needed {
    fn of(config: &Value) -> Self {
        let ms = |name: &str| config.get(name).and_then(Value::as_u64).map(Duration::from_millis);
        let attempts = config.get("max_attempts").and_then(Value::as_u64).unwrap_or(10);
        Self {
            retention: ms("retention_ms"),
            attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
            attempt: ms("lease_ms").unwrap_or_default() + ms("backoff_max_ms").unwrap_or_default(),
            ttl: ms("ttl_ms"),
        }
    }

    /// All attempts one after the other, or the time to live where that is shorter.
    fn attempts(&self) -> Duration {
        let all = self.attempt.saturating_mul(self.attempts);
        self.ttl.map_or(all, |ttl| all.min(ttl.saturating_add(self.attempt)))
    }

    fn total(&self) -> Option<Duration> {
        Some(self.retention?.saturating_add(self.attempts()))
    }

    fn why(&self) -> String {
        let Some(retention) = self.retention else {
            return "it remembers its keys for ever".to_owned();
        };
        format!(
            "it remembers its keys for {}, and its {} attempts may take {}",
            human(retention),
            self.attempts,
            human(self.attempts())
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbox::Consumer;

    const DAY: Duration = Duration::from_secs(86_400);

    fn rules() -> Value {
        serde_json::json!({
            "retention_ms": 604_800_000_u64, "lease_ms": 30_000, "max_attempts": 10,
            "backoff_max_ms": 600_000, "ttl_ms": null,
        })
    }

    #[track_caller]
    fn check(consumer: Consumer, config: &Value, expected: Result<Option<Duration>, &str>) {
        let decided = decide(&consumer.inbox("orders").unwrap(), config);
        match (decided, expected) {
            (Ok(decided), Ok(expected)) => assert_eq!(decided, expected),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (decided, expected) => panic!("{decided:?}, not {expected:?}"),
        }
    }

    #[test]
    fn an_inbox_follows_its_queue_where_nothing_is_said() {
        let attempts = Duration::from_secs(10 * 630);
        check(Consumer::new("billing"), &rules(), Ok(Some(7 * DAY + attempts)));
    }

    #[test]
    fn an_inbox_that_forgets_while_the_queue_may_deliver_is_refused() {
        check(Consumer::new("billing").retention(7 * DAY), &rules(), Err("7 d 1 h"));
        check(Consumer::new("billing").retention(8 * DAY), &rules(), Ok(Some(8 * DAY)));
    }

    #[test]
    fn a_queue_that_never_forgets_needs_an_inbox_that_never_does() {
        let mut config = rules();
        config["retention_ms"] = Value::Null;
        check(Consumer::new("billing"), &config, Ok(None));
        check(Consumer::new("billing").keep_for_ever(), &config, Ok(None));
        check(Consumer::new("billing").retention(365 * DAY), &config, Err("for ever"));
    }

    #[test]
    fn a_time_to_live_bounds_the_attempts() {
        let mut config = rules();
        config["ttl_ms"] = 60_000.into();
        let total = 7 * DAY + Duration::from_secs(60 + 630);
        check(Consumer::new("billing"), &config, Ok(Some(total)));
    }
}
