//! Several nodes of one broker: the client finds the one that serves, and follows.

use std::collections::HashSet;
use std::sync::Arc;

use hapax_client::{Admin, Claim, Client, Done, Message, Worker};
use hapax_testing::{PATIENCE, TestQueue, TestStandby, in_time};
use tokio::sync::Notify;

use crate::workers::Running;

/// An address at which nobody listens.
const NOBODY: &str = "http://127.0.0.1:1";

fn client(addresses: &[&str]) -> Client {
    Client::builder(&addresses.join(",")).timeout(PATIENCE).connect().unwrap()
}

/// Sends, looks up, claims and works through a client.
async fn uses_everything(client: &Client) {
    let queue = client.queue("orders");
    let answer = in_time(queue.send(Message::new("lemons").key("order-42"))).await.unwrap();
    let again = in_time(queue.send(Message::new("lemons").key("order-42"))).await.unwrap();
    assert_eq!(answer.id, again.id);
    assert_eq!(in_time(Admin::new(client.clone()).queue("orders")).await.unwrap().queue, "orders");
    let done = Arc::new(Notify::new());
    let handled = Arc::clone(&done);
    let worker = Running::start(Worker::new(queue), move |_, _| {
        handled.notify_one();
        async { Ok(Done::new().result("pressed")) }
    });
    in_time(done.notified()).await;
    worker.stop().await;
}

#[tokio::test]
async fn a_standby_names_the_serving_node_and_the_client_goes_there() {
    let broker = TestQueue::open(1, "orders", "{}").await;
    let standby = TestStandby::start(Some(&broker.url())).await;
    // The serving node is not in the list.
    uses_everything(&client(&[&standby.url()])).await;
}

#[tokio::test]
async fn a_node_that_is_not_there_and_one_that_knows_nobody_are_passed_over() {
    let broker = TestQueue::open(1, "orders", "{}").await;
    let standby = TestStandby::start(None).await;
    uses_everything(&client(&[NOBODY, &standby.url(), &broker.url()])).await;
    // One call is enough, for callers that retry nothing.
    let admin = Admin::new(client(&[NOBODY, &standby.url(), &broker.url()]));
    assert_eq!(in_time(admin.queue("orders")).await.unwrap().queue, "orders");
}

#[tokio::test]
async fn two_nodes_that_name_each_other_end_a_call_and_not_the_client() {
    let broker = TestQueue::open(1, "orders", "{}").await;
    let first = TestStandby::start(None).await;
    let second = TestStandby::start(Some(&first.url())).await;
    first.name(Some(&second.url()));
    let client = client(&[&first.url(), &second.url()]);
    let error = in_time(Admin::new(client.clone()).queues()).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(error.to_string().contains("this node is a standby"), "{error}");
    first.name(Some(&broker.url()));
    second.name(Some(&broker.url()));
    uses_everything(&client).await;
}

#[tokio::test]
async fn streams_follow_when_the_serving_node_goes_and_nothing_is_sent_twice() {
    let mut broker = TestQueue::open(1, "orders", "{}").await;
    let standby = TestStandby::start(Some(&broker.url())).await;
    let client = client(&[&standby.url(), &broker.url()]);
    let queue = client.queue("orders");
    let mut ids = HashSet::new();
    for round in 0..3 {
        for number in 0..50 {
            let message = Message::new("lemons").key(format!("{round}-{number}"));
            ids.insert(in_time(queue.send(message)).await.unwrap().id);
        }
        // It goes, and what is sent meanwhile waits for it.
        broker.stop().await;
        let key = format!("{round}-late");
        let late = tokio::spawn({
            let (queue, key) = (queue.clone(), key.clone());
            async move { queue.send(Message::new("late").key(key)).await }
        });
        broker.start_again().await;
        ids.insert(in_time(late).await.unwrap().unwrap().id);
    }
    assert_eq!(ids.len(), 3 * 51);
    let stats = in_time(Admin::new(client).queue("orders")).await.unwrap().stats.unwrap();
    assert_eq!(stats.ready, 3 * 51);
}

#[tokio::test]
async fn a_claim_follows_too() {
    let broker = TestQueue::open(1, "payments", "{}").await;
    let standby = TestStandby::start(Some(&broker.url())).await;
    let queue = client(&[&standby.url()]).queue("payments");
    let claim = in_time(queue.claim("payment-7").take()).await.unwrap();
    assert!(matches!(claim, Claim::Fresh(_)), "{claim:?}");
}
