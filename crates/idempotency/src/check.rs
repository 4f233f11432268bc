//! Checks that a queue is suitable for the layer.

use hapax_client::{Admin, Error};
use hapax_wire::{Guarantee, QueueConfig};

use crate::layer::Idempotency;
use crate::limits::HEADERS_BYTES_MAX;

impl Idempotency {
    /// Returns the queue's configuration and a list of what is wrong with it, which is empty if it
    /// is suitable. Call it at start; otherwise an unsuitable queue is noticed with the first
    /// request.
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
