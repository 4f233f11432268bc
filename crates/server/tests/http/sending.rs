//! Sends: the key in its forms, headers, bytes, dates, quotas.

use serde_json::json;

use super::house::{House, ask, get, send, text};

#[tokio::test]
async fn a_key_is_the_same_in_both_forms() {
    let house = House::with_queue("{}").await;
    let first = house.send("orders", r#""a \"b\" \\c, d""#, "x").await;
    assert_eq!(first["key"], r#"a "b" \c, d"#);
    let bare = house.send("orders", "größe-1", "x").await;
    assert_eq!(bare["key"], "größe-1");
    let quoted = house.ask(send("orders", "\"größe-1\"", "x")).await.is(200);
    assert_eq!(quoted["id"], bare["id"]);
}

#[tokio::test]
async fn a_malformed_key_is_refused_in_every_form() {
    let house = House::with_queue("{}").await;
    for key in ["", "\"\"", "\"open", "\"a\"b", "a b", "a,b", "\"a\", \"b\"", "a\"b"] {
        house.ask(send("orders", key, "x")).await.fails(400, "malformed_key");
    }
    house.ask(send("orders", &"k".repeat(256), "x")).await.fails(400, "malformed_key");
    house.send("orders", &"k".repeat(255), "x").await;
    let raw = ask("POST", "/v1/queues/orders/messages").header("idempotency-key", b"\xff\xfe");
    house.ask(raw).await.fails(400, "malformed_key");
    let twice = send("orders", "a", "x").header("Idempotency-Key", "a");
    house.ask(twice).await.fails(400, "malformed_key");
}

#[tokio::test]
async fn a_header_that_looks_like_the_key_is_not_taken_for_it() {
    let house = House::with_queue("{}").await;
    for name in ["x-idempotency-key", "idempotency_key", "idempotencykey", "idempotency-keys"] {
        let told = house.ask(ask("POST", "/v1/queues/orders/messages").header(name, "k")).await;
        let problem = told.fails(400, "missing_key");
        assert!(text(&problem, "detail").contains(name), "{problem}");
    }
    let stats = house.ask(get("/v1/queues/orders")).await.is(200);
    assert_eq!(stats["stats"]["sent_total"], 0);
}

#[tokio::test]
async fn a_key_may_be_missing_where_the_queue_says_so() {
    let house = House::with_queue(r#"{"guarantee":"at-least-once"}"#).await;
    let keyless = || ask("POST", "/v1/queues/orders/messages").body("x");
    let one = house.ask(keyless()).await.is(201);
    let two = house.ask(keyless()).await.is(201);
    assert_eq!(one["key"], one["id"], "the key is made up");
    assert_ne!(one["id"], two["id"]);
    let message = house.receive_one("orders").await;
    assert_eq!(message["key"], one["key"]);
    let found = house.key("orders", text(&two, "key")).await;
    assert_eq!(found["state"], "ready");
}

#[tokio::test]
async fn the_worker_gets_what_was_sent() {
    let house = House::with_queue("{}").await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let ask = send("orders", "k", "{\"a\":1}")
        .header("content-type", "application/json; charset=utf-8")
        .header("hapax-group", "customer-7")
        .header("Hapax-Header-Region", "eu")
        .header("hapax-header-tags", "a")
        .header("hapax-header-tags", "b")
        .header("traceparent", trace)
        .header("x-other", "not kept");
    house.ask(ask).await.is(201);
    let message = house.receive_one("orders").await;
    assert_eq!(message["body"], "{\"a\":1}");
    assert_eq!(message["content_type"], "application/json; charset=utf-8");
    assert_eq!(message["group"], "customer-7");
    let expected = json!({"region": "eu", "tags": "a, b", "traceparent": trace});
    assert_eq!(message["headers"], expected);
}

#[tokio::test]
async fn a_conflict_names_everything_that_differs() {
    let house = House::with_queue("{}").await;
    let first = send("orders", "k", "x").header("content-type", "a/b").header("hapax-group", "g");
    house.ask(first).await.is(201);
    let other = send("orders", "k", "y").header("content-type", "c/d").header("hapax-group", "h");
    let problem = house.ask(other).await.fails(422, "conflict");
    assert_eq!(problem["differs"], json!(["body", "group"]));
    let own = send("orders", "k", "x").header("hapax-fingerprint", "v1");
    let problem = house.ask(own).await.fails(422, "conflict");
    assert_eq!(problem["differs"], json!(["fingerprint"]));
}

#[tokio::test]
async fn a_fingerprint_of_ones_own_forgives_noise_in_the_body() {
    let house = House::with_queue("{}").await;
    let noisy = |body: &str| send("orders", "k", body).header("hapax-fingerprint", "order 42 v1");
    let first = house.ask(noisy("at 10:00")).await.is(201);
    let again = house.ask(noisy("at 10:01")).await.is(200);
    assert_eq!(again["id"], first["id"]);
    let long = send("orders", "l", "x").header("hapax-fingerprint", "f".repeat(256));
    house.ask(long).await.fails(400, "invalid");
}

#[tokio::test]
async fn a_body_that_is_not_text_comes_back_as_base64() {
    let house = House::with_queue("{}").await;
    let ask = ask("POST", "/v1/queues/orders/messages").header("idempotency-key", "k");
    house.ask(ask.body(vec![0xff, 0x00, 0x7f])).await.is(201);
    let message = house.receive_one("orders").await;
    assert_eq!(message["body_base64"], "/wB/");
    assert!(message.get("body").is_none());
    let done = json!({"lease": message["lease"], "do": "done",
                      "result": {"body_base64": "AP8="}});
    house.settle("orders", done).await;
    let key = house.key("orders", "k").await;
    assert_eq!(key["result"], json!({"body_base64": "AP8="}));
}

#[tokio::test]
async fn a_delay_a_time_to_live_and_a_date_are_heard() {
    let house = House::with_queue("{}").await;
    let delayed = send("orders", "later", "x").header("hapax-delay-ms", "600000");
    assert_eq!(house.ask(delayed).await.is(201)["state"], "delayed");
    let again = house.ask(send("orders", "later", "x")).await.is(200);
    assert!(text(&again, "deadline") > text(&again, "accepted_at"));
    for (name, value) in [
        ("hapax-delay-ms", "-5"),
        ("hapax-delay-ms", "99999999999999"),
        ("hapax-ttl-ms", "0"),
        ("hapax-ttl-ms", "1s"),
        ("hapax-issued-at", "yesterday"),
        ("hapax-group", ""),
    ] {
        house.ask(send("orders", "bad", "x").header(name, value)).await.fails(400, "invalid");
    }
    let old = send("orders", "old", "x").header("hapax-issued-at", "2020-01-01T00:00:00Z");
    house.ask(old).await.fails(410, "too_old");
    let recent = send("orders", "recent", "x");
    let now = text(&again, "accepted_at");
    house.ask(recent.header("hapax-issued-at", now)).await.is(201);
}

#[tokio::test]
async fn dated_keys_only_where_the_queue_says_so() {
    let house = House::with_queue(r#"{"undated_keys":"refuse"}"#).await;
    house.ask(send("orders", "k", "x")).await.fails(422, "undated_key");
    house
        .ask(send("orders", "01234567-89ab-7def-8123-456789abcdef", "x"))
        .await
        .fails(422, "undated_key");
}

#[tokio::test]
async fn quotas_and_rates_are_refused_as_retryable() {
    let house = House::open();
    house.put("small", r#"{"max_messages":1}"#).await;
    house.send("small", "a", "x").await;
    let full = house.ask(send("small", "b", "x")).await;
    full.fails(429, "over_quota");
    assert_eq!(full.header("retry-after"), "1");
    house.ask(send("small", "a", "x")).await.is(200);
    house.put("slow", r#"{"sends_per_s":1}"#).await;
    house.send("slow", "a", "x").await;
    let mut refused = None;
    for n in 0..50 {
        let told = house.ask(send("slow", &format!("b{n}"), "x")).await;
        if told.status == 429 {
            refused = Some(told);
            break;
        }
    }
    refused.unwrap().fails(429, "rate_limited");
    house.put("narrow", r#"{"max_body_bytes":4}"#).await;
    house.send("narrow", "a", "four").await;
    house.ask(send("narrow", "b", "fives")).await.fails(413, "too_large");
}

#[tokio::test]
async fn the_callers_request_id_comes_back_and_a_wild_one_does_not() {
    let house = House::with_queue("{}").await;
    let told = house.ask(send("orders", "k", "x").header("request-id", "req-7.a")).await;
    assert_eq!(told.header("request-id"), "req-7.a");
    let told = house.ask(send("orders", "k", "y").header("request-id", "req 8 \"x\"")).await;
    assert_eq!(told.header("request-id").len(), 36);
    assert_eq!(told.fails(422, "conflict")["request_id"], told.header("request-id"));
    let page = house.ask(get("/livez")).await;
    assert_eq!(page.header("request-id").len(), 36);
}
