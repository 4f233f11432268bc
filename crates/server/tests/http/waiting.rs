//! Sends, claims, looks and receives that wait are woken by what they wait for.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::broker::{Answered, Broker, get, post, send};

/// Waits until a look at the key shows it in a state.
pub(crate) async fn until_state(broker: &Broker, key: &str, state: &str) {
    loop {
        let told = broker.ask(get(&format!("/v1/queues/orders/keys/{key}"))).await;
        if told.status == 200 && told.is(200)["state"] == state {
            return;
        }
        tokio::task::yield_now().await;
    }
}

fn start(broker: &Arc<Broker>, ask: super::broker::Ask) -> tokio::task::JoinHandle<Answered> {
    let broker = Arc::clone(broker);
    tokio::spawn(async move { broker.ask(ask).await })
}

#[tokio::test]
async fn a_first_send_that_waits_gets_its_workers_result() {
    let broker = Arc::new(Broker::with_queue("{}").await);
    let first = start(&broker, send("orders", "k", "x").header("prefer", "wait=30"));
    let message = broker.receive_one("orders").await;
    let second = start(&broker, send("orders", "k", "x").header("prefer", "wait=30"));
    let done = json!({"lease": message["lease"], "do": "done", "result": {"body": "r"}});
    broker.settle("orders", done).await;
    let first = first.await.unwrap();
    let answer = first.is(201);
    assert_eq!((&answer["answer"], &answer["result"]["body"]), (&json!("done"), &json!("r")));
    assert_eq!(answer["key"], "k");
    assert_eq!(first.header("idempotency-replayed"), "");
    assert_eq!(first.header("preference-applied"), "wait=30");
    let second = second.await.unwrap();
    assert_eq!(second.is(200)["result"]["body"], "r");
    assert_eq!(second.header("idempotency-replayed"), "true");
}

#[tokio::test]
async fn a_wait_ends_with_the_death_of_the_message_too() {
    let broker = Arc::new(Broker::with_queue("{}").await);
    let waiting = start(&broker, send("orders", "k", "x").header("prefer", "wait=30"));
    let message = broker.receive_one("orders").await;
    let fail = json!({"lease": message["lease"], "do": "fail", "error": "no", "dead": true});
    broker.settle("orders", fail).await;
    let answer = waiting.await.unwrap().is(201);
    assert_eq!((&answer["answer"], &answer["error"]), (&json!("dead"), &json!("no")));
}

#[tokio::test]
async fn a_wait_that_is_over_says_how_it_stands() {
    let broker = Broker::with_queue("{}").await;
    let told = broker.ask(send("orders", "k", "x").header("prefer", "wait=1")).await.is(201);
    assert_eq!((&told["answer"], &told["state"]), (&json!("accepted"), &json!("ready")));
    let again = broker.ask(send("orders", "k", "x").header("prefer", "wait=1")).await.is(200);
    assert_eq!((&again["answer"], &again["attempts"]), (&json!("in_flight"), &json!(0)));
}

#[tokio::test]
async fn a_receive_is_woken_by_a_send() {
    let broker = Arc::new(Broker::with_queue("{}").await);
    let receive = post("/v1/queues/orders/receive", r#"{"max":5,"wait_ms":30000}"#);
    let waiting = start(&broker, receive);
    tokio::task::yield_now().await;
    broker.send("orders", "k", "x").await;
    let received = waiting.await.unwrap().is(200);
    assert_eq!(received["messages"][0]["key"], "k");
}

#[tokio::test]
async fn a_look_waits_for_the_end() {
    let broker = Arc::new(Broker::with_queue("{}").await);
    broker.send("orders", "k", "x").await;
    let look = start(&broker, get("/v1/queues/orders/keys/k?wait_ms=30000"));
    let message = broker.receive_one("orders").await;
    broker.settle("orders", json!({"lease": message["lease"], "do": "done"})).await;
    assert_eq!(look.await.unwrap().is(200)["state"], "done");
    let over = broker.ask(get("/v1/queues/orders/keys/none?wait_ms=30000")).await;
    over.fails(404, "no_such_key");
}

#[tokio::test]
async fn who_goes_away_while_waiting_takes_no_message_along() {
    let broker = Arc::new(Broker::with_queue("{}").await);
    let receive = post("/v1/queues/orders/receive", r#"{"wait_ms":60000}"#);
    let mut waiting = start(&broker, receive);
    tokio::time::timeout(Duration::from_millis(50), &mut waiting).await.unwrap_err();
    waiting.abort();
    let waiting = start(&broker, send("orders", "k", "x").header("prefer", "wait=60"));
    until_state(&broker, "k", "ready").await;
    waiting.abort();
    let message = broker.receive_one("orders").await;
    assert_eq!((&message["key"], &message["attempt"]), (&json!("k"), &json!(1)));
}

#[tokio::test]
async fn a_claim_waits_for_the_one_who_has_the_key() {
    let broker = Arc::new(Broker::with_queue("{}").await);
    let claim = || {
        post("/v1/queues/orders/claims", "{}")
            .header("idempotency-key", "k")
            .header("prefer", "wait=30")
    };
    let first = broker.ask(claim()).await.is(201);
    let second = start(&broker, claim());
    tokio::task::yield_now().await;
    let done = json!({"lease": first["lease"], "do": "done", "result": {"body": "once"}});
    broker.settle("orders", done).await;
    assert_eq!(second.await.unwrap().is(200)["result"]["body"], "once");
}
