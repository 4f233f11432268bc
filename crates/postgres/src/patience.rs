//! How long a statement is waited for.
//!
//! A database that stands still is waited for, however long: its clients give nothing up, and what
//! is under way runs to its end. But a connection may be dead while the database lives: a pooler
//! that accepts and never answers, or a session on a server that is no longer the primary. So a
//! statement is given up when it is late *and* a heartbeat that was begun long after it was
//! committed. Its connection is closed, never cancelled; its outcome is unknown, and is looked up.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::log::lock;

/// How often it is checked.
const CHECK: Duration = Duration::from_millis(500);
/// A statement that waits is not cancelled: giving up again and again would fill the server with
/// statements that wait for the same. So each time it takes twice as long, up to this.
const LIMIT_MAX: Duration = Duration::from_secs(160);

/// The same for those that wait for no heartbeat.
const ALONE_MAX: Duration = Duration::from_secs(3600);

/// When the last heartbeat was begun that the database committed. Shared by the connections of a
/// node; without heartbeats nothing is ever given up.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pulse(Arc<Mutex<Option<Instant>>>);

impl Pulse {
    pub(crate) fn beat(&self, begun: Instant) {
        let mut last = lock(&self.0);
        *last = last.max(Some(begun));
    }

    fn last(&self) -> Option<Instant> {
        *lock(&self.0)
    }
}

/// How long one connection waits for a statement, or a pool of them for one kind of statement.
#[derive(Debug)]
pub(crate) struct Patience {
    /// None: what is late is given up, whether anything else gets through or not.
    pulse: Option<Pulse>,
    first: Duration,
    most: Duration,
    limit: Duration,
}

impl Patience {
    pub(crate) fn new(pulse: Pulse, first: Duration) -> Self {
        Self { pulse: Some(pulse), first, most: LIMIT_MAX.max(first), limit: first }
    }

    /// That of the heartbeats themselves.
    pub(crate) fn alone(first: Duration) -> Self {
        Self { pulse: None, first, most: ALONE_MAX, limit: first }
    }

    /// Completes when a statement that is sent now has to be given up, with how long it took.
    pub(crate) fn ends(&self) -> impl Future<Output = Duration> + Send + use<> {
        self.ends_after(Duration::ZERO)
    }

    /// The same, of a statement that somebody waits for so long.
    pub(crate) fn ends_after(
        &self,
        least: Duration,
    ) -> impl Future<Output = Duration> + Send + use<> {
        let (pulse, limit, sent) = (self.pulse.clone(), self.limit.max(least), Instant::now());
        async move {
            let Some(pulse) = pulse else {
                tokio::time::sleep(limit).await;
                return limit;
            };
            loop {
                tokio::time::sleep(CHECK).await;
                if is_dead(sent, limit, pulse.last(), Instant::now()) {
                    return sent.elapsed();
                }
            }
        }
    }

    /// How long a statement that is sent now is waited for at least.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// A statement ended by itself, or was given up.
    pub(crate) fn ended(&mut self, was_given_up: bool) {
        self.limit = match was_given_up {
            true => (self.limit * 2).min(self.most),
            false => self.first,
        };
    }
}

/// Whether a statement that was sent then has to be given up.
fn is_dead(sent: Instant, limit: Duration, beaten: Option<Instant>, now: Instant) -> bool {
    let is_late = now.saturating_duration_since(sent) >= limit;
    is_late && beaten.is_some_and(|begun| begun >= sent + limit / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_heartbeat_that_was_begun_later_shows_that_a_connection_is_dead() {
        let (sent, limit) = (Instant::now(), Duration::from_secs(4));
        let at = |seconds| sent + Duration::from_secs(seconds);
        assert!(!is_dead(sent, limit, None, at(1_000)), "nobody beats");
        assert!(!is_dead(sent, limit, Some(at(1)), at(1_000)), "the database stands still");
        assert!(!is_dead(sent, limit, Some(at(3)), at(3)), "not yet");
        assert!(is_dead(sent, limit, Some(at(3)), at(4)));
    }

    #[test]
    fn who_gives_up_waits_twice_as_long_the_next_time() {
        let first = Duration::from_secs(5);
        let mut patience = Patience::new(Pulse::default(), first);
        let mut limits = Vec::new();
        for _ in 0..7 {
            patience.ended(true);
            limits.push(patience.limit.as_secs());
        }
        assert_eq!(limits, [10, 20, 40, 80, 160, 160, 160]);
        patience.ended(false);
        assert_eq!(patience.limit, first);
        // Within a day a node leaves a few dozen statements behind, and not 57,600.
        let mut patience = Patience::alone(Duration::from_secs(1));
        let (mut passed, mut left) = (Duration::ZERO, 0);
        while passed < Duration::from_secs(86_400) {
            passed += patience.limit;
            patience.ended(true);
            left += 1;
        }
        assert!(left < 40, "{left}");
    }
}
