//! Requests that do not say, or say wrongly, whom they mean and where they come from; and what a
//! refused caller is told about its connection.

use std::net::SocketAddr;

use serde_json::json;

use super::Raw;
use crate::broker_in;
use hapax_testing::http::Request;

/// What a request with these headers is answered, over a connection of its own.
#[track_caller]
fn answer(address: SocketAddr, start: &str, headers: &str, body: &str) -> (u16, String) {
    let mut raw = Raw::new(address);
    let length = body.len();
    let request = format!("{start}\r\n{headers}content-length: {length}\r\n\r\n{body}");
    raw.say(request.as_bytes());
    // The other half stays open: the answer is there without it.
    let head = raw.answer();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("no answer: {head:?}")), head)
}

#[test]
fn a18_a_request_names_its_host_once_and_a_page_of_another_site_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let setup = broker_in(directory.path());
    let broker = setup.start();
    broker.connection().ask(&Request::new("PUT", "/v1/queues/orders").json(&json!({}))).is(201);
    let status = |start: &str, headers: &str| answer(setup.address, start, headers, "").0;
    let get = "GET /v1/queues HTTP/1.1";
    for (expected, headers) in [
        (200, "host: localhost\r\n"),
        (200, "host: 127.0.0.1:4747\r\n"),
        (400, ""),
        (400, "host: localhost\r\nhost: localhost\r\n"),
        (400, "host: localhost\r\nhost: evil.example\r\n"),
        (403, "host: evil.example\r\n"),
        (403, "host: localhost.evil.example:80\r\n"),
    ] {
        assert_eq!(status(get, headers), expected, "{headers:?}");
    }
    // HTTP/1.0 has no Host.
    assert_eq!(status("GET /livez HTTP/1.0", ""), 200);
    let post = "POST /v1/queues/orders/purge HTTP/1.1";
    for (expected, headers) in [
        (200, "host: localhost\r\n"),
        (200, "host: localhost:7\r\norigin: http://localhost:7\r\n"),
        (200, "host: localhost\r\nsec-fetch-site: same-origin\r\n"),
        (403, "host: localhost\r\norigin: http://evil.example\r\n"),
        (403, "host: localhost\r\norigin: null\r\n"),
        (403, "host: localhost\r\nsec-fetch-site: cross-site\r\n"),
    ] {
        let headers = format!("{headers}content-type: application/json\r\n");
        assert_eq!(status(post, &headers), expected, "{headers:?}");
    }
}

#[test]
fn a18_a_refused_body_is_read_to_its_end_or_the_connection_is_said_to_end() {
    let directory = tempfile::tempdir().unwrap();
    let setup = broker_in(directory.path());
    let broker = setup.start();
    let config = json!({ "max_body_bytes": 1_000 });
    broker.connection().ask(&Request::new("PUT", "/v1/queues/orders").json(&config)).is(201);
    let send = "POST /v1/queues/orders/messages HTTP/1.1";
    let headers = "host: localhost\r\nidempotency-key: k\r\n";
    // A little too much is thrown away, and the connection goes on.
    let (status, head) = answer(setup.address, send, headers, &"x".repeat(100_000));
    assert_eq!(status, 413);
    assert!(!head.to_ascii_lowercase().contains("connection: close"), "{head}");
    // Who asks first, with more than any queue takes, is told not to come.
    let asking = format!("{headers}expect: 100-continue\r\ncontent-length: 1099511627776\r\n");
    let mut raw = Raw::new(setup.address);
    raw.say(format!("{send}\r\n{asking}\r\n").as_bytes());
    let head = raw.answer().to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 413") && head.contains("connection: close"), "{head}");
    assert!(raw.rest().len() < 10_000, "nothing but the rest of the answer");
}
