//! Workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use hapax_client::{Client, Code, Done, Emit, Failure, Message, Outcome, State, Worker};
use hapax_wire::proto;
use http_body_util::BodyExt;
use prost::Message as _;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::task::JoinHandle;

use crate::leases::extended;
use hapax_testing::{PATIENCE, TestQueue, in_time};

/// A worker that can be told to stop.
pub(crate) struct Running {
    stop: oneshot::Sender<()>,
    worker: JoinHandle<Result<(), hapax_client::Error>>,
}

impl Running {
    pub(crate) fn start<H, F>(worker: Worker, handler: H) -> Self
    where
        H: Fn(hapax_client::Delivery, hapax_client::Context) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Done, Failure>> + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel();
        let until = async { drop(stopped.await) };
        Self { stop, worker: tokio::spawn(worker.run_until(until, handler)) }
    }

    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        in_time(self.worker).await.unwrap().unwrap();
    }
}

async fn send(broker: &TestQueue, count: usize) {
    let messages = (0..count).map(|n| Message::new(format!("body {n}")).key(format!("k{n}")));
    assert!(broker.queue().send_all(messages).await.unwrap().iter().all(Result::is_ok));
}

on_each!(results_are_stored_and_no_more_run_at_once_than_allowed);
async fn results_are_stored_and_no_more_run_at_once_than_allowed(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    send(&broker, 200).await;
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&most);
    let worker = Running::start(Worker::new(broker.queue()).concurrency(5), move |message, _| {
        let (running, most) = (Arc::clone(&running), Arc::clone(&most));
        async move {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(Done::new().result(format!("did {}", message.text().unwrap_or_default())))
        }
    });
    for number in 0..200 {
        let key = broker.ended(&format!("k{number}")).await;
        assert_eq!(key.result.unwrap().body, format!("did body {number}"));
    }
    worker.stop().await;
    let most = seen.load(Ordering::SeqCst);
    assert!((2..=5).contains(&most), "{most} at once");
}

on_each!(errors_fail_the_attempt_and_panics_do_too);
async fn errors_fail_the_attempt_and_panics_do_too(partitions: u16) {
    let broker = TestQueue::open(
        partitions,
        "orders",
        r#"{"max_attempts":2,"backoff_min_ms":1,"backoff_max_ms":1}"#,
    )
    .await;
    for key in ["error", "panic", "dead", "good"] {
        broker.queue().send(Message::new("body").key(key)).await.unwrap();
    }
    let worker = Running::start(Worker::new(broker.queue()), |message, _| async move {
        match message.key() {
            "error" => {
                message.parse_json::<u32>()?;
                Ok(Done::new())
            }
            "panic" => panic!("at attempt {}", message.attempt()),
            "dead" => Err(Failure::dead("never")),
            _ => Ok(Done::new()),
        }
    });
    let error = broker.ended("error").await;
    assert_eq!((error.state(), error.attempts), (hapax_wire::proto::State::Dead, 2));
    assert!(error.error.contains("JSON"), "{}", error.error);
    assert_eq!(broker.ended("panic").await.error, "the handler panicked: at attempt 2");
    let dead = broker.ended("dead").await;
    assert_eq!((dead.attempts, dead.error.as_str()), (1, "never"));
    assert_eq!(broker.ended("good").await.state(), hapax_wire::proto::State::Done);
    worker.stop().await;
}

on_each!(leases_are_extended_from_receipt_on_also_of_what_waits);
async fn leases_are_extended_from_receipt_on_also_of_what_waits(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", r#"{"lease_ms":10000}"#).await;
    send(&broker, 2).await;
    let go = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&go);
    let worker = Worker::new(broker.queue()).concurrency(1).prefetch(1);
    let worker = Running::start(worker, move |message, _| {
        let gate = Arc::clone(&gate);
        async move {
            let _ = gate.acquire().await;
            Ok(Done::new().result(format!("attempt {}", message.attempt())))
        }
    });
    // One is in the handler's hands and one waits for it; both outlive their leases.
    extended(&broker, "k0", 4).await;
    extended(&broker, "k1", 4).await;
    go.add_permits(10);
    for key in ["k0", "k1"] {
        assert_eq!(broker.ended(key).await.result.unwrap().body, "attempt 1");
    }
    assert_eq!(broker.stats().await.lease_lost_total, 0);
    worker.stop().await;
}

