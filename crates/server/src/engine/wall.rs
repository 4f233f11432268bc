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

    /// A partition answers with this time.
    pub(super) fn tell(&self, time: Time) {
        match self {
            Self::Machine => {}
            Self::Shared(clock) => clock.tell(time),
        }
    }
}
