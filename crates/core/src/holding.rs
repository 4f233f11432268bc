//! What a queue holds in other partitions, so that its limits cover the whole queue.
//!
//! A partition reports what it holds of a queue with limits whenever that changed, and counts the
//! last reports of the others with its own. Reports are not journaled: they decide whether a send
//! is refused for now, and no other answer. Until a report is heard, a limit can be exceeded by
//! what its partition accepted meanwhile.
//!
//! Invariant: a queue is in `Machine::held_changed` exactly while it is marked as listed there.

use crate::command::QueueName;
use crate::config::Config;
use crate::decision::QueueId;
use crate::machine::Machine;
use crate::queue::Queue;

/// How much one partition holds of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    pub messages: u64,
    pub bytes: u64,
    /// Messages accepted since the partition was opened, where the queue limits their rate.
    pub accepted: u64,
}

/// What a partition tells the others of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub partition: u16,
    pub queue: QueueName,
    pub holding: Holding,
}

/// A queue's part in the reports.
#[derive(Debug, Default)]
pub(crate) struct Elsewhere {
    /// The last report of every other partition.
    reports: Vec<(u16, Holding)>,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// Accepted here, for the rate.
    pub(crate) accepted: u64,
    is_listed: bool,
}

impl Elsewhere {
    /// Takes in a report. Returns how many messages were accepted since the one before.
    fn hear(&mut self, partition: u16, holding: Holding) -> u64 {
        let known = self.reports.iter_mut().find(|(number, _)| *number == partition);
        let before = match known {
            Some((_, known)) => std::mem::replace(known, holding),
            None => {
                self.reports.push((partition, holding));
                Holding::default()
            }
        };
        self.messages = self.reports.iter().map(|(_, holding)| holding.messages).sum();
        self.bytes = self.reports.iter().map(|(_, holding)| holding.bytes).sum();
        holding.accepted.saturating_sub(before.accepted)
    }
}

fn has_limits(config: &Config) -> bool {
    config.max_messages.is_some() || config.max_bytes.is_some() || config.sends_per_s.is_some()
}

impl Machine {
    /// What changed in queues with limits since the last call.
    pub fn take_reports(&mut self) -> Vec<Report> {
        if self.held_changed.is_empty() {
            return Vec::new();
        }
        let (changed, partition) = (std::mem::take(&mut self.held_changed), self.partition);
        let report = |queue: &mut Queue| {
            queue.elsewhere.is_listed = false;
            let (messages, bytes) = (queue.stats.messages(), queue.stats.bytes);
            let holding = Holding { messages, bytes, accepted: queue.elsewhere.accepted };
            Report { partition, queue: queue.name.clone(), holding }
        };
        // One that is being deleted makes room for a new one of its name.
        let known = changed.into_iter().filter_map(|id| {
            self.queues.get_mut(id).filter(|queue| !queue.is_deleted()).map(report)
        });
        known.collect()
    }

    /// Takes in what another partition holds. Returns whether the queue is known here: one that is
    /// being created may be known to the others first.
    pub fn hear(&mut self, report: &Report) -> bool {
        assert_ne!(report.partition, self.partition, "a partition knows what it holds");
        let at = self.now;
        let id = self.queues.named(&report.queue).map(|queue| queue.id);
        let Some(queue) = id.and_then(|id| self.queues.get_mut(id)) else { return false };
        let accepted = queue.elsewhere.hear(report.partition, report.holding);
        if let Some(per_s) = queue.config.sends_per_s {
            queue.rate.take_elsewhere(per_s, at, accepted);
        }
        true
    }

    /// The queue holds more or less than before.
    pub(crate) fn report_later(&mut self, id: QueueId) {
        if self.partitions == 1 {
            return;
        }
        if let Some(queue) = self.queues.get_mut(id)
            && has_limits(&queue.config)
            && !std::mem::replace(&mut queue.elsewhere.is_listed, true)
        {
            self.held_changed.push(id);
        }
    }
}
