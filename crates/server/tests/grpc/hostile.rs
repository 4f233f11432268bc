//! Callers that stall, flood or speak another language: the others do not notice.

use std::time::Duration;

use hapax_wire::proto::settle::Verb;
use hapax_wire::proto::{self, AnswerKind};
use http::{Request, StatusCode, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::broker::{Broker, channel, code, done, message, messages, opening, refusal, settle};
use hapax_testing::in_time;

const MIB: usize = 1_024 * 1_024;

#[tokio::test]
async fn a_caller_that_never_reads_its_answers_is_not_read_for_ever() {
    let broker = Broker::with_queue("orders", r#"{"guarantee":"at-least-once"}"#).await;
    let stalled = broker.sends().await;
    // Refusals are the longest answers: they fill what is on the way soonest.
    let frame = || {
        let messages = (0..1_000).map(|number| message(number, "", "body")).collect();
        proto::SendFrame { queue: "x".repeat(200), messages }
    };
    let mut taken = 0;
    while stalled.is_taken(frame(), Duration::from_secs(2)).await {
        taken += 1;
        assert!(taken < 2_000, "two million answers that nobody reads");
    }
    let mut other = broker.sends().await;
    let answer = other.one("orders", message(1, "k", "body")).await;
    assert_eq!(answer.kind(), AnswerKind::Accepted, "others are served");
}

#[tokio::test]
async fn a_worker_that_never_reads_holds_a_bounded_part_of_the_queue() {
    let broker = Broker::with_queue("orders", "{}").await;
    let body = vec![7; 64 * 1_024];
    for batch in 0..10 {
        let some = (0..100).map(|n| message(n, &format!("{batch}-{n}"), body.clone())).collect();
        broker.send("orders", some).await;
    }
    let stalled = broker.works("orders", 10_000).await;
    // Another worker gets what is left, and that is most of it.
    let mut other = broker.works("orders", 10_000).await;
    let got = other.deliveries(500).await;
    assert_eq!(got.len(), 500);
    let stats = broker.stats("orders").await;
    assert!(stats.leased as usize * 64 * 1_024 <= 64 * MIB, "{} are leased", stats.leased);
    drop(stalled);
}

#[tokio::test]
async fn a_frame_of_very_many_empty_members_is_refused_before_it_is_read() {
    let broker = Broker::with_queue("orders", "{}").await;
    let (some, many) = (60_000, 70_000);
    let mut sends = broker.sends().await;
    sends.say("orders", vec![message(0, "", ""); some]).await;
    assert_eq!(refusal(&sends.answers(some).await[0]), "malformed_key");
    sends.say("orders", vec![message(0, "", ""); many]).await;
    assert_eq!(code(&sends.end().await.unwrap_err()), "too_large");
    let mut works = broker.works("orders", 1).await;
    works.settle(vec![proto::Settle::default(); many]).await;
    assert_eq!(code(&works.next().await.unwrap_err()), "too_large");
}

#[tokio::test]
async fn very_many_members_of_a_call_or_of_a_member_are_refused_before_they_are_read() {
    let broker = Broker::with_queue("orders", "{}").await;
    let (queue, many) = (|| "orders".to_owned(), 70_000);
    let mut client = broker.client.clone();
    let frame = proto::SendFrame { queue: queue(), messages: vec![message(0, "", ""); many] };
    assert_eq!(code(&client.send_batch(frame).await.unwrap_err()), "too_large");
    let emits = || proto::Done { result: None, emits: vec![proto::Emit::default(); many] };
    let items = vec![settle(0, &"lease".into(), Verb::Done(emits()))];
    let request = proto::SettleRequest { queue: queue(), items: items.clone() };
    assert_eq!(code(&client.settle(request).await.unwrap_err()), "too_large");
    let mut works = broker.works("orders", 1).await;
    works.settle(items).await;
    assert_eq!(code(&works.next().await.unwrap_err()), "too_large");
    let keys = proto::RedriveKeys { keys: vec![String::new(); many], group: None };
    let select = Some(proto::redrive_request::Select::Keys(keys));
    let request = proto::RedriveRequest { queue: queue(), select, ..Default::default() };
    assert_eq!(code(&client.redrive(request).await.unwrap_err()), "too_large");
    let header = |number: usize| (number.to_string(), String::new());
    let headers = (0..many).map(header).collect();
    let request =
        proto::ClaimRequest { queue: queue(), key: queue(), headers, ..Default::default() };
    assert_eq!(code(&client.claim(request).await.unwrap_err()), "too_large");
}

#[tokio::test]
async fn a_message_that_is_too_large_harms_itself_alone() {
    let broker = Broker::with_queue("orders", "{}").await;
    let mut sends = broker.sends().await;
    let large = message(1, "large", vec![0; 20 * MIB]);
    sends.say("orders", vec![message(0, "a", "x"), large, message(2, "b", "x")]).await;
    let answers = sends.answers(3).await;
    assert_eq!(answers[0].kind(), AnswerKind::Accepted);
    assert_eq!(refusal(&answers[1]), "too_large");
    assert_eq!(answers[2].kind(), AnswerKind::Accepted);
    let next = sends.one("orders", message(3, "c", "x")).await;
    assert_eq!(next.kind(), AnswerKind::Accepted, "the stream goes on");
}

#[tokio::test]
async fn a_settle_that_is_too_large_harms_itself_alone() {
    let broker = Broker::with_queue("orders", "{}").await;
    broker.send("orders", messages("k", 4)).await;
    let mut works = broker.works("orders", 4).await;
    let all = works.deliveries(4).await;
    let emit = |number: usize| proto::Emit {
        queue: "orders".to_owned(),
        name: format!("e{number}"),
        body: vec![7; MIB].into(),
        ..Default::default()
    };
    let emits = proto::Done { result: None, emits: (0..20).map(emit).collect() };
    let blob = |body: usize, content_type: usize| proto::Blob {
        body: vec![7; body].into(),
        content_type: "x".repeat(content_type),
    };
    let result = |blob| Verb::Done(proto::Done { result: Some(blob), emits: Vec::new() });
    works
        .settle(vec![
            settle(0, &all[0].lease, Verb::Done(emits)),
            settle(1, &all[1].lease, result(blob(2 * MIB, 0))),
            settle(2, &all[2].lease, result(blob(0, 300))),
            done(3, &all[3], "ok"),
        ])
        .await;
    let settled = works.settled(4).await;
    let kinds: Vec<_> = settled.iter().map(|answer| answer.kind()).collect();
    use proto::SettleKind::{Ok, SettleError};
    assert_eq!(kinds, [SettleError, SettleError, SettleError, Ok], "{settled:?}");
    works.settle(vec![done(4, &all[0], "ok")]).await;
    assert_eq!(works.settled(1).await[0].kind(), Ok, "the lease is as it was");
}

#[tokio::test]
async fn a_frame_that_is_too_large_ends_its_stream_and_no_other() {
    let broker = Broker::with_queue("orders", "{}").await;
    let mut other = broker.sends().await;
    let sends = broker.sends().await;
    sends.say("orders", vec![message(1, "k", vec![0; 33 * MIB])]).await;
    let status = sends.finish().await.unwrap_err();
    assert_eq!((status.code(), code(&status)), (tonic::Code::OutOfRange, "too_large"));
    let answer = other.one("orders", message(1, "k", "body")).await;
    assert_eq!(answer.kind(), AnswerKind::Accepted);
}

#[tokio::test]
async fn bytes_that_are_no_frame_end_their_stream_and_no_other() {
    let broker = Broker::with_queue("orders", "{}").await;
    let mut other = broker.sends().await;
    for (path, frame) in [
        ("Send", &b"\x00\x00\x00\x00\x04\x12\xff\xff\xff"[..]),
        ("Send", b"\x00\x00\x00\x00\x02\x0a\x05"),
        ("Send", b"\x00\x00\x00\x00\x03\x0a\x01\xff"),
        ("Send", b"\x01\x00\x00\x00\x01x"),
        ("Send", b"\x07\x00\x00\x00\x01x"),
        ("Work", b"\x00\x00\x00\x00\x03\x1a\x09\x12"),
        ("Work", b"\x00\xff\xff\xff\xff"),
        ("SendBatch", b"\x00\x00\x00\x00\x02\x0a\x05"),
    ] {
        let (status, code) = speak(&broker, path, &[], frame).await;
        assert_ne!(status, "0", "{path} {frame:?}");
        assert!(matches!(&*code, "invalid" | "too_large"), "{path} {frame:?}: {status} {code}");
        let answer = other.one("orders", message(1, path, "body")).await;
        assert!(answer.problem.is_none(), "{answer:?}");
    }
}

#[tokio::test]
async fn what_the_framework_refuses_has_a_code_of_ours() {
    let broker = Broker::with_queue("orders", "{}").await;
    let plain: &[(&str, &str)] = &[];
    let gzip: &[(&str, &str)] = &[("grpc-encoding", "gzip")];
    for (path, headers, expected) in [
        ("Nothing", plain, tonic::Code::Unimplemented),
        ("../hapax.v2.Hapax/Send", plain, tonic::Code::Unimplemented),
        ("SendBatch", gzip, tonic::Code::Unimplemented),
        ("Send", gzip, tonic::Code::Unimplemented),
        ("SendBatch", plain, tonic::Code::InvalidArgument),
        ("Send", plain, tonic::Code::InvalidArgument),
    ] {
        let told = speak(&broker, path, headers, b"\x01\x00\x00\x00\x01x").await;
        let expected = ((expected as i32).to_string(), "invalid".to_owned());
        assert_eq!(told, expected, "{path} {headers:?}");
    }
}

/// Says some bytes as a gRPC call, and gets the status and the code.
async fn speak(
    broker: &Broker,
    path: &str,
    headers: &[(&str, &str)],
    frame: &'static [u8],
) -> (String, String) {
    use http_body_util::{BodyExt, Full};
    use tower::ServiceExt;
    let channel = channel(&broker.url());
    let path = match path.strip_prefix("../") {
        Some(path) => path.to_owned(),
        None => format!("hapax.v1.Hapax/{path}"),
    };
    let mut request = Request::post(format!("{}/{path}", broker.url()));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request
        .version(Version::HTTP_2)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(tonic::body::Body::new(Full::new(bytes::Bytes::from_static(frame))))
        .unwrap();
    let response = in_time(channel.oneshot(request)).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let told = |headers: &http::HeaderMap| {
        let text = |name| headers.get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
        (text("grpc-status"), text("hapax-code"))
    };
    if response.headers().contains_key("grpc-status") {
        return told(response.headers());
    }
    let body = in_time(response.into_body().collect()).await.unwrap();
    told(body.trailers().unwrap())
}

#[tokio::test]
async fn a_worker_that_vanishes_leaves_its_messages_to_others_at_once() {
    let broker = Broker::with_queue("orders", "{}").await;
    let works = broker.works("orders", 10).await;
    drop(works);
    // A connection cut in the middle of a frame.
    let address = broker.address();
    let mut raw = tokio::net::TcpStream::connect(address).await.unwrap();
    raw.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        .await
        .unwrap();
    let mut some = [0; 9];
    raw.read_exact(&mut some).await.unwrap();
    drop(raw);
    let mut other = broker.works("orders", 10).await;
    broker.send("orders", vec![message(1, "k", "body")]).await;
    assert_eq!(other.deliveries(1).await[0].attempt, 1);
}

#[tokio::test]
async fn credit_beyond_all_bounds_is_taken_for_the_bound() {
    let broker = Broker::with_queue("orders", "{}").await;
    let mut works = broker.works("orders", u32::MAX).await;
    works.credit(u32::MAX).await;
    broker.send("orders", crate::broker::messages("k", 100)).await;
    works.deliveries(100).await;
    let zero = broker.unopened().await;
    zero.say(opening("orders", 0)).await;
    zero.credit(0).await;
}
