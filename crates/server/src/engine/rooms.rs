//! Waiting rooms: who waits for messages of a queue, and who for the end of a key.
//!
//! First come, first called. Those who gave up, or were served by another partition, have left
//! their turn taken, and are shown out when they are met or when as many came as there were.

use std::collections::{HashMap, VecDeque};

use hapax_core::{Command, Digest, KeyName, Outcome, Place, QueueName, Receive};

use super::Stopped;
use super::inbox::{Given, Reply, Taken, Turn};

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
    receivers: HashMap<QueueName, VecDeque<Guest>>,
    lookers: HashMap<Digest, Vec<Guest>>,
    /// Those who came since all rooms were looked through.
    came: usize,
    /// Those who were there then.
    stayed: usize,
}

/// The rooms are looked through when as many came as had stayed, from this on: so those who gave
/// up are never many more than those who wait, over all queues and keys.
const CAME_MIN: usize = 64;

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
        match (&guest.wish, &outcome) {
            (Wish::Receive(receive), Outcome::Received(messages)) if messages.is_empty() => {
                let queue = receive.queue.clone();
                let given = guest.turn.give_back();
                if given != Given::Over {
                    self.wait(guest);
                }
                (given == Given::Missed).then_some(queue)
            }
            (Wish::Look(_), Outcome::Key(view)) if !has_ended(view.place) => {
                if guest.turn.give_back() != Given::Over {
                    self.show_out();
                    self.lookers.entry(view.digest).or_default().push(guest);
                }
                None
            }
            _ => {
                guest.answer(outcome);
                None
            }
        }
    }

    /// A guest whose turn another partition holds. It is called again if there is need.
    pub(super) fn wait(&mut self, guest: Guest) {
        if let Wish::Receive(receive) = &guest.wish {
            self.show_out();
            self.receivers.entry(receive.queue.clone()).or_default().push_back(guest);
        }
    }

    /// Somebody comes: those who left meanwhile go, when it is time to look.
    fn show_out(&mut self) {
        self.came += 1;
        if self.came <= self.stayed.max(CAME_MIN) {
            return;
        }
        self.came = 0;
        self.stayed = 0;
        self.receivers.retain(|_, room| {
            room.retain(|guest| !guest.turn.is_over());
            self.stayed += room.len();
            !room.is_empty()
        });
        self.lookers.retain(|_, room| {
            room.retain(|guest| !guest.turn.is_over());
            self.stayed += room.len();
            !room.is_empty()
        });
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
            && let Some(guest) = room.pop_front()
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
            room.push_front(guest);
        }
        if room.is_empty() {
            self.receivers.remove(queue);
        }
    }

    /// The key's message has ended.
    pub(super) fn call_lookers(&mut self, digest: &Digest, called: &mut Vec<Guest>) {
        if self.lookers.is_empty() {
            return; // The common case costs no look-up.
        }
        if let Some(room) = self.lookers.remove(digest) {
            called.extend(room.into_iter().filter(|guest| guest.turn.take() == Taken::Yes));
        }
    }

    /// There will be no more messages: those who wait for some go with nothing.
    pub(super) fn send_receivers_away(&mut self) {
        let rooms = std::mem::take(&mut self.receivers).into_values();
        for guest in rooms.flatten() {
            if guest.turn.take() == Taken::Yes {
                guest.answer(Outcome::Received(Vec::new()));
            }
        }
    }

    /// Everybody, to be told that the house closes.
    pub(super) fn leave(&mut self) -> impl Iterator<Item = Guest> {
        let receivers = std::mem::take(&mut self.receivers).into_values().flatten();
        let lookers = std::mem::take(&mut self.lookers).into_values().flatten();
        receivers.chain(lookers).filter(|guest| guest.turn.take() == Taken::Yes)
    }
}

/// Whether there is nothing more to wait for.
pub(super) fn has_ended(place: Place) -> bool {
    matches!(place, Place::Done | Place::Dead | Place::Parked | Place::Discarded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn come(rooms: &mut Rooms, n: u64) -> Turn {
        let turn = Turn::default();
        let mut digest = [0; 16];
        digest[..8].copy_from_slice(&n.to_le_bytes());
        let queue = QueueName::new("default", &format!("q{n}")).unwrap();
        let wish = match n.is_multiple_of(2) {
            true => Wish::Look(KeyName { queue: queue.clone(), group: None, key: "k".into() }),
            false => Wish::Receive(Receive {
                queue: queue.clone(),
                max: 1,
                lease_ms: None,
                worker: "w".into(),
                receive_id: None,
                several_per_group: false,
            }),
        };
        let guest = Guest { wish, turn: turn.clone(), reply: Box::new(|_| {}) };
        match n.is_multiple_of(2) {
            true => {
                rooms.show_out();
                rooms.lookers.entry(Digest(digest)).or_default().push(guest);
            }
            false => rooms.wait(guest),
        }
        turn
    }

    #[test]
    fn who_gives_up_is_shown_out_whatever_queue_or_key_they_waited_for() {
        let mut rooms = Rooms::default();
        let waits: Vec<Turn> = (0..100).map(|n| come(&mut rooms, n)).collect();
        for n in 100..10_000 {
            come(&mut rooms, n).leave();
            let guests = rooms.receivers.len() + rooms.lookers.len();
            assert!(guests <= 2 * (waits.len() + CAME_MIN), "{guests} at {n}");
        }
        let waiting = rooms.leave().filter(|guest| !guest.turn.is_over()).count();
        assert_eq!(waiting, waits.len(), "who waits stays");
    }
}
