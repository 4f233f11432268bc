//! The clocks of a node of a cluster: its own, which judges others, and the database's, which is
//! the wall clock of the partitions. The wall clock of the machine is not read.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hapax_core::Time;
use hapax_postgres::{Heartbeat, NodeRow, Seen};

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
    started: Instant,
    /// The latest time of a partition since the last heartbeat, in ms, less what had passed since
    /// `started` then: partitions go on with the monotonic clock. `NOTHING` if none ran.
    told: AtomicI64,
    /// What the heartbeat before had.
    told_before: AtomicI64,
    /// What partitions start with at most, in ms at that moment.
    start: Mutex<Option<(u64, Instant)>>,
}

const NOTHING: i64 = i64::MIN;

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
        Self {
            read: Mutex::new(reading),
            started: at,
            told: AtomicI64::new(NOTHING),
            told_before: AtomicI64::new(NOTHING),
            start: Mutex::default(),
        }
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
        Time(carried_on(ms, now.saturating_duration_since(at)))
    }

    /// How far the clock of this machine is ahead of the database's, in seconds.
    pub(super) fn offset_s(&self, now: Instant) -> f64 {
        crate::time::now().0 as f64 / 1_000.0 - self.now(now).0 as f64 / 1_000.0
    }

    /// The partitions that are opened next start with this time at most, if it is known: what the
    /// node that served before has told, carried on.
    pub(super) fn limit_start(&self, told: Option<Time>, now: Instant) {
        let mut start = self.start.lock().unwrap_or_else(PoisonError::into_inner);
        *start = told.map(|told| (told.0, now));
    }

    /// The time that a partition starts with: the database's, which may have jumped since the last
    /// owner read it, but no later than what that one would show now. A partition that runs follows
    /// slowly.
    pub(crate) fn start_at(&self, wall: Time, now: Instant) -> Time {
        let start = *self.start.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = start.map(|(ms, at)| carried_on(ms, now.saturating_duration_since(at)));
        Time(limit.map_or(wall.0, |limit| wall.0.min(limit)))
    }

    /// A partition answers with this time.
    pub(crate) fn tell(&self, time: Time, now: Instant) {
        let time = i64::try_from(time.0).unwrap_or(i64::MAX);
        self.told.fetch_max(time - self.passed_ms(now), Ordering::Relaxed);
    }

    /// The time of the partitions now, for a heartbeat; 0 if none ran.
    pub(super) fn told_ms(&self, now: Instant) -> u64 {
        let told = match self.told.swap(NOTHING, Ordering::Relaxed) {
            NOTHING => self.told_before.load(Ordering::Relaxed),
            told => told,
        };
        self.told_before.store(told, Ordering::Relaxed);
        if told == NOTHING { 0 } else { u64::try_from(told + self.passed_ms(now)).unwrap_or(0) }
    }

    fn passed_ms(&self, now: Instant) -> i64 {
        let passed = now.saturating_duration_since(self.started).as_millis();
        i64::try_from(passed).unwrap_or(i64::MAX)
    }
}

fn carried_on(ms: u64, passed: Duration) -> u64 {
    ms.saturating_add(u64::try_from(passed.as_millis()).unwrap_or(u64::MAX))
}

/// The time of the partitions as the node that served last has told it with its heartbeats, and
/// when that was seen, by this node's own clock. Known only of a node that was seen to beat: what
/// stands in the row of one that is gone may be old by any time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told(Option<(u64, Duration)>);

impl Told {
    /// The rows as they were read before, and now.
    pub(super) fn note(&mut self, now: Duration, before: &Seen, seen: &Seen) {
        let has_beaten = |node: &&NodeRow| {
            before.nodes.iter().any(|it| it.id == node.id && it.heartbeat != node.heartbeat)
        };
        let owns = |node: &&NodeRow| seen.partitions.iter().any(|it| it.owner == Some(node.id));
        let serving = seen.nodes.iter().filter(owns).filter(has_beaten);
        let told = serving.map(|node| node.told_ms).filter(|told| *told > 0).max();
        self.0 = told.map(|told| (told, now)).or(self.0);
    }

