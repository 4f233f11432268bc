//! A18: strangers. Each attack ends in an answer or a closed connection, in time; all of them
//! together cost less than 64 MiB and no panic, and an honest client is served meanwhile.

mod frames;
mod hosts;
mod slow;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::broker_in;
use crate::machine::{forget_peak, memory_bytes, run, say};
use hapax_testing::http::{Connection, Request};
use hapax_testing::{PATIENCE, Setup, pause};

/// By when every connection of a stranger is answered or closed; the broker's own bounds are 10 s.
const IN_TIME: Duration = Duration::from_secs(60);
const MEMORY_BYTES: u64 = 64 << 20;

/// A connection on which anything can be said.
struct Raw(TcpStream);

impl Raw {
    fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(IN_TIME)).unwrap();
        stream.set_write_timeout(Some(IN_TIME)).unwrap();
        Self(stream)
    }

    fn say(&mut self, bytes: &[u8]) -> bool {
        self.0.write_all(bytes).is_ok()
    }

    /// Everything until the other side closes. A reset is a close, too; silence is not.
    #[track_caller]
    fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                panic!("neither answered nor closed in {IN_TIME:?}: {rest:?}")
            }
            _ => rest,
        }
    }

    /// The head of the next answer, as far as it came before the other side closed.
    #[track_caller]
    fn answer(&mut self) -> String {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") && self.0.read_exact(&mut byte).is_ok() {
            head.extend(byte);
        }
        String::from_utf8_lossy(&head).into_owned()
    }

    /// The status of the answer; none where the connection is closed without a word.
    #[track_caller]
    fn status(&mut self) -> Option<u16> {
        let rest = self.rest();
        let text = String::from_utf8_lossy(&rest);
        text.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
    }

    /// A refusal or a closed connection, and nothing else.
    #[track_caller]
    fn must_be_refused(mut self, what: &str) {
        let status = self.status();
        assert!(status.is_none_or(|status| (400..500).contains(&status)), "{what}: {status:?}");
    }
}

#[test]
fn a18_strangers_are_refused_in_time_and_cost_little() {
    let directory = tempfile::tempdir().unwrap();
    let setup = broker_in(directory.path());
    let mut broker = setup.start();
    let mut door = broker.connection();
    door.ask(&Request::new("PUT", "/v1/queues/orders").json(&json!({}))).is(201);
    // Whatever is made once is made before the memory is looked at.
    for number in 0..200 {
        door.ask(&Request::send("orders", &format!("warm-{number}"), "x")).is(201);
    }
    forget_peak(&broker);
    let before = memory_bytes(&broker, "VmRSS:");
    let is_over = AtomicBool::new(false);
    let address = setup.address;
    type Attack = fn(SocketAddr);
    let attacks: [(&str, Attack); 14] = [
        ("oversize bodies", oversize),
        ("compressed bodies", compressed),
        ("nested JSON", nested),
        ("heads that are none", malformed),
        ("heads that are too large", large_heads),
        ("smuggled requests", smuggled),
        ("slow heads", slow::heads),
        ("silent connections", slow::silence),
        ("slow bodies", slow::bodies),
        ("resets", frames::resets),
        ("endless headers", frames::continuations),
        ("pings and settings", frames::pings_and_settings),
        ("frames that are none", frames::malformed),
        ("calls that are none", frames::calls),
    ];
    let served = std::thread::scope(|scope| {
        let honest = scope.spawn(|| honest(&setup, &is_over));
        let running: Vec<_> = attacks
            .iter()
            .map(|(name, attack)| (name, scope.spawn(move || attack(address))))
            .collect();
        let mut failed = Vec::new();
        for (name, attack) in running {
            if attack.join().is_err() {
                failed.push(*name);
            }
        }
        is_over.store(true, Ordering::Relaxed);
        let served = honest.join().unwrap();
        assert!(failed.is_empty(), "these were not dealt with: {failed:?}");
        served
    });
    broker.is_alive();
    broker.has_not_panicked();
    assert!(served > 100, "the honest client was served {served} times only");
    let peak = memory_bytes(&broker, "VmHWM:");
    let grown = peak.saturating_sub(before);
    assert!(grown < MEMORY_BYTES, "{} MiB more than before", grown >> 20);
    say(&format!(
        "A18: {} kinds of strangers at once cost {} MiB; an honest one was served {served} times",
        attacks.len(),
        grown >> 20
    ));
}

/// Sends and looks, all the while; every request succeeds.
fn honest(setup: &Setup, is_over: &AtomicBool) -> usize {
    let mut door = setup.connection();
    let mut served = 0;
    while !is_over.load(Ordering::Relaxed) {
        let key = format!("honest-{served}");
        door.ask(&Request::send("orders", &key, "x")).is(201);
        let found = door.ask(&Request::get(&format!("/v1/queues/orders/keys/{key}"))).is(200);
        assert_eq!(found["state"], "ready");
        served += 1;
        pause(Duration::from_millis(5));
    }
    served
}

