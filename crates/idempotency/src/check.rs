//! Whether the queue of a layer is fit for it.

use hapax_client::{Admin, Error};
use hapax_wire::{Guarantee, QueueConfig};

use crate::layer::Idempotency;
use crate::limits::HEADERS_BYTES_MAX;

impl Idempotency {
    /// The queue's rules and what is wrong with them, in words; nothing where it is fit. Worth a
    /// call at start: a queue that cannot remember is otherwise noticed with the first request.
    pub async fn check_queue(&self) -> Result<(QueueConfig, Vec<String>), Error> {
        let rules = self.rules();
        let queue = Admin::new(rules.queue.client().clone()).queue(rules.queue.name()).await?;
        let found = queue.config().map_err(|error| {
            Error::Invalid(format!("the configuration of {} cannot be read: {error}", queue.queue))
        })?;
        let mut wrong = Vec::new();
        if found.guarantee == Guarantee::AtMostOnce {
            wrong.push(
                "its guarantee is at-most-once, and such a queue does not support claims"
                    .to_owned(),
            );
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
