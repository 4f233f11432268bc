//! Limits of queues over several partitions: each reports its counts to the others.

use hapax_core::Report;
use hapax_store::Store;

use super::Partition;

impl<S: Store> Partition<S> {
    /// Reports of queues with limits that changed since the last call, for the other partitions.
    /// Called after every submit and poll. They may be sent before they are durable: nothing is
    /// guaranteed by them.
    pub fn take_reports(&mut self) -> Vec<Report> {
        self.machine.take_reports()
    }

    /// Stores the report of another partition. Called before every submit. Returns whether the
    /// queue is known here; if not, the newest report is repeated later.
    pub fn hear(&mut self, report: &Report) -> bool {
        self.machine.hear(report)
    }
}
