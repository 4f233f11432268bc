//! The wall clock of the partitions.

use std::sync::Arc;
use std::time::Instant;

use hapax_core::Time;

use crate::cluster::SharedClock;

/// What the partitions take for the wall clock.
#[derive(Clone, Debug, Default)]
pub enum Wall {
    /// The clock of this machine.
    #[default]
    Machine,
    /// That of the database, which the nodes of a broker share: those of their machines differ.
    Shared(Arc<SharedClock>),
}

impl Wall {
    pub(super) fn now(&self, now: Instant) -> Time {
        match self {
            Self::Machine => crate::time::now(),
            Self::Shared(clock) => clock.now(now),
        }
    }

    /// What a partition starts with, while the wall clock shows `wall`.
    pub(super) fn start_at(&self, wall: Time, now: Instant) -> Time {
        match self {
            Self::Machine => wall,
            Self::Shared(clock) => clock.start_at(wall, now),
        }
    }

    /// A partition answers with this time.
    pub(super) fn tell(&self, time: Time, now: Instant) {
        match self {
            Self::Machine => {}
            Self::Shared(clock) => clock.tell(time, now),
        }
    }
}
