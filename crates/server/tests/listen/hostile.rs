//! Peers that are slow, vanish, or mean harm.

use hapax_server::listen::Limits;
use http::{HeaderValue, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::port::{Client, Port, SHORT, get_path, post_echo, read_to_end};
use hapax_testing::{TestBroker, eventually, in_time};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const ENHANCE_YOUR_CALM: u8 = 0xb;
/// `GET http /` in HPACK's static table.
const GET_ROOT: &[u8] = &[0x82, 0x86, 0x84];

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length.to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A connection that has said it speaks HTTP/2, and leaves the rest to the test.
async fn raw_http2(port: &Port) -> TcpStream {
    let mut stream = port.connect().await;
    stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await.unwrap();
    stream
}

#[tokio::test]
async fn slow_heads_are_cut_and_slow_answers_are_not() {
    let limits = Limits { headers: SHORT, ..Limits::default() };
    let port = Port::open(limits, None).await;
    let mut patient = port.http1().await;
    let slow = async {
        port.held.arrive(1).await;
        let starts = [&b""[..], b"P", b"PRI * HT", b"GET /peer HTTP/1.1\r\nhost: localhost\r\n"];
        let cut = starts.map(async |start| {
            let mut stream = port.connect().await;
            stream.write_all(start).await.unwrap();
            assert_eq!(read_to_end(&mut stream).await, b"", "{start:?}");
        });
        futures_util::future::join_all(cut).await;
        assert_eq!(port.stats.timed_out.get(), 4);
        port.held.release(1);
    };
    let (answer, ()) = tokio::join!(patient.ask(get_path("/hold")), slow);
    assert_eq!(answer.0, StatusCode::OK);
    port.close().await;
}

/// Every byte comes quickly after the one before, and the head never ends.
#[tokio::test]
async fn a_head_that_drips_is_cut() {
    let limits = Limits { headers: SHORT, ..Limits::default() };
    let port = Port::open(limits, None).await;
    let (mut reader, mut writer) = port.connect().await.into_split();
    let dripping = tokio::spawn(async move {
        writer.write_all(b"GET /peer HTTP/1.1\r\nhost: localhost\r\nx: ").await.unwrap();
        let mut drops = tokio::time::interval(SHORT / 20);
        let mut dripped = 0;
        while writer.write_all(b"x").await.is_ok() {
            drops.tick().await;
            dripped += 1;
        }
        dripped
    });
    assert_eq!(read_to_end(&mut reader).await, b"");
    assert!(in_time(dripping).await.unwrap() > 1);
    assert_eq!(port.stats.timed_out.get(), 1);
    port.close().await;
}

/// The head of a later request on a connection counts from its first byte, not from the answer
/// before: the connection may have been idle for long.
#[tokio::test]
async fn the_second_head_gets_its_own_time() {
    let limits = Limits { headers: SHORT, ..Limits::default() };
    let port = Port::open(limits, None).await;
    let mut kept = port.http1().await;
    kept.echo("first").await;
    // Meanwhile another one is cut for its head, so that the time for a head has passed.
    assert_eq!(read_to_end(&mut port.connect().await).await, b"");
    kept.echo("second").await;

    let mut stream = port.connect().await;
    stream.write_all(b"GET /none HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    assert_eq!(in_time(stream.read_u8()).await.unwrap(), b'H');
    stream.write_all(b"GET").await.unwrap();
    let answer = read_to_end(&mut stream).await;
    assert!(answer.starts_with(b"TTP/1.1 404 "), "{answer:?}");
    assert_eq!(port.stats.timed_out.get(), 2);
    port.close().await;
}

/// While a block of headers is unfinished nothing else may come, not even the answer to a ping.
#[tokio::test]
async fn an_http2_head_that_drips_is_cut() {
    let limits = Limits { ping_every: SHORT, ping_timeout: SHORT, ..Limits::default() };
    let port = Port::open(limits, None).await;
    let mut polite = port.http2().await;
    let stream = raw_http2(&port).await;
    let (mut reader, mut writer) = stream.into_split();
    let dripping = tokio::spawn(async move {
        writer.write_all(&frame(HEADERS, END_STREAM, 1, GET_ROOT)).await.unwrap();
        let mut drops = tokio::time::interval(SHORT / 4);
        while writer.write_all(&frame(CONTINUATION, 0, 1, &[])).await.is_ok() {
            drops.tick().await;
        }
    });
    read_to_end(&mut reader).await;
    in_time(dripping).await.unwrap();
    polite.echo("undisturbed").await;
    port.close().await;
}

#[tokio::test]
async fn an_http2_peer_that_answers_no_ping_is_cut() {
    let limits = Limits { ping_every: SHORT, ping_timeout: SHORT, ..Limits::default() };
    let port = Port::open(limits, None).await;
    let mut polite = port.http2().await;
    let mut stream = raw_http2(&port).await;
    read_to_end(&mut stream).await;
    // The polite one was pinged as often, and answered.
    polite.echo("undisturbed").await;
    assert_eq!(port.stats.accepted.get(), 2);
    port.close().await;
}

#[tokio::test]
async fn a_peer_that_does_not_read_its_answer_is_cut() {
    let limits = Limits { write: SHORT, ..Limits::default() };
    let port = Port::open(limits, None).await;
    let mut stream = port.connect().await;
    stream.write_all(b"GET /endless HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    eventually("it is cut", async || port.stats.timed_out.get() == 1).await;
    eventually("it is gone", async || port.stats.open.get() == 0).await;
    port.close().await;
}

#[tokio::test]
async fn oversize_heads_are_refused_and_the_largest_allowed_are_not() {
    let port = Port::open(Limits::default(), None).await;
    let with_header = |bytes: usize| {
        let mut request = post_echo("body");
        request.headers_mut().insert("x", HeaderValue::from_bytes(&vec![b'x'; bytes]).unwrap());
        request
    };
    for mut client in [port.http1().await, port.http2().await] {
        assert_eq!(client.ask(with_header(24 * 1_024)).await.0, StatusCode::OK);
        match client.send(with_header(64 * 1_024)).await {
            Ok(response) => {
                assert_eq!(response.status(), StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
            }
            Err(error) => assert!(matches!(client, Client::Http1(_)), "{error:?}"),
        }
    }
    let mut many = post_echo("body");
    for number in 0..200 {
        let name = http::HeaderName::from_bytes(format!("x-{number}").as_bytes()).unwrap();
        many.headers_mut().insert(name, HeaderValue::from_static(""));
    }
    let (status, _) = port.http1().await.ask(many).await;
    assert_eq!(status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    port.http1().await.echo("undisturbed").await;
    port.close().await;
}

/// An endless head is refused long before it is read to its end.
#[tokio::test]
async fn an_endless_head_costs_little() {
    let port = Port::open(Limits::default(), None).await;
    let before = resident_bytes();
    let (mut reader, mut writer) = port.connect().await.into_split();
    let flood = tokio::spawn(async move {
        let _ = writer.write_all(b"GET /").await;
        let part = vec![b'x'; 1 << 20];
        for _ in 0..1_024 {
            if writer.write_all(&part).await.is_err() {
                return true;
            }
        }
        false
    });
    let answer = read_to_end(&mut reader).await;
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{answer:?}");
    assert!(in_time(flood).await.unwrap(), "it was cut before its end");
    assert!(resident_bytes().saturating_sub(before) < 64 << 20);
    port.close().await;
}

/// Streams opened and reset at once, as fast as they can be written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_resets_is_cut_and_harms_nobody() {
    const CONNECTIONS: usize = 50;
    const STREAMS: u32 = 5_000;
    let port = Port::open(Limits::default(), None).await;
    let mut polite = port.http2().await;
    polite.echo("before").await;
    let before = resident_bytes();
    let flood: Vec<u8> = (0..STREAMS)
        .flat_map(|number| {
            let stream = number * 2 + 1;
            let open = frame(HEADERS, END_HEADERS | END_STREAM, stream, GET_ROOT);
            [open, frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())].concat()
        })
        .collect();
    let mut calmed = 0;
    in_time(async {
        for _ in 0..CONNECTIONS {
            let (mut reader, mut writer) = raw_http2(&port).await.into_split();
            // It may be closed before all is written.
            let (_, answer) = tokio::join!(writer.write_all(&flood), read_to_end(&mut reader));
            calmed += usize::from(says_goodbye(&answer, ENHANCE_YOUR_CALM));
            polite.echo("meanwhile").await;
        }
    })
    .await;
    assert!(calmed > CONNECTIONS / 2, "only {calmed} of {CONNECTIONS} were stopped as floods");
    assert!(resident_bytes().saturating_sub(before) < 64 << 20);
    eventually("the floods are gone", async || port.stats.open.get() == 1).await;
    polite.echo("after").await;
    port.close().await;
}

/// Whether there is a GOAWAY with this reason among the frames. A reset connection may have lost
/// its last ones.
fn says_goodbye(mut bytes: &[u8], reason: u8) -> bool {
    while let [high, middle, low, kind, _, _, _, _, _, rest @ ..] = bytes {
        let length = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
        let Some((payload, after)) = rest.split_at_checked(length) else { return false };
        if *kind == GOAWAY && payload[4..8] == [0, 0, 0, reason] {
            return true;
        }
        bytes = after;
    }
    false
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1_024
}

/// A peer that is quick, but opens as many connections as it can and says nothing on them.
#[tokio::test]
async fn silent_connections_give_their_places_back() {
    let limits = Limits { connections_max: 10, headers: SHORT, ..Limits::default() };
    let port = Port::open(limits, None).await;
    let mut silent = Vec::new();
    for _ in 0..10 {
        silent.push(port.connect().await);
    }
    eventually("they are gone", async || port.stats.timed_out.get() == 10).await;
    eventually("there is room", async || port.stats.open.get() == 0).await;
    let mut answered = false;
    while !answered {
        let response = port.http1().await.send(get_path("/peer")).await;
        answered = response.is_ok_and(|response| response.status() == StatusCode::OK);
    }
    drop(silent);
    port.close().await;
}

/// `POST http PATH` with other fields of a head, none of them indexed.
fn post_head(path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut head = vec![0x83, 0x86, 0x04, u8::try_from(path.len()).unwrap()];
    head.extend(path.as_bytes());
    head.extend([0x01, 9]);
    head.extend(b"localhost");
    for (name, value) in fields {
        head.push(0);
        for text in [name, value] {
            head.push(u8::try_from(text.len()).unwrap());
            head.extend(text.as_bytes());
        }
    }
    head
}

/// Reads frames up to one that is sought; returns the kinds of those of the first request.
async fn read_until(stream: &mut TcpStream, is_sought: impl Fn(u8, u8, u32) -> bool) -> Vec<u8> {
    let mut kinds = Vec::new();
    loop {
        let mut head = [0; 9];
        in_time(stream.read_exact(&mut head)).await.unwrap();
        let [a, b, c, kind, flags, number @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        in_time(stream.read_exact(&mut payload)).await.unwrap();
        let number = u32::from_be_bytes(number);
        if number == 1 {
            kinds.push(kind);
        }
        if is_sought(kind, flags, number) {
            return kinds;
        }
    }
}

#[tokio::test]
async fn over_http2_a_refusal_waits_for_a_small_body_and_not_for_a_large_one() {
    let broker = TestBroker::start(1).await;
    let start = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    // A receive takes no key: that is seen before its body is read.
    let (path, key) = ("/v1/queues/none/receive", ("idempotency-key", "k"));

    // A body of unknown length, of which a part is missing when the head is refused. The broker
    // waits for it for a second: on a machine that is slower than that it is sent again.
    let mut is_late = true;
    while is_late {
        let started = std::time::Instant::now();
        let mut stream = TcpStream::connect(broker.address()).await.unwrap();
        let head = frame(HEADERS, END_HEADERS, 1, &post_head(path, &[key]));
        let half = frame(DATA, 0, 1, &[b'x'; 1_000]);
        let ping = frame(PING, 0, 0, &[0; 8]);
        stream.write_all(&[&start[..], &head, &half, &ping].concat()).await.unwrap();
        let is_pong = |kind, flags, _| (kind, flags) == (PING, ACK);
        let mut frames = read_until(&mut stream, is_pong).await;
        // Whoever does not wait for the rest has time to answer.
        for _ in 0..20 {
            stream.write_all(&ping).await.unwrap();
            frames.extend(read_until(&mut stream, is_pong).await);
        }
        let rest = frame(DATA, END_STREAM, 1, &[b'x'; 1_000]);
        stream.write_all(&rest).await.unwrap();
        let is_whole = |kind, flags, number| {
            number == 1 && (kind == RST_STREAM || (kind == DATA && flags & END_STREAM != 0))
        };
        frames.extend(read_until(&mut stream, is_whole).await);
        // A reset comes behind the answer.
        stream.write_all(&ping).await.unwrap();
        frames.extend(read_until(&mut stream, is_pong).await);
        assert!(frames.contains(&HEADERS), "{frames:?}");
        is_late = frames.contains(&RST_STREAM) && started.elapsed() > SHORT;
        assert!(is_late || !frames.contains(&RST_STREAM), "{frames:?}");
    }

    // One that is known to be large: not a byte of it is waited for.
    let mut stream = TcpStream::connect(broker.address()).await.unwrap();
    let head = post_head(path, &[key, ("content-length", "70000")]);
    let head = frame(HEADERS, END_HEADERS, 1, &head);
    stream.write_all(&[&start[..], &head].concat()).await.unwrap();
    read_until(&mut stream, |kind, _, number| (kind, number) == (HEADERS, 1)).await;
    broker.stop().await;
}
