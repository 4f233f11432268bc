//! Time over restarts: never before what was told, and never further ahead of the wall clock.

#![expect(clippy::unwrap_used, reason = "a test that fails should say where")]

use hapax_core::{Command, Config, Configure, Outcome, QueueName, Stamp, Time};
use hapax_partition::{Clock, Options, Partition};
use hapax_store::memory::MemoryStore;

const RESTARTS: u64 = 15;
const LIFE_MS: u64 = 100;

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Crash,
    Close,
}

/// One machine with its clocks.
struct World {
    store: MemoryStore,
    wall: u64,
    monotonic_us: u64,
    /// The latest time that anybody was told.
    told: Time,
}

impl World {
    fn new() -> Self {
        let store = MemoryStore::default();
        Self { store, wall: 1_700_000_000_000, monotonic_us: 0, told: Time(0) }
    }

    fn pass(&mut self, ms: u64) {
        self.wall += ms;
        self.monotonic_us += ms * 1_000;
    }

    /// A life of the partition, in which it is asked now and then; what it waited at the start.
    fn live(&mut self, end: End) -> u64 {
        let mut partition = Partition::open(self.store.another(), Options::default()).unwrap();
        let waited = Clock::wait_ms(partition.now(), Time(self.wall));
        self.pass(waited);
        let mut clock = Clock::start(partition.now(), Time(self.wall), self.monotonic_us);
        for step in 0..LIFE_MS / 10 {
            let at = clock.now(Time(self.wall), self.monotonic_us);
            // Some batches are journaled, others only tell.
            let queue = QueueName::new("default", "orders").unwrap();
            let command = match step % 3 {
                0 => {
                    let config = Config { lease_ms: 1_000 + self.wall % 7, ..Config::default() };
                    Command::Configure(Box::new(Configure { queue, config, if_version: None }))
                }
                _ => Command::Show(queue),
            };
            partition.submit(Stamp { at, random: 1 }, vec![command]).unwrap();
            let answered = partition.poll().unwrap().unwrap();
            assert!(!answered.outcomes.iter().any(|one| matches!(one, Outcome::Refused(_))));
            let now = partition.now();
            assert!(now >= self.told, "{now:?} is told after {:?}", self.told);
            self.told = now;
            self.pass(10);
        }
        match end {
            End::Crash => drop(partition.abandon()),
            End::Close => drop(partition.close().unwrap()),
        }
        waited
    }
}

#[test]
fn d3_restarts_do_not_push_time_ahead_of_the_wall_clock() {
    for end in [End::Crash, End::Close] {
        let mut world = World::new();
        for restart in 0..RESTARTS {
            let waited = world.live(end);
            assert!(world.told.0 <= world.wall, "{end:?} {restart}: {:?}", world.told);
            assert!(waited <= 1_000 && (end == End::Crash || waited == 0), "{end:?} {waited}");
        }
    }
}

#[test]
fn d3_a_time_that_is_ahead_does_not_get_further_ahead_by_crashes() {
    let mut world = World::new();
    world.live(End::Close);
    world.wall -= 5_000; // Set back while nothing ran.
    for _ in 0..RESTARTS {
        world.live(End::Crash);
        let ahead = world.told.0.saturating_sub(world.wall);
        assert!(ahead <= 5_000, "{ahead} ms ahead");
    }
}
