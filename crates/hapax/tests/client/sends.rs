//! Sending.

use std::sync::Arc;
use std::time::Duration;

use hapax_client::{Client, Code, Error, Message, Outcome, State, Worker};

use crate::within_some_limit;
use hapax_testing::{PATIENCE, TestQueue, in_time};

on_each!(a_send_its_duplicate_and_its_conflict);
async fn a_send_its_duplicate_and_its_conflict(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    let orders = broker.queue();
    let lemons = || Message::new("three lemons").key("order-42").content_type("text/plain");
    let first = orders.send(lemons()).await.unwrap();
    assert!(first.is_new() && first.state == State::Ready);
    let again = orders.send(lemons()).await.unwrap();
    assert_eq!((again.id, again.accepted_at), (first.id, first.accepted_at));
    assert!(!again.is_new() && !again.has_ended());
    assert!(matches!(again.outcome, Outcome::InFlight { attempts: 0, .. }), "{again:?}");

    let error = orders.send(Message::new("four limes").key("order-42")).await.unwrap_err();
    assert_eq!((error.code(), error.is_retryable()), (Code::Conflict, false));
    let Error::Refused(refusal) = error else { panic!("{error:?}") };
    let conflict = refusal.first.unwrap();
    assert_eq!(conflict.differs, ["body"], "clients set the content type differently");
    assert_eq!((conflict.id, conflict.accepted_at), (first.id, first.accepted_at));
}

on_each!(an_empty_key_is_refused_and_no_key_is_made_for_it);
async fn an_empty_key_is_refused_and_no_key_is_made_for_it(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    let orders = broker.queue();
    let error = orders.send(Message::new("x").key("")).await.unwrap_err();
    assert_eq!((error.code(), error.is_retryable()), (Code::MalformedKey, false));
    let answers = orders.send_all([Message::new("x").key(""), Message::new("y")]).await.unwrap();
    assert_eq!(answers[0].as_ref().unwrap_err().code(), Code::MalformedKey);
    assert!(answers[1].as_ref().unwrap().is_new(), "a message without a key is given one");
    let claim = orders.claim("").body("x").take().await.unwrap_err();
    assert_eq!(claim.code(), Code::MalformedKey);
    assert_eq!(broker.stats().await.ready, 1);
}

on_each!(sends_of_many_tasks_share_a_stream);
async fn sends_of_many_tasks_share_a_stream(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..50 {
        let orders = broker.queue();
        tasks.spawn(async move {
            for number in 0..20 {
                let message = Message::new("body").key(format!("{task}-{number}"));
                assert!(orders.send(message).await.unwrap().is_new());
            }
        });
    }
    in_time(tasks.join_all()).await;
    assert_eq!(broker.stats().await.ready, 1_000);
}

on_each!(many_are_answered_in_order_and_one_that_is_refused_harms_no_other);
async fn many_are_answered_in_order_and_one_that_is_refused_harms_no_other(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", r#"{"max_body_bytes":10}"#).await;
    let orders = broker.queue();
    let bodies = (0..3_000).map(|n| if n % 1_000 == 7 { "far too long a body" } else { "short" });
    let messages = bodies.zip(0..).map(|(body, n)| Message::new(body).key(format!("k{n}")));
    let answers = orders.send_all(messages).await.unwrap();
    assert_eq!(answers.len(), 3_000);
    for (place, answer) in answers.iter().enumerate() {
        match answer {
            Ok(answer) => assert!(answer.is_new()),
            Err(error) => assert_eq!((error.code(), place % 1_000), (Code::TooLarge, 7)),
        }
    }
    assert_eq!(orders.send_all(Vec::<Message>::new()).await.unwrap().len(), 0);
    assert_eq!(broker.stats().await.ready, 2_997);
}

on_each!(a_message_without_a_key_is_given_one);
async fn a_message_without_a_key_is_given_one(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    let first = broker.queue().send("body").await.unwrap();
    let second = broker.queue().send("body").await.unwrap();
    assert!(first.is_new() && second.is_new() && first.id != second.id);
}

