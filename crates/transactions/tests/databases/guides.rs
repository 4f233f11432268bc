//! The programs of the guides do what the guides say.

use hapax_testing::{TestQueue, in_time};

#[expect(dead_code, reason = "its main is for the command line")]
#[path = "../../examples/inbox.rs"]
mod inbox;
#[expect(dead_code, reason = "its main is for the command line")]
#[path = "../../examples/outbox.rs"]
mod outbox;

on_each!(the_program_of_the_inbox_takes_the_money_once, flavor = "multi_thread");
async fn the_program_of_the_inbox_takes_the_money_once(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    let server = broker.client.address().to_owned();
    let (euro, result) = in_time(inbox::run(&server, broker.path())).await.unwrap();
    assert_eq!((euro, result.as_str()), (83, "17 euro taken"));
    broker.stop().await;
}

on_each!(the_program_of_the_outbox_sends_what_is_committed, flavor = "multi_thread");
async fn the_program_of_the_outbox_sends_what_is_committed(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    let server = broker.client.address().to_owned();
    let (orders, moved) = in_time(outbox::run(&server, broker.path())).await.unwrap();
    assert_eq!((orders, moved), (1, 2));
    assert_eq!(broker.stats().await.ready, 2);
    broker.stop().await;
}
