//! Connections that break, and brokers that go away: nothing is lost, nothing is done twice.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use std::time::Duration;

use hapax_client::{Admin, Batch, Claim, Client, Context, Failure, Message, Settle, Worker};

use crate::within_some_limit;
use hapax_testing::{PATIENCE, TestQueue, in_time};

/// A web server that is no broker: with gRPC's HTTP/2, or without.
async fn web_server(status: &'static str, speaks_http2: bool) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        if speaks_http2 {
            let status = http::StatusCode::from_bytes(status.as_bytes()).unwrap();
            let app = axum::Router::new().fallback(move || async move { (status, "<html>") });
            return axum::serve(listener, app).await.unwrap();
        }
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let answer = format!("HTTP/1.1 {status} It is\r\ncontent-length: 0\r\n\r\n");
            let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, answer.as_bytes()).await;
            tokio::spawn(async move {
                let mut sink = tokio::io::sink();
                let _ = tokio::io::copy(&mut stream, &mut sink).await;
            });
        }
    });
    url
}

#[tokio::test]
async fn a_web_server_in_place_of_a_broker_is_called_one() {
    for (status, speaks_http2) in
        [("404", true), ("403", true), ("200", true), ("502", true), ("404", false)]
    {
        let url = web_server(status, speaks_http2).await;
        within_some_limit(async |limit| {
            let client = Client::builder(&url).timeout(limit).connect().unwrap();
            let told = in_time(Admin::new(client).queue("orders")).await.unwrap_err().to_string();
            assert!(!told.contains("grpc-status"), "{status}: {told}");
            told.contains(&url) && told.contains("the server ")
        })
        .await;
    }
}

on_each!(a_sender_over_a_breaking_wire_sends_everything_once);
async fn a_sender_over_a_breaking_wire_sends_everything_once(partitions: u16) {
    const COUNT: u64 = 20_000;
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    let link = broker.link().await;
    let client = link.client();
    let mut sender = client.queue("orders").sender().window(1_000);
    let (mut next, mut answered, mut cuts) = (0, 0, 0);
    let mut answers = Vec::new();
    while answered < COUNT {
        while next < COUNT && sender.room() > 0 {
            sender.push(Message::new("body").key(format!("k{next}")), next);
            next += 1;
        }
        sender.flush();
        if answered >= (cuts + 1) * 3_000 && link.cut() {
            cuts += 1;
        }
        in_time(sender.answers(&mut answers)).await.unwrap();
        for one in answers.drain(..) {
            one.answer.unwrap();
            answered += 1;
        }
    }
    assert!(cuts >= 5, "the link broke {cuts} times only");
    let stats = broker.stats().await;
    assert_eq!(stats.ready, COUNT);
}

