//! Strangers who take their time: byte by byte, or not at all.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::{IN_TIME, Raw};
use hapax_testing::pause;

const CONNECTIONS: usize = 40;
/// One byte after so long, which no bound on a single silence would notice.
const DRIP: Duration = Duration::from_millis(500);

/// Drips on all connections until all are closed by the other side.
#[track_caller]
fn drip(address: SocketAddr, first: &[u8], drop: &[u8]) -> Vec<Raw> {
    let mut open: Vec<Raw> = (0..CONNECTIONS).map(|_| Raw::new(address)).collect();
    let mut closed = Vec::new();
    let began = Instant::now();
    for raw in &mut open {
        raw.say(first);
        raw.0.set_nonblocking(true).unwrap();
    }
    while !open.is_empty() {
        assert!(began.elapsed() < IN_TIME, "{} connections are still open", open.len());
        let (still, ended): (Vec<Raw>, Vec<Raw>) = open.into_iter().partition(|raw| {
            let mut byte = [0];
            // Looked at, not taken: what the broker said last is read afterwards.
            let is_silent = raw
                .0
                .peek(&mut byte)
                .is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
            is_silent && (&raw.0).write_all_at_once(drop)
        });
        open = still;
        closed.extend(ended);
        pause(DRIP);
    }
    for raw in &closed {
        raw.0.set_nonblocking(false).unwrap();
    }
    closed
}

trait WriteAtOnce {
    fn write_all_at_once(&mut self, bytes: &[u8]) -> bool;
}

impl WriteAtOnce for &std::net::TcpStream {
    fn write_all_at_once(&mut self, bytes: &[u8]) -> bool {
        std::io::Write::write_all(self, bytes).is_ok()
    }
}

pub(super) fn heads(address: SocketAddr) {
    for raw in drip(address, b"GET /v1/queues HTTP/1.1\r\nhost: h\r\n", b"a: b\r\n") {
        raw.must_be_refused("a slow head");
    }
}

pub(super) fn silence(address: SocketAddr) {
    for raw in drip(address, b"", b"") {
        raw.must_be_refused("silence");
    }
}

/// The first part of the body comes, and then nothing more.
pub(super) fn bodies(address: SocketAddr) {
    let head = b"POST /v1/queues/orders/messages HTTP/1.1\r\nhost: h\r\nidempotency-key: slow\r\n\
                 content-length: 1000\r\n\r\nhalf";
    for mut raw in drip(address, head, b"") {
        let status = raw.status();
        assert!(matches!(status, None | Some(408)), "a slow body: {status:?}");
    }
}
