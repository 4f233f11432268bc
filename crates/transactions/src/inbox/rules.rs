//! The parts of a queue's configuration that matter to its inbox: how long rows are kept, and how
//! large a result may be. They are read again with every sweep, because they may change.

use std::time::Duration;

use hapax_client::{Admin, Queue};
use hapax_wire::{Guarantee, QueueConfig};

use super::{Inbox, Retention};
use crate::error::Error;

/// The relevant configuration of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Younger rows are kept, also those of messages that have ended: a broker that is restored
    /// from a backup may deliver them again. `None` means for ever.
    pub(crate) kept: Option<Duration>,
    pub(crate) result_bytes_max: u64,
    /// Whether messages may come without a key; the broker cannot be asked about those.
    pub(crate) allows_no_key: bool,
    /// Whether the queue had no message that could still be delivered.
    pub(crate) is_empty: bool,
}

impl Rules {
    /// Reads the configuration from the broker. An inbox that would delete rows before its queue
    /// forgets their keys is an error.
    pub(crate) async fn of(inbox: &Inbox, queue: &Queue) -> Result<Self, Error> {
        let known = Admin::new(queue.client().clone()).queue(queue.name()).await?;
        let config = known
            .config()
            .map_err(|error| Error::invalid(format!("the rules of {}: {error}", queue.name())))?;
        let stats = known.stats.unwrap_or_default();
        let left = [stats.ready, stats.delayed, stats.leased, stats.parked, stats.dead];
        let is_empty = left.iter().all(|count| *count == 0);
        Ok(Self { is_empty, ..Self::read(inbox, &config)? })
    }

    fn read(inbox: &Inbox, config: &QueueConfig) -> Result<Self, Error> {
        let needed = config.retention_ms.map(Duration::from_millis);
        let kept = match (inbox.wanted_retention(), needed) {
            (Retention::Forever, _) => None,
            (Retention::OfQueue, needed) => needed,
            (Retention::Of(kept), Some(needed)) if kept >= needed => Some(kept),
            (Retention::Of(kept), needed) => {
                return Err(Error::ForgetsTooEarly {
                    consumer: inbox.consumer().to_owned(),
                    queue: inbox.queue().to_owned(),
                    kept,
                    needed,
                });
            }
        };
        Ok(Self {
            kept,
            result_bytes_max: config.max_body_bytes,
            allows_no_key: config.guarantee != Guarantee::ExactlyOnce,
            is_empty: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbox::Consumer;

    const DAY: Duration = Duration::from_secs(86_400);

    #[track_caller]
    fn check(consumer: Consumer, config: &QueueConfig, expected: Result<Option<Duration>, &str>) {
        let read = Rules::read(&consumer.inbox("orders").unwrap(), config);
        match (read, expected) {
            (Ok(rules), Ok(expected)) => assert_eq!(rules.kept, expected),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (read, expected) => panic!("{read:?}, not {expected:?}"),
        }
    }

    #[test]
    fn an_inbox_follows_its_queue_where_nothing_is_said() {
        check(Consumer::new("billing"), &QueueConfig::default(), Ok(Some(7 * DAY)));
    }

    #[test]
    fn an_inbox_that_forgets_before_its_queue_is_refused() {
        check(Consumer::new("billing").retention(6 * DAY), &QueueConfig::default(), Err("7 d"));
        check(
            Consumer::new("billing").retention(8 * DAY),
            &QueueConfig::default(),
            Ok(Some(8 * DAY)),
        );
    }

    #[test]
    fn a_queue_that_never_forgets_needs_an_inbox_that_never_does() {
        let config = QueueConfig { retention_ms: None, ..QueueConfig::default() };
        check(Consumer::new("billing"), &config, Ok(None));
        check(Consumer::new("billing").keep_for_ever(), &config, Ok(None));
        check(Consumer::new("billing").retention(365 * DAY), &config, Err("for ever"));
    }
}
