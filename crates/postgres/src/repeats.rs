//! Which of many warnings about the same trouble are logged.

use std::time::{Duration, Instant};

/// The shortest time between two of them.
const EVERY: Duration = Duration::from_secs(10);

/// Lets the first warning through, and then one every ten seconds, so that a database that is away
/// for long does not hide everything else in the log.
#[derive(Debug, Default)]
pub struct Repeats {
    shown: Option<Instant>,
    hidden: u64,
}

impl Repeats {
    /// Counts a warning. Returns whether it is logged, as the number of those before it that were
    /// not.
    pub fn count(&mut self, now: Instant) -> Option<u64> {
        if self.shown.is_some_and(|shown| now.saturating_duration_since(shown) < EVERY) {
            self.hidden += 1;
            return None;
        }
        self.shown = Some(now);
        Some(std::mem::take(&mut self.hidden))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_warning_is_logged_and_then_one_every_ten_seconds() {
        let (mut repeats, begun) = (Repeats::default(), Instant::now());
        let logged = (0..100).filter_map(|tick| {
            let at = begun + Duration::from_millis(500) * tick;
            repeats.count(at).map(|hidden| (tick, hidden))
        });
        assert_eq!(logged.collect::<Vec<_>>(), [(0, 0), (20, 19), (40, 19), (60, 19), (80, 19)]);
    }
}
