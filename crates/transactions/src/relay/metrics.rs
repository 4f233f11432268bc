//! The metrics of a relay, for Prometheus.

use std::fmt::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::batch::Outcome;
use super::source::{Counts, Refused};

/// The counters and gauges of one relay.
#[derive(Debug, Default)]
pub struct Metrics {
    active: AtomicI64,
    pending: AtomicI64,
    parked: AtomicI64,
    lag_ms: AtomicI64,
    waiting: AtomicI64,
    moved: AtomicU64,
    duplicates: AtomicU64,
    refused: AtomicU64,
    parked_total: AtomicU64,
    results: AtomicU64,
}

impl Metrics {
    /// Whether this relay has the lock and is active.
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed) == 1
    }

    /// Rows that the broker has confirmed.
    pub fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// The duplicates among them.
    pub fn duplicates(&self) -> u64 {
        self.duplicates.load(Ordering::Relaxed)
    }

    /// Rows in the table that are not parked, when it was last counted.
    pub fn pending(&self) -> u64 {
        self.pending.load(Ordering::Relaxed).unsigned_abs()
    }

    pub(super) fn set_active(&self, is_active: bool) {
        self.active.store(i64::from(is_active), Ordering::Relaxed);
    }

    pub(super) fn count(&self, outcome: &Outcome) {
        self.moved.fetch_add(outcome.confirmed.len() as u64, Ordering::Relaxed);
        self.duplicates.fetch_add(outcome.duplicates, Ordering::Relaxed);
        self.count_refused(&outcome.refused);
    }

    pub(super) fn count_refused(&self, refused: &[Refused]) {
        self.refused.fetch_add(refused.len() as u64, Ordering::Relaxed);
        let parked = refused.iter().filter(|refused| refused.retry_in.is_none());
        self.parked_total.fetch_add(parked.count() as u64, Ordering::Relaxed);
    }

    pub(super) fn counted(&self, counts: &Counts) {
        self.pending.store(counts.pending, Ordering::Relaxed);
        self.parked.store(counts.parked, Ordering::Relaxed);
        self.lag_ms.store(counts.lag_ms, Ordering::Relaxed);
        self.waiting.store(counts.waiting, Ordering::Relaxed);
    }

    pub(super) fn result_written(&self) {
        self.results.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes the text format of Prometheus.
    pub fn text(&self) -> String {
        let signed = |value: &AtomicI64| value.load(Ordering::Relaxed).to_string();
        let lag_s = self.lag_ms.load(Ordering::Relaxed) as f64 / 1_000.0;
        let count = |value: &AtomicU64| value.load(Ordering::Relaxed).to_string();
        let rows = [
            ("active", "gauge", "1 if this relay has the lock.", signed(&self.active)),
            ("pending", "gauge", "Rows waiting to be sent.", signed(&self.pending)),
            (
                "parked",
                "gauge",
                "Rows that are parked because they were refused too often.",
                signed(&self.parked),
            ),
            (
                "lag_seconds",
                "gauge",
                "Age of the oldest row waiting to be sent.",
                lag_s.to_string(),
            ),
            (
                "results_waiting",
                "gauge",
                "Messages whose outcome is not known yet.",
                signed(&self.waiting),
            ),
            ("moved_total", "counter", "Rows that the broker confirmed.", count(&self.moved)),
            (
                "duplicates_total",
                "counter",
                "Rows that were duplicates to the broker.",
                count(&self.duplicates),
            ),
            ("refused_total", "counter", "Refusals of single rows.", count(&self.refused)),
            ("parked_total", "counter", "Rows that were parked.", count(&self.parked_total)),
            ("results_total", "counter", "Results written back.", count(&self.results)),
        ];
        let mut text = String::new();
        for (name, kind, help, value) in rows {
            let name = format!("hapax_relay_{name}");
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_its_help_its_type_and_its_value() {
        let metrics = Metrics::default();
        metrics.counted(&Counts { pending: 3, parked: 1, lag_ms: 2_500, waiting: 0 });
        metrics.set_active(true);
        let text = metrics.text();
        assert!(text.contains("hapax_relay_pending 3\n"), "{text}");
        assert!(text.contains("hapax_relay_lag_seconds 2.5\n"), "{text}");
        assert!(text.contains("# TYPE hapax_relay_moved_total counter\n"), "{text}");
        assert_eq!(text.lines().count(), 30);
    }
}