on_each!(a_handler_that_is_cut_off_is_told_that_its_lease_is_lost);
async fn a_handler_that_is_cut_off_is_told_that_its_lease_is_lost(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", r#"{"lease_ms":8000}"#).await;
    send(&broker, 1).await;
    let link = broker.link().await;
    let client = link.client();
    let (started, lost) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begin, end) = (Arc::clone(&started), Arc::clone(&lost));
    let slow = Running::start(Worker::new(client.queue("orders")), move |_, context| {
        let (begin, end) = (Arc::clone(&begin), Arc::clone(&end));
        async move {
            begin.notify_one();
            context.lost().await;
            assert!(context.is_lost());
            end.notify_one();
            Ok(Done::new().result("too late"))
        }
    });
    in_time(started.notified()).await;
    link.close();
    in_time(lost.notified()).await;
    let other = Running::start(Worker::new(broker.queue()), |message, _| async move {
        Ok(Done::new().result(format!("attempt {}", message.attempt())))
    });
    assert_eq!(broker.ended("k0").await.result.unwrap().body, "attempt 2");
    slow.stop().await;
    other.stop().await;
}

on_each!(a_stop_gives_back_what_was_not_begun_and_finishes_what_was);
async fn a_stop_gives_back_what_was_not_begun_and_finishes_what_was(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    send(&broker, 10).await;
    let (started, go) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
    let (begin, gate) = (Arc::clone(&started), Arc::clone(&go));
    let worker = Worker::new(broker.queue()).concurrency(1).prefetch(4);
    let worker = Running::start(worker, move |_, context| {
        let (begin, gate) = (Arc::clone(&begin), Arc::clone(&gate));
        async move {
            begin.notify_one();
            context.stopping().await;
            let _ = gate.acquire().await;
            Ok(Done::new().result("finished in time"))
        }
    });
    in_time(started.notified()).await;
    let all_taken = async { while broker.stats().await.leased < 5 {} };
    in_time(all_taken).await;
    let stopping = tokio::spawn(worker.stop());
    let given_back = async { while broker.stats().await.leased > 1 {} };
    in_time(given_back).await;
    go.add_permits(1);
    in_time(stopping).await.unwrap();
    let stats = broker.stats().await;
    assert_eq!((stats.done_total, stats.ready, stats.leased), (1, 9, 0));
    assert_eq!(broker.key("k1").await.attempts, 0, "given back uncounted");
}

on_each!(a_handler_that_does_not_end_in_time_is_dropped_and_its_message_failed);
async fn a_handler_that_does_not_end_in_time_is_dropped_and_its_message_failed(partitions: u16) {
    let rules = r#"{"backoff_min_ms":600000,"backoff_max_ms":600000}"#;
    let broker = TestQueue::open(partitions, "orders", rules).await;
    send(&broker, 1).await;
    let started = Arc::new(Notify::new());
    let begin = Arc::clone(&started);
    let worker = Worker::new(broker.queue()).drain_timeout(Duration::from_millis(100));
    let worker = Running::start(worker, move |_, _| {
        begin.notify_one();
        std::future::pending()
    });
    in_time(started.notified()).await;
    worker.stop().await;
    let key = broker.key("k0").await;
    assert_eq!(key.state(), hapax_wire::proto::State::Delayed);
    assert!(key.error.contains("stopped"), "{}", key.error);
}

