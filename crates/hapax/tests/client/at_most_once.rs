//! Effects that cannot be repeated: every row of the table in docs/guides/at-most-once.md, as far
//! as a handler of this library is concerned. What needs processes is in `commands` and `faults`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax_client::{Context, Delivery, Done, Emit, Event, Failure, Message, Settled, Worker};
use hapax_wire::proto::{self, State};
use tokio::sync::{Notify, mpsc};

use crate::workers::Running;
use hapax_testing::{Link, TestQueue, in_time};

const PARKS: &str = r#"{"on_lost":"park","backoff_min_ms":0,"backoff_max_ms":0,"max_attempts":3,
    "max_body_bytes":1000}"#;
/// For those whose lease is to be over.
const PARKS_SOON: &str = r#"{"on_lost":"park","backoff_min_ms":0,"backoff_max_ms":0,
    "max_attempts":3,"lease_ms":6000}"#;

async fn send(broker: &TestQueue) {
    broker.queue().send(Message::new("body").key("k0")).await.unwrap();
}

/// How the one message ends whose handler begins an effect, and then does this.
async fn after_begin(partitions: u16, end: fn() -> Result<Done, Failure>) -> proto::Key {
    let broker = TestQueue::open(partitions, "orders", PARKS).await;
    send(&broker).await;
    let worker = Running::start(Worker::new(broker.queue()), move |_, context| async move {
        context.begin().await?;
        end()
    });
    let key = broker.ended("k0").await;
    worker.stop().await;
    key
}

on_each!(a_result_makes_it_done);
async fn a_result_makes_it_done(partitions: u16) {
    let done = after_begin(partitions, || Ok(Done::new().result("printed"))).await;
    assert_eq!((done.state(), done.result.unwrap().body), (State::Done, "printed".into()));
}

on_each!(a_failure_in_doubt_parks_it_and_tells_why);
async fn a_failure_in_doubt_parks_it_and_tells_why(partitions: u16) {
    let parked = after_begin(partitions, || Err(Failure::in_doubt("no answer"))).await;
    assert_eq!((parked.state(), parked.attempts), (State::Parked, 1));
    assert_eq!(parked.error, "no answer");
}

on_each!(a_failure_in_doubt_parks_it_whatever_else_it_says);
async fn a_failure_in_doubt_parks_it_whatever_else_it_says(partitions: u16) {
    let parked = after_begin(partitions, || {
        Err(Failure::in_doubt(Failure::dead("no answer")).retry_in(Duration::from_secs(1)))
    })
    .await;
    assert_eq!((parked.state(), parked.attempts), (State::Parked, 1));
}

on_each!(a_panic_parks_it);
async fn a_panic_parks_it(partitions: u16) {
    let parked = after_begin(partitions, || panic!("nobody expected that")).await;
    assert_eq!((parked.state(), parked.attempts), (State::Parked, 1));
    assert_eq!(parked.error, "the handler panicked: nobody expected that");
}

on_each!(a_result_that_is_refused_parks_it);
async fn a_result_that_is_refused_parks_it(partitions: u16) {
    let parked = after_begin(partitions, || Ok(Done::new().result(vec![b'x'; 2_000]))).await;
    assert_eq!((parked.state(), parked.attempts), (State::Parked, 1), "{}", parked.error);
    assert!(parked.error.contains("the result was refused"), "{}", parked.error);
}

on_each!(a_follow_up_that_cannot_be_sent_parks_it);
async fn a_follow_up_that_cannot_be_sent_parks_it(partitions: u16) {
    let parked = after_begin(partitions, || {
        Ok(Done::new().result("printed").emit(Emit::new("nowhere", "receipt", "Thank you!")))
    })
    .await;
    assert_eq!((parked.state(), parked.attempts), (State::Parked, 1), "{}", parked.error);
    assert!(parked.error.contains("no_such_queue"), "{}", parked.error);
}

on_each!(follow_ups_that_no_frame_takes_park_it);
async fn follow_ups_that_no_frame_takes_park_it(partitions: u16) {
    let parked = after_begin(partitions, || {
        let large = |number| {
            let message = Message::new(vec![b'x'; 1 << 20]);
            Emit::new("orders", format!("part-{number}"), message)
        };
        Ok((0..17).map(large).fold(Done::new(), Done::emit))
    })
    .await;
    assert_eq!((parked.state(), parked.attempts), (State::Parked, 1), "{}", parked.error);
}

