//! The Send stream.

use std::collections::HashSet;

use hapax_wire::proto::{self, AnswerKind, Message, State};

use crate::broker::{Broker, code, done, message, messages, refusal};
use hapax_testing::http::{Connection, Request};
use hapax_testing::in_time;

#[tokio::test]
async fn every_message_of_thousands_is_answered_once_by_its_reference() {
    let broker = Broker::with_queue("orders", "{}").await;
    let mut sends = broker.sends().await;
    const FRAMES: u64 = 100;
    for frame in 0..FRAMES {
        let some = (0..200).map(|n| frame * 200 + n);
        let some = some.map(|n| message(n, &format!("k{n}"), format!("body {n}"))).collect();
        sends.say("orders", some).await;
    }
    let answers = sends.answers(20_000).await;
    assert!(answers.iter().zip(0..).all(|(answer, number)| answer.r#ref == number));
    assert!(answers.iter().all(|answer| answer.kind() == AnswerKind::Accepted));
    assert!(answers.iter().all(|answer| answer.state() == State::Ready));
    let ids: HashSet<_> = answers.iter().map(|answer| answer.id.clone()).collect();
    assert_eq!(ids.len(), 20_000);
    assert!(ids.iter().all(|id| id.len() == 16));
    assert_eq!(sends.finish().await.unwrap(), [], "and nothing more");
    assert_eq!(broker.stats("orders").await.ready, 20_000);
}

#[tokio::test]
async fn a_duplicate_gets_the_first_id_and_a_conflict_says_what_differs() {
    let broker = Broker::with_queue("orders", "{}").await;
    let mut sends = broker.sends().await;
    let first = sends.one("orders", message(1, "k", "body")).await;
    assert_eq!(first.kind(), AnswerKind::Accepted);
    let again = sends.one("orders", message(2, "k", "body")).await;
    assert_eq!((again.kind(), again.state()), (AnswerKind::InFlight, State::Ready));
    assert_eq!((&again.id, again.accepted_at_ms), (&first.id, first.accepted_at_ms));

    let mut other = message(3, "k", "another body");
    other.content_type = "text/plain".to_owned();
    let conflict = sends.one("orders", other).await;
    assert_eq!(conflict.kind(), AnswerKind::Error);
    let problem = conflict.problem.unwrap();
    assert_eq!(problem.code, "conflict");
    assert_eq!(problem.differs, ["body"]);
    assert_eq!((problem.id, problem.retryable), (first.id, false));
}

#[tokio::test]
async fn duplicates_within_one_frame_harm_no_neighbour() {
    let broker = Broker::with_queue("orders", "{}").await;
    let mut sends = broker.sends().await;
    let frame = vec![
        message(1, "a", "body"),
        message(2, "a", "body"),
        message(3, "a", "other"),
        message(4, "b", "body"),
        Message { key: None, ..message(5, "", "no key") },
        message(6, "tab\t", "a key that is none"),
        message(7, "c", "body"),
        message(8, "", "an empty key"),
        Message { group: Some(String::new()), ..message(9, "d", "an empty group") },
    ];
    sends.say("orders", frame).await;
    let answers = sends.answers(9).await;
    let kinds: Vec<_> = answers.iter().map(|answer| answer.kind()).collect();
    use AnswerKind::{Accepted, Error, InFlight};
    assert_eq!(kinds, [Accepted, InFlight, Error, Accepted, Error, Error, Accepted, Error, Error]);
    assert_eq!(answers[0].id, answers[1].id);
    let codes: Vec<_> = [2, 4, 5, 7, 8].map(|place| refusal(&answers[place])).into();
    assert_eq!(codes, ["conflict", "missing_key", "malformed_key", "malformed_key", "invalid"]);
}

#[tokio::test]
async fn everything_a_message_carries_reaches_the_worker() {
    let broker = Broker::with_queue("orders", "{}").await;
    let mut sends = broker.sends().await;
    let mut sent = message(1, "k", &b"\x00\xff bytes"[..]);
    sent.content_type = "application/json".to_owned();
    sent.group = Some("g".to_owned());
    sent.headers.insert("traceparent".to_owned(), "00-1".to_owned());
    sent.headers.insert("empty".to_owned(), String::new());
    sent.issued_at_ms = Some(1_700_000_000_000);
    let answer = sends.one("orders", sent.clone()).await;
    assert_eq!(answer.kind(), AnswerKind::Error, "issued long ago: {answer:?}");
    assert_eq!(refusal(&answer), "too_old");
    sent.issued_at_ms = None;
    let answer = sends.one("orders", sent.clone()).await;
    assert_eq!(answer.kind(), AnswerKind::Accepted, "{answer:?}");

    let mut works = broker.works("orders", 1).await;
    let delivery = works.deliveries(1).await.remove(0);
    assert_eq!((Some(delivery.key), delivery.id), (sent.key, answer.id));
    assert_eq!((delivery.body, delivery.content_type), (sent.body, sent.content_type));
    assert_eq!((Some(delivery.group), delivery.headers), (sent.group, sent.headers));
    assert_eq!((delivery.attempt, delivery.generation), (1, 0));
    assert_eq!(delivery.accepted_at_ms, answer.accepted_at_ms);
}

#[tokio::test]
async fn an_own_fingerprint_stands_for_the_body() {
    let broker = Broker::with_queue("orders", "{}").await;
    let mut sends = broker.sends().await;
    let mut noisy = message(1, "k", "at 12:00");
    noisy.fingerprint = Some("lemons".to_owned());
    assert_eq!(sends.one("orders", noisy.clone()).await.kind(), AnswerKind::Accepted);
    noisy.body = "at 12:01".into();
    assert_eq!(sends.one("orders", noisy.clone()).await.kind(), AnswerKind::InFlight);
    noisy.fingerprint = Some("limes".to_owned());
    let conflict = sends.one("orders", noisy.clone()).await;
    assert_eq!(conflict.problem.unwrap().differs, ["fingerprint"]);
    noisy.fingerprint = Some("x".repeat(256));
    assert_eq!(refusal(&sends.one("orders", noisy).await), "invalid");
}

#[tokio::test]
async fn delays_and_times_to_live_are_kept() {
    let broker = Broker::with_queue("orders", "{}").await;
    let mut sends = broker.sends().await;
    let mut later = message(1, "later", "body");
    later.delay_ms = Some(3_600_000);
    assert_eq!(sends.one("orders", later).await.state(), State::Delayed);
    let mut never = message(2, "never", "body");
    never.ttl_ms = Some(0);
    assert_eq!(refusal(&sends.one("orders", never).await), "invalid");
    assert_eq!(broker.stats("orders").await.delayed, 1);
}

#[tokio::test]
async fn one_stream_serves_many_queues_and_names_those_that_are_not_there() {
    let broker = Broker::with_queue("orders", "{}").await;
    broker.put("emails", "{}").await.unwrap();
    let mut sends = broker.sends().await;
    for (queue, expected) in [
        ("orders", ""),
        ("emails", ""),
        ("absent", "no_such_queue"),
        ("not a name", "invalid"),
        ("", "invalid"),
        ("orders", ""),
    ] {
        let key = format!("{queue} {}", fastrand::u64(..));
        let answer = sends.one(queue, message(7, &key, "body")).await;
        assert_eq!(refusal(&answer), expected, "{queue}");
        assert_eq!(answer.r#ref, 7);
    }
    assert_eq!(broker.stats("orders").await.ready, 2);
    assert_eq!(broker.stats("emails").await.ready, 1);
}

/// Frames that arrive together are submitted together if they are for the same queue.
#[tokio::test]
async fn frames_of_two_queues_that_arrive_together_are_counted_for_their_own() {
    const FRAMES: u64 = 400;
    let broker = Broker::with_queue("orders", "{}").await;
    broker.put("emails", "{}").await.unwrap();
    let frames = (0..FRAMES).map(|number| {
        // Two frames of the one, then one of the other.
        let queue = if number % 3 < 2 { "orders" } else { "emails" };
        let messages = vec![message(number, &format!("k{number}"), "body")];
        proto::SendFrame { queue: queue.to_owned(), messages }
    });
    let frames = tokio_stream::iter(frames.collect::<Vec<_>>());
    let mut answers = broker.client.clone().send(frames).await.unwrap().into_inner();
    let mut answered = 0;
    while let Some(reply) = in_time(answers.message()).await.unwrap() {
        answered += reply.answers.len() as u64;
    }
    assert_eq!(answered, FRAMES);
    let address = broker.address();
    let ask = move || Connection::new(address).ask(&Request::get("/metrics")).text();
    let metrics = tokio::task::spawn_blocking(ask).await.unwrap();
    for (queue, sent) in [("orders", FRAMES - FRAMES / 3), ("emails", FRAMES / 3)] {
        assert_eq!(broker.stats(queue).await.ready, sent);
        let labels = [format!("queue=\"{queue}\""), "answer=\"accepted\"".to_owned()];
        let is_it = |line: &&str| {
            line.starts_with("hapax_sends_total{")
                && labels.iter().all(|label| line.contains(label))
        };
        let line = metrics.lines().find(is_it).unwrap();
        assert!(line.ends_with(&format!(" {sent}")), "{line}, not {sent}");
    }
}

#[tokio::test]
async fn a_message_of_the_largest_size_passes_and_a_larger_one_is_refused_alone() {
    let broker = Broker::with_queue("orders", r#"{"max_body_bytes":16777216}"#).await;
    let mut sends = broker.sends().await;
    let large = vec![7; 16 * 1_024 * 1_024];
    let answer = sends.one("orders", message(1, "large", large.clone())).await;
    assert_eq!(answer.kind(), AnswerKind::Accepted);
    broker.put("small", r#"{"max_body_bytes":10}"#).await.unwrap();
    let frame = vec![message(2, "a", "12345678901"), message(3, "b", "1234567890")];
    sends.say("small", frame).await;
    let answers = sends.answers(2).await;
    assert_eq!(refusal(&answers[0]), "too_large");
    assert_eq!(answers[1].kind(), AnswerKind::Accepted);

    let request = broker.client.clone().max_decoding_message_size(64 * 1_024 * 1_024);
    let (up, frames) = tokio::sync::mpsc::channel(1);
    let frames = tokio_stream::wrappers::ReceiverStream::new(frames);
    let mut down = { request }.work(frames).await.unwrap().into_inner();
    up.send(crate::broker::opening("orders", 1)).await.unwrap();
    let reply = in_time(down.message()).await.unwrap().unwrap();
    assert!(reply.deliveries[0].body == large);
}

#[tokio::test]
async fn the_end_of_the_callers_side_is_answered_in_full() {
    let broker = Broker::with_queue("orders", "{}").await;
    let sends = broker.sends().await;
    sends.say("orders", messages("k", 5_000)).await;
    let answers = sends.finish().await.unwrap();
    assert_eq!(answers.len(), 5_000);
}

#[tokio::test]
async fn a_queue_with_a_rate_refuses_what_is_too_much_and_says_when_to_come_again() {
    let broker = Broker::with_queue("orders", r#"{"sends_per_s":1}"#).await;
    let mut sends = broker.sends().await;
    sends.say("orders", messages("k", 50)).await;
    let answers = sends.answers(50).await;
    let refused: Vec<_> = answers.iter().filter_map(|answer| answer.problem.as_ref()).collect();
    assert!(!refused.is_empty() && refused.len() < 50, "{}", refused.len());
    assert!(refused.iter().all(|problem| problem.code == "rate_limited" && problem.retryable));
    assert!(refused.iter().all(|problem| problem.retry_after_ms.is_some()));
}

#[tokio::test]
async fn a_finished_key_answers_with_its_result() {
    let broker = Broker::with_queue("orders", "{}").await;
    let mut sends = broker.sends().await;
    sends.one("orders", message(1, "k", "body")).await;
    let mut works = broker.works("orders", 1).await;
    let delivery = works.deliveries(1).await.remove(0);
    works.settle(vec![done(1, &delivery, "charged")]).await;
    works.settled(1).await;
    let answer = sends.one("orders", message(2, "k", "body")).await;
    assert_eq!((answer.kind(), answer.state()), (AnswerKind::Done, State::Done));
    let outcome = answer.outcome.unwrap();
    assert_eq!(outcome.attempts, 1);
    let result = outcome.result.unwrap();
    assert_eq!((&result.body[..], &*result.content_type), (&b"charged"[..], "text/plain"));
    assert!(outcome.remembered_until_ms.unwrap() > outcome.finished_at_ms);
}

#[tokio::test]
async fn the_order_on_the_stream_is_the_order_in_a_group() {
    let broker = Broker::with_queue("orders", r#"{"order":"group"}"#).await;
    let mut sends = broker.sends().await;
    for number in 0..50 {
        let mut one = message(number, &format!("k{number}"), "body");
        one.group = Some("g".to_owned());
        sends.say("orders", vec![one]).await;
    }
    sends.answers(50).await;
    let mut works = broker.works("orders", 10).await;
    for number in 0..50 {
        let delivery = works.deliveries(1).await.remove(0);
        assert_eq!(delivery.key, format!("k{number}"));
        works.settle(vec![done(number, &delivery, "")]).await;
        works.credit(1).await;
    }
}

#[tokio::test]
async fn a_stream_without_a_token_is_refused_where_one_is_needed() {
    use hapax_server::options::Auth;
    let broker = Broker::with(|settings| settings.auth = Auth::Tokens).await;
    let (_up, frames) = tokio::sync::mpsc::channel(1);
    let frames = tokio_stream::wrappers::ReceiverStream::new(frames);
    let sent = in_time(broker.client.clone().send(frames)).await;
    let status = sent.map(|_| ()).unwrap_err();
    assert_eq!(code(&status), "unauthorized");
    assert_eq!(status.code(), tonic::Code::Unauthenticated);
}

#[tokio::test]
async fn results_that_wait_on_a_stream_are_bounded_and_found_when_they_are_asked_for_again() {
    let broker = Broker::with_queue("orders", "{}").await;
    let mut sends = broker.sends().await;
    sends.one("orders", message(1, "k", "body")).await;
    let mut works = broker.works("orders", 1).await;
    let delivery = works.deliveries(1).await.remove(0);
    works.settle(vec![done(1, &delivery, "r".repeat(1_000_000).leak())]).await;
    works.settled(1).await;

    const COUNT: u64 = 24;
    sends.say("orders", (0..COUNT).map(|n| message(n, "k", "body")).collect()).await;
    let answers = sends.answers(COUNT as usize).await;
    let mut results = 0;
    for answer in &answers {
        match answer.kind() {
            AnswerKind::Done => {
                let result = answer.outcome.as_ref().unwrap().result.as_ref().unwrap();
                assert_eq!(result.body.len(), 1_000_000);
                results += 1;
            }
            _ => {
                let problem = answer.problem.as_ref().unwrap();
                assert_eq!((&*problem.code, problem.retryable), ("unavailable", true));
            }
        }
    }
    assert!((1..=4).contains(&results), "{results} results of 1 MB were in memory");
    // What was read has made room.
    for n in 0..8 {
        assert_eq!(sends.one("orders", message(n, "k", "body")).await.kind(), AnswerKind::Done);
    }
}
