//! Sends emits to the partitions of their queues.
//!
//! The partition that emitted keeps each emit in a durable list until its arrival is confirmed.
//! After a crash or a lost answer it is sent again; because of its key it arrives once.

use std::sync::Arc;

use hapax_core::{Arrival, Command, DeadLetter, Outcome, Relay};

use crate::route::{Part, Routes, split};

/// The sends of emits, by target partition, each with its number in the list. An emit that its
/// queue refused for good is sent as a dead letter.
pub fn hand_over(relays: Vec<Relay>, routes: &Routes, turn: impl Fn() -> usize) -> Vec<Part<u64>> {
    let items = relays.into_iter().map(|relay| {
        let (id, refused) = (relay.id, relay.refused.clone());
        let send = relay.into_send(routes.recipe());
        let partition = routes.of_new(&send.queue, send.digest, &send.content, &turn);
        let command = match refused {
            Some(error) => Command::DeadLetter(Box::new(DeadLetter { send, error })),
            None => Command::Send(send),
        };
        (partition, id, command)
    });
    split(routes.partitions(), items)
}

/// Turns the answers of the target partition into commands for the list of the emitting one.
pub fn confirm(ids: Vec<u64>, outcomes: Vec<Outcome>) -> Confirmed {
    assert_eq!(ids.len(), outcomes.len(), "every emit has an answer");
    let mut confirmed = Confirmed::default();
    for (id, outcome) in ids.into_iter().zip(outcomes) {
        let Outcome::Sent(answer) = outcome else { unreachable!("a send is answered as one") };
        let arrival = Arrival::of(&answer);
        if let Arrival::Refused(why) = &arrival {
            confirmed.refused.push(Arc::clone(why));
        }
        confirmed.commands.push(Command::Relayed { id, arrival });
    }
    confirmed
}

/// The commands for emits whose target partition ended without an answer. They may have been
/// accepted or not: the list sends them again later, since the emitting partition may go on where
/// the other one has a new owner.
pub fn unanswered(ids: Vec<u64>) -> Confirmed {
    let later = |id| Command::Relayed { id, arrival: Arrival::Later };
    Confirmed { commands: ids.into_iter().map(later).collect(), ..Confirmed::default() }
}

/// What to do about answered emits.
#[derive(Debug, Default)]
pub struct Confirmed {
    /// Commands for the emitting partition.
    pub commands: Vec<Command>,
    /// Why emits were refused for good, to be logged.
    pub refused: Vec<Arc<str>>,
}

/// What goes from one partition to another, unless it is held back. Two things are:
///
/// - Emits at a start, until the partitions agree about their queues: one that took an emit for a
///   queue which it is about to drop would lose it.
/// - Confirmations while a copy is taken of one partition after the other: no list may forget an
///   emit then, so that each is in the copy of its list, or in the copy of its queue, or in both,
///   and its key makes that one.
#[derive(Debug)]
pub struct Passage<T> {
    held: Option<Vec<(usize, Vec<T>)>>,
}

pub type Emits = Passage<Relay>;
pub type Confirmations = Passage<Command>;

impl<T> Passage<T> {
    pub fn open() -> Self {
        Self { held: None }
    }

    pub fn closed() -> Self {
        Self { held: Some(Vec::new()) }
    }

    pub fn hold(&mut self) {
        self.held.get_or_insert_default();
    }

    /// Opens the passage, and returns what was held back, each with its partition.
    pub fn let_go(&mut self) -> Vec<(usize, Vec<T>)> {
        self.held.take().unwrap_or_default()
    }

    /// Returns the list if it may pass now; otherwise holds it back.
    pub fn pass(&mut self, partition: usize, list: Vec<T>) -> Option<Vec<T>> {
        match &mut self.held {
            Some(held) => {
                held.push((partition, list));
                None
            }
            None => Some(list),
        }
    }
}

#[cfg(test)]
mod tests {
    use hapax_core::{Config, Content, Emit, QueueName, Recipe, Time};

    use super::*;

    #[test]
    fn l3_what_its_queue_refused_for_good_is_handed_over_as_a_dead_letter() {
        let queue = QueueName::new("default", "emails").unwrap();
        let mut routes = Routes::new(1, Recipe::First);
        routes.enter(&queue, &Config::default());
        let relay = |id, refused: Option<&str>| Relay {
            id,
            emit: Emit::new(queue.clone(), "n", Content::builder("k").build(b"hi").unwrap()),
            within: false,
            issued_at: Time(1),
            attempts: 0,
            refused: refused.map(Into::into),
        };
        let parts = hand_over(vec![relay(7, None), relay(8, Some("too large"))], &routes, || 0);
        let [Part { tags, commands, .. }] = parts.as_slice() else { panic!("{parts:?}") };
        assert_eq!(tags, &[7, 8]);
        let [Command::Send(_), Command::DeadLetter(letter)] = commands.as_slice() else {
            panic!("{commands:?}")
        };
        assert_eq!(&*letter.error, "too large");
    }
}
