//! The minimum rate at which a body must arrive, over HTTP and gRPC.

use std::time::Duration;

use hapax_wire::Code;
use tokio::time::Instant;

use crate::problem::Problem;

/// Timeout for the next part of a body.
const PART: Duration = Duration::from_secs(10);
/// Timeout for a whole body.
const WHOLE: Duration = Duration::from_secs(120);
/// After this time a body must have arrived at [`BYTES_PER_S_MIN`] on average.
const GRACE: Duration = Duration::from_secs(10);
const BYTES_PER_S_MIN: u64 = 8 * 1_024;

/// The progress of a body.
#[derive(Debug)]
pub(super) struct Pace {
    /// The start time, moved by the time for which the broker made it wait.
    began: Instant,
    received: u64,
}

impl Pace {
    pub(super) fn begin() -> Self {
        Self { began: Instant::now(), received: 0 }
    }

    /// The deadline of the next part.
    pub(super) fn next_by(&self) -> Instant {
        let earned =
            Duration::from_micros(self.received.saturating_mul(1_000_000) / BYTES_PER_S_MIN);
        let by_rate = self.began + (GRACE + earned).min(WHOLE);
        by_rate.min(Instant::now() + PART)
    }

    pub(super) fn received(&mut self, bytes: usize) {
        self.received += bytes as u64;
    }

    /// Time during which the broker did not read.
    pub(super) fn waited(&mut self, time: Duration) {
        self.began += time;
    }
}

/// Refuses a body that did not arrive in time.
pub(super) fn late() -> Problem {
    let detail = "the body did not arrive in time: it may take 10 s, or up to 120 s at 8 KiB/s or \
                  more";
    Problem::new(Code::Unavailable, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_drips_is_late_and_one_that_flows_is_not() {
        let mut pace = Pace::begin();
        let began = Instant::now();
        pace.received(1);
        tokio::time::advance(Duration::from_secs(5)).await;
        pace.received(1);
        let by = pace.next_by() - began;
        assert!(by < GRACE + Duration::from_millis(1), "two bytes earn no time: {by:?}");

        let mut pace = Pace::begin();
        let began = Instant::now();
        for _ in 0..5 {
            tokio::time::advance(Duration::from_secs(10)).await;
            pace.received(10 * BYTES_PER_S_MIN as usize);
        }
        assert_eq!(pace.next_by() - began, Duration::from_secs(60), "a part each ten seconds");
        pace.received(1 << 30);
        for _ in 0..6 {
            tokio::time::advance(Duration::from_secs(10)).await;
        }
        assert_eq!(pace.next_by() - began, WHOLE);
        pace.waited(Duration::from_secs(3));
        assert_eq!(pace.next_by() - began, WHOLE);
    }
}
