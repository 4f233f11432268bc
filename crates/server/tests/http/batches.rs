//! Batches: each message for itself.

use serde_json::{Value, json};

use super::broker::{Broker, post, text};

async fn batch(broker: &Broker, messages: Value) -> Vec<Value> {
    let json = json!({ "messages": messages }).to_string();
    let told = broker.ask(post("/v1/queues/orders/batch", &json)).await;
    told.is(200)["answers"].as_array().unwrap().clone()
}

fn kinds(answers: &[Value]) -> Vec<&str> {
    answers.iter().map(|answer| text(answer, "answer")).collect()
}

#[tokio::test]
async fn every_message_of_a_batch_is_answered_in_its_place() {
    let broker = Broker::with_queue(r#"{"max_body_bytes":10}"#).await;
    broker.send("orders", "known", "x").await;
    let answers = batch(
        &broker,
        json!([
            {"key": "a", "body": "x"},
            {"key": "known", "body": "x"},
            {"key": "known", "body": "other"},
            {"body": "no key"},
            {"key": "b\u{0}", "body": "x"},
            {"key": "c", "body": "x", "body_base64": "eA=="},
            {"key": "d", "body_base64": "not base64"},
            {"key": "e", "body": {"an": "object"}},
            {"key": "f", "delay_ms": -1},
            {"key": "g", "body": "much too large"},
            {"key": "h", "issued_at": "2020-01-01T00:00:00Z"},
            {"key": "i", "headers": {"n": 5}},
            {"key": "j", "fingerprint": ""},
            "not a message",
            {"key": "a", "body": "x"},
            {"key": "z", "body_base64": "/w==", "content_type": "image/x", "group": "g",
             "delay_ms": 0, "ttl_ms": 60000, "fingerprint": "f", "headers": {"n": "v"}},
        ]),
    )
    .await;
    let codes: Vec<&str> = answers
        .iter()
        .map(|answer| answer["code"].as_str().unwrap_or_else(|| text(answer, "answer")))
        .collect();
    let expected = [
        "accepted",
        "in_flight",
        "conflict",
        "missing_key",
        "malformed_key",
        "invalid",
        "invalid",
        "invalid",
        "invalid",
        "too_large",
        "too_old",
        "invalid",
        "invalid",
        "invalid",
        "in_flight",
        "accepted",
    ];
    assert_eq!(codes, expected);
    assert_eq!(answers[2]["answer"], "error");
    assert_eq!(answers[2]["key"], "known");
    assert_eq!(answers[2]["differs"], json!(["body"]));
    assert_eq!(answers[2]["id"], answers[1]["id"]);
    assert_eq!(answers[2]["retryable"], false);
    assert!(text(&answers[7], "detail").starts_with("body:"), "{}", answers[7]);
    assert!(text(&answers[8], "detail").starts_with("delay_ms:"), "{}", answers[8]);
    assert_eq!(answers[14]["id"], answers[0]["id"], "a duplicate within the batch");
    assert_eq!(answers[0]["queue"], "orders");
    let key = broker.key("orders", "z").await;
    assert_eq!(key["body_base64"], "/w==");
    assert_eq!((&key["group"], &key["headers"]), (&json!("g"), &json!({"n": "v"})));
    assert_eq!(key["content_type"], "image/x");
}

#[tokio::test]
async fn a_batch_is_bounded_in_messages_and_bytes() {
    let broker = Broker::with_queue("{}").await;
    let messages = |count: usize| -> Value {
        (0..count).map(|n| json!({"key": format!("k{n}"), "body": "x"})).collect()
    };
    let answers = batch(&broker, messages(1_000)).await;
    assert!(answers.iter().all(|answer| answer["answer"] == "accepted"));
    let many = json!({ "messages": messages(1_001) }).to_string();
    broker.ask(post("/v1/queues/orders/batch", &many)).await.fails(413, "too_large");
    let large = json!({"messages": [{"key": "l", "body": "x".repeat(8 * 1024 * 1024)}]});
    broker.ask(post("/v1/queues/orders/batch", &large.to_string())).await.fails(413, "too_large");
    assert_eq!(batch(&broker, json!([])).await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_batch_that_is_no_batch_is_refused_whole() {
    let broker = Broker::with_queue("{}").await;
    for json in ["{}", "[]", "{\"messages\":{}}", "{\"messages\":[{}", "nonsense", "\"\\ud800\""] {
        broker.ask(post("/v1/queues/orders/batch", json)).await.fails(400, "invalid");
    }
    let lost = post("/v1/queues/none/batch", r#"{"messages":[{"key":"a"}]}"#);
    broker.ask(lost).await.fails(404, "no_such_queue");
}

#[tokio::test]
async fn duplicates_of_finished_messages_get_their_results_as_far_as_they_fit() {
    let broker = Broker::with_queue("{}").await;
    let keys: Vec<String> = (0..10).map(|n| format!("k{n}")).collect();
    let messages: Value = keys.iter().map(|key| json!({"key": key, "body": "x"})).collect();
    batch(&broker, messages.clone()).await;
    let large = "r".repeat(1_000_000);
    for _ in &keys {
        let message = broker.receive_one("orders").await;
        let done = json!({"lease": message["lease"], "do": "done", "result": {"body": large}});
        assert_eq!(broker.settle("orders", done).await, json!({"answer": "ok"}));
    }
    let answers = batch(&broker, messages).await;
    assert_eq!(kinds(&answers), ["done"; 10]);
    let fit = answers.iter().filter(|answer| answer["result"]["body"] == large).count();
    let omitted = answers.iter().filter(|answer| answer["result_omitted"] == true).count();
    assert_eq!((fit, omitted), (8, 2));
    let alone = broker.key("orders", "k9").await;
    assert_eq!(alone["result"]["body"], large);
}
