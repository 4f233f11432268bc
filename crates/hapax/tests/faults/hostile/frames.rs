//! HTTP/2 by hand: streams that are reset as soon as they are made, headers without an end, frames
//! that nobody asked for, and gRPC calls that are none.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use super::Raw;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const CANCEL: [u8; 4] = [0, 0, 0, 8];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u32;
    let mut frame = length.to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Headers as plain literals.
fn block(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in headers {
        block.push(0);
        for text in [name, value] {
            assert!(text.len() < 127, "longer ones are written in another way");
            block.push(text.len() as u8);
            block.extend(text.as_bytes());
        }
    }
    block
}

fn get(path: &str) -> Vec<u8> {
    let headers = [(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", "h")];
    block(&headers)
}

fn call(path: &str, encoding: &str) -> Vec<u8> {
    block(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "h"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("grpc-encoding", encoding),
    ])
}

fn connect(address: SocketAddr) -> Raw {
    let mut raw = Raw::new(address);
    raw.say(PREFACE);
    raw.say(&frame(SETTINGS, 0, 0, &[]));
    raw
}

/// The frames of what was said: their kinds, flags, streams and payloads.
fn parse(mut bytes: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(9) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let Some((payload, rest)) = rest.split_at_checked(length) else { break };
        frames.push((head[3], head[4], stream, payload.to_vec()));
        bytes = rest;
    }
    frames
}

type Frame = (u8, u8, u32, Vec<u8>);

/// Reads until these are the frames that were waited for, or the other side closes: which of the
/// two, and all frames. Our side stays open, so that closing is the broker's own doing.
#[track_caller]
fn read_until(raw: &mut Raw, is_enough: impl Fn(&[Frame]) -> bool) -> (bool, Vec<Frame>) {
    let mut said = Vec::new();
    let mut chunk = [0; 4_096];
    loop {
        let frames = parse(&said);
        if is_enough(&frames) {
            return (true, frames);
        }
        match raw.0.read(&mut chunk) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("neither answered nor closed in time: {frames:?}")
            }
            Ok(0) | Err(_) => return (false, frames),
            Ok(length) => said.extend_from_slice(&chunk[..length]),
        }
    }
}

/// Says as much as the broker takes, while everything it says is read.
fn pour(raw: &mut Raw, mut next: impl FnMut() -> Option<Vec<u8>>) -> (usize, Vec<u8>) {
    let mut reader: TcpStream = raw.0.try_clone().unwrap();
    std::thread::scope(|scope| {
        let read = scope.spawn(move || {
            let mut said = Vec::new();
            let _ = reader.read_to_end(&mut said);
            said
        });
        let mut poured = 0;
        while let Some(bytes) = next() {
            if raw.0.write_all(&bytes).is_err() {
                break;
            }
            poured += bytes.len();
        }
        let _ = raw.0.shutdown(Shutdown::Write);
        (poured, read.join().unwrap())
    })
}

/// A stream is opened and reset at once, many times over.
pub(super) fn resets(address: SocketAddr) {
    for _ in 0..3 {
        let mut raw = connect(address);
        let block = get("/v1/queues");
        let mut stream = 1;
        let (poured, said) = pour(&mut raw, || {
            let mut bytes = Vec::new();
            for _ in 0..200 {
                bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, &block));
                bytes.extend(frame(RST_STREAM, 0, stream, &CANCEL));
                stream += 2;
            }
            (stream < 100_000).then_some(bytes)
        });
        // What was said last is lost where the connection was reset while we wrote.
        let is_ended = stream < 100_000 || parse(&said).iter().any(|(kind, ..)| *kind == GOAWAY);
        assert!(is_ended, "all of {poured} bytes were taken");
    }
}

/// A head that never ends.
pub(super) fn continuations(address: SocketAddr) {
    let mut raw = connect(address);
    let mut is_first = true;
    let more = block(&[("x", &"y".repeat(120))]).repeat(120);
    let (poured, _) = pour(&mut raw, || {
        let kind = if std::mem::take(&mut is_first) { HEADERS } else { CONTINUATION };
        let block = if kind == HEADERS { get("/livez") } else { more.clone() };
        Some(frame(kind, 0, 1, &block))
    });
    assert!(poured < 16 << 20, "{} MiB of headers were taken", poured >> 20);
}

pub(super) fn pings_and_settings(address: SocketAddr) {
    let pings = frame(PING, 0, 0, &[7; 8]).repeat(1_000);
    let settings = frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]).repeat(1_000);
    for flood in [pings, settings] {
        let mut raw = connect(address);
        let mut left = 60;
        // Answered or closed; whichever it is, it ends.
        pour(&mut raw, || {
            left -= 1;
            (left > 0).then(|| flood.clone())
        });
    }
}

pub(super) fn malformed(address: SocketAddr) {
    let get = get("/livez");
    for (what, bytes) in [
        ("data without a stream", frame(DATA, 0, 1, b"x")),
        ("headers on stream 0", frame(HEADERS, END_HEADERS, 0, &get)),
        ("headers on an even stream", frame(HEADERS, END_HEADERS, 2, &get)),
        ("a frame beyond its bound", frame(DATA, 0, 1, &vec![0; 1 << 20])),
        ("headers that are none", frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0xff; 64])),
        ("settings of half a field", frame(SETTINGS, 0, 0, &[0; 5])),
        ("a ping of one byte", frame(PING, 0, 0, &[0])),
        ("a window of nothing", frame(8, 0, 0, &[0; 4])),
    ] {
        let mut raw = connect(address);
        raw.say(&bytes);
        let (_, frames) = read_until(&mut raw, |frames| {
            frames.iter().any(|(kind, ..)| matches!(*kind, GOAWAY | RST_STREAM))
        });
        let is_served = frames.iter().any(|(kind, ..)| matches!(*kind, HEADERS | DATA));
        assert!(!is_served, "{what}: {frames:?}");
    }
}

/// Calls with a body that is compressed, garbage, longer than anything, or not there: each gets a
/// status, and the connection goes on.
pub(super) fn calls(address: SocketAddr) {
    let path = "/hapax.v1.Hapax/SendBatch";
    let garbage: Vec<u8> = (0..1_000).map(|_| fastrand::u8(..)).collect();
    let message =
        |flag: u8, length: u32, bytes: &[u8]| [&[flag][..], &length.to_be_bytes(), bytes].concat();
    let cases = [
        ("gzip", message(1, 1_000, &garbage)),
        ("identity", message(1, 1_000, &garbage)),
        ("identity", message(0, 1_000, &garbage)),
        ("identity", message(0, u32::MAX, &garbage)),
        ("identity", message(9, 1_000, &garbage)),
        ("identity", message(0, 1_000, &garbage[..10])),
        ("identity", Vec::new()),
    ];
    let mut raw = connect(address);
    let mut stream = 1;
    for (encoding, bytes) in &cases {
        raw.say(&frame(HEADERS, END_HEADERS, stream, &call(path, encoding)));
        raw.say(&frame(DATA, END_STREAM, stream, bytes));
        stream += 2;
    }
    let is_ended = |frames: &[Frame], stream: u32| {
        frames.iter().any(|(kind, flags, at, _)| {
            let is_last = *kind == HEADERS && flags & END_STREAM > 0;
            *at == stream && (is_last || *kind == RST_STREAM)
        })
    };
    let streams = (0..cases.len() as u32).map(|number| 2 * number + 1);
    let (are_all_ended, frames) =
        read_until(&mut raw, |frames| streams.clone().all(|stream| is_ended(frames, stream)));
    assert!(are_all_ended, "a call got no status: {frames:?}");
}
