//! The counters of the port.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub struct Stats {
    /// Connections that are open now.
    pub open: Count,
    pub accepted: Count,
    /// Connections beyond the bound.
    pub refused: Count,
    /// TLS handshakes that failed or were not finished in time.
    pub handshakes_failed: Count,
    /// Connections that were cut because the peer was too slow.
    pub timed_out: Count,
    /// How often the certificate was replaced since the start, and how often a new one was bad.
    pub certificates_replaced: Count,
    pub certificates_refused: Count,
}

/// An atomic counter.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one more while the guard exists.
    pub(super) fn hold(&self) -> Held<'_> {
        self.add();
        Held(self)
    }
}

pub(super) struct Held<'a>(&'a Count);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
