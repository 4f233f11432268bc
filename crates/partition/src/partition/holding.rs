//! Limits of queues over several partitions: what each holds is told to the others.

use hapax_core::Report;
use hapax_store::Store;

use super::Partition;

impl<S: Store> Partition<S> {
    /// What changed in queues with limits since the last call, for the other partitions. Asked
    /// after every submit and poll. It may leave before it is durable: nothing is promised by it.
    pub fn take_reports(&mut self) -> Vec<Report> {
        self.machine.take_reports()
    }

    /// Takes in what another partition holds. Told before every submit. Returns whether the queue is
    /// known here; where it is not, the newest report is told again later.
    pub fn hear(&mut self, report: &Report) -> bool {
        self.machine.hear(report)
    }
}
