//! How far the checkpoint in progress is: told by the thread that works on it, read by the owner.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Estimated parts of a checkpoint's work, in thousandths: adding its rows, distributing them,
/// writing them, and writing filters, indexes and the manifest.
pub(crate) const ADDED: u64 = 200;
pub(crate) const GATHERED: u64 = 300;
pub(crate) const WRITTEN: u64 = 900;

/// Thousandths of a checkpoint's work; 0 without one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress(Arc<AtomicU64>);

impl Progress {
    pub(crate) fn tell(&self, thousandths: u64) {
        self.0.store(thousandths, Ordering::Relaxed);
    }

    /// From 0 to 1.
    pub(crate) fn get(&self) -> f64 {
        self.0.load(Ordering::Relaxed) as f64 / 1e3
    }
}
