//! What each partition holds of queues with limits, on its way to the others.
//!
//! A writer reports before it answers, and hears before it decides: whoever was answered by one
//! partition finds its message counted by every other. Writers that decide at the same moment do
//! not know of each other yet.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use hapax_core::{Holding, QueueName, Report};

use super::Shared;

/// The newest report of each partition about each queue that a writer has not heard yet.
pub(super) type Unheard = Mutex<HashMap<(QueueName, u16), Holding>>;

impl Shared {
    /// Leaves reports for the writers of all other partitions.
    pub(super) fn report(&self, reports: &[Report]) {
        for (number, unheard) in self.unheard.iter().enumerate() {
            let mut unheard = unheard.lock().unwrap_or_else(PoisonError::into_inner);
            let others = reports.iter().filter(|report| usize::from(report.partition) != number);
            for Report { partition, queue, holding } in others {
                unheard.insert((queue.clone(), *partition), *holding);
            }
        }
    }

    /// What the writer of a partition has not heard yet.
    pub(super) fn unheard(&self, partition: usize) -> Vec<Report> {
        let Some(unheard) = self.unheard.get(partition) else { return Vec::new() };
        let mut unheard = unheard.lock().unwrap_or_else(PoisonError::into_inner);
        let reports = unheard.drain().map(|((queue, partition), holding)| Report {
            partition,
            queue,
            holding,
        });
        reports.collect()
    }
}