on_each!(work_over_a_breaking_wire_is_done_once);
async fn work_over_a_breaking_wire_is_done_once(partitions: u16) {
    const COUNT: usize = 5_000;
    let broker = TestQueue::open(partitions, "orders", r#"{"lease_ms":2000}"#).await;
    let messages = (0..COUNT).map(|n| Message::new("body").key(format!("k{n}")));
    broker.queue().send_all(messages).await.unwrap();
    let link = broker.link().await;
    let client = link.client();
    let mut work = client.queue("orders").work().worker("w").open();
    let mut batch = Batch::default();
    let (mut done, mut cuts) = (HashSet::new(), 0);
    let mut keys = Vec::new();
    work.credit(200);
    while done.len() < COUNT {
        in_time(work.next(&mut batch)).await.unwrap();
        let mut more = 0;
        for delivery in batch.deliveries.drain(..) {
            work.settle(delivery.lease(), Settle::done(), keys.len() as u64);
            keys.push(delivery.key().to_owned());
            more += 1;
        }
        work.credit(more);
        work.flush();
        for answered in batch.settled.drain(..) {
            if answered.answer.unwrap().is_ok() {
                done.insert(keys[answered.tag as usize].clone());
            }
        }
        if done.len() >= (cuts + 1) * 700 && link.cut() {
            cuts += 1;
        }
    }
    assert!(cuts >= 5, "the link broke {cuts} times only");
    assert_eq!(broker.stats().await.done_total, COUNT as u64);
    while work.unanswered() > 0 {
        in_time(work.next(&mut batch)).await.unwrap();
    }
}

on_each!(a_worker_over_a_breaking_wire_goes_on);
async fn a_worker_over_a_breaking_wire_goes_on(partitions: u16) {
    const COUNT: u64 = 2_000;
    let broker = TestQueue::open(partitions, "orders", r#"{"lease_ms":2000}"#).await;
    let messages = (0..COUNT).map(|n| Message::new("body").key(format!("k{n}")));
    broker.queue().send_all(messages).await.unwrap();
    let link = broker.link().await;
    let client = link.client();
    let handled = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&handled);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let worker = Worker::new(client.queue("orders")).concurrency(8).run_until(
        async { drop(stopped.await) },
        move |_, _| {
            counter.fetch_add(1, Ordering::Relaxed);
            async { Ok::<_, hapax_client::Failure>("ok") }
        },
    );
    let worker = tokio::spawn(worker);
    let mut cuts = 0;
    let all_done = async {
        while broker.stats().await.done_total < COUNT {
            if handled.load(Ordering::Relaxed) >= (cuts + 1) * 300 && link.cut() {
                cuts += 1;
            }
        }
    };
    in_time(all_done).await;
    let _ = stop.send(());
    in_time(worker).await.unwrap().unwrap();
    assert!(cuts >= 3, "the link broke {cuts} times only");
    let stats = broker.stats().await;
    assert_eq!((stats.done_total, stats.leased, stats.ready), (COUNT, 0, 0));
}

on_each!(a_broker_that_restarts_is_waited_for_by_senders_and_workers);
async fn a_broker_that_restarts_is_waited_for_by_senders_and_workers(partitions: u16) {
    let mut broker = TestQueue::open(partitions, "orders", "{}").await;
    let orders = broker.queue();
    let worker = Worker::new(orders.clone())
        .run(|message, _| async move { Ok::<_, hapax_client::Failure>(message.body().clone()) });
    let worker = tokio::spawn(worker);
    let first = orders.send_and_wait(Message::new("a").key("a"), PATIENCE).await.unwrap();
    assert_eq!(first.result().unwrap().text(), Some("a"));
    broker.stop().await;
    let sending = tokio::spawn(async move { orders.send(Message::new("b").key("b")).await });
    broker.start_again().await;
    in_time(sending).await.unwrap().unwrap();
    assert_eq!(broker.ended("b").await.result.unwrap().body, "b");
    worker.abort();
}

on_each!(a_stream_of_work_that_was_quiet_for_long_outlives_a_broken_connection);
async fn a_stream_of_work_that_was_quiet_for_long_outlives_a_broken_connection(partitions: u16) {
    within_some_limit(async |limit| {
        let broker = TestQueue::open(partitions, "orders", "{}").await;
        let link = broker.link().await;
        let client = Client::builder(&link.url).timeout(limit).connect().unwrap();
        let mut work = client.queue("orders").work().open();
        let mut batch = Batch::default();
        work.credit(10);
        // There is nothing to come, for longer than the broker may be away.
        match tokio::time::timeout(limit + limit / 4, work.next(&mut batch)).await {
            Err(_) => assert!(link.cut()),
            Ok(Err(_)) => return false, // It was not even connected in this time.
            Ok(Ok(())) => panic!("{batch:?}"),
        }
        broker.queue().send(Message::new("body").key("k")).await.unwrap();
        while batch.deliveries.is_empty() {
            if in_time(work.next(&mut batch)).await.is_err() {
                return false;
            }
        }
        assert_eq!(batch.deliveries[0].key(), "k");
        // And one that stays away is told of.
        link.disconnect();
        let mut rest = Batch::default();
        assert!(in_time(work.next(&mut rest)).await.unwrap_err().is_retryable());
        true
    })
    .await;
}

#[tokio::test]
async fn times_without_an_end_are_taken_as_they_are_given() {
    let broker = TestQueue::open(1, "orders", "{}").await;
    let client = Client::builder(&broker.url()).timeout(Duration::MAX).connect().unwrap();
    in_time(client.ready(Duration::MAX)).await.unwrap();
    let queue = client.queue("orders");
    in_time(queue.send(Message::new("x").key("k"))).await.unwrap();
    let claim = queue.claim("c").wait(Duration::MAX).take();
    let Claim::Fresh(held) = in_time(claim).await.unwrap() else { panic!("it is nobody's") };
    assert!(in_time(held.extend(Some(Duration::MAX))).await.is_err(), "no lease is as long");
    in_time(held.complete("done")).await.unwrap();
    let worker = Worker::new(queue.clone()).drain_timeout(Duration::MAX);
    let (ended, end) = tokio::sync::oneshot::channel();
    let ended = std::sync::Mutex::new(Some(ended));
    let handler = move |_, context: Context| {
        let ended = ended.lock().unwrap().take();
        async move {
            assert!(context.extend(Some(Duration::MAX)).await.is_err(), "no lease is as long");
            ended.map(|ended| ended.send(()));
            Ok::<_, Failure>(())
        }
    };
    let stop = async { drop(end.await) };
    in_time(worker.run_until(stop, handler)).await.unwrap();
    let waited = in_time(queue.send_and_wait(Message::new("x").key("k"), Duration::MAX)).await;
    assert!(waited.unwrap().has_ended());
}
