//! Receivers that wait: none may wait while there are ready messages.
//!
//! When the partition wakes a queue, as many waiters are called as there are ready messages, as in
//! the engine. If another client gets a message later, while no called waiter is still in progress,
//! a waiter that was not called should have got it.

use std::collections::BTreeMap;

use hapax_core::{Effect, Fence, Outcome};

use super::{Going, Run, wrong};
use crate::op::{Op, Patience};
use crate::world::AnsweredBatch;

/// The waiters of all queues.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// The queue, and the number of batches decided when it began to wait.
    waiting: Vec<(usize, u64, Op)>,
    /// The number of batches decided when a queue was last woken.
    woken: BTreeMap<usize, u64>,
    /// Unanswered receives of called waiters, by queue.
    called: BTreeMap<usize, u64>,
    /// The highest fence of a delivery. A repeated receive gets lower ones again.
    newest: Fence,
}

/// The most waiters at once.
const WAITERS_MAX: usize = 12;

impl Run {
    /// Lets receivers wait, calls them, and checks that none was forgotten.
    pub(super) fn wait_and_wake(&mut self, told: &AnsweredBatch) -> Going<()> {
        let mut served = Vec::new();
        let mut new = Vec::new();
        for (op, outcome) in &told.answers {
            let Op::Receive { queue, patience, .. } = op else { continue };
            if *patience == Patience::Called
                && let Some(called) = self.waiters.called.get_mut(queue)
            {
                *called = called.saturating_sub(1);
            }
            match outcome {
                Outcome::Received(deliveries) if !deliveries.is_empty() => {
                    let fences = deliveries.iter().map(|delivery| delivery.lease.fence);
                    let newest = fences.max().unwrap_or_default();
                    let is_new = newest > self.waiters.newest && self.world.gave(newest);
                    self.waiters.newest = self.waiters.newest.max(newest);
                    served.extend((*patience != Patience::Called && is_new).then_some(*queue));
                }
                Outcome::Received(_) if *patience != Patience::None => new.push((*queue, op)),
                _ => {}
            }
        }
        let wakes = told.effects.iter().filter_map(|effect| match effect {
            Effect::Wake(queue) => Some(self.world.woken(*queue)),
            _ => None,
        });
        let wakes: Vec<Option<(usize, u64)>> = wakes.collect();
        // A queue that was woken may be gone by now, and its name unknown.
        let any_unknown = wakes.iter().any(Option::is_none);
        // A queue that is being deleted may share its name with a new one.
        let mut woken: BTreeMap<usize, u64> = BTreeMap::new();
        for (queue, ready) in wakes.into_iter().flatten() {
            let most = woken.entry(queue).or_default();
            *most = ready.max(*most);
        }
        if !woken.is_empty() {
            self.note(|| format!("wakes {woken:?} by batch {}", told.serial));
        }
        if any_unknown {
            let all = 0..self.scene.queues.len();
            self.waiters.woken.extend(all.map(|queue| (queue, self.world.submitted())));
        }
        for queue in served {
            let is_called = self.waiters.called.get(&queue).is_some_and(|called| *called > 0);
            // Receives decided before that could not have passed a waiter.
            let before = self.waiters.woken.get(&queue).copied().unwrap_or(0);
            let waits = self.waiters.waiting.iter().any(|(of, since, _)| {
                *of == queue && *since <= told.serial && before <= told.serial
            });
            let excused = any_unknown || woken.contains_key(&queue) || self.checker.damaged;
            if waits && !is_called && !excused {
                return wrong("somebody waits beside messages that are ready");
            }
        }
        for (queue, op) in new {
            if self.waiters.waiting.len() < WAITERS_MAX && !self.draining {
                self.waiters.waiting.push((queue, self.world.submitted(), op.clone()));
            }
        }
        for (queue, ready) in woken {
            self.waiters.woken.insert(queue, self.world.submitted());
            self.call(queue, ready);
        }
        Ok(())
    }

    /// Calls as many waiters of the queue as there are ready messages for.
    fn call(&mut self, queue: usize, ready: u64) {
        let mut wanted = 0;
        let mut left = Vec::new();
        for (of, since, op) in std::mem::take(&mut self.waiters.waiting) {
            let Op::Receive { max, lease_ms, id, several, .. } = op else { continue };
            if of != queue || wanted >= ready {
                left.push((of, since, op));
                continue;
            }
            if self.clients.one_in(10) {
                continue; // It went away before it was called.
            }
            wanted += u64::from(max);
            *self.waiters.called.entry(queue).or_default() += 1;
            self.tally.count("receivers woken");
            let patience = Patience::Called;
            self.urgent.push(Op::Receive { queue, max, lease_ms, id, several, patience });
        }
        self.waiters.waiting = left;
    }

    /// Drops all waiters: their process is gone.
    pub(super) fn forget_waiters(&mut self) {
        self.waiters = Waiters { newest: self.waiters.newest, ..Waiters::default() };
        self.urgent.retain(|op| !matches!(op, Op::Receive { .. }));
    }
}
