//! Messages of the queue `orders`, and rules for it.

use hapax_client::{Batch, Delivery, Message};
use hapax_testing::{TestQueue, in_time};

/// Leases that end soon, attempts that never do.
pub(crate) const HASTY: &str =
    r#"{"lease_ms":1000,"max_attempts":1000,"backoff_min_ms":0,"backoff_max_ms":50}"#;

/// Failed attempts come again at once; leases hold on a busy machine too.
pub(crate) const AGAIN_AT_ONCE: &str =
    r#"{"max_attempts":1000,"backoff_min_ms":0,"backoff_max_ms":50}"#;

pub(crate) async fn send(broker: &TestQueue, key: &str) {
    broker.queue().send(Message::new(format!("body of {key}")).key(key)).await.unwrap();
}

/// Takes one message by hand.
pub(crate) async fn take(broker: &TestQueue) -> Delivery {
    let mut work = broker.queue().work().open();
    work.credit(1);
    let mut batch = Batch::default();
    while batch.deliveries.is_empty() {
        in_time(work.next(&mut batch)).await.unwrap();
    }
    batch.deliveries.remove(0)
}
