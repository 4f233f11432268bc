//! One walk through everything that API.md promises, in its order.

use serde_json::{Value, json};

use super::broker::{Broker, ask, get, post, put, send, text};

#[tokio::test]
async fn a_message_is_accepted_once_and_contradicted_by_another_body() {
    let broker = Broker::open();
    let created = broker.ask(put("/v1/queues/orders", "{}")).await;
    assert_eq!(created.is(201)["queue"], "orders");
    assert!(!created.header("etag").is_empty());

    let first = broker.ask(send("orders", "\"order-42\"", "one coffee")).await;
    let accepted = first.is(201);
    assert_eq!(accepted["answer"], "accepted");
    assert_eq!(accepted["queue"], "orders");
    assert_eq!(accepted["key"], "order-42");
    assert_eq!(accepted["state"], "ready");
    assert!(text(&accepted, "accepted_at").ends_with('Z'));
    assert_eq!(first.header("idempotency-replayed"), "");

    let again = broker.ask(send("orders", "order-42", "one coffee")).await;
    let in_flight = again.is(200);
    assert_eq!((&in_flight["answer"], &in_flight["attempts"]), (&json!("in_flight"), &json!(0)));
    assert_eq!(in_flight["id"], accepted["id"]);
    assert_eq!(in_flight["accepted_at"], accepted["accepted_at"]);
    assert_eq!(again.header("idempotency-replayed"), "true");

    let other = broker.ask(send("orders", "order-42", "two coffees")).await;
    let conflict = other.fails(422, "conflict");
    assert_eq!(conflict["differs"], json!(["body"]));
    assert_eq!(conflict["id"], accepted["id"]);
    assert_eq!(conflict["accepted_at"], accepted["accepted_at"]);
    assert_eq!(conflict["retryable"], false);
}

#[tokio::test]
async fn a_message_is_worked_on_and_its_result_is_every_later_answer() {
    let broker = Broker::with_queue("{}").await;
    let accepted = broker.send("orders", "order-42", "one coffee").await;
    let message = broker.receive_one("orders").await;
    assert_eq!(message["body"], "one coffee");
    assert_eq!(message["id"], accepted["id"]);
    assert_eq!((&message["attempt"], &message["generation"]), (&json!(1), &json!(0)));
    assert_eq!(message["recovery_points"], json!({}));
    let leased = broker.ask(send("orders", "order-42", "one coffee")).await.is(200);
    assert_eq!((&leased["state"], &leased["attempts"]), (&json!("leased"), &json!(1)));

    let done = json!({"lease": message["lease"], "do": "done",
                      "result": {"body": "served", "content_type": "text/plain"}});
    assert_eq!(broker.settle("orders", done.clone()).await, json!({"answer": "ok"}));
    assert_eq!(broker.settle("orders", done).await, json!({"answer": "ok"}), "twice is once");

    let late = broker.ask(send("orders", "order-42", "one coffee")).await;
    let finished = late.is(200);
    assert_eq!(finished["answer"], "done");
    assert_eq!(finished["result"], json!({"body": "served", "content_type": "text/plain"}));
    assert_eq!((&finished["state"], &finished["attempts"]), (&json!("done"), &json!(1)));
    assert!(text(&finished, "remembered_until") > text(&finished, "finished_at"));
    assert_eq!(late.header("idempotency-replayed"), "true");

    let key = broker.key("orders", "order-42").await;
    assert_eq!((&key["state"], &key["duplicates"]), (&json!("done"), &json!(2)));
    assert_eq!((&key["result"]["body"], &key["worker"]), (&json!("served"), &json!("w1")));
    check_history(&key);
}

#[track_caller]
fn check_history(key: &Value) {
    let events: Vec<&str> =
        key["history"].as_array().unwrap().iter().map(|event| text(event, "event")).collect();
    for event in ["sent", "duplicate", "leased", "done"] {
        assert!(events.contains(&event), "{event} in {events:?}");
    }
    for field in [
        "key",
        "id",
        "state",
        "attempts",
        "generation",
        "group",
        "accepted_at",
        "finished_at",
        "remembered_until",
        "duplicates",
        "result",
        "error",
        "recovery_points",
        "history",
    ] {
        assert!(key.get(field).is_some(), "{field} is there, if only as null");
    }
}

#[tokio::test]
async fn a_queue_is_counted_paused_purged_and_deleted() {
    let broker = Broker::with_queue("{}").await;
    for key in ["a", "b", "c"] {
        broker.send("orders", key, "x").await;
    }
    broker.ask(send("orders", "a", "x")).await.is(200);
    let message = broker.receive_one("orders").await;
    broker.settle("orders", json!({"lease": message["lease"], "do": "done"})).await;
    let stats = broker.ask(get("/v1/queues/orders")).await.is(200)["stats"].clone();
    for (name, count) in [
        ("ready", 2),
        ("delayed", 0),
        ("leased", 0),
        ("parked", 0),
        ("dead", 0),
        ("keys", 1),
        ("sent_total", 3),
        ("duplicate_total", 1),
        ("done_total", 1),
        ("failed_total", 0),
        ("lease_lost_total", 0),
    ] {
        assert_eq!(stats[name], count, "{name} in {stats}");
    }
    assert!(stats["oldest_ready_age_ms"].is_u64());

    let paused = broker.ask(ask("POST", "/v1/queues/orders/pause")).await.is(200);
    assert_eq!(paused["paused"], true);
    let nothing = broker.ask(post("/v1/queues/orders/receive", "{}")).await.is(200);
    assert_eq!(nothing, json!({"messages": []}));
    let resumed = broker.ask(ask("POST", "/v1/queues/orders/resume")).await.is(200);
    assert_eq!(resumed["paused"], false);

    broker.ask(ask("POST", "/v1/queues/orders/purge")).await.is(200);
    // A purged key is remembered: its operation was given up, not forgotten.
    let told = broker.ask(send("orders", "b", "x").header("prefer", "wait=30")).await.is(200);
    assert_eq!((&told["answer"], &told["error"]), (&json!("dead"), &json!("purged")));
    broker.ask(post("/v1/queues/orders/purge", r#"{"keys":true}"#)).await.is(200);
    broker.send("orders", "b", "x").await;

    let deleted = broker.ask(ask("DELETE", "/v1/queues/orders")).await;
    assert_eq!((deleted.status.as_u16(), deleted.body.len()), (204, 0));
    broker.ask(get("/v1/queues/orders")).await.fails(404, "no_such_queue");
    broker.ask(send("orders", "b", "x")).await.fails(404, "no_such_queue");
}
