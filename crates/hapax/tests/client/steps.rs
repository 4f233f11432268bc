//! Steps: calls under derived keys that no later attempt repeats, and effects in doubt.

use std::sync::{Arc, Mutex};

use hapax_client::{Context, Delivery, Done, Failure, Message, Worker, derive};
use hapax_wire::proto::{self, State};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::workers::Running;
use hapax_testing::{TestQueue, in_time};

/// Failures are tried again at once.
const RULES: &str = r#"{"backoff_min_ms":0,"backoff_max_ms":0}"#;

/// Somebody elsewhere, who writes down under which key each call came.
#[derive(Clone, Debug, Default)]
struct Service(Arc<Mutex<Vec<String>>>);

impl Service {
    fn call(&self, key: String) -> Result<(), Failure> {
        self.0.lock().unwrap().push(key);
        Ok(())
    }

    fn calls(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

async fn send(broker: &TestQueue) {
    broker.queue().send(Message::new("body").key("k0")).await.unwrap();
}

fn point(key: &proto::Key, name: &str) -> Value {
    let point = key.recovery_points.get(name);
    point.map_or(Value::Null, |point| serde_json::from_slice(point).unwrap())
}

/// Works on the one message there is until it has ended, and tells how.
async fn work<H, F>(broker: &TestQueue, handler: H) -> proto::Key
where
    H: Fn(Delivery, Context) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Done, Failure>> + Send + 'static,
{
    let worker = Running::start(Worker::new(broker.queue()), handler);
    let key = broker.ended("k0").await;
    worker.stop().await;
    key
}

on_each!(a_later_attempt_gets_the_saved_outcomes_and_goes_on_after_the_last);
async fn a_later_attempt_gets_the_saved_outcomes_and_goes_on_after_the_last(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", RULES).await;
    send(&broker).await;
    let (charges, mails) = (Service::default(), Service::default());
    let (charge, mail) = (charges.clone(), mails.clone());
    let done = work(&broker, move |message, context| {
        let (charges, mails) = (charge.clone(), mail.clone());
        async move {
            let attempt = message.attempt();
            let receipt: (String, u32) = context
                .step("charge", |key| async move {
                    charges.call(key)?;
                    Ok::<_, Failure>(("receipt".to_owned(), attempt))
                })
                .await?;
            context
                .step("mail", |key| async move {
                    mails.call(key)?;
                    if attempt < 3 { Err(Failure::new("no answer")) } else { Ok(()) }
                })
                .await?;
            Ok(Done::new().result(format!("{receipt:?}")))
        }
    })
    .await;
    assert_eq!(done.state(), State::Done, "{}", done.error);
    assert_eq!(done.result.unwrap().body, r#"("receipt", 1)"#, "the first attempt's outcome");
    assert_eq!(charges.calls(), [derive("orders", "", "k0", 0, "charge")], "called once");
    assert_eq!(
        mails.calls(),
        vec![derive("orders", "", "k0", 0, "mail"); 3],
        "always under the same key"
    );
}

on_each!(what_was_begun_and_what_was_done_can_be_seen_from_outside);
async fn what_was_begun_and_what_was_done_can_be_seen_from_outside(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", RULES).await;
    send(&broker).await;
    let (called, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (is_called, may_go) = (Arc::clone(&called), Arc::clone(&go));
    let handler = move |_: Delivery, context: Context| {
        let (called, go) = (Arc::clone(&is_called), Arc::clone(&may_go));
        async move {
            let answer = json!({ "receipt": 7 });
            let charged = context.step("charge", |_| async { Ok::<_, Failure>(answer) }).await?;
            assert_eq!(charged["receipt"], 7);
            context
                .step("ship", |_| async {
                    called.notify_one();
                    go.notified().await;
                    Ok::<_, Failure>(())
                })
                .await?;
            Ok(Done::new())
        }
    };
    let worker = Running::start(Worker::new(broker.queue()), handler);
    in_time(called.notified()).await;
    let key = broker.key("k0").await;
    let charge = derive("orders", "", "k0", 0, "charge");
    let expected = json!({ "step": "done", "key": charge, "outcome": { "receipt": 7 } });
    assert_eq!(point(&key, "step:charge"), expected);
    let expected = json!({ "step": "begun", "key": derive("orders", "", "k0", 0, "ship") });
    assert_eq!(point(&key, "step:ship"), expected, "saved before the call");
    go.notify_one();
    assert_eq!(broker.ended("k0").await.state(), State::Done);
    worker.stop().await;
}

on_each!(the_same_name_twice_in_one_attempt_is_an_error);
async fn the_same_name_twice_in_one_attempt_is_an_error(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", RULES).await;
    send(&broker).await;
    let service = Service::default();
    let calls = service.clone();
    let dead = work(&broker, move |_, context| {
        let service = calls.clone();
        async move {
            for _ in 0..2 {
                let call = |key| async { service.call(key) };
                context.step("charge", call).await?;
            }
            Ok(Done::new())
        }
    })
    .await;
    assert_eq!((dead.state(), dead.attempts), (State::Dead, 1));
    assert!(dead.error.contains("the step charge is used twice"), "{}", dead.error);
    assert_eq!(service.calls().len(), 1);
}

on_each!(an_outcome_that_cannot_be_kept_gives_the_message_up_until_the_step_returns_less);
async fn an_outcome_that_cannot_be_kept_gives_the_message_up_until_the_step_returns_less(
    partitions: u16,
) {
    let broker = TestQueue::open(partitions, "orders", RULES).await;
    send(&broker).await;
    let service = Service::default();
    let handler = |bytes: usize| {
        let service = service.clone();
        move |_: Delivery, context: Context| {
            let service = service.clone();
            async move {
                let call = |key| async {
                    service.call(key)?;
                    Ok::<_, Failure>("x".repeat(bytes))
                };
                let outcome = context.step("charge", call).await?;
                Ok(Done::new().result(outcome))
            }
        }
    };
    let dead = work(&broker, handler(70_000)).await;
    assert_eq!((dead.state(), dead.attempts), (State::Dead, 1), "each attempt would call again");
    let key = derive("orders", "", "k0", 0, "charge");
    assert!(dead.error.contains(&key) && dead.error.contains("Return less"), "{}", dead.error);
    let left = point(&dead, "step:charge");
    assert_eq!((&left["step"], &left["key"]), (&json!("too_large"), &json!(key)));

    let all = proto::redrive_request::Select::Keys(proto::RedriveKeys {
        keys: vec!["k0".into()],
        group: None,
    });
    let redrive = proto::RedriveRequest {
        queue: "orders".to_owned(),
        id: "fixed".to_owned(),
        select: Some(all),
        ..Default::default()
    };
    broker.admin.redrive(redrive).await.unwrap();
    let done = work(&broker, handler(5)).await;
    assert_eq!((done.state(), done.result.unwrap().body), (State::Done, "xxxxx".into()));
    assert_eq!(service.calls(), [key.clone(), key], "again, under the same key");
}

on_each!(a_step_is_not_begun_where_there_is_no_room_for_its_outcome);
async fn a_step_is_not_begun_where_there_is_no_room_for_its_outcome(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", RULES).await;
    send(&broker).await;
    let service = Service::default();
    let calls = service.clone();
    let dead = work(&broker, move |_, context| {
        let service = calls.clone();
        async move {
            context.save("mine", vec![b'x'; 64 * 1_024 - 100]).await?;
            context.step("charge", |key| async { service.call(key) }).await?;
            Ok(Done::new())
        }
    })
    .await;
    assert_eq!((dead.state(), dead.attempts), (State::Dead, 1));
    assert!(dead.error.contains("the step charge was not begun"), "{}", dead.error);
    assert_eq!(service.calls(), Vec::<String>::new());
    assert_eq!(point(&dead, "step:charge"), Value::Null);
}

/// Tells when it is dropped.
struct Dropped(Arc<Notify>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

on_each!(a_lost_lease_ends_the_step_and_saves_nothing);
async fn a_lost_lease_ends_the_step_and_saves_nothing(partitions: u16) {
    let broker = TestQueue::open(
        partitions,
        "orders",
        r#"{"lease_ms":8000,"backoff_min_ms":0,"backoff_max_ms":0}"#,
    )
    .await;
    send(&broker).await;
    let link = broker.link().await;
    let client = link.client();
    let service = Service::default();
    let (called, dropped) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let told: Arc<Mutex<Option<Failure>>> = Arc::default();
    let handler = {
        let service = service.clone();
        let (called, dropped, told) =
            (Arc::clone(&called), Arc::clone(&dropped), Arc::clone(&told));
        move |_: Delivery, context: Context| {
            let (called, dropped) = (Arc::clone(&called), Dropped(Arc::clone(&dropped)));
            let (service, told) = (service.clone(), Arc::clone(&told));
            async move {
                let call = |key| async move {
                    let _dropped = dropped;
                    service.call(key)?;
                    called.notify_one();
                    std::future::pending::<Result<(), Failure>>().await
                };
                let failure = context.step("charge", call).await.unwrap_err();
                *told.lock().unwrap() = Some(failure.clone());
                Err(failure)
            }
        }
    };
    let cut_off = Running::start(Worker::new(client.queue("orders")), handler);
    in_time(called.notified()).await;
    link.close();
    in_time(dropped.notified()).await;
    let again = service.clone();
    let done = work(&broker, move |message, context| {
        let service = again.clone();
        async move {
            let before = message.recovery_point("step:charge").cloned().unwrap_or_default();
            context.step("charge", |key| async { service.call(key) }).await?;
            Ok(Done::new().result(before))
        }
    })
    .await;
    let key = derive("orders", "", "k0", 0, "charge");
    let before: Value = serde_json::from_slice(&done.result.unwrap().body).unwrap();
    assert_eq!(before, json!({ "step": "begun", "key": key }), "no outcome");
    assert_eq!(service.calls(), [key.clone(), key], "again, under the same key");
    let told = told.lock().unwrap().clone().unwrap();
    assert!(told.error().contains("lost during the step charge"), "{}", told.error());
    cut_off.stop().await;
}

on_each!(an_outcome_is_saved_when_the_broker_is_back);
async fn an_outcome_is_saved_when_the_broker_is_back(partitions: u16) {
    let mut broker = TestQueue::open(partitions, "orders", RULES).await;
    send(&broker).await;
    let (called, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (is_called, may_go) = (Arc::clone(&called), Arc::clone(&go));
    let worker = Running::start(Worker::new(broker.queue()), move |message, context| {
        let (called, go) = (Arc::clone(&is_called), Arc::clone(&may_go));
        async move {
            let call = |_| async move {
                called.notify_one();
                go.notified().await;
                Ok::<_, Failure>("receipt".to_owned())
            };
            let receipt = context.step("charge", call).await?;
            Ok(Done::new().result(format!("{receipt}, attempt {}", message.attempt())))
        }
    });
    in_time(called.notified()).await;
    broker.stop().await;
    go.notify_one();
    broker.start_again().await;
    assert_eq!(broker.ended("k0").await.result.unwrap().body, "receipt, attempt 1");
    worker.stop().await;
}

on_each!(a_replay_calls_under_keys_of_its_own);
async fn a_replay_calls_under_keys_of_its_own(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", RULES).await;
    send(&broker).await;
    let service = Service::default();
    let calls = service.clone();
    let handler = move |_: Delivery, context: Context| {
        let service = calls.clone();
        async move {
            context.step("charge", |key| async { service.call(key) }).await?;
            Ok(Done::new())
        }
    };
    work(&broker, handler.clone()).await;
    let body = bytes::Bytes::from_static(b"body");
    let message = proto::Message { key: Some("k0".to_owned()), body, ..Default::default() };
    broker.admin.replay_key(broker.named("k0"), Some(message)).await.unwrap();
    work(&broker, handler).await;
    assert_eq!(
        service.calls(),
        [derive("orders", "", "k0", 0, "charge"), derive("orders", "", "k0", 1, "charge")]
    );
}

on_each!(an_outcome_of_another_shape_is_told_and_the_call_not_repeated);
async fn an_outcome_of_another_shape_is_told_and_the_call_not_repeated(partitions: u16) {
    let broker = TestQueue::open(
        partitions,
        "orders",
        r#"{"max_attempts":2,"backoff_min_ms":0,"backoff_max_ms":0}"#,
    )
    .await;
    send(&broker).await;
    let service = Service::default();
    let calls = service.clone();
    let dead = work(&broker, move |message, context| {
        let service = calls.clone();
        async move {
            if message.attempt() == 1 {
                let call = |key| async { service.call(key) };
                context.step("charge", call).await?;
                return Err(Failure::new("and then a new release came"));
            }
            let call = |key| async {
                service.call(key)?;
                Ok::<_, Failure>(17)
            };
            context.step("charge", call).await?;
            Ok(Done::new())
        }
    })
    .await;
    assert!(dead.error.contains("It was not called again"), "{}", dead.error);
    assert_eq!(service.calls().len(), 1);
}

on_each!(a_step_goes_on_under_the_key_it_has_saved);
async fn a_step_goes_on_under_the_key_it_has_saved(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", RULES).await;
    send(&broker).await;
    let service = Service::default();
    let calls = service.clone();
    let first = "0b6a9a5bb0bb4ddb7c8f6d1a6a3bd0a1";
    let done = work(&broker, move |message, context| {
        let service = calls.clone();
        async move {
            if message.attempt() == 1 {
                // As an older release began it, under the key that it derived.
                let intent = json!({ "step": "begun", "key": first });
                context.save("step:charge", serde_json::to_vec(&intent)?).await?;
                return Err(Failure::new("and then a new release came"));
            }
            context.step("charge", |key| async { service.call(key) }).await?;
            Ok(Done::new())
        }
    })
    .await;
    assert_eq!((done.state(), done.attempts), (State::Done, 2), "{}", done.error);
    assert_eq!(service.calls(), [first], "a call may have been made under it");
}

on_each!(an_outcome_under_a_foreign_key_is_not_taken_for_this_message_s);
async fn an_outcome_under_a_foreign_key_is_not_taken_for_this_message_s(partitions: u16) {
    let rules = r#"{"max_attempts":2,"backoff_min_ms":0,"backoff_max_ms":0}"#;
    let broker = TestQueue::open(partitions, "orders", rules).await;
    send(&broker).await;
    let service = Service::default();
    let calls = service.clone();
    let dead = work(&broker, move |message, context| {
        let service = calls.clone();
        async move {
            if message.attempt() == 1 {
                let foreign = json!({ "step": "done", "key": "k9", "outcome": "charged" });
                context.save("step:charge", serde_json::to_vec(&foreign)?).await?;
                return Err(Failure::new("tried again"));
            }
            let call = |key| async {
                service.call(key)?;
                Ok::<_, Failure>("charged".to_owned())
            };
            context.step("charge", call).await?;
            Ok(Done::new())
        }
    })
    .await;
    assert_eq!((dead.state(), dead.attempts), (State::Dead, 2), "{dead:?}");
    assert!(dead.error.contains("has the key k9"), "{}", dead.error);
    assert_eq!(service.calls(), Vec::<String>::new());
}