on_each!(whoever_waits_gets_the_result);
async fn whoever_waits_gets_the_result(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    let worker = Worker::new(broker.queue()).run(|message, _| async move {
        Ok::<_, hapax_client::Failure>(format!("did {}", message.text().unwrap_or_default()))
    });
    let worker = tokio::spawn(worker);
    let send = || Message::new("it").key("k");
    let answer = broker.queue().send_and_wait(send(), PATIENCE).await.unwrap();
    assert_eq!(answer.result().unwrap().text(), Some("did it"));
    let again = broker.queue().send_and_wait(send(), PATIENCE).await.unwrap();
    assert_eq!(again, broker.queue().send(send()).await.unwrap());
    worker.abort();
}

on_each!(whoever_waits_in_vain_is_told_how_far_it_is);
async fn whoever_waits_in_vain_is_told_how_far_it_is(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    crate::within_some_limit(async |wait| {
        match broker.queue().send_and_wait(Message::new("x").key("k"), wait).await {
            Ok(answer) => {
                assert!(!answer.has_ended() && answer.state == State::Ready, "{answer:?}");
                true
            }
            // Too short a wait even for the send.
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                false
            }
        }
    })
    .await;
}

on_each!(a_queue_that_is_not_there_is_named_at_once);
async fn a_queue_that_is_not_there_is_named_at_once(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    // It would be retried for ever.
    let client = Client::builder(&broker.url()).timeout(Duration::MAX).connect().unwrap();
    let error = in_time(client.queue("absent").send("body")).await.unwrap_err();
    assert_eq!(error.code(), Code::NoSuchQueue);
}

on_each!(what_is_too_much_for_now_is_sent_again_until_it_is_not);
async fn what_is_too_much_for_now_is_sent_again_until_it_is_not(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", r#"{"sends_per_s":20}"#).await;
    let orders = broker.queue();
    let messages = (0..40).map(|n| Message::new("body").key(format!("k{n}")));
    let answers = in_time(orders.send_all(messages)).await.unwrap();
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(broker.stats().await.ready, 40);
}

#[tokio::test]
async fn a_broker_that_is_away_is_named_when_the_time_is_over() {
    let orders = |limit| {
        let client = Client::builder("http://127.0.0.1:1").timeout(limit).connect();
        client.unwrap().queue("orders")
    };
    within_some_limit(async |limit| {
        let error = orders(limit).send(Message::new("body").key("k")).await.unwrap_err();
        assert_eq!(error.key(), None, "the caller knows it");
        assert!(error.is_retryable());
        matches!(error, Error::Unreachable { .. }) && error.to_string().contains("127.0.0.1:1")
    })
    .await;
    within_some_limit(async |limit| {
        let keyed = ["a", "b"].map(|key| Message::new("body").key(key));
        let all = orders(limit).send_all(keyed).await.unwrap_err();
        matches!(all, Error::Unreachable { .. }) // Nothing was answered.
    })
    .await;
    let each = orders(Duration::from_millis(500)).send_all(["a", "b"]).await.unwrap();
    let keys: Vec<_> = each.iter().map(|one| one.as_ref().unwrap_err().key().unwrap()).collect();
    assert!(keys.len() == 2 && keys[0] != keys[1], "each is told the key it was given: {each:?}");
}

on_each!(a_message_without_a_key_can_be_sent_again_under_the_one_it_was_given);
async fn a_message_without_a_key_can_be_sent_again_under_the_one_it_was_given(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    let link = broker.link().await;
    link.disconnect();
    let builder = Client::builder(&link.url).timeout(Duration::from_millis(500));
    let orders = builder.connect().unwrap().queue("orders");
    let error = orders.send("body").await.unwrap_err();
    let key = error.key().unwrap().to_owned();
    assert!(error.is_retryable() && error.to_string().contains(&key), "{error}");
    let waited = orders.send_and_wait("body", Duration::from_millis(100)).await.unwrap_err();
    assert!(waited.key().is_some_and(|other| other != key), "{waited}");
    link.restore();
    assert!(broker.queue().send(Message::new("body").key(&key)).await.unwrap().is_new());
    assert!(!broker.queue().send(Message::new("body").key(&key)).await.unwrap().is_new());
}