on_each!(the_next_attempt_goes_on_from_what_was_saved);
async fn the_next_attempt_goes_on_from_what_was_saved(partitions: u16) {
    let broker =
        TestQueue::open(partitions, "orders", r#"{"backoff_min_ms":1,"backoff_max_ms":1}"#).await;
    send(&broker, 1).await;
    let worker = Running::start(Worker::new(broker.queue()), |message, context| async move {
        match message.recovery_point("charged") {
            None => {
                context.save("charged", "17 euro").await?;
                Err(Failure::new("and then the power failed"))
            }
            Some(charged) => Ok(Done::new().result(charged.clone())),
        }
    });
    let key = broker.ended("k0").await;
    assert_eq!((key.attempts, key.result.unwrap().body), (2, "17 euro".into()));
    worker.stop().await;
}

on_each!(a_follow_up_is_sent_under_a_derived_key);
async fn a_follow_up_is_sent_under_a_derived_key(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    broker.admin.put_queue("emails", "{}", None).await.unwrap();
    send(&broker, 1).await;
    let orders = Running::start(Worker::new(broker.queue()), |message, _| async move {
        let key = message.derive("receipt");
        let receipt = Emit::new("emails", "receipt", Message::new("Thank you!"));
        Ok(Done::new().result(key).emit(receipt))
    });
    let (sender, receiver) = std::sync::mpsc::channel();
    let emails = Worker::new(broker.client.queue("emails"));
    let emails = Running::start(emails, move |message, _| {
        let _ = sender.send((message.key().to_owned(), message.text().map(str::to_owned)));
        async { Ok(Done::new()) }
    });
    let key = broker.ended("k0").await.result.unwrap().body;
    let expected = hapax_client::derive("orders", "", "k0", 0, "receipt");
    assert_eq!(key, expected);
    let named = hapax_wire::proto::KeyRequest {
        queue: "emails".to_owned(),
        key: expected.clone(),
        group: String::new(),
    };
    let arrived = async { while broker.admin.key(named.clone(), Duration::ZERO).await.is_err() {} };
    in_time(arrived).await;
    let done = broker.admin.key(named, PATIENCE).await.unwrap();
    assert_eq!(done.state(), hapax_wire::proto::State::Done);
    let (seen, text) = receiver.try_recv().unwrap();
    assert_eq!((seen, text.as_deref()), (expected, Some("Thank you!")));
    orders.stop().await;
    emails.stop().await;
}

on_each!(a_follow_up_has_the_time_to_live_and_the_fingerprint_of_its_message);
async fn a_follow_up_has_the_time_to_live_and_the_fingerprint_of_its_message(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    broker.admin.put_queue("emails", "{}", None).await.unwrap();
    send(&broker, 1).await;
    let worker = Running::start(Worker::new(broker.queue()), |_, _| async {
        let short = Message::new("x").key("short").ttl(Duration::from_millis(1));
        let noisy = Message::new("at 11:55").key("noisy").fingerprint("it");
        let done = Done::new().emit(Emit::new("emails", "a", short));
        Ok(done.emit(Emit::new("emails", "b", noisy)))
    });
    broker.ended("k0").await;
    let named = |key: &str| hapax_wire::proto::KeyRequest {
        queue: "emails".to_owned(),
        key: key.to_owned(),
        group: String::new(),
    };
    for key in ["short", "noisy"] {
        let arrived =
            async { while broker.admin.key(named(key), Duration::ZERO).await.is_err() {} };
        in_time(arrived).await;
    }
    let dead = broker.admin.key(named("short"), PATIENCE).await.unwrap();
    assert_eq!(dead.state(), hapax_wire::proto::State::Dead, "{dead:?}");
    let again = Message::new("at 11:56").key("noisy").fingerprint("it");
    let again = broker.client.queue("emails").send(again).await.unwrap();
    assert!(!again.is_new(), "the same operation, as its fingerprint says");
    worker.stop().await;
}

on_each!(a_result_that_is_refused_makes_the_message_dead_and_is_not_repeated);
async fn a_result_that_is_refused_makes_the_message_dead_and_is_not_repeated(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", r#"{"max_body_bytes":1000}"#).await;
    send(&broker, 1).await;
    let worker = Running::start(Worker::new(broker.queue()), |_, _| async {
        Ok(Done::new().result(vec![b'x'; 2_000]))
    });
    let key = broker.ended("k0").await;
    assert_eq!((key.state(), key.attempts), (hapax_wire::proto::State::Dead, 1));
    let words = ["the result was refused", "too_large"];
    assert!(words.iter().all(|word| key.error.contains(word)), "{}", key.error);
    worker.stop().await;
}

on_each!(a_queue_that_is_not_there_ends_the_worker);
async fn a_queue_that_is_not_there_ends_the_worker(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    let worker = Worker::new(broker.client.queue("absent"));
    let ended = worker.run(|_, _| async { Ok::<_, Failure>(()) });
    assert_eq!(in_time(ended).await.unwrap_err().code(), Code::NoSuchQueue);
}

#[tokio::test]
async fn a_worker_that_is_stopped_while_the_broker_is_away_ends() {
    let client = Client::connect("http://127.0.0.1:1").unwrap();
    let worker = Worker::new(client.queue("orders")).drain_timeout(Duration::from_millis(50));
    let worker = Running::start(worker, |_, _| async { Ok(Done::new()) });
    worker.stop().await;
}

on_each!(answers_tell_the_state_of_what_a_worker_did);
async fn answers_tell_the_state_of_what_a_worker_did(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    let orders = broker.queue();
    let worker = Running::start(Worker::new(orders.clone()), |_, _| async {
        Err(Failure::dead("broken for good"))
    });
    let wait = PATIENCE;
    let answer = orders.send_and_wait(Message::new("x").key("k"), wait).await.unwrap();
    assert_eq!(answer.state, State::Dead);
    let again = orders.send(Message::new("x").key("k")).await.unwrap();
    assert_eq!(again.outcome, answer.outcome);
    worker.stop().await;
}

on_each!(a_discarded_message_is_dead_for_whoever_waits_and_whoever_sends_again);
async fn a_discarded_message_is_dead_for_whoever_waits_and_whoever_sends_again(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    let orders = broker.queue();
    send(&broker, 1).await;
    let message = || Message::new("body 0").key("k0");
    let waiting = {
        let orders = orders.clone();
        tokio::spawn(async move { orders.send_and_wait(message(), PATIENCE).await })
    };
    broker.admin.discard_key(broker.named("k0")).await.unwrap();
    let waited = in_time(waiting).await.unwrap().unwrap();
    let sent = orders.send(message()).await.unwrap();
    for answer in [waited, sent] {
        assert!(answer.is_discarded() && answer.has_ended(), "{answer:?}");
        assert!(matches!(answer.outcome, Outcome::Dead { attempts: 0, .. }), "{answer:?}");
        assert_eq!(answer.result(), None);
    }
}

/// The frames of a gRPC request.
fn frames(body: axum::body::Body) -> impl futures_util::Stream<Item = Bytes> {
    futures_util::stream::unfold((body, BytesMut::new()), async |(mut body, mut bytes)| {
        loop {
            if let Some((head, rest)) = bytes.split_first_chunk::<5>()
                && let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize
                && rest.len() >= length
            {
                let frame = bytes.split_to(5 + length).split_off(5);
                return Some((frame.freeze(), (body, bytes)));
            }
            bytes.extend(body.frame().await?.ok()?.into_data().ok()?);
        }
    })
}

fn framed(reply: &proto::WorkReply) -> Bytes {
    let reply = reply.encode_to_vec();
    [&[0][..], &u32::try_from(reply.len()).unwrap().to_be_bytes(), &reply].concat().into()
}

/// A broker with as many messages as waits are given: it refuses that many settles for now, each
/// with its wait. Counts the settles.
async fn reluctant_broker(waits_ms: &'static [u64]) -> (String, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&count);
    let work = async move |request: axum::extract::Request| {
        let delivery = proto::Delivery { lease: "lease".into(), fence: 1, ..Default::default() };
        let first = proto::WorkReply {
            deliveries: vec![delivery; waits_ms.len()],
            lease_ms: Some(60_000),
            ..Default::default()
        };
        let answers = frames(request.into_body()).map(move |frame| {
            let settles = proto::WorkFrame::decode(frame).unwrap().settles;
            let settled = settles.iter().map(|settle| {
                let Some(wait_ms) = waits_ms.get(counting.fetch_add(1, Ordering::SeqCst)) else {
                    let kind = proto::SettleKind::Ok.into();
                    return proto::SettleAnswer { r#ref: settle.r#ref, kind, ..Default::default() };
                };
                let (code, retryable) = ("unavailable".to_owned(), true);
                let retry_after_ms = Some(*wait_ms);
                let problem =
                    proto::Problem { code, retryable, retry_after_ms, ..Default::default() };
                proto::SettleAnswer::refused(settle.r#ref, problem)
            });
            proto::WorkReply { settled: settled.collect(), ..Default::default() }
        });
        let replies = futures_util::stream::iter([first]).chain(answers);
        let replies = replies.map(|reply| Ok::<_, std::convert::Infallible>(framed(&reply)));
        let response = http::Response::builder().header("content-type", "application/grpc");
        response.body(axum::body::Body::from_stream(replies)).unwrap()
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let app = axum::Router::new().route("/hapax.v1.Hapax/Work", axum::routing::post(work));
    tokio::spawn(async { axum::serve(listener, app).await.unwrap() });
    (url, count)
}

/// The settles of a worker that stops as soon as it has something to do.
async fn settles_of_a_worker_that_stops(waits_ms: &'static [u64]) -> usize {
    let (url, settles) = reluctant_broker(waits_ms).await;
    let queue = Client::connect(&url).unwrap().queue("orders");
    let begun = Arc::new(Semaphore::new(0));
    let beginning = Arc::clone(&begun);
    let handler = move |_, context: hapax_client::Context| {
        beginning.add_permits(1);
        async move {
            context.stopping().await;
            Ok::<_, Failure>(Done::new())
        }
    };
    let all = u32::try_from(waits_ms.len()).unwrap();
    let stop = async move { begun.acquire_many(all).await.unwrap().forget() };
    in_time(Worker::new(queue).concurrency(4).run_until(stop, handler)).await.unwrap();
    settles.load(Ordering::SeqCst)
}

#[tokio::test]
async fn a_worker_that_stops_says_again_what_the_broker_could_not_take_for_the_moment() {
    assert_eq!(settles_of_a_worker_that_stops(&[0]).await, 2);
}

#[tokio::test]
async fn a_settle_that_has_to_wait_for_long_holds_up_no_other() {
    assert_eq!(settles_of_a_worker_that_stops(&[3_600_000, 0]).await, 3);
}
