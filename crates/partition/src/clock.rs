//! A partition's time: it never runs backwards, and never jumps while the process runs.
//!
//! It advances with the monotonic clock and follows corrections of the wall clock at no more than
//! one part in a thousand, so that a clock set by two hours ends a lease of thirty seconds at most
//! thirty milliseconds early. The cost: after such a correction the partition's time differs from
//! the wall clock for a long time, which [`Clock::alarm`] reports.

use hapax_core::Time;

/// Answers may contain a time at most this much later than the last journaled one; a later time is
/// journaled first. After a crash a new owner starts that much later, so that time never runs
/// backwards.
pub(crate) const TOLD_AHEAD_MS: u64 = 1_000;
/// How much faster or slower than the monotonic clock the time may run.
const SLEW_PER: i64 = 1_000;
/// A larger difference to the wall clock is reported.
const ALARM_MS: i64 = 10_000;

/// Computes a partition's time. Reads no clock itself: the caller passes the readings.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Microseconds since 1970.
    time: i64,
    monotonic: i64,
    /// Wall clock minus time, when last asked.
    behind: i64,
    /// Time since the last correction step, carried over: otherwise a clock that is read often
    /// would never take a step.
    passed: i64,
}

impl Clock {
    /// Starts no earlier than `journal`, the last journaled time. A later wall clock is believed:
    /// whether it was set while no process ran is unknown.
    pub fn start(journal: Time, wall: Time, monotonic_us: u64) -> Self {
        let wall = micros(wall);
        let time = wall.max(micros(journal));
        Self { time, monotonic: monotonic_us as i64, behind: wall - time, passed: 0 }
    }

    /// How long to wait before the clock is started at `journal`, which a crashed owner may have
    /// reported to a caller: until the wall clock reaches it, or for the most it may have been
    /// ahead. Started at once, time would run further ahead of the wall clock with every crash, and
    /// leases and keys would end early.
    pub fn wait_ms(journal: Time, wall: Time) -> u64 {
        journal.since(wall).min(TOLD_AHEAD_MS)
    }

    /// The time now. `monotonic_us` is any clock that only ever advances.
    pub fn now(&mut self, wall: Time, monotonic_us: u64) -> Time {
        let elapsed = (monotonic_us as i64 - self.monotonic).max(0);
        self.monotonic = self.monotonic.max(monotonic_us as i64);
        let expected = self.time + elapsed;
        let passed = self.passed + elapsed;
        let most = passed / SLEW_PER;
        self.passed = passed % SLEW_PER;
        self.time = expected + (micros(wall) - expected).clamp(-most, most);
        self.behind = micros(wall) - self.time;
        debug_assert!(self.time >= expected - most, "time never runs backwards");
        Time((self.time / 1_000) as u64)
    }

    /// How many milliseconds the wall clock is ahead, if that is too much.
    pub fn alarm(&self) -> Option<i64> {
        let ahead = self.behind / 1_000;
        (ahead.abs() > ALARM_MS).then_some(ahead)
    }
}

fn micros(time: Time) -> i64 {
    i64::try_from(time.0.saturating_mul(1_000)).unwrap_or(i64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;
    const HOUR: u64 = 3_600_000;

    #[test]
    fn d3_a_jump_of_the_wall_clock_moves_time_by_a_thousandth_at_most() {
        for jump in [2 * HOUR as i64, -2 * HOUR as i64] {
            let start = Time(1_700_000_000_000);
            let mut clock = Clock::start(Time(0), start, 0);
            assert_eq!(clock.alarm(), None);
            let jumped = |ms: u64| Time((start.0 as i64 + jump) as u64 + ms);
            let after = clock.now(jumped(30_000), 30 * SECOND);
            let moved = after.0 as i64 - start.0 as i64 - 30_000;
            assert!(moved.abs() <= 30, "{moved}");
            assert_eq!(clock.alarm().map(i64::signum), Some(jump.signum()));
        }
    }

    #[test]
    fn d3_time_never_runs_backwards() {
        let mut clock = Clock::start(Time(5_000_000), Time(1_000), 7);
        let mut last = Time(5_000_000);
        for step in 0..1_000u64 {
            let wall = Time(if step % 3 == 0 { 0 } else { 9_000_000_000 });
            let now = clock.now(wall, 7 + step * 999);
            assert!(now >= last);
            last = now;
        }
    }

    #[test]
    fn small_corrections_are_followed_however_often_the_clock_is_asked() {
        for every_us in [200, 900, 1_000, 2_000, 7_777] {
            let mut clock = Clock::start(Time(0), Time(1_000_000), 0);
            let mut now = Time(0);
            let steps = 600 * SECOND / every_us;
            for step in 1..=steps {
                let us = step * every_us;
                now = clock.now(Time(1_000_000 + us / 1_000 + 300), us);
            }
            assert_eq!(now, Time(1_000_000 + steps * every_us / 1_000 + 300), "{every_us} us");
        }
    }

    #[test]
    fn small_corrections_are_followed() {
        let mut clock = Clock::start(Time(0), Time(1_000_000), 0);
        let mut now = Time(0);
        for second in 1..=200 {
            now = clock.now(Time(1_000_000 + second * 1_000 + 100), second * SECOND);
        }
        assert_eq!(now, Time(1_000_000 + 200_000 + 100));
    }
}
