//! The messages and bytes of a queue in other partitions, so that its limits cover the whole queue.
//!
//! A partition reports its counts of a queue with limits whenever they change, and adds the last
//! reports of the others to its own. Reports are not journaled: they only decide whether a send is
//! refused for now. Until a report arrives, a limit can be exceeded by what the other partition has
//! accepted meanwhile.
//!
//! Invariant: a queue is in `Machine::held_changed` exactly while it is marked as listed there.

use crate::command::QueueName;
use crate::config::Config;
use crate::decision::QueueId;
use crate::machine::Machine;
use crate::queue::Queue;

/// What one partition holds of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    pub messages: u64,
    pub bytes: u64,
    /// Messages accepted since the partition was opened, if the queue has a rate limit.
    pub accepted: u64,
}

/// What a partition reports to the others about a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub partition: u16,
    pub queue: QueueName,
    pub holding: Holding,
}

/// What a queue knows of the other partitions, and what it reports to them.
#[derive(Debug, Default)]
pub(crate) struct Elsewhere {
    /// The last report of every other partition.
    reports: Vec<(u16, Holding)>,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// Messages accepted here, for the rate limit.
    pub(crate) accepted: u64,
    is_listed: bool,
}

impl Elsewhere {
    /// Stores a report. Returns how many messages were accepted since the previous one.
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
    /// Reports of the queues with limits that changed since the last call.
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
        // A queue that is being deleted does not count against a new one of its name.
        let known = changed.into_iter().filter_map(|id| {
            self.queues.get_mut(id).filter(|queue| !queue.is_deleted()).map(report)
        });
        known.collect()
    }

    /// Stores the report of another partition. Returns whether the queue is known here: other
    /// partitions may know a queue that is being created first.
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

    /// Lists the queue for the next reports: it holds more or less than before.
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
