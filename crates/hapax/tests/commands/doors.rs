//! One operation through every door: HTTP, gRPC and the command line tell the same.

use std::io::{Read, Write};
use std::net::TcpStream;

use hapax_client::{Admin, Client};
use hapax_wire::proto::{self, AnswerKind, State};
use serde_json::{Value, json};

use crate::broker::Broker;

/// Asks over HTTP; the status and the JSON of the answer.
fn ask(
    broker: &Broker,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, Value) {
    let address = broker.url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    let headers: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-length: {length}\r\n{headers}\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap())
}

/// Sends over gRPC.
fn send_by_grpc(broker: &Broker, message: proto::Message) -> proto::Answer {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let admin = Admin::new(Client::connect(&broker.url).unwrap());
        admin.send_batch("orders", vec![message]).await.unwrap().remove(0)
    })
}

const BODY: &str = "three lemons";
const PATH: &str = "/v1/queues/orders/messages";

/// Sends the message under a key, and tells the answer.
type Send = fn(&Broker, &str) -> String;

/// Every way to send the same message.
fn senders() -> Vec<(&'static str, Send)> {
    fn by_http(broker: &Broker, key: &str, content_type: &[(&str, &str)]) -> String {
        let headers = [&[("idempotency-key", key)], content_type].concat();
        word(&ask(broker, "POST", PATH, &headers, BODY).1)
    }
    fn by_batch(broker: &Broker, message: Value) -> String {
        let batch = json!({ "messages": [message] }).to_string();
        let (_, told) = ask(broker, "POST", "/v1/queues/orders/batch", &[], &batch);
        word(&told["answers"][0])
    }
    fn by_grpc(broker: &Broker, key: &str, content_type: &str) -> String {
        let message = proto::Message {
            key: Some(key.to_owned()),
            body: BODY.into(),
            content_type: content_type.to_owned(),
            ..proto::Message::default()
        };
        format!("{:?}", send_by_grpc(broker, message).kind()).to_lowercase()
    }
    fn by_command(broker: &Broker, key: &str, more: &[&str]) -> String {
        let arguments = [&["send", "orders", BODY, "--key", key, "-o", "json"], more].concat();
        word(&serde_json::from_str(&broker.run(&arguments).out).unwrap())
    }
    /// The answer, without the underscores that gRPC's names lack.
    fn word(told: &Value) -> String {
        told["answer"].as_str().unwrap_or("refused").replace('_', "")
    }
    vec![
        ("curl -d", |broker, key| {
            by_http(broker, key, &[("content-type", "application/x-www-form-urlencoded")])
        }),
        ("a string", |broker, key| {
            by_http(broker, key, &[("content-type", "text/plain;charset=UTF-8")])
        }),
        ("raw bytes", |broker, key| by_http(broker, key, &[])),
        ("a batch", |broker, key| by_batch(broker, json!({"key": key, "body": BODY}))),
        ("a batch in base64", |broker, key| {
            by_batch(broker, json!({"key": key, "body_base64": "dGhyZWUgbGVtb25z"}))
        }),
        ("gRPC", |broker, key| by_grpc(broker, key, "")),
        ("gRPC with a type", |broker, key| by_grpc(broker, key, "application/json")),
        ("the command line", |broker, key| by_command(broker, key, &[])),
        ("the command line with a type", |broker, key| {
            by_command(broker, key, &["--content-type", "application/json"])
        }),
    ]
}

#[test]
fn k3_the_same_operation_never_conflicts_with_itself_whatever_door_it_comes_through() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    for (number, (first, send_first)) in senders().into_iter().enumerate() {
        let key = format!("order-{number}");
        assert_eq!(send_first(&broker, &key), "accepted", "{first}");
        for (then, send) in senders() {
            assert_eq!(send(&broker, &key), "inflight", "{first}, then {then}");
        }
    }
}

/// Claims over HTTP, with the body in parts of so many bytes.
fn claim_by_http(broker: &Broker, key: &str, body: &[u8], step: usize) -> u16 {
    let address = broker.url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "POST /v1/queues/orders/claims HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         transfer-encoding: chunked\r\nhapax-lease-ms: 600000\r\nidempotency-key: {key}\r\n\r\n"
    )
    .unwrap();
    for part in body.chunks(step) {
        write!(stream, "{:x}\r\n", part.len()).unwrap();
        stream.write_all(part).unwrap();
        stream.write_all(b"\r\n").unwrap();
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn k3_a_claim_has_one_fingerprint_whole_and_in_parts_over_http_and_grpc() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let by_grpc = |key: &str, body: &[u8]| {
        runtime.block_on(async {
            let client = Client::connect(&broker.url).unwrap();
            let claim = client.queue("orders").claim(key).body(body.to_vec());
            format!("{:?}", claim.take().await)
        })
    };
    let whole: Vec<u8> = (0..5_000_u32).map(|n| (n * 31 % 251) as u8).collect();
    for length in [0, 5, 240, 241, 1_024, 5_000] {
        let (key, body) = (format!("claim-{length}"), &whole[..length]);
        assert_eq!(claim_by_http(&broker, &key, body, 7), 201);
        for step in [1, 256, 5_000] {
            assert_eq!(claim_by_http(&broker, &key, body, step), 409, "in flight, {length} {step}");
        }
        let told = by_grpc(&key, body);
        assert!(told.contains("InFlight"), "{length}: {told}");
        let other = [body, b"x"].concat();
        assert_eq!(claim_by_http(&broker, &key, &other, 7), 422, "a conflict, {length}");
        let told = by_grpc(&key, &other);
        assert!(told.to_lowercase().contains("conflict"), "{length}: {told}");
    }
}

#[test]
fn a_discarded_message_is_told_by_one_word_through_every_door() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    broker.ok(&["send", "orders", BODY, "--key", "k"]);
    broker.kill_message("orders", "no such account");
    broker.ok(&["dead", "discard", "orders", "--key", "k", "--yes"]);
    let is_discarded = |told: &Value| {
        assert_eq!((&told["answer"], &told["state"]), (&json!("dead"), &json!("discarded")));
    };

    let key = [("idempotency-key", "k")];
    let (status, told) = ask(&broker, "POST", PATH, &key, BODY);
    assert_eq!(status, 200);
    is_discarded(&told);
    let waiting = [("idempotency-key", "k"), ("prefer", "wait=5")];
    is_discarded(&ask(&broker, "POST", PATH, &waiting, BODY).1);
    let batch = json!({ "messages": [{"key": "k", "body": BODY}] }).to_string();
    is_discarded(&ask(&broker, "POST", "/v1/queues/orders/batch", &[], &batch).1["answers"][0]);
    let (_, looked) = ask(&broker, "GET", "/v1/queues/orders/keys/k", &[], "");
    assert_eq!(looked["state"], "discarded");

    let message = proto::Message {
        key: Some("k".to_owned()),
        body: BODY.into(),
        ..proto::Message::default()
    };
    let told = send_by_grpc(&broker, message);
    assert_eq!((told.kind(), told.state()), (AnswerKind::Dead, State::Discarded));

    for more in [&[][..], &["--wait", "5s"]] {
        let arguments = [&["send", "orders", BODY, "--key", "k", "-o", "json"], more].concat();
        let told = broker.run(&arguments);
        assert_eq!(told.code, Some(7), "{told:?}");
        is_discarded(&serde_json::from_str(&told.out).unwrap());
    }
    assert_eq!(broker.json(&["get", "orders", "k"])["state"], "discarded");
}
