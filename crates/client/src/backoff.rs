//! The waits between retries.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(5);

/// Pauses that double, each drawn at random below its bound, so that many clients that lost one
/// broker do not come back at the same moment.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    bound: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { bound: FIRST }
    }

    /// The next pause.
    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.bound.mul_f64(0.5 + fastrand::f64() / 2.0);
        self.bound = (self.bound * 2).min(LONGEST);
        pause
    }

    /// The next pause, not shorter than what the broker asked for.
    pub(crate) fn after(&mut self, asked: Option<Duration>) -> Duration {
        let pause = self.next();
        asked.map_or(pause, |asked| asked.min(LONGEST).max(pause))
    }

    /// It worked: the next failure is a new one.
    pub(crate) fn reset(&mut self) {
        self.bound = FIRST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_start_over() {
        let mut backoff = Backoff::new();
        assert!(backoff.next() <= FIRST);
        for _ in 0..20 {
            assert!(backoff.next() <= LONGEST);
        }
        assert!(backoff.next() >= LONGEST / 2);
        assert_eq!(backoff.after(Some(LONGEST * 2)), LONGEST);
        backoff.reset();
        assert!(backoff.next() <= FIRST);
    }
}
