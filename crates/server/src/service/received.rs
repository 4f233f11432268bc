//! The received messages of one answer.

use std::time::Duration;

use hapax_core::{Delivery, Receive};

use super::{Permit, Service};
use crate::problem::Problem;

/// Messages of a receive that were not sent yet. If the caller goes away, or the answer fails,
/// before [`Received::keep`], they are released at once. Under a `receive_id` they stay leased: a
/// repeated receive may hold them already.
#[derive(Debug)]
pub struct Received {
    service: Service,
    messages: Vec<Delivery>,
    keys_per_group: bool,
    has_id: bool,
}

impl Service {
    /// Like [`Service::receive`], for one answer; also returns whether keys belong to groups.
    pub async fn receive_list(
        &self,
        permit: &Permit,
        receive: Receive,
        wait: Duration,
    ) -> Result<Received, Problem> {
        let has_id = receive.receive_id.is_some();
        let messages = self.receive(permit, receive, wait).await?;
        let service = self.clone();
        let mut received = Received { service, messages, keys_per_group: false, has_id };
        // In a queue that deduplicates per group, every message has one.
        if received.messages.iter().any(|it| it.content.group().is_some()) {
            let is_per_group = self.is_per_group(permit).await.inspect_err(|problem| {
                let (queue, count) = (&*permit.queue.queue, received.messages.len());
                let detail = problem.detail.as_str();
                tracing::warn!(queue, count, detail, "received messages cannot be answered with");
            });
            received.keys_per_group = is_per_group?;
        }
        Ok(received)
    }
}

impl Received {
    pub fn messages(&self) -> &[Delivery] {
        &self.messages
    }

    /// Whether the queue deduplicates per group.
    pub fn keys_per_group(&self) -> bool {
        self.keys_per_group
    }

    /// The answer is complete: the messages now belong to the caller.
    pub fn keep(mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.messages)
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if !self.has_id && !self.messages.is_empty() {
            self.service.engine().give_back(std::mem::take(&mut self.messages));
        }
    }
}
