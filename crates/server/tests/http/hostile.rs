//! What strangers send: too deep, too long, too slow, too much, in the wrong encoding.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use hapax_server::service::Options;
use serde_json::{Value, json};

use super::broker::{Broker, ask, get, post, put, send, text};

/// A body of unknown length, in parts.
fn chunked(parts: Vec<Bytes>) -> Body {
    Body::from_stream(futures_util::stream::iter(parts.into_iter().map(Ok::<_, Infallible>)))
}

#[tokio::test]
async fn deep_nesting_is_refused_without_falling() {
    let broker = Broker::with_queue("{}").await;
    let deep = "[".repeat(200_000);
    for path in ["receive", "settle", "batch", "redrive", "purge"] {
        let told = broker.ask(post(&format!("/v1/queues/orders/{path}"), &deep)).await;
        assert!(told.status.is_client_error(), "{path}: {}", told.text());
    }
    let object = "{\"a\":".repeat(10_000);
    broker.ask(put("/v1/queues/orders", &object)).await.fails(400, "invalid");
    let body = format!(r#"{{"messages":[{{"key":"k","body":{deep}{}}}]}}"#, "]".repeat(200_000));
    let told = broker.ask(post("/v1/queues/orders/batch", &body)).await.is(200);
    assert_eq!(told["answers"][0]["code"], "invalid");
}

#[tokio::test]
async fn numbers_beyond_all_bounds_are_refused() {
    let broker = Broker::with_queue("{}").await;
    for number in ["1e999", "-1", "18446744073709551616", "0.5", "1e-5", "NaN", "0x10", "01"] {
        for json in [
            format!(r#"{{"wait_ms":{number}}}"#),
            format!(r#"{{"max":{number}}}"#),
            format!(r#"{{"lease_ms":{number}}}"#),
        ] {
            broker.ask(post("/v1/queues/orders/receive", &json)).await.fails(400, "invalid");
        }
    }
    let largest = format!(r#"{{"max":1,"lease_ms":{}}}"#, u64::MAX);
    broker.ask(post("/v1/queues/orders/receive", &largest)).await.fails(400, "invalid");
    let wait = format!("/v1/queues/orders/keys/none?wait_ms={}", u64::MAX);
    broker.ask(get(&wait)).await.fails(404, "no_such_key");
    let delay = send("orders", "k", "x").header("hapax-delay-ms", u64::MAX.to_string());
    broker.ask(delay).await.fails(400, "invalid");
    let ttl = send("orders", "k", "x").header("hapax-ttl-ms", u64::MAX.to_string());
    broker.ask(ttl).await.is(201);
}

#[tokio::test]
async fn bytes_that_are_no_text_are_refused_where_text_is_meant() {
    let broker = Broker::with_queue("{}").await;
    let bad = b"{\"worker\":\"\xff\xfe\"}".to_vec();
    let told = broker.ask(post("/v1/queues/orders/receive", "").body(bad)).await;
    told.fails(400, "invalid");
    let name = send("orders", "k", "x").header("hapax-group", b"\xff");
    broker.ask(name).await.fails(400, "invalid");
    let kept = send("orders", "k", "x").header("hapax-header-a", b"\xff");
    broker.ask(kept).await.fails(400, "invalid");
    for query in ["group=%FF", "wait_ms=%00", "wait_ms=1&wait_ms=2"] {
        let told = broker.ask(get(&format!("/v1/queues/orders/keys/k?{query}"))).await;
        assert!(told.status.is_client_error(), "{query}: {}", told.text());
    }
    let nul = json!({"messages": [
        {"key": "a\u{0}", "body": "x"},
        {"key": "b", "group": "g\u{0}", "body": "\u{0}"},
        {"key": "c", "headers": {"n": "\u{0}"}},
        {"key": "d", "headers": {"": "v"}},
    ]});
    let told = broker.ask(post("/v1/queues/orders/batch", &nul.to_string())).await.is(200);
    let codes: Vec<&Value> =
        told["answers"].as_array().unwrap().iter().map(|answer| &answer["code"]).collect();
    assert_eq!(codes[0], "malformed_key");
    assert_eq!((codes[2], codes[3]), (&json!("invalid"), &json!("invalid")));
}

#[tokio::test]
async fn headers_given_twice_are_no_message() {
    let broker = Broker::with_queue("{}").await;
    for name in
        ["hapax-group", "hapax-delay-ms", "hapax-ttl-ms", "hapax-fingerprint", "content-type"]
    {
        let twice = send("orders", "k", "x").header(name, "1").header(name, "1");
        broker.ask(twice).await.fails(400, "invalid");
    }
    let twice =
        put("/v1/queues/orders", "{}").header("if-match", "\"1\"").header("if-match", "\"1\"");
    broker.ask(twice).await.fails(400, "invalid");
    let json = r#"{"messages":[{"key":"k","headers":{"a":"1","a":"2"}}]}"#;
    let told = broker.ask(post("/v1/queues/orders/batch", json)).await.is(200);
    assert_eq!(told["answers"][0]["code"], "invalid");
    let json = r#"{"max":1,"max":2}"#;
    broker.ask(post("/v1/queues/orders/receive", json)).await.fails(400, "invalid");
}

#[tokio::test]
async fn too_many_headers_for_a_message_are_refused() {
    let broker = Broker::with_queue("{}").await;
    let mut ask = send("orders", "k", "x");
    for n in 0..65 {
        ask = ask.header(&format!("hapax-header-{n}"), "v");
    }
    broker.ask(ask).await.fails(400, "invalid");
    let headers: Value =
        (0..300).map(|n| (n.to_string(), json!("v"))).collect::<serde_json::Map<_, _>>().into();
    let json = json!({"messages": [{"key": "k", "headers": headers}]}).to_string();
    let told = broker.ask(post("/v1/queues/orders/batch", &json)).await.is(200);
    assert_eq!(told["answers"][0]["code"], "invalid");
}

#[tokio::test]
async fn what_is_compressed_or_of_another_kind_is_not_read() {
    let broker = Broker::with_queue("{}").await;
    for encoding in ["gzip", "br", "identity, gzip", "deflate"] {
        let ask = send("orders", "k", "x").header("content-encoding", encoding);
        broker.ask(ask).await.fails(415, "invalid");
    }
    let plain = send("orders", "k", "x").header("content-encoding", "identity");
    broker.ask(plain).await.is(201);
    for kind in ["text/plain", "multipart/form-data", "application/xml", "nonsense"] {
        let ask = ask("POST", "/v1/queues/orders/receive").header("content-type", kind);
        broker.ask(ask.body("{}")).await.fails(415, "invalid");
    }
    for kind in ["application/json", "application/json; charset=utf-8", "application/x+json"] {
        let ask = ask("POST", "/v1/queues/orders/receive").header("content-type", kind);
        broker.ask(ask.body("{}")).await.is(200);
    }
}

/// A body that never ends, and how many of its parts, of a MiB each, were taken.
fn endless() -> (Body, Arc<AtomicU64>) {
    let taken = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&taken);
    let part = Bytes::from(vec![b'x'; 1024 * 1024]);
    let parts = futures_util::stream::repeat_with(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok::<_, Infallible>(part.clone())
    });
    (Body::from_stream(parts), taken)
}

#[tokio::test]
async fn no_more_of_a_body_is_taken_than_could_be_of_use() {
    let broker = Broker::with_queue("{}").await; // Which takes messages of a MiB.
    for (path, most) in [("messages", 2), ("batch", 9), ("settle", 9), ("claims", 17)] {
        let (body, taken) = endless();
        let mut ask = post(&format!("/v1/queues/orders/{path}"), "");
        if matches!(path, "messages" | "claims") {
            ask = ask.header("idempotency-key", "k");
        }
        let problem = broker.ask(ask.body(body)).await.fails(413, "too_large");
        let is_told_how = text(&problem, "detail").contains("Content-Length");
        assert_eq!(is_told_how, path == "settle", "{problem}");
        // Of the rest 4 MiB are thrown away, and the part that goes beyond.
        assert_eq!(taken.load(Ordering::Relaxed), most + 5, "{path}");
    }
    let told = send("orders", "k", "").header("content-length", (2 * 1024 * 1024).to_string());
    broker.ask(told).await.fails(413, "too_large");
    broker.ask(get("/v1/queues/orders/keys/k")).await.fails(404, "no_such_key");
}

#[tokio::test]
async fn a_large_claim_is_the_same_in_one_part_and_in_many() {
    let broker = Broker::with_queue("{}").await;
    let part = Bytes::from(vec![b'x'; 1024 * 1024]);
    let claim = || post("/v1/queues/orders/claims", "").header("idempotency-key", "k");
    broker.ask(claim().body(chunked(vec![part.clone(); 3]))).await.is(201);
    broker.ask(claim().body(vec![b'x'; 3 * 1024 * 1024])).await.fails(409, "in_flight");
    broker.ask(claim().body(chunked(vec![part; 4]))).await.fails(422, "conflict");
}

#[tokio::test]
async fn a_body_beyond_its_limit_is_refused_by_its_told_length_and_by_its_real_one() {
    let broker = Broker::with_queue(r#"{"max_body_bytes":16777216}"#).await;
    let max = 16 * 1024 * 1024;
    let told = send("orders", "k", "").header("content-length", (max + 1).to_string());
    broker.ask(told).await.fails(413, "too_large");
    let part = Bytes::from(vec![b'x'; 1024 * 1024]);
    let ask = send("orders", "k", "").body(chunked(vec![part.clone(); 17]));
    broker.ask(ask).await.fails(413, "too_large");
    let ask = send("orders", "k", "").body(chunked(vec![part; 16]));
    broker.ask(ask).await.is(201);
    let small = send("orders", "l", "").body(chunked(vec!["a".into(), "".into(), "b".into()]));
    broker.ask(small).await.is(201);
    assert_eq!(broker.key("orders", "l").await["body"], "ab");
    let odd = send("orders", "k", "").header("content-length", "many");
    broker.ask(odd).await.fails(400, "invalid");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_given_up() {
    let broker = Broker::with_queue("{}").await;
    let stream = futures_util::stream::pending::<Result<Bytes, Infallible>>();
    let ask = send("orders", "k", "").body(Body::from_stream(stream));
    let told = broker.ask(ask).await;
    told.fails(408, "unavailable");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_drips_is_given_up_too() {
    let broker = Broker::with_queue("{}").await;
    let dripping = futures_util::stream::unfold((), |()| async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Some((Ok::<_, Infallible>(Bytes::from_static(b"x")), ()))
    });
    let started = tokio::time::Instant::now();
    let ask = send("orders", "k", "").body(Body::from_stream(dripping));
    broker.ask(ask).await.fails(408, "unavailable");
    assert!(started.elapsed() <= Duration::from_secs(15), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_body_that_breaks_off_is_no_message() {
    let broker = Broker::with_queue("{}").await;
    let parts = [Ok(Bytes::from_static(b"half")), Err(std::io::Error::other("reset"))];
    let ask = send("orders", "k", "").body(Body::from_stream(futures_util::stream::iter(parts)));
    broker.ask(ask).await.fails(400, "invalid");
    broker.ask(get("/v1/queues/orders/keys/k")).await.fails(404, "no_such_key");
}

#[tokio::test(start_paused = true)]
async fn without_memory_requests_wait_and_are_refused_as_retryable() {
    let broker = Broker::with(1, |_| Options { budget_bytes: 1024 * 1024, ..Options::default() });
    broker.put("orders", "{}").await;
    // The tenant's share of both lanes.
    let tenant = "default".into();
    let mut all = Vec::new();
    for bytes in [1024, 64 * 1024, 1024 * 1024] {
        let mut request = broker.service.request(&tenant);
        while broker.service.admit(&mut request, bytes).await.is_ok() {
            all.push(std::mem::replace(&mut request, broker.service.request(&tenant)));
        }
    }
    let told = broker.ask(send("orders", "k", "x")).await;
    told.fails(503, "unavailable");
    drop(all);
    broker.ask(send("orders", "k", "x")).await.is(201);
}

#[tokio::test]
async fn memory_is_given_back_by_whatever_ends_a_request() {
    let broker = Broker::with(1, |_| Options { budget_bytes: 1024 * 1024, ..Options::default() });
    broker.put("orders", "{}").await;
    let large = "x".repeat(900_000);
    for _ in 0..3 {
        broker.ask(send("orders", "\"", &large)).await.fails(400, "malformed_key");
        broker.ask(post("/v1/queues/orders/batch", &large)).await.fails(400, "invalid");
        broker.ask(send("none", "k", &large)).await.fails(404, "no_such_queue");
    }
    broker.send("orders", "k", &large).await;
    for _ in 0..3 {
        // Both ways through the same budget, one after the other.
        assert_eq!(broker.key("orders", "k").await["body"], large);
    }
    let mut whole = broker.service.request(&"default".into());
    broker.service.admit(&mut whole, 1024 * 1024).await.unwrap();
}

#[tokio::test]
async fn over_http2_a_refusal_is_answered_when_its_small_body_was_read() {
    let broker = Broker::with_queue("{}").await;
    let messages = "/v1/queues/orders/messages";
    for (what, asked, status) in [
        ("a header", ask("POST", messages).header("hapax-gruop", "g"), 400),
        ("a path", ask("POST", "/v1/nowhere"), 404),
        ("a call", ask("POST", "/no.Service/Call").header("content-type", "application/grpc"), 200),
        (
            "a content type",
            post("/v1/queues/orders/batch", "").header("content-encoding", "gzip"),
            415,
        ),
        ("a parameter", ask("POST", &format!("{messages}?colour=red")), 400),
    ] {
        let read = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&read);
        // The second part comes later than the head, as from a client that sends while it listens.
        let parts = futures_util::stream::unfold(0, move |place| {
            let count = Arc::clone(&count);
            async move {
                tokio::task::yield_now().await;
                count.fetch_add(1, Ordering::SeqCst);
                (place < 2).then(|| (Ok::<_, Infallible>(Bytes::from("part")), place + 1))
            }
        });
        let told = broker.ask(asked.body(Body::from_stream(parts)).http2()).await;
        assert_eq!(told.status, status, "{what}: {}", told.text());
        assert_eq!(read.load(Ordering::SeqCst), 3, "{what}: the body was read to its end");
        assert!(!told.headers.contains_key("connection"), "{what}");
    }
}

#[tokio::test]
async fn over_http2_a_large_body_is_not_waited_for() {
    let broker = Broker::with_queue("{}").await;
    let never = futures_util::stream::pending::<Result<Bytes, Infallible>>();
    let large = Bytes::from(vec![0; 65 * 1_024]);
    let start = futures_util::stream::iter([Ok::<_, Infallible>(large)]);
    let body = Body::from_stream(futures_util::StreamExt::chain(start, never));
    let asked = ask("POST", "/v1/nowhere").body(body).http2();
    broker.ask(asked).await.fails(404, "invalid");
}