on_each!(a_result_that_no_frame_takes_parks_it);
async fn a_result_that_no_frame_takes_parks_it(partitions: u16) {
    let parked = after_begin(partitions, || Ok(Done::new().result(vec![b'x'; 17 << 20]))).await;
    assert_eq!((parked.state(), parked.attempts), (State::Parked, 1), "{}", parked.error);
}

on_each!(any_other_error_has_it_delivered_again);
async fn any_other_error_has_it_delivered_again(partitions: u16) {
    let dead = after_begin(partitions, || Err(Failure::new("out of paper"))).await;
    assert_eq!((dead.state(), dead.attempts), (State::Dead, 3), "as it was sure");
}

on_each!(nothing_is_in_doubt_before_it_has_begun);
async fn nothing_is_in_doubt_before_it_has_begun(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", PARKS).await;
    send(&broker).await;
    let worker = Running::start(Worker::new(broker.queue()), |message, _| async move {
        if message.attempt() == 1 {
            panic!("at once")
        }
        Err(Failure::in_doubt(Failure::dead("no such printer")))
    });
    let dead = broker.ended("k0").await;
    assert_eq!((dead.state(), dead.attempts), (State::Dead, 2), "delivered again, then given up");
    assert_eq!(dead.error, "no such printer");
    worker.stop().await;
}

on_each!(a_handler_that_is_dropped_when_its_worker_stops_parks_it);
async fn a_handler_that_is_dropped_when_its_worker_stops_parks_it(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", PARKS).await;
    send(&broker).await;
    let started = Arc::new(Notify::new());
    let begin = Arc::clone(&started);
    let worker = Worker::new(broker.queue()).drain_timeout(Duration::from_millis(50));
    let worker = Running::start(worker, move |_, context| {
        let begin = Arc::clone(&begin);
        async move {
            context.begin().await?;
            begin.notify_one();
            std::future::pending().await
        }
    });
    in_time(started.notified()).await;
    worker.stop().await;
    let parked = broker.key("k0").await;
    assert_eq!(parked.state(), State::Parked, "as the worker said: no lease had to run out");
    assert!(parked.error.contains("stopped before it was finished"), "{}", parked.error);
}

on_each!(a_worker_that_dies_leaves_it_to_be_parked);
async fn a_worker_that_dies_leaves_it_to_be_parked(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", PARKS_SOON).await;
    send(&broker).await;
    let started = Arc::new(Notify::new());
    let begin = Arc::clone(&started);
    let worker = tokio::spawn(Worker::new(broker.queue()).run(move |_, context| {
        let begin = Arc::clone(&begin);
        async move {
            context.begin().await?;
            begin.notify_one();
            std::future::pending::<Result<(), Failure>>().await
        }
    }));
    in_time(started.notified()).await;
    worker.abort();
    assert_eq!(broker.ended("k0").await.state(), State::Parked);
}

/// A worker over a link, whose one handler begins an effect and is then cut off until the message
/// is parked; and what it does when it is back.
struct CutOff {
    broker: TestQueue,
    link: Link,
    worker: Running,
    effects: Arc<AtomicUsize>,
    parked: Arc<Notify>,
    events: mpsc::UnboundedReceiver<String>,
}

impl CutOff {
    async fn start<F>(partitions: u16, then: fn(Delivery, Context) -> F) -> Self
    where
        F: Future<Output = Result<Done, Failure>> + Send + 'static,
    {
        let broker = TestQueue::open(partitions, "orders", PARKS_SOON).await;
        send(&broker).await;
        let link = broker.link().await;
        let client = link.client();
        let (effects, parked) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let (sender, events) = mpsc::unbounded_channel();
        let worker = Worker::new(client.queue("orders")).observe(move |event| {
            let _ = sender.send(match event {
                // Whether the worker or the broker notices first that the lease is over.
                Event::Lost { .. }
                | Event::Settled { answer: Ok(Settled::LeaseLost { .. }), .. } => {
                    "nothing settled".to_owned()
                }
                Event::Settled { answer: Ok(Settled::Ok { state, .. }), .. } => {
                    state.as_str().to_owned()
                }
                _ => return,
            });
        });
        let begun = Arc::new(Notify::new());
        let worker = {
            let (begun, effects, parked) =
                (Arc::clone(&begun), Arc::clone(&effects), Arc::clone(&parked));
            Running::start(worker, move |message, context| {
                let (begun, effects, parked) =
                    (Arc::clone(&begun), Arc::clone(&effects), Arc::clone(&parked));
                async move {
                    context.begin().await?;
                    effects.fetch_add(1, Ordering::SeqCst);
                    begun.notify_one();
                    parked.notified().await;
                    then(message, context).await
                }
            })
        };
        in_time(begun.notified()).await;
        link.disconnect();
        assert_eq!(broker.ended("k0").await.state(), State::Parked, "its lease is over");
        Self { broker, link, worker, effects, parked, events }
    }

