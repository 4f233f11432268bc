//! Sends emits to the partitions of their queues: see [`hapax_partition::relay`].

use std::sync::{Arc, MutexGuard, PoisonError};

use hapax_core::{Outcome, Relay};
use hapax_partition::relay::{Confirmations, Confirmed, Emits, confirm, hand_over, unanswered};

use super::inbox::{Outcomes, Reply};
use super::{Shared, Stopped};

impl Shared {
    /// Sends emits to the partitions of their queues, and confirms arrivals to `from`.
    pub(super) fn relay(self: &Arc<Self>, from: usize, relays: Vec<Relay>) {
        let Some(relays) = self.emits().pass(from, relays) else { return };
        self.submit_routed(|routes| {
            let parts = hand_over(relays, routes, || self.turn()).into_iter();
            let part = parts.map(|part| {
                let shared = Arc::clone(self);
                let reply: Reply =
                    Box::new(move |outcomes: Outcomes| shared.confirm(from, part.tags, outcomes));
                (part.partition, part.commands, reply)
            });
            part.collect()
        });
    }

    fn confirm(&self, from: usize, ids: Vec<u64>, outcomes: Result<Vec<Outcome>, Stopped>) {
        let Confirmed { commands, refused } = match outcomes {
            Ok(outcomes) => confirm(ids, outcomes),
            Err(_) => unanswered(ids),
        };
        for why in refused {
            tracing::error!(%why, "an emitted message was refused by its queue and is dead there");
        }
        let commands = self.confirmations().pass(from, commands);
        if let Some(commands) = commands {
            self.submit(from, commands, Box::new(|_| {}));
        }
    }

    /// The partitions agree about their queues: emits may be sent.
    pub(super) fn let_emits_go(self: &Arc<Self>) {
        let held = self.emits().let_go();
        held.into_iter().for_each(|(from, relays)| self.relay(from, relays));
    }

    fn emits(&self) -> MutexGuard<'_, Emits> {
        self.emits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn confirmations(&self) -> MutexGuard<'_, Confirmations> {
        self.confirmations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
