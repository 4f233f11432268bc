//! What opening partitions took: the parts of a takeover.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counters that several partitions add to.
#[derive(Debug, Default)]
pub struct Steps {
    /// Claims, each of which waits for an append that is under way.
    pub(crate) claim: Counter,
    /// Manifests, lists of pieces and the ends of all runs.
    pub(crate) archive: Counter,
    /// Pages of journals.
    pub(crate) tail: Counter,
    /// Pieces of runs that were not on the local disk, those of `archive` too.
    pub(crate) pieces: Counter,
    /// All of it, and applying the journals.
    opened: Counter,
}

#[derive(Debug, Default)]
pub(crate) struct Counter {
    count: AtomicU64,
    bytes: AtomicU64,
    micros: AtomicU64,
}

/// What one kind of step took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    pub count: u64,
    pub bytes: u64,
    pub time: Duration,
}

impl Steps {
    /// A partition was opened, all in all in this time.
    pub fn note_opened(&self, time: Duration) {
        self.opened.note(time, 0);
    }

    pub fn claim(&self) -> Taken {
        self.claim.read()
    }

    pub fn archive(&self) -> Taken {
        self.archive.read()
    }

    pub fn tail(&self) -> Taken {
        self.tail.read()
    }

    pub fn pieces(&self) -> Taken {
        self.pieces.read()
    }

    /// Applying the journals, with the pieces of runs that it needed.
    pub fn replay(&self) -> Duration {
        let known = self.claim().time + self.archive().time + self.tail().time;
        self.opened.read().time.saturating_sub(known)
    }
}

impl Counter {
    pub(crate) fn note(&self, time: Duration, bytes: u64) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    fn read(&self) -> Taken {
        Taken {
            count: self.count.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            time: Duration::from_micros(self.micros.load(Ordering::Relaxed)),
        }
    }
}
