//! One tenant cannot take from the others what they need.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use bytes::Bytes;
use futures_util::StreamExt;

use super::access::{By, guarded};
use super::broker::{Ask, ask, put, send};

const MIB: usize = 1_024 * 1_024;

/// A request that tells a length, sends a part of it and no more. It counts when that is read.
fn stalled(path: &str, token: &str, length: usize, sent: usize, read: &Arc<AtomicUsize>) -> Ask {
    let read = Arc::clone(read);
    let part = futures_util::stream::iter([Ok::<_, Infallible>(Bytes::from(vec![b' '; sent]))]);
    let end = futures_util::stream::once(async move {
        read.fetch_add(1, Ordering::SeqCst);
        std::future::pending().await
    });
    ask("POST", path)
        .header("content-type", "application/json")
        .header("content-length", length.to_string())
        .body(Body::from_stream(part.chain(end)))
        .by(token)
}

#[tokio::test]
async fn bodies_that_tell_much_and_send_little_hold_nobody_up() {
    let (broker, tokens) =
        guarded(&[("noisy", "a", "*", "send,work,admin"), ("quiet", "b", "*", "send,admin")]);
    for token in tokens.values() {
        broker.ask(put("/v1/queues/orders", "{}").by(token)).await.is(201);
    }
    let broker = Arc::new(broker);
    let read = Arc::new(AtomicUsize::new(0));
    let mut stalled_tasks = tokio::task::JoinSet::new();
    for (path, length) in [("settle", 32 * MIB), ("batch", 8 * MIB)] {
        for _ in 0..8 {
            let path = format!("/v1/queues/orders/{path}");
            let ask = stalled(&path, &tokens["noisy"], length, 1, &read);
            let broker = Arc::clone(&broker);
            stalled_tasks.spawn(async move { broker.ask(ask).await.status });
        }
    }
    while read.load(Ordering::SeqCst) < 16 {
        assert!(stalled_tasks.try_join_next().is_none(), "all of them get in");
        tokio::task::yield_now().await;
    }
    for name in ["quiet", "noisy"] {
        let large = "x".repeat(MIB);
        broker.ask(send("orders", "large", &large).by(&tokens[name])).await.is(201);
        broker.ask(send("orders", "small", "x").by(&tokens[name])).await.is(201);
    }
    stalled_tasks.shutdown().await;
}

#[tokio::test]
async fn a_tenant_that_sends_much_and_stalls_leaves_others_their_memory() {
    let (broker, tokens) =
        guarded(&[("noisy", "a", "*", "send,work,admin"), ("quiet", "b", "*", "send,admin")]);
    for token in tokens.values() {
        broker.ask(put("/v1/queues/orders", "{}").by(token)).await.is(201);
    }
    let broker = Arc::new(broker);
    let read = Arc::new(AtomicUsize::new(0));
    let mut stalled_tasks = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let ask =
            stalled("/v1/queues/orders/settle", &tokens["noisy"], 32 * MIB, 16 * MIB - 1, &read);
        let broker = Arc::clone(&broker);
        stalled_tasks.spawn(async move { broker.ask(ask).await.status });
    }
    // Others of them wait for memory.
    while read.load(Ordering::SeqCst) < 2 {
        tokio::task::yield_now().await;
    }
    let large = "x".repeat(4 * MIB);
    let config = r#"{"max_body_bytes":16777216}"#;
    broker.ask(put("/v1/queues/orders", config).by(&tokens["quiet"])).await.is(200);
    broker.ask(send("orders", "large", &large).by(&tokens["quiet"])).await.is(201);
    for name in ["quiet", "noisy"] {
        broker.ask(send("orders", "small", "x").by(&tokens[name])).await.is(201);
    }
    stalled_tasks.shutdown().await;
}
