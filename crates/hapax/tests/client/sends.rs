//! Sending.

use std::time::{Duration, Instant};

use hapax_client::{Client, Code, Error, Message, Outcome, State, Worker};

use crate::house::{House, LONG, in_time};

#[tokio::test]
async fn a_send_its_duplicate_and_its_conflict() {
    let house = House::open("{}").await;
    let orders = house.orders();
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
    assert_eq!(conflict.differs, ["body", "content_type"]);
    assert_eq!((conflict.id, conflict.accepted_at), (first.id, first.accepted_at));
}

#[tokio::test]
async fn sends_of_many_tasks_share_a_stream() {
    let house = House::open("{}").await;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..50 {
        let orders = house.orders();
        tasks.spawn(async move {
            for number in 0..20 {
                let message = Message::new("body").key(format!("{task}-{number}"));
                assert!(orders.send(message).await.unwrap().is_new());
            }
        });
    }
    in_time(tasks.join_all()).await;
    assert_eq!(house.stats().await.ready, 1_000);
}

#[tokio::test]
async fn many_are_answered_in_order_and_one_that_is_refused_harms_no_other() {
    let house = House::open(r#"{"max_body_bytes":10}"#).await;
    let orders = house.orders();
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
    assert_eq!(house.stats().await.ready, 2_997);
}

#[tokio::test]
async fn a_message_without_a_key_is_given_one() {
    let house = House::open("{}").await;
    let first = house.orders().send("body").await.unwrap();
    let second = house.orders().send("body").await.unwrap();
    assert!(first.is_new() && second.is_new() && first.id != second.id);
}

#[tokio::test]
async fn whoever_waits_gets_the_result() {
    let house = House::open("{}").await;
    let worker = Worker::new(house.orders()).run(|message, _| async move {
        Ok::<_, hapax_client::Failure>(format!("did {}", message.text().unwrap_or_default()))
    });
    let worker = tokio::spawn(worker);
    let send = || Message::new("it").key("k");
    let answer = house.orders().send_and_wait(send(), LONG).await.unwrap();
    assert_eq!(answer.result().unwrap().text(), Some("did it"));
    let again = house.orders().send_and_wait(send(), LONG).await.unwrap();
    assert_eq!(again, house.orders().send(send()).await.unwrap());
    worker.abort();
}

#[tokio::test]
async fn whoever_waits_in_vain_is_told_how_far_it_is() {
    let house = House::open("{}").await;
    let wait = Duration::from_millis(200);
    let answer = house.orders().send_and_wait(Message::new("x").key("k"), wait).await.unwrap();
    assert!(!answer.has_ended() && answer.state == State::Ready, "{answer:?}");
}

#[tokio::test]
async fn a_queue_that_is_not_there_is_named_at_once() {
    let house = House::open("{}").await;
    let started = Instant::now();
    let error = house.client.queue("absent").send("body").await.unwrap_err();
    assert_eq!(error.code(), Code::NoSuchQueue);
    assert!(started.elapsed() < Duration::from_secs(20), "it was not retried");
}

#[tokio::test]
async fn what_is_too_much_for_now_is_sent_again_until_it_is_not() {
    let house = House::open(r#"{"sends_per_s":20}"#).await;
    let orders = house.orders();
    let messages = (0..40).map(|n| Message::new("body").key(format!("k{n}")));
    let answers = in_time(orders.send_all(messages)).await.unwrap();
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(house.stats().await.ready, 40);
}

#[tokio::test]
async fn a_broker_that_is_away_is_named_when_the_time_is_over() {
    let client =
        Client::builder("http://127.0.0.1:1").timeout(Duration::from_millis(500)).connect();
    let error = client.unwrap().queue("orders").send("body").await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(error.is_retryable() && error.to_string().contains("127.0.0.1:1"), "{error}");
}

#[tokio::test]
async fn a_pipelined_sender_keeps_its_window_and_gives_tags_back() {
    let house = House::open("{}").await;
    let mut sender = house.orders().sender().window(100);
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
    assert_eq!(house.stats().await.ready, 5_000);
}
