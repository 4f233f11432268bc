//! Whether the queue of a layer is fit for it.

use std::time::Duration;

use hapax_client::{Admin, Error};
use serde_json::Value;

use crate::layer::Idempotency;
use crate::limits::HEADERS_BYTES_MAX;

/// What matters here of a queue's rules.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueRules {
    /// A key whose process died stays taken until somebody resolves it (`on_lost` is `park`),
    /// instead of being free when its lease is over.
    pub parks: bool,
    /// How long a response is remembered; `None` for ever.
    pub retention: Option<Duration>,
    /// The largest result.
    pub max_body_bytes: u64,
    /// Whether keys can be claimed in it at all.
    pub takes_claims: bool,
}

impl QueueRules {
    /// Reads a queue's configuration, as the broker shows it.
    pub fn of_json(config: &str) -> Option<Self> {
        let config: Value = serde_json::from_str(config).ok()?;
        let retention = config.get("retention_ms")?;
        Some(Self {
            parks: config.get("on_lost")?.as_str()? == "park",
            retention: retention.as_u64().map(Duration::from_millis),
            max_body_bytes: config.get("max_body_bytes")?.as_u64()?,
            takes_claims: config.get("guarantee")?.as_str()? != "at-most-once",
        })
    }
}

impl Idempotency {
    /// What is wrong with the queue, in words; nothing where it is fit. Worth a call at start:
    /// a queue that cannot remember is otherwise noticed with the first request.
    pub async fn check_queue(&self) -> Result<(QueueRules, Vec<String>), Error> {
        let rules = self.rules();
        let queue = Admin::new(rules.queue.client().clone()).queue(rules.queue.name()).await?;
        let found = QueueRules::of_json(&queue.config_json).ok_or_else(|| {
            Error::Invalid("the broker shows a queue in a way that is not understood".to_owned())
        })?;
        let mut wrong = Vec::new();
        if !found.takes_claims {
            wrong
                .push("its guarantee is at-most-once, and such a queue takes no claims".to_owned());
        }
        let needed = (rules.response_bytes_max + HEADERS_BYTES_MAX) as u64;
        if found.max_body_bytes < needed {
            wrong.push(format!(
                "its max_body_bytes is {}, and responses of up to {} bytes with their headers \
                 need {needed}",
                found.max_body_bytes, rules.response_bytes_max
            ));
        }
        Ok((found, wrong))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matters_of_a_queue_is_read_from_its_configuration() {
        let config = r#"{"guarantee":"exactly-once","retention_ms":null,"on_lost":"park",
            "max_body_bytes":100}"#;
        let rules = QueueRules::of_json(config).unwrap();
        assert!(rules.parks && rules.takes_claims);
        assert_eq!((rules.retention, rules.max_body_bytes), (None, 100));
        let lossy = config.replace("exactly-once", "at-most-once").replace("park", "redeliver");
        let rules = QueueRules::of_json(&lossy).unwrap();
        assert!(!rules.parks && !rules.takes_claims);
        assert_eq!(QueueRules::of_json("{}"), None);
    }
}
