//! Waiting rooms: who waits for messages of a queue, and who for the end of a key.
//!
//! First come, first called. Those who gave up, or were served by another partition, have left
//! their turn taken, and are shown out when they are met or when a room gets crowded.

use std::collections::{HashMap, VecDeque};

use hapax_core::{Command, Digest, KeyName, Outcome, Place, QueueName, Receive};

use super::Stopped;
use super::inbox::{Reply, Taken, Turn};

/// Somebody who would rather wait than get nothing. Holds its turn while a batch is decided for
/// it.
pub(super) struct Guest {
    wish: Wish,
    pub(super) turn: Turn,
    reply: Reply,
}

enum Wish {
    Receive(Receive),
    Look(KeyName),
}

#[derive(Default)]
pub(super) struct Rooms {
    receivers: HashMap<QueueName, Room>,
    lookers: HashMap<Digest, Room>,
}

#[derive(Default)]
struct Room {
    guests: VecDeque<Guest>,
    /// At this many those who left are shown out.
    crowded: usize,
}

/// A room is looked through when it has doubled, from this on.
const CROWDED_MIN: usize = 64;

impl Guest {
    pub(super) fn receive(receive: Receive, turn: Turn, reply: Reply) -> Self {
        Self { wish: Wish::Receive(receive), turn, reply }
    }

    pub(super) fn look(key: KeyName, turn: Turn, reply: Reply) -> Self {
        Self { wish: Wish::Look(key), turn, reply }
    }

    pub(super) fn command(&self) -> Command {
        match &self.wish {
            Wish::Receive(receive) => Command::Receive(receive.clone()),
            Wish::Look(key) => Command::Look(key.clone()),
        }
    }

    /// By whoever holds its turn.
    pub(super) fn refuse(self, why: &Stopped) {
        self.turn.finish();
        self.reply.call(Err(why.clone()));
    }

    fn answer(self, outcome: Outcome) {
        self.turn.finish();
        self.reply.call(Ok(vec![outcome]));
    }
}

impl Rooms {
    /// Answers a guest whose turn is held, or lets it wait. Tells the queue whose receivers other
    /// partitions passed over meanwhile.
    pub(super) fn serve(
        &mut self,
        guest: Guest,
        outcome: Outcome,
        draining: bool,
    ) -> Option<QueueName> {
        if draining {
            guest.answer(outcome);
            return None;
        }
        let room = match (&guest.wish, &outcome) {
            (Wish::Receive(receive), Outcome::Received(messages)) if messages.is_empty() => {
                self.receivers.entry(receive.queue.clone()).or_default()
            }
            (Wish::Look(_), Outcome::Key(view)) if !has_ended(view.place) => {
                self.lookers.entry(view.digest).or_default()
            }
            _ => {
                guest.answer(outcome);
                return None;
            }
        };
        let queue = match &guest.wish {
            Wish::Receive(receive) => Some(receive.queue.clone()),
            Wish::Look(_) => None,
        };
        let was_missed = guest.turn.give_back();
        room.enter(guest);
        queue.filter(|_| was_missed)
    }

    /// A guest whose turn another partition holds. It is called again if there is need.
    pub(super) fn wait(&mut self, guest: Guest) {
        if let Wish::Receive(receive) = &guest.wish {
            self.receivers.entry(receive.queue.clone()).or_default().enter(guest);
        }
    }

    /// So many messages of the queue can be received: as many as they are enough for try again.
    pub(super) fn call_receivers(
        &mut self,
        queue: &QueueName,
        ready: u64,
        called: &mut Vec<Guest>,
    ) {
        let Some(room) = self.receivers.get_mut(queue) else { return };
        let mut wanted = 0;
        let mut held = Vec::new();
        while wanted < ready
            && let Some(guest) = room.guests.pop_front()
        {
            let Wish::Receive(receive) = &guest.wish else { continue };
            match guest.turn.take() {
                Taken::Yes => {
                    wanted += u64::from(receive.max);
                    called.push(guest);
                }
                Taken::Held => held.push(guest),
                Taken::Over => {}
            }
        }
        for guest in held.into_iter().rev() {
            room.guests.push_front(guest);
        }
        if room.guests.is_empty() {
            self.receivers.remove(queue);
        }
    }

    /// The key's message has ended.
    pub(super) fn call_lookers(&mut self, digest: &Digest, called: &mut Vec<Guest>) {
        if self.lookers.is_empty() {
            return; // The common case costs no look-up.
        }
        if let Some(room) = self.lookers.remove(digest) {
            called.extend(room.guests.into_iter().filter(|guest| guest.turn.take() == Taken::Yes));
        }
    }

    /// There will be no more messages: those who wait for some go with nothing.
    pub(super) fn send_receivers_away(&mut self) {
        let rooms = std::mem::take(&mut self.receivers).into_values();
        for guest in rooms.flat_map(|room| room.guests) {
            if guest.turn.take() == Taken::Yes {
                guest.answer(Outcome::Received(Vec::new()));
            }
        }
    }

    /// Everybody, to be told that the house closes.
    pub(super) fn leave(&mut self) -> impl Iterator<Item = Guest> {
        let receivers = std::mem::take(&mut self.receivers).into_values();
        let rooms = receivers.chain(std::mem::take(&mut self.lookers).into_values());
        rooms.flat_map(|room| room.guests).filter(|guest| guest.turn.take() == Taken::Yes)
    }
}

impl Room {
    fn enter(&mut self, guest: Guest) {
        if self.guests.len() >= self.crowded.max(CROWDED_MIN) {
            self.guests.retain(|guest| !guest.turn.is_over());
            self.crowded = self.guests.len() * 2;
        }
        self.guests.push_back(guest);
    }
}

/// Whether there is nothing more to wait for.
pub(super) fn has_ended(place: Place) -> bool {
    matches!(place, Place::Done | Place::Dead | Place::Parked | Place::Discarded)
}