    /// How long ago the last heartbeat was seen.
    pub(super) fn age(&self, now: Duration) -> Option<Duration> {
        self.0.map(|(_, seen)| now.saturating_sub(seen))
    }

    /// What it would tell now.
    pub(super) fn at(&self, now: Duration) -> Option<Time> {
        self.0.map(|(ms, seen)| Time(carried_on(ms, now.saturating_sub(seen))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_postgres::Uuid;

    fn heartbeat(database_ms: u64, round_trip_ms: u64) -> Heartbeat {
        let round_trip = Duration::from_millis(round_trip_ms);
        let (lineage, watched) = (Uuid::nil(), Vec::new());
        Heartbeat { count: 1, database_ms, round_trip, catalog: 0, lineage, watched }
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
    fn what_was_told_is_the_latest_and_goes_on_with_the_monotonic_clock() {
        let clock = SharedClock::start();
        let at = |ms| clock.started + Duration::from_millis(ms);
        assert_eq!(clock.told_ms(at(0)), 0, "no partition ran");
        clock.tell(Time(1_007), at(0));
        clock.tell(Time(1_105), at(100));
        assert_eq!(clock.told_ms(at(500)), 1_507);
        assert_eq!(clock.told_ms(at(1_000)), 2_007, "partitions that rest go on");
        clock.tell(Time(2_500), at(1_500));
        assert_eq!(clock.told_ms(at(1_500)), 2_500, "the latest, not the largest ever");
        let (before, after) = (boottime(), boottime());
        assert!(before <= after);
    }

    #[test]
    fn a_partition_starts_no_later_than_its_last_owner_would_be() {
        let clock = SharedClock::start();
        let now = Instant::now();
        let later = now + Duration::from_secs(2);
        assert_eq!(clock.start_at(Time(90_000), now), Time(90_000), "nothing is known");
        clock.limit_start(Some(Time(50_000)), now);
        assert_eq!(clock.start_at(Time(90_000), later), Time(52_000), "the database jumped ahead");
        assert_eq!(clock.start_at(Time(51_000), later), Time(51_000), "it is the earlier one");
        clock.limit_start(None, now);
        assert_eq!(clock.start_at(Time(90_000), now), Time(90_000));
    }

    #[test]
    fn only_a_node_that_was_seen_to_beat_has_told_something() {
        let (owner, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let node = |id, heartbeat, told_ms| NodeRow {
            id,
            name: String::new(),
            address: String::new(),
            release: String::new(),
            feature: 1,
            state: None,
            heartbeat,
            told_ms,
        };
        let seen = |heartbeat, told_ms, owner| Seen {
            nodes: vec![
                node(Uuid::from_u128(1), heartbeat, told_ms),
                node(other, heartbeat, 99_000),
            ],
            partitions: vec![hapax_postgres::OwnerRow {
                partition: 0,
                epoch: 1,
                owner,
                intended: None,
            }],
        };
        let seconds = Duration::from_secs;
        let mut told = Told::default();
        told.note(seconds(1), &Seen::default(), &seen(7, 5_000, Some(owner)));
        told.note(seconds(2), &seen(7, 5_000, Some(owner)), &seen(7, 5_000, Some(owner)));
        assert_eq!(told.at(seconds(2)), None, "it may be gone for long");
        told.note(seconds(3), &seen(7, 5_000, Some(owner)), &seen(8, 6_000, Some(owner)));
        assert_eq!(told.at(seconds(3)), Some(Time(6_000)));
        told.note(seconds(4), &seen(8, 6_000, Some(owner)), &seen(8, 6_000, None));
        assert_eq!(told.at(seconds(7)), Some(Time(10_000)), "also after it left");
    }
}
