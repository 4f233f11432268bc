//! Shares between partitions how much each holds of queues with limits. A writer reports before it
//! answers, and reads the reports before it decides: once a caller has its answer, every partition
//! counts its message. Writers that decide at the same moment do not know of each other yet.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use hapax_core::{Holding, QueueName, Report};

use super::Shared;

/// The newest reports that a writer has not read yet, by queue and partition.
pub(super) type UnreadReports = Mutex<HashMap<(QueueName, u16), Holding>>;

impl Shared {
    /// Leaves reports for the writers of all other partitions.
    pub(super) fn report(&self, reports: &[Report]) {
        for (number, unread) in self.unread.iter().enumerate() {
            let mut unread = unread.lock().unwrap_or_else(PoisonError::into_inner);
            let others = reports.iter().filter(|report| usize::from(report.partition) != number);
            for Report { partition, queue, holding } in others {
                unread.insert((queue.clone(), *partition), *holding);
            }
        }
    }

    /// Passes unread reports to a partition. Reports about queues that it does not know yet are
    /// kept.
    pub(super) fn hear(&self, number: usize, mut hear: impl FnMut(&Report) -> bool) {
        let Some(unread) = self.unread.get(number) else { return };
        let mut unread = unread.lock().unwrap_or_else(PoisonError::into_inner);
        unread.retain(|(queue, partition), holding| {
            let (partition, queue, holding) = (*partition, queue.clone(), *holding);
            !hear(&Report { partition, queue, holding })
        });
    }

    /// The queue was deleted in all partitions.
    pub(super) fn forget_reports(&self, queue: &QueueName) {
        for unread in &self.unread {
            let mut unread = unread.lock().unwrap_or_else(PoisonError::into_inner);
            unread.retain(|(known, _), _| known != queue);
        }
    }
}
