//! The clocks of a node of a cluster: its own, which judges others, and the database's, which is
//! the wall clock of the partitions. The wall clock of the machine is not read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hapax_core::Time;
use hapax_postgres::Heartbeat;

/// A reading of the database's clock that took longer is not believed, unless it is the first: the
/// machine's own clock may be wrong by any time.
const ROUND_TRIP_MAX: Duration = Duration::from_millis(200);

/// Time since the machine was started. It goes on while the machine is suspended, so that a node
/// knows how long it was away.
pub(super) fn boottime() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds)
}

/// The database's clock, carried on by the monotonic clock between two readings.
#[derive(Debug)]
pub struct SharedClock {
    read: Mutex<Reading>,
    /// The latest time of a partition that was answered with, in ms.
    told_ms: AtomicU64,
}

/// A moment, and what the database's clock showed then, in ms.
#[derive(Debug)]
struct Reading {
    at: Instant,
    ms: u64,
    is_of_database: bool,
}

impl SharedClock {
    /// Until the first reading it is the machine's clock.
    pub(super) fn start() -> Self {
        let (at, ms) = (Instant::now(), crate::time::now().0);
        let reading = Reading { at, ms, is_of_database: false };
        Self { read: Mutex::new(reading), told_ms: AtomicU64::new(0) }
    }

    /// Takes in what a heartbeat brought, which has just returned.
    pub(super) fn read(&self, heartbeat: &Heartbeat, now: Instant) {
        let mut reading = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if heartbeat.round_trip <= ROUND_TRIP_MAX || !reading.is_of_database {
            let half = u64::try_from(heartbeat.round_trip.as_millis() / 2).unwrap_or_default();
            let ms = heartbeat.database_ms.saturating_add(half);
            *reading = Reading { at: now, ms, is_of_database: true };
        }
    }

    pub(crate) fn now(&self, now: Instant) -> Time {
        let Reading { at, ms, .. } = *self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.saturating_duration_since(at).as_millis();
        Time(ms.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX)))
    }

    /// A partition answers with this time.
    pub(crate) fn tell(&self, time: Time) {
        self.told_ms.fetch_max(time.0, Ordering::Relaxed);
    }

    pub(super) fn told_ms(&self) -> u64 {
        self.told_ms.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_postgres::Uuid;

    fn heartbeat(database_ms: u64, round_trip_ms: u64) -> Heartbeat {
        let round_trip = Duration::from_millis(round_trip_ms);
        Heartbeat { count: 1, database_ms, round_trip, catalog: 0, lineage: Uuid::nil() }
    }

    #[test]
    fn the_databases_clock_is_carried_on_and_a_slow_answer_is_not_believed() {
        let clock = SharedClock::start();
        let start = Instant::now();
        clock.read(&heartbeat(1_000_000, 20), start);
        assert_eq!(clock.now(start), Time(1_000_010));
        assert_eq!(clock.now(start + Duration::from_secs(7)), Time(1_007_010));
        clock.read(&heartbeat(5, 201), start + Duration::from_secs(8));
        assert_eq!(clock.now(start + Duration::from_secs(9)), Time(1_009_010));
    }

    #[test]
    fn a_slow_answer_is_better_than_the_clock_of_the_machine() {
        let clock = SharedClock::start();
        let start = Instant::now();
        clock.read(&heartbeat(1_000_000, 900), start);
        assert_eq!(clock.now(start), Time(1_000_450));
    }

    #[test]
    fn what_was_told_never_goes_back() {
        let clock = SharedClock::start();
        clock.tell(Time(7));
        clock.tell(Time(5));
        assert_eq!(clock.told_ms(), 7);
        let (before, after) = (boottime(), boottime());
        assert!(before <= after);
    }
}
