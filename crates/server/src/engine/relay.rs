//! Emits on their way to the partitions of their queues.
//!
//! The partition that emitted keeps each in a durable list until it hears that it arrived. It may
//! be handed over more than once, by a crash or a lost answer; its key makes it arrive once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hapax_core::{Answer, Arrival, Command, DeadLetter, Outcome, Relay};

use super::{Shared, Stopped};

/// Hands emits to the partitions of their queues and tells `from` which arrived.
pub(super) fn hand_over(shared: &Arc<Shared>, from: usize, relays: Vec<Relay>) {
    let mut parts: Vec<(Vec<u64>, Vec<Command>)> = Vec::new();
    parts.resize_with(shared.partitions(), Default::default);
    for relay in relays {
        let (id, refused) = (relay.id, relay.refused.clone());
        let send = relay.into_send();
        let Some((ids, commands)) = parts.get_mut(shared.route(&send)) else { continue };
        ids.push(id);
        commands.push(match refused {
            Some(error) => Command::DeadLetter(DeadLetter { send, error }),
            None => Command::Send(send),
        });
    }
    for (to, (ids, commands)) in parts.into_iter().enumerate() {
        if commands.is_empty() {
            continue;
        }
        let shared_then = Arc::clone(shared);
        shared.submit(
            to,
            commands,
            Box::new(move |outcomes| confirm(&shared_then, from, ids, outcomes)),
        );
    }
}

fn confirm(
    shared: &Arc<Shared>,
    from: usize,
    ids: Vec<u64>,
    outcomes: Result<Vec<Outcome>, Stopped>,
) {
    // A partition that stopped may have accepted them or not. The list keeps them for its next
    // owner.
    let Ok(outcomes) = outcomes else { return };
    let told = ids.into_iter().zip(outcomes).map(|(id, outcome)| {
        let arrival = match outcome {
            Outcome::Sent(answer) => arrival(&answer),
            _ => Arrival::Later,
        };
        Command::Relayed { id, arrival }
    });
    if let Some(told) = shared.relayed.pass(from, told.collect()) {
        shared.submit(from, told, Box::new(|_| {}));
    }
}

/// What the list of a partition is told.
type Words = (usize, Vec<Command>);

/// What the lists are told, unless it is held back.
#[derive(Debug, Default)]
pub(super) struct Relayed(Mutex<Option<Vec<Words>>>);

impl Relayed {
    pub(super) fn hold(&self) {
        self.lock().get_or_insert_default();
    }

    /// What was held back, to be told now.
    pub(super) fn let_go(&self) -> Vec<Words> {
        self.lock().take().unwrap_or_default()
    }

    fn pass(&self, from: usize, told: Vec<Command>) -> Option<Vec<Command>> {
        match &mut *self.lock() {
            Some(held) => {
                held.push((from, told));
                None
            }
            None => Some(told),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<Words>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the list is told. What no later try can change is an incident: the operator hears of it,
/// and the emit goes to its queue as a dead letter.
fn arrival(answer: &Answer) -> Arrival {
    let arrival = Arrival::of(answer);
    if let Arrival::Refused(why) = &arrival {
        tracing::error!(%why, "an emitted message was refused by its queue and is dead there");
    }
    arrival
}