fn oversize(address: SocketAddr) {
    let head = |path: &str, length: &str| {
        let takes_key = matches!(path, "messages" | "claims");
        let key = if takes_key { "idempotency-key: big\r\n" } else { "" };
        format!(
            "POST /v1/queues/orders/{path} HTTP/1.1\r\nhost: h\r\n{key}\
             content-type: application/json\r\n{length}\r\n\r\n"
        )
    };
    for path in ["messages", "batch", "receive", "settle", "redrive", "claims"] {
        // Told: refused before a byte of it is sent.
        let mut told = Raw::new(address);
        told.say(head(path, "content-length: 1099511627776").as_bytes());
        assert_eq!(told.status(), Some(413), "{path}");
        // Not told: refused when it is too much.
        let mut endless = Raw::new(address);
        endless.say(head(path, "transfer-encoding: chunked").as_bytes());
        let chunk = [b"10000\r\n", &vec![b'x'; 0x10000][..], b"\r\n"].concat();
        let mut sent = 0;
        while sent < 48 << 20 && endless.say(&chunk) {
            sent += 0x10000;
        }
        assert!(sent < 48 << 20, "{path}: all of {} MiB were taken", sent >> 20);
        endless.must_be_refused(path);
    }
}

/// Refused with one of these, or closed while the body was still being written.
#[track_caller]
fn refused(door: &mut Connection, request: &Request, statuses: &[u16]) {
    match door.try_ask(request) {
        Ok(response) => {
            let (status, text) = (response.status, response.text());
            assert!(statuses.contains(&status), "{status}: {text}");
            // An item of many is refused within the answer.
            assert!(status != 200 || text.contains(r#""code":"invalid""#), "{text}");
        }
        Err(error) => {
            let is_closed = !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            assert!(is_closed, "neither answered nor closed: {error}");
        }
    }
}

fn compressed(address: SocketAddr) {
    let bomb = "head -c 200000000 /dev/zero | gzip -9 | base64 -w0";
    let bomb = run("sh", &["-c", bomb]).unwrap();
    let bomb = {
        use base64::Engine as _;
        base64::engine::general_purpose::STANDARD.decode(bomb.trim()).unwrap()
    };
    assert!(bomb.len() < 400_000, "{} bytes", bomb.len());
    let mut door = Connection::new(address);
    for encoding in ["gzip", "x-gzip", "deflate", "br", "zstd", "gzip, gzip"] {
        let request = Request::send("orders", "bomb", bomb.clone());
        refused(&mut door, &request.header("content-encoding", encoding), &[415]);
        let batch = Request::new("POST", "/v1/queues/orders/batch")
            .header("content-type", "application/json")
            .header("content-encoding", encoding);
        refused(&mut door, &batch.body(bomb.clone()), &[415]);
    }
}

fn nested(address: SocketAddr) {
    let mut door = Connection::new(address);
    let deep = 400_000;
    let arrays = "[".repeat(deep) + &"]".repeat(deep);
    let objects = "{\"a\":".repeat(deep) + "1" + &"}".repeat(deep);
    for text in [&arrays, &objects] {
        for path in ["receive", "settle", "batch", "redrive", "purge", "keys/k/resolve"] {
            let request = Request::new("POST", &format!("/v1/queues/orders/{path}"))
                .header("content-type", "application/json")
                .body(text.clone());
            refused(&mut door, &request, &[200, 400, 413, 422]);
        }
        let request = Request::new("PUT", "/v1/queues/orders")
            .header("content-type", "application/json")
            .body(text.clone());
        refused(&mut door, &request, &[200, 400, 413, 422]);
        // As deep, but in a place where anything may be.
        let batch = format!(r#"{{"messages":[{{"key":"deep","ignored":{text},"body":"x"}}]}}"#);
        let request = Request::new("POST", "/v1/queues/orders/batch")
            .header("content-type", "application/json")
            .body(batch);
        // Skipped as it is read, or refused; the message is none the worse for it.
        if let Ok(response) = door.try_ask(&request) {
            assert!(matches!(response.status, 200 | 400 | 413), "{}", response.text());
        }
    }
}

fn malformed(address: SocketAddr) {
    for (what, bytes) in [
        ("no HTTP", &b"hello, is anybody there?\r\n\r\n"[..]),
        ("zeros", &[0; 512]),
        ("no version", b"GET /\r\n\r\n"),
        ("a strange version", b"GET / HTTP/9.9\r\nhost: h\r\n\r\n"),
        ("a strange method", b"\x01\x02 / HTTP/1.1\r\nhost: h\r\n\r\n"),
        ("a header without a name", b"GET / HTTP/1.1\r\n: x\r\n\r\n"),
        ("a header with a zero", b"GET / HTTP/1.1\r\nhost: a\0b\r\n\r\n"),
        ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n\r\n"),
        ("a path with a zero", b"GET /v1/\0 HTTP/1.1\r\nhost: h\r\n\r\n"),
    ] {
        let mut raw = Raw::new(address);
        raw.say(bytes);
        raw.0.shutdown(std::net::Shutdown::Write).unwrap();
        raw.must_be_refused(what);
    }
    let mut door = Connection::new(address);
    for path in ["/v1/queues/..%2f..%2fsecret", "/v1/queues/%00", "/v1/../secret", "/%ff%fe"] {
        let status = door.ask(&Request::get(path)).status;
        assert!((400..500).contains(&status), "{path}: {status}");
    }
}

fn large_heads(address: SocketAddr) {
    for (what, head) in [
        ("a long path", format!("GET /{} HTTP/1.1\r\nhost: h\r\n\r\n", "x".repeat(1 << 20))),
        ("a long header", format!("GET / HTTP/1.1\r\nhost: {}\r\n\r\n", "x".repeat(1 << 20))),
        ("many headers", format!("GET / HTTP/1.1\r\nhost: h\r\n{}\r\n", "a: b\r\n".repeat(20_000))),
    ] {
        let mut raw = Raw::new(address);
        raw.say(head.as_bytes());
        let _ = raw.0.shutdown(std::net::Shutdown::Write);
        raw.must_be_refused(what);
    }
}

/// Two ideas of where a request ends: whatever comes behind must not be taken for another.
fn smuggled(address: SocketAddr) {
    let hidden = "POST /v1/queues/orders/messages HTTP/1.1\r\nhost: h\r\n\
                  idempotency-key: hidden\r\ncontent-length: 1\r\n\r\nx";
    for (what, lengths) in [
        ("two lengths", "content-length: 5\r\ncontent-length: 6\r\n"),
        ("a length that is none", "content-length: +5\r\n"),
        ("a chunk that is none", "transfer-encoding: chunked\r\n"),
        ("an encoding that is none", "transfer-encoding: xchunked\r\n"),
    ] {
        let mut raw = Raw::new(address);
        let head = "POST /v1/queues/orders/receive HTTP/1.1\r\nhost: h\r\n";
        raw.say(format!("{head}{lengths}\r\nZZ\r\n{hidden}").as_bytes());
        let _ = raw.0.shutdown(std::net::Shutdown::Write);
        let _ = raw.rest();
        let found = Connection::new(address).ask(&Request::get("/v1/queues/orders/keys/hidden"));
        assert_eq!(found.status, 404, "{what}: {}", found.text());
    }
}

#[test]
fn a18_half_a_handshake_is_closed_in_time() {
    let directory = tempfile::tempdir().unwrap();
    let (certificate, key) = (directory.path().join("cert.pem"), directory.path().join("key.pem"));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let setup = broker_in(directory.path()).arguments(&[
        "--auth",
        "off",
        "--tls-cert",
        &certificate.display().to_string(),
        "--tls-key",
        &key.display().to_string(),
    ]);
    let mut broker = setup.start();
    let began = Instant::now();
    // The beginning of a ClientHello whose rest never comes; no byte at all; no TLS at all.
    let hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    let mut strangers: Vec<Raw> = (0..60).map(|_| Raw::new(setup.address)).collect();
    for (number, stranger) in strangers.iter_mut().enumerate() {
        match number % 3 {
            0 => stranger.say(hello),
            1 => stranger.say(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n"),
            _ => true,
        };
    }
    // An honest client is served while they hang there.
    let served = on_tls(&setup, &certificate);
    assert!(served, "the honest client was not served");
    for stranger in &mut strangers {
        let rest = stranger.rest();
        assert!(!rest.starts_with(b"HTTP"), "an answer outside TLS");
    }
    let took = began.elapsed();
    broker.is_alive();
    broker.has_not_panicked();
    say(&format!("A18: 60 half handshakes were closed after {took:.1?}"));
}

fn on_tls(setup: &Setup, certificate: &std::path::Path) -> bool {
    use hapax_client::{Admin, Client};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::builder(&format!("https://{}", setup.address))
            .ca_certificate(std::fs::read(certificate).unwrap())
            .server_name("localhost")
            .timeout(PATIENCE);
        let admin = Admin::new(client.connect().unwrap());
        admin.put_queue("orders", "{}", None).await.is_ok()
    })
}
