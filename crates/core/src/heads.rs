//! The oldest messages of queues where only the rows may know them.
//!
//! A start reads no ready message, and the last one in memory may leave its place while others are
//! in the rows. How long the oldest has waited must be known also while nobody receives: ticks read
//! it, of a few queues each. What they read can be evicted like everything else, and is not read
//! again for that reason: it would be evicted again.
//!
//! Invariant: a queue leaves this list when its head is known or it has none, or when it is
//! removed.

use std::collections::BTreeMap;

use crate::decision::QueueId;
use crate::ids::Time;
use crate::load::Need;
use crate::machine::Machine;
use crate::queue::Queue;

/// Queues whose heads may be in the rows alone, and how many rows are read next. The first row is
/// the oldest message, unless it ended since the last checkpoint: then more are read each time.
#[derive(Debug, Default)]
pub(crate) struct Heads(BTreeMap<QueueId, usize>);

impl Heads {
    pub(crate) fn add(&mut self, queue: QueueId) {
        self.0.entry(queue).or_insert(1);
    }

    pub(crate) fn remove(&mut self, queue: QueueId) {
        self.0.remove(&queue);
    }

    /// Rows of the queue were read. The next read is larger, up to `most`.
    pub(crate) fn was_read(&mut self, queue: QueueId, most: usize) {
        if let Some(rows) = self.0.get_mut(&queue) {
            *rows = rows.saturating_mul(2).min(most);
            debug_assert!(*rows > 0, "every read goes on");
        }
    }
}

impl Machine {
    /// When a tick should read heads: at once, if there are any to read.
    pub(crate) fn heads_due(&self) -> Time {
        if self.unread_heads().next().is_some() { self.now } else { Time::NEVER }
    }

    /// What the heads that one tick reads need.
    pub(crate) fn need_heads(&self, needs: &mut Vec<Need>) {
        for (queue, rows) in self.unread_heads().take(self.bounds.groups_at_once) {
            self.need_head(queue, 1, false, rows, needs);
        }
    }

    /// A tick has read what it needed. A head is left to the next one if only ended messages were
    /// found so far, or if the message has died in this tick.
    pub(crate) fn forget_heads(&mut self) {
        let mut needs = Vec::new();
        let mut known = Vec::new();
        for (queue, rows) in self.unread_heads().take(self.bounds.groups_at_once) {
            needs.clear();
            self.need_head(queue, 1, false, rows, &mut needs);
            if needs.is_empty() {
                known.push(queue.id);
            }
        }
        for queue in known {
            self.heads.remove(queue);
        }
    }

    /// The queues whose heads are to be read. A purge comes first: it removes them.
    fn unread_heads(&self) -> impl Iterator<Item = (&Queue, usize)> {
        let queues = self.heads.0.iter();
        let queues = queues.filter_map(|(id, rows)| Some((self.queues.get(*id)?, *rows)));
        queues.filter(|(queue, _)| queue.purge.is_none())
    }
}
