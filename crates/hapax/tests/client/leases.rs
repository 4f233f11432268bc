//! A worker's leases: each handler settles its own message, and hears of its own lease.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax_client::{Batch, Done, Event, Failure, Message, Settle, Settled, Worker};
use hapax_wire::proto;
use tokio::sync::{Notify, Semaphore};

use crate::workers::Running;
use hapax_testing::{TestQueue, eventually, in_time};

const COUNT: usize = 300;
const RETRIED: &str = r#"{"max_attempts":3,"backoff_min_ms":0,"backoff_max_ms":0}"#;

async fn send(broker: &TestQueue, count: usize) {
    let messages = (0..count).map(|n| Message::new(format!("body {n}")).key(format!("k{n}")));
    assert!(broker.queue().send_all(messages).await.unwrap().iter().all(Result::is_ok));
}

/// Waits until the lease of a key was extended so many times.
pub(crate) async fn extended(broker: &TestQueue, key: &str, times: usize) {
    let mut deadlines = std::collections::BTreeSet::new();
    eventually("the lease to be extended", async || {
        deadlines.extend(broker.key(key).await.deadline_ms);
        deadlines.len() > times
    })
    .await;
}

on_each!(every_message_ends_as_its_own_handler_said);
async fn every_message_ends_as_its_own_handler_said(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", RETRIED).await;
    send(&broker, COUNT).await;
    let ran = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&ran);
    let worker = Running::start(Worker::new(broker.queue()), move |message, _| {
        let list = Arc::clone(&list);
        async move {
            let number: usize = message.key().strip_prefix('k').unwrap().parse().unwrap();
            list.lock().unwrap().push((number, message.attempt()));
            // Handlers end in another order than they started.
            for _ in 0..number % 7 {
                tokio::task::yield_now().await;
            }
            match (number % 10, message.attempt()) {
                (3, _) => Err(Failure::dead(format!("never {number}"))),
                (6, 1) => Err(Failure::new(format!("later {number}"))),
                (9, 1) => panic!("at {number}"),
                _ => Ok(Done::new().result(format!("did {number}"))),
            }
        }
    });
    for number in 0..COUNT {
        let key = broker.ended(&format!("k{number}")).await;
        let attempts = if matches!(number % 10, 6 | 9) { 2 } else { 1 };
        assert_eq!(key.attempts, attempts, "k{number}: {key:?}");
        if number % 10 == 3 {
            assert_eq!(key.error, format!("never {number}"));
            assert_eq!(key.state(), proto::State::Dead);
        } else {
            assert_eq!(key.result.unwrap().body, format!("did {number}"));
        }
    }
    worker.stop().await;
    let mut ran = ran.lock().unwrap().clone();
    let all = ran.len();
    ran.sort_unstable();
    ran.dedup();
    assert_eq!((ran.len(), all), (COUNT + COUNT / 5, COUNT + COUNT / 5), "no attempt ran twice");
    assert_eq!(broker.stats().await.lease_lost_total, 0);
}

