//! What a worker reports while the broker cannot be reached.

use std::time::Duration;

use tokio::time::Instant;

/// The shortest time until another reason is reported.
const EVERY: Duration = Duration::from_secs(10);

/// Whether the broker is away, and the reason that was reported last: at first, and when it is
/// another one later.
#[derive(Debug, Default)]
pub(super) struct Away(Option<(Instant, String)>);

impl Away {
    /// The broker cannot be reached. Returns whether to report that.
    pub(super) fn lost(&mut self, now: Instant, why: &str) -> bool {
        let is_known = self.0.as_ref().is_some_and(|(told, last)| {
            last == why || now.saturating_duration_since(*told) < EVERY
        });
        if !is_known {
            self.0 = Some((now, why.to_owned()));
        }
        !is_known
    }

    /// The broker answers. Returns whether it was away.
    pub(super) fn back(&mut self) -> bool {
        self.0.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_reason_is_reported_after_a_while_and_the_same_one_never_again() {
        let (mut away, begun) = (Away::default(), Instant::now());
        let at = |seconds: u64| begun + Duration::from_secs(seconds);
        assert!(!away.back());
        assert!(away.lost(at(0), "cut off"));
        assert!(!away.lost(at(1), "cut off") && !away.lost(at(60), "cut off"), "it is known");
        assert!(away.lost(at(61), "halted"));
        assert!(!away.lost(at(62), "cut off"), "nodes that alternate are not reported each time");
        assert!(away.back() && !away.back());
        assert!(away.lost(at(63), "halted"));
    }
}