    /// The handler goes on, then the link does; what became of it.
    async fn end(mut self, expected: &str) -> proto::Key {
        self.parked.notify_one();
        self.link.restore();
        assert_eq!(in_time(self.events.recv()).await.unwrap(), expected);
        self.worker.stop().await;
        assert_eq!(self.effects.load(Ordering::SeqCst), 1, "the effect happened once");
        self.broker.key("k0").await
    }
}

on_each!(who_comes_back_late_and_fails_leaves_it_parked);
async fn who_comes_back_late_and_fails_leaves_it_parked(partitions: u16) {
    let cut_off = CutOff::start(partitions, |_, context| async move {
        context.lost().await;
        Err(Failure::new("too slow"))
    })
    .await;
    let key = cut_off.end("nothing settled").await;
    assert_eq!((key.state(), key.attempts), (State::Parked, 1));
}

on_each!(who_comes_back_late_and_cannot_save_leaves_it_parked);
async fn who_comes_back_late_and_cannot_save_leaves_it_parked(partitions: u16) {
    let cut_off = CutOff::start(partitions, |_, context| async move {
        context.save("printed", "1").await?;
        Ok(Done::new())
    })
    .await;
    let key = cut_off.end("nothing settled").await;
    assert_eq!((key.state(), key.attempts), (State::Parked, 1));
}

on_each!(who_comes_back_late_and_panics_leaves_it_parked);
async fn who_comes_back_late_and_panics_leaves_it_parked(partitions: u16) {
    let cut_off = CutOff::start(partitions, |_, _| async { panic!("late") }).await;
    let key = cut_off.end("nothing settled").await;
    assert_eq!((key.state(), key.attempts), (State::Parked, 1));
}

on_each!(who_comes_back_late_and_finishes_before_it_is_resolved_makes_it_done);
async fn who_comes_back_late_and_finishes_before_it_is_resolved_makes_it_done(partitions: u16) {
    let finish = |_, _| async { Ok(Done::new().result("printed after all")) };
    let key = CutOff::start(partitions, finish).await.end("done").await;
    assert_eq!(key.state(), State::Done);
    assert_eq!(key.result.unwrap().body, "printed after all");
}

on_each!(a_broker_that_is_away_for_longer_than_the_lease_does_not_have_it_repeated);
async fn a_broker_that_is_away_for_longer_than_the_lease_does_not_have_it_repeated(
    partitions: u16,
) {
    let mut broker = TestQueue::open(partitions, "orders", PARKS_SOON).await;
    send(&broker).await;
    let effects = Arc::new(Mutex::new(Vec::new()));
    let (begun, told) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let worker = {
        let (list, begun, told) = (Arc::clone(&effects), Arc::clone(&begun), Arc::clone(&told));
        Running::start(Worker::new(broker.queue()), move |message, context| {
            let (list, begun, told) = (Arc::clone(&list), Arc::clone(&begun), Arc::clone(&told));
            async move {
                context.begin().await?;
                list.lock().unwrap().push(message.attempt());
                begun.notify_one();
                context.lost().await;
                told.notify_one();
                Err(Failure::new("too slow"))
            }
        })
    };
    in_time(begun.notified()).await;
    broker.stop().await;
    in_time(told.notified()).await;
    broker.start_again().await;
    assert_eq!(broker.ended("k0").await.state(), State::Parked);
    worker.stop().await;
    assert_eq!(*effects.lock().unwrap(), [1]);
}