on_each!(who_holds_its_lease_is_not_told_that_it_is_lost_when_others_lose_theirs);
async fn who_holds_its_lease_is_not_told_that_it_is_lost_when_others_lose_theirs(partitions: u16) {
    const HELD: usize = 60;
    let broker = TestQueue::open(partitions, "orders", r#"{"max_attempts":1}"#).await;
    send(&broker, 2 * HELD).await;
    let (started, told) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let go = Arc::new(Semaphore::new(0));
    let handler = {
        let (started, told, go) = (Arc::clone(&started), Arc::clone(&told), Arc::clone(&go));
        move |_: hapax_client::Delivery, context: hapax_client::Context| {
            let (started, told, go) = (Arc::clone(&started), Arc::clone(&told), Arc::clone(&go));
            async move {
                started.fetch_add(1, Ordering::SeqCst);
                let _ = go.acquire().await;
                told.fetch_add(usize::from(context.is_lost()), Ordering::SeqCst);
                Ok(Done::new())
            }
        }
    };
    let worker = Worker::new(broker.queue()).concurrency(HELD).prefetch(0);
    let worker = Running::start(worker, handler);
    in_time(async {
        while started.load(Ordering::SeqCst) < HELD {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // Somebody else takes the rest and loses all of it; both streams are told the fences.
    let mut other = broker.queue().work().lease(Duration::from_millis(100)).open();
    let (mut batch, mut lost) = (Batch::default(), 0);
    other.credit(HELD as u32);
    while lost < HELD {
        in_time(other.next(&mut batch)).await.unwrap();
        lost += batch.lost.drain(..).count();
        batch.deliveries.clear();
        batch.lease = None;
    }
    // What the worker was told before is known by the time a settle of its own is answered.
    go.add_permits(HELD);
    worker.stop().await;
    assert_eq!(told.load(Ordering::SeqCst), 0, "of {HELD} healthy handlers");
    let stats = broker.stats().await;
    assert_eq!((stats.done_total, stats.lease_lost_total), (HELD as u64, HELD as u64));
}

on_each!(a_longer_extension_of_the_handler_is_not_taken_back);
async fn a_longer_extension_of_the_handler_is_not_taken_back(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", r#"{"lease_ms":1000}"#).await;
    send(&broker, 1).await;
    let (extended, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (is_extended, may_go) = (Arc::clone(&extended), Arc::clone(&go));
    let worker = Running::start(Worker::new(broker.queue()), move |_, context| {
        let (extended, go) = (Arc::clone(&is_extended), Arc::clone(&may_go));
        async move {
            context.extend(Some(Duration::from_secs(600))).await?;
            extended.notify_one();
            go.notified().await;
            Ok(Done::new())
        }
    });
    in_time(extended.notified()).await;
    let asked = broker.key("k0").await.deadline_ms.unwrap();
    // For longer than its own lease, in which the worker extends it more than once.
    let start = std::time::Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        let deadline = broker.key("k0").await.deadline_ms.unwrap();
        // Of ten minutes; two calls are not equally long on their way.
        assert!(deadline + 60_000 >= asked, "{} ms were taken back", asked - deadline);
    }
    go.notify_one();
    assert_eq!(broker.ended("k0").await.state(), proto::State::Done);
    worker.stop().await;
}

/// What a worker learned, in words.
fn heard(event: Event<'_>) -> String {
    match event {
        Event::Settled { answer: Ok(Settled::Ok { state, .. }), .. } => state.as_str().to_owned(),
        Event::Settled { answer: Ok(Settled::LeaseLost { .. }), .. } => "too late".to_owned(),
        Event::Settled { answer: Err(error), .. } => error.to_string(),
        Event::Lost { .. } => "lost".to_owned(),
        Event::Away(_) => "away".to_owned(),
        Event::Back => "back".to_owned(),
        _ => "?".to_owned(),
    }
}

on_each!(whoever_observes_a_worker_hears_what_was_confirmed_and_whether_the_broker_is_there);
async fn whoever_observes_a_worker_hears_what_was_confirmed_and_whether_the_broker_is_there(
    partitions: u16,
) {
    let broker = TestQueue::open(partitions, "orders", r#"{"max_attempts":1}"#).await;
    let link = broker.link().await;
    let client = link.client();
    let (sender, mut events) = tokio::sync::mpsc::unbounded_channel();
    let worker = Worker::new(client.queue("orders")).observe(move |event| {
        let _ = sender.send(heard(event));
    });
    let (started, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (has_started, may_go) = (Arc::clone(&started), Arc::clone(&go));
    let worker = Running::start(worker, move |message, _| {
        let (started, go) = (Arc::clone(&has_started), Arc::clone(&may_go));
        async move {
            started.notify_one();
            go.notified().await;
            if message.key() == "bad" { Err(Failure::new("no")) } else { Ok(Done::new()) }
        }
    });
    broker.queue().send(Message::new("x").key("good")).await.unwrap();
    in_time(started.notified()).await;
    link.disconnect();
    assert_eq!(in_time(events.recv()).await.unwrap(), "away");
    go.notify_one();
    // The handler is finished, and nothing is confirmed as long as nobody can confirm it.
    link.restore();
    assert_eq!(in_time(events.recv()).await.unwrap(), "back");
    assert_eq!(in_time(events.recv()).await.unwrap(), "done");
    broker.queue().send(Message::new("x").key("bad")).await.unwrap();
    in_time(started.notified()).await;
    go.notify_one();
    assert_eq!(in_time(events.recv()).await.unwrap(), "dead", "the last attempt");
    worker.stop().await;
}

on_each!(what_no_frame_takes_harms_nobody_else_on_the_stream);
async fn what_no_frame_takes_harms_nobody_else_on_the_stream(partitions: u16) {
    const MIB: usize = 1 << 20;
    let broker = TestQueue::open(partitions, "orders", RETRIED).await;
    broker.admin.put_queue("emails", "{}", None).await.unwrap();
    send(&broker, 40).await;
    let worker = Running::start(Worker::new(broker.queue()), |message, context| async move {
        match message.key() {
            "k7" => Ok(Done::new().result(vec![b'x'; 17 * MIB])),
            "k8" => Ok((0..20).fold(Done::new(), |done, n| {
                let body = Message::new(vec![b'x'; MIB - 100]);
                done.emit(hapax_client::Emit::new("emails", format!("mail-{n}"), body))
            })),
            "k9" => {
                let error = context.save("much", vec![b'x'; 17 * MIB]).await.unwrap_err();
                Ok(Done::new().result(error.code().as_str()))
            }
            "k10" => Err(Failure::dead("x".repeat(17 * MIB))),
            _ => Ok(Done::new().result("fine")),
        }
    });
    for number in 0..40 {
        let key = broker.ended(&format!("k{number}")).await;
        assert_eq!(key.attempts, 1, "{}", key.error);
        match number {
            7 | 8 => assert!(key.error.contains("too_large"), "{}", key.error),
            9 => assert_eq!(key.result.unwrap().body, "too_large"),
            10 => assert_eq!(key.error.len(), 4_096),
            _ => assert_eq!(key.result.unwrap().body, "fine"),
        }
    }
    worker.stop().await;
}

on_each!(a_settle_that_no_frame_takes_is_answered_and_the_lease_can_still_be_settled);
async fn a_settle_that_no_frame_takes_is_answered_and_the_lease_can_still_be_settled(
    partitions: u16,
) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    send(&broker, 1).await;
    let mut work = broker.queue().work().open();
    let mut batch = Batch::default();
    work.credit(1);
    while batch.deliveries.is_empty() {
        in_time(work.next(&mut batch)).await.unwrap();
    }
    let lease = batch.deliveries[0].lease();
    let large = Done::new().result(vec![b'x'; 17 << 20]);
    work.settle(lease.clone(), Settle::Done(large), 1);
    work.settle(lease, Settle::done(), 2);
    assert_eq!(work.unanswered(), 2);
    while batch.settled.len() < 2 {
        in_time(work.next(&mut batch)).await.unwrap();
    }
    assert_eq!(work.unanswered(), 0);
    batch.settled.sort_by_key(|answered| answered.tag);
    let error = batch.settled[0].answer.as_ref().unwrap_err();
    assert_eq!(error.code(), hapax_client::Code::TooLarge, "{error}");
    assert!(batch.settled[1].answer.as_ref().unwrap().is_ok());
}

on_each!(a_delivery_tells_whose_it_is_and_how_long_it_is_leased);
async fn a_delivery_tells_whose_it_is_and_how_long_it_is_leased(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", r#"{"lease_ms":7000}"#).await;
    send(&broker, 1).await;
    let worker = Running::start(Worker::new(broker.queue()), |message, context| async move {
        assert_eq!(context.delivery().key(), message.key());
        let told = (message.tenant(), message.queue(), message.lease_length());
        Ok(Done::new().result(format!("{told:?}")))
    });
    let key = broker.ended("k0").await;
    assert_eq!(key.result.unwrap().body, r#"("default", "orders", 7s)"#);
    worker.stop().await;
}
