//! Tracks how long a connection has been in its current stage, and when that is too long.
//!
//! Written by the code that sees bytes and requests, read by the task of the connection. Times are
//! milliseconds since the connection was made, plus one: zero is "not".

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::Limits;

/// The start of an HTTP/2 connection. No HTTP/1.1 request starts like this.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Debug)]
pub(super) struct Pulse {
    since: Instant,
    /// How much of the preface has been seen; only meaningful until the protocol is known.
    preface_bytes: AtomicU8,
    /// Known to be HTTP/1.1: bytes between requests are the head of the next one.
    is_http1: AtomicBool,
    /// Requests whose answer is not finished.
    requests: AtomicUsize,
    /// The time at which the head of the next request began.
    head_at: AtomicU64,
    /// The time at which the last answer was finished, or the connection was made.
    idle_at: AtomicU64,
    /// The time at which the peer stopped reading.
    blocked_at: AtomicU64,
}

/// What is to be done about a connection, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Nothing: requests are running, which `doors` bounds.
    Never,
    /// Ask it to finish.
    Retire(Instant),
    /// Cut it: the peer is too slow.
    Cut(Instant),
}

/// A request from its head to the end of its answer.
#[derive(Debug)]
pub(super) struct Running(Arc<Pulse>);

impl Pulse {
    /// A connection without any bytes yet: the first head is timed from here.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            since: Instant::now(),
            preface_bytes: AtomicU8::new(0),
            is_http1: AtomicBool::new(false),
            requests: AtomicUsize::new(0),
            head_at: AtomicU64::new(1),
            idle_at: AtomicU64::new(1),
            blocked_at: AtomicU64::new(0),
        })
    }

    pub(super) fn received(&self, bytes: &[u8]) {
        if self.is_http1.load(Ordering::Relaxed) {
            if self.requests.load(Ordering::Relaxed) == 0 && !bytes.is_empty() {
                self.start(&self.head_at);
            }
        } else if usize::from(self.preface_bytes.load(Ordering::Relaxed)) < PREFACE.len() {
            self.recognise(bytes);
        }
    }

    fn recognise(&self, bytes: &[u8]) {
        let seen = usize::from(self.preface_bytes.load(Ordering::Relaxed));
        let (_, expected) = PREFACE.split_at(seen.min(PREFACE.len()));
        let length = expected.len().min(bytes.len());
        if bytes.get(..length) != expected.get(..length) {
            self.is_http1.store(true, Ordering::Relaxed);
            return;
        }
        let seen = seen + length;
        self.preface_bytes.store(seen as u8, Ordering::Relaxed);
        if seen == PREFACE.len() {
            self.head_at.store(0, Ordering::Relaxed);
            self.idle_at.store(self.now(), Ordering::Relaxed);
        }
    }

    /// A write was tried; `is_moving` unless the peer reads nothing.
    pub(super) fn wrote(&self, is_moving: bool) {
        if !is_moving {
            self.start(&self.blocked_at);
        } else if self.blocked_at.load(Ordering::Relaxed) != 0 {
            self.blocked_at.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn begin(self: &Arc<Self>) -> Running {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.head_at.store(0, Ordering::Relaxed);
        Running(Arc::clone(self))
    }

    /// What is due. `finishing_since`: when the connection was asked to finish.
    pub(super) fn due(&self, limits: &Limits, finishing_since: Option<Instant>) -> Due {
        let after = |at: u64, bound: Duration| self.since + Duration::from_millis(at - 1) + bound;
        let blocked_at = self.blocked_at.load(Ordering::Relaxed);
        let blocked = (blocked_at != 0).then(|| after(blocked_at, limits.write));
        if self.requests.load(Ordering::Acquire) > 0 {
            return blocked.map_or(Due::Never, Due::Cut);
        }
        let head_at = self.head_at.load(Ordering::Relaxed);
        let head = (head_at != 0).then(|| after(head_at, limits.headers));
        if let Some(at) = blocked.into_iter().chain(head).min() {
            return Due::Cut(at);
        }
        let idle_at = self.idle_at.load(Ordering::Relaxed);
        match finishing_since {
            None => Due::Retire(after(idle_at, limits.idle)),
            // Nothing is left to do but to say goodbye.
            Some(since) => Due::Cut(after(idle_at, limits.headers).max(since + limits.headers)),
        }
    }

    fn start(&self, at: &AtomicU64) {
        if at.load(Ordering::Relaxed) == 0 {
            at.store(self.now(), Ordering::Relaxed);
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The time first: a reader that sees no running request then also sees since when.
        self.0.idle_at.store(self.0.now(), Ordering::Release);
        self.0.requests.fetch_sub(1, Ordering::Release);
    }
}

impl Due {
    pub(super) fn at(self) -> Option<Instant> {
        match self {
            Self::Never => None,
            Self::Retire(at) | Self::Cut(at) => Some(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: fn() -> Limits = || Limits {
        headers: Duration::from_secs(10),
        idle: Duration::from_secs(100),
        write: Duration::from_secs(20),
        ..Limits::default()
    };

    /// Due after so many seconds from the start, on a clock that is moved by hand.
    #[track_caller]
    fn check(pulse: &Pulse, expected: &str) {
        check_finishing(pulse, None, expected);
    }

    #[track_caller]
    fn check_finishing(pulse: &Pulse, finishing_since: Option<Instant>, expected: &str) {
        let since = |at: Instant| (at - pulse.since).as_secs();
        let due = match pulse.due(&LIMITS(), finishing_since) {
            Due::Never => "never".to_owned(),
            Due::Retire(at) => format!("retire at {}", since(at)),
            Due::Cut(at) => format!("cut at {}", since(at)),
        };
        assert_eq!(due, expected);
    }

    async fn advance(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_head_counts_from_the_connection_and_the_next_from_its_first_byte() {
        let pulse = Pulse::new();
        check(&pulse, "cut at 10");
        advance(3).await;
        pulse.received(b"P");
        check(&pulse, "cut at 10");
        pulse.received(b"OST / HTTP/1.1\r\n");
        check(&pulse, "cut at 10");
        let running = pulse.begin();
        check(&pulse, "never");
        advance(50).await;
        pulse.received(b"more of the body");
        check(&pulse, "never");
        drop(running);
        check(&pulse, "retire at 153");
        advance(7).await;
        pulse.received(b"G");
        check(&pulse, "cut at 70");
        advance(5).await;
        pulse.received(b"E");
        check(&pulse, "cut at 70");
    }

    #[tokio::test(start_paused = true)]
    async fn http2_is_known_by_its_preface_and_its_frames_are_no_heads() {
        let pulse = Pulse::new();
        advance(3).await;
        pulse.received(&PREFACE[..10]);
        check(&pulse, "cut at 10");
        pulse.received(&PREFACE[10..]);
        check(&pulse, "retire at 103");
        let (one, two) = (pulse.begin(), pulse.begin());
        drop(one);
        check(&pulse, "never");
        advance(4).await;
        drop(two);
        pulse.received(b"a frame");
        check(&pulse, "retire at 107");
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_is_cut_even_if_its_request_runs() {
        let pulse = Pulse::new();
        pulse.received(PREFACE);
        let _running = pulse.begin();
        advance(5).await;
        pulse.wrote(false);
        advance(5).await;
        pulse.wrote(false);
        check(&pulse, "cut at 25");
        pulse.wrote(true);
        check(&pulse, "never");
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_told_to_finish_and_does_not_is_cut_after_its_last_request() {
        let pulse = Pulse::new();
        pulse.received(PREFACE);
        advance(5).await;
        let finishing_since = Some(Instant::now());
        check_finishing(&pulse, finishing_since, "cut at 15");
        let running = pulse.begin();
        check_finishing(&pulse, finishing_since, "never");
        advance(60).await;
        drop(running);
        check_finishing(&pulse, finishing_since, "cut at 75");
    }
}