on_each!(a_message_that_no_frame_takes_harms_no_other);
async fn a_message_that_no_frame_takes_harms_no_other(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    let huge = bytes::Bytes::from(vec![b'x'; 17 << 20]);
    let body = |n: u64| if n == 7 { huge.clone() } else { "short".into() };
    let messages = (0..41).map(|n| Message::new(body(n)).key(format!("k{n}")));
    let answers = in_time(broker.queue().send_all(messages)).await.unwrap();
    for (n, answer) in answers.iter().enumerate() {
        match answer {
            Ok(answer) => assert!(answer.is_new() && n != 7),
            Err(error) => assert_eq!((error.code(), n), (Code::TooLarge, 7)),
        }
    }
    let mut sender = broker.queue().sender();
    for n in 0..10 {
        sender.push(Message::new(body(n)).key(format!("s{n}")), n);
    }
    let mut answers = Vec::new();
    while sender.unanswered() > 0 {
        in_time(sender.answers(&mut answers)).await.unwrap();
    }
    answers.sort_by_key(|answered| answered.tag);
    let refused: Vec<u64> =
        answers.iter().filter(|one| one.answer.is_err()).map(|one| one.tag).collect();
    assert_eq!((answers.len(), refused), (10, vec![7]));
    assert_eq!(broker.stats().await.ready, 40 + 9);
}

on_each!(what_was_answered_before_the_broker_went_away_is_told);
async fn what_was_answered_before_the_broker_went_away_is_told(partitions: u16) {
    // The first part is answered within the limit, where that is long enough for it.
    within_some_limit(async |limit| {
        let broker = TestQueue::open(partitions, "orders", "{}").await;
        let link = Arc::new(broker.link().await);
        let builder = Client::builder(&link.url).timeout(limit);
        let orders = builder.connect().unwrap().queue("orders");
        // The list is sent in parts, and the link breaks when the second one is asked for.
        let cutter = Arc::clone(&link);
        let messages = (0..3_000).map(move |n| {
            if n == 1_500 {
                cutter.disconnect();
            }
            Message::new("body").key(format!("k{n}"))
        });
        let Ok(answers) = in_time(orders.send_all(messages)).await else { return false };
        assert_eq!(answers.len(), 3_000);
        let accepted = answers.iter().filter(|answer| answer.is_ok()).count();
        assert_eq!(accepted, 1_024, "the first part");
        assert!(answers.iter().take(accepted).all(Result::is_ok));
        assert_eq!(broker.stats().await.ready, accepted as u64);
        true
    })
    .await;
}

on_each!(a_pipelined_sender_keeps_its_window_and_gives_tags_back);
async fn a_pipelined_sender_keeps_its_window_and_gives_tags_back(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    let mut sender = broker.queue().sender().window(100);
    let mut answers = Vec::new();
    let (mut next, mut tags) = (0, Vec::new());
    while tags.len() < 5_000 {
        while next < 5_000 && sender.room() > 0 {
            sender.push(Message::new("body").key(format!("k{next}")), next * 3);
            next += 1;
        }
        assert!(sender.unanswered() <= 100);
        in_time(sender.answers(&mut answers)).await.unwrap();
        for answered in answers.drain(..) {
            assert!(answered.answer.unwrap().is_new());
            tags.push(answered.tag);
        }
    }
    tags.sort_unstable();
    assert!(tags.iter().zip(0..).all(|(tag, n)| *tag == n * 3));
    in_time(sender.answers(&mut answers)).await.unwrap();
    assert!(answers.is_empty(), "nothing to wait for");
    assert_eq!(broker.stats().await.ready, 5_000);
}
