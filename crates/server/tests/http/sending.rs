//! Sends: the key in its forms, headers, bytes, dates, quotas.

use serde_json::json;

use super::broker::{Broker, ask, get, send, text};

#[tokio::test]
async fn a_key_is_the_same_in_both_forms() {
    let broker = Broker::with_queue("{}").await;
    let first = broker.send("orders", r#""a \"b\" \\c, d""#, "x").await;
    assert_eq!(first["key"], r#"a "b" \c, d"#);
    let bare = broker.send("orders", "größe-1", "x").await;
    assert_eq!(bare["key"], "größe-1");
    let quoted = broker.ask(send("orders", "\"größe-1\"", "x")).await.is(200);
    assert_eq!(quoted["id"], bare["id"]);
}

#[tokio::test]
async fn a_malformed_key_is_refused_in_every_form() {
    let broker = Broker::with_queue("{}").await;
    for key in ["", "\"\"", "\"open", "\"a\"b", "a b", "a,b", "\"a\", \"b\"", "a\"b"] {
        broker.ask(send("orders", key, "x")).await.fails(400, "malformed_key");
    }
    broker.ask(send("orders", &"k".repeat(256), "x")).await.fails(400, "malformed_key");
    broker.send("orders", &"k".repeat(255), "x").await;
    let raw = ask("POST", "/v1/queues/orders/messages").header("idempotency-key", b"\xff\xfe");
    broker.ask(raw).await.fails(400, "malformed_key");
    let twice = send("orders", "a", "x").header("Idempotency-Key", "a");
    broker.ask(twice).await.fails(400, "malformed_key");
}

#[tokio::test]
async fn a_header_that_looks_like_the_key_is_not_taken_for_it() {
    let broker = Broker::with_queue("{}").await;
    for name in ["x-idempotency-key", "idempotency_key", "idempotencykey", "idempotency-keys"] {
        let told = broker.ask(ask("POST", "/v1/queues/orders/messages").header(name, "k")).await;
        let problem = told.fails(400, "missing_key");
        assert!(text(&problem, "detail").contains(name), "{problem}");
    }
    let stats = broker.ask(get("/v1/queues/orders")).await.is(200);
    assert_eq!(stats["stats"]["sent_total"], 0);
}

#[tokio::test]
async fn a_key_may_be_missing_where_the_queue_says_so() {
    let broker = Broker::with_queue(r#"{"guarantee":"at-least-once"}"#).await;
    let keyless = || ask("POST", "/v1/queues/orders/messages").body("x");
    let one = broker.ask(keyless()).await.is(201);
    let two = broker.ask(keyless()).await.is(201);
    assert_eq!(one["key"], one["id"], "the key is made up");
    assert_ne!(one["id"], two["id"]);
    let message = broker.receive_one("orders").await;
    assert_eq!(message["key"], one["key"]);
    let found = broker.key("orders", text(&two, "key")).await;
    assert_eq!(found["state"], "ready");
}

#[tokio::test]
async fn the_worker_gets_what_was_sent() {
    let broker = Broker::with_queue("{}").await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let ask = send("orders", "k", "{\"a\":1}")
        .header("content-type", "application/json; charset=utf-8")
        .header("hapax-group", "customer-7")
        .header("Hapax-Header-Region", "eu")
        .header("hapax-header-tags", "a")
        .header("hapax-header-tags", "b")
        .header("traceparent", trace)
        .header("x-other", "not kept");
    broker.ask(ask).await.is(201);
    let message = broker.receive_one("orders").await;
    assert_eq!(message["body"], "{\"a\":1}");
    assert_eq!(message["content_type"], "application/json; charset=utf-8");
    assert_eq!(message["group"], "customer-7");
    let expected = json!({"region": "eu", "tags": "a, b", "traceparent": trace});
    assert_eq!(message["headers"], expected);
}

#[tokio::test]
async fn a_conflict_names_everything_that_differs() {
    let broker = Broker::with_queue("{}").await;
    let first = send("orders", "k", "x").header("content-type", "a/b").header("hapax-group", "g");
    broker.ask(first).await.is(201);
    let other = send("orders", "k", "y").header("content-type", "c/d").header("hapax-group", "h");
    let problem = broker.ask(other).await.fails(422, "conflict");
    assert_eq!(problem["differs"], json!(["body", "group"]));
    let own = send("orders", "k", "x").header("hapax-fingerprint", "v1");
    let problem = broker.ask(own).await.fails(422, "conflict");
    assert_eq!(problem["differs"], json!(["fingerprint"]));
}

#[tokio::test]
async fn a_fingerprint_of_ones_own_forgives_noise_in_the_body() {
    let broker = Broker::with_queue("{}").await;
    let noisy = |body: &str| send("orders", "k", body).header("hapax-fingerprint", "order 42 v1");
    let first = broker.ask(noisy("at 10:00")).await.is(201);
    let again = broker.ask(noisy("at 10:01")).await.is(200);
    assert_eq!(again["id"], first["id"]);
    let long = send("orders", "l", "x").header("hapax-fingerprint", "f".repeat(256));
    broker.ask(long).await.fails(400, "invalid");
}

#[tokio::test]
async fn a_body_that_is_not_text_comes_back_as_base64() {
    let broker = Broker::with_queue("{}").await;
    let ask = ask("POST", "/v1/queues/orders/messages").header("idempotency-key", "k");
    broker.ask(ask.body(vec![0xff, 0x00, 0x7f])).await.is(201);
    let message = broker.receive_one("orders").await;
    assert_eq!(message["body_base64"], "/wB/");
    assert!(message.get("body").is_none());
    let done = json!({"lease": message["lease"], "do": "done",
                      "result": {"body_base64": "AP8="}});
    broker.settle("orders", done).await;
    let key = broker.key("orders", "k").await;
    assert_eq!(key["result"], json!({"body_base64": "AP8="}));
}

#[tokio::test]
async fn a_delay_a_time_to_live_and_a_date_are_heard() {
    let broker = Broker::with_queue("{}").await;
    let delayed = send("orders", "later", "x").header("hapax-delay-ms", "600000");
    assert_eq!(broker.ask(delayed).await.is(201)["state"], "delayed");
    let again = broker.ask(send("orders", "later", "x")).await.is(200);
    assert!(text(&again, "deadline") > text(&again, "accepted_at"));
    for (name, value) in [
        ("hapax-delay-ms", "-5"),
        ("hapax-delay-ms", "99999999999999"),
        ("hapax-ttl-ms", "0"),
        ("hapax-ttl-ms", "1s"),
        ("hapax-issued-at", "yesterday"),
        ("hapax-group", ""),
    ] {
        broker.ask(send("orders", "bad", "x").header(name, value)).await.fails(400, "invalid");
    }
    let old = send("orders", "old", "x").header("hapax-issued-at", "2020-01-01T00:00:00Z");
    broker.ask(old).await.fails(410, "too_old");
    let recent = send("orders", "recent", "x");
    let now = text(&again, "accepted_at");
    broker.ask(recent.header("hapax-issued-at", now)).await.is(201);
}

#[tokio::test]
async fn dated_keys_only_where_the_queue_says_so() {
    let broker = Broker::with_queue(r#"{"undated_keys":"refuse"}"#).await;
    broker.ask(send("orders", "k", "x")).await.fails(422, "undated_key");
    broker
        .ask(send("orders", "01234567-89ab-7def-8123-456789abcdef", "x"))
        .await
        .fails(422, "undated_key");
}

#[tokio::test]
async fn quotas_and_rates_are_refused_as_retryable() {
    let broker = Broker::open();
    broker.put("small", r#"{"max_messages":1}"#).await;
    broker.send("small", "a", "x").await;
    let full = broker.ask(send("small", "b", "x")).await;
    full.fails(429, "over_quota");
    assert_eq!(full.header("retry-after"), "1");
    broker.ask(send("small", "a", "x")).await.is(200);
    broker.put("slow", r#"{"sends_per_s":1}"#).await;
    broker.send("slow", "a", "x").await;
    let mut refused = None;
    for n in 0..50 {
        let told = broker.ask(send("slow", &format!("b{n}"), "x")).await;
        if told.status == 429 {
            refused = Some(told);
            break;
        }
    }
    refused.unwrap().fails(429, "rate_limited");
    broker.put("narrow", r#"{"max_body_bytes":4}"#).await;
    broker.send("narrow", "a", "four").await;
    broker.ask(send("narrow", "b", "fives")).await.fails(413, "too_large");
}

#[tokio::test]
async fn the_callers_request_id_comes_back_and_a_wild_one_does_not() {
    let broker = Broker::with_queue("{}").await;
    let told = broker.ask(send("orders", "k", "x").header("request-id", "req-7.a")).await;
    assert_eq!(told.header("request-id"), "req-7.a");
    let told = broker.ask(send("orders", "k", "y").header("request-id", "req 8 \"x\"")).await;
    assert_eq!(told.header("request-id").len(), 36);
    assert_eq!(told.fails(422, "conflict")["request_id"], told.header("request-id"));
    let page = broker.ask(get("/livez")).await;
    assert_eq!(page.header("request-id").len(), 36);
}
