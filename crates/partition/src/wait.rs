//! Waiting callers: receivers wait for messages of a queue, others for the end of a key.
//!
//! ```text
//!   admit ─▶ its command, in the next batch ─▶ serve ─▶ its answer
//!              ▲                                 │ nothing
//!              └──── called: wake, ended ◀──── waits
//! ```
//!
//! Waiters are called in the order of arrival. They do not poll: a waiter is called when its queue
//! or key has changed. A caller that waits at several partitions has one [`Turn`], so that one
//! partition at a time decides a command for it.
//!
//! Invariants, which the caller keeps: a waiter is either waiting, called, or in a batch; the
//! effects of a batch are applied after its outcomes, so that no waiter misses them.
//!
//! Cancelled waiters, and those that another partition served, are removed when they are popped, or
//! when the list has doubled.

mod turn;

use std::collections::{HashMap, VecDeque};

use hapax_core::{Command, Digest, KeyName, Machine, Outcome, Place, QueueId, QueueName, Receive};

pub use turn::{Given, Taken, Turn};

/// A caller that waits; `R` receives its answer. Holds its turn while it is called and while a
/// batch is decided for it.
#[derive(Debug)]
pub struct Waiter<R> {
    request: Request,
    turn: Turn,
    reply: R,
    /// There was something for it here while another partition held its turn. Only then is it
    /// called again: otherwise partitions with nothing for it would call it in a circle.
    is_passed_over: bool,
}

#[derive(Debug)]
enum Request {
    Receive(Receive),
    Look(KeyName),
}

/// What happens with the outcome of a waiter's command.
#[derive(Debug)]
pub enum Served<R> {
    /// Its answer.
    Answer(R, Outcome),
    Waits,
    /// It waits for messages of this queue, and other partitions skipped it while it was served:
    /// they must call their receivers again ([`Waiters::call_again`]).
    PassedOver(QueueName),
    /// It was cancelled meanwhile.
    Gone,
}

/// The waiters of one partition.
#[derive(Debug)]
pub struct Waiters<R> {
    receivers: HashMap<QueueName, VecDeque<Waiter<R>>>,
    lookers: HashMap<Digest, Vec<Waiter<R>>>,
    /// Waiters that may get something now, in order of arrival.
    called: Vec<Waiter<R>>,
    /// No more messages are delivered to waiters.
    is_draining: bool,
    /// Waiters added since cancelled ones were last removed.
    came: usize,
    /// Waiters at that time.
    stayed: usize,
}

/// Cancelled waiters are removed when as many were added as remained the last time, and at least
/// this many: so they never greatly outnumber the others.
const CAME_MIN: usize = 64;

impl<R> Waiter<R> {
    pub fn receive(receive: Receive, turn: Turn, reply: R) -> Self {
        Self { request: Request::Receive(receive), turn, reply, is_passed_over: false }
    }

    pub fn look(key: KeyName, turn: Turn, reply: R) -> Self {
        Self { request: Request::Look(key), turn, reply, is_passed_over: false }
    }

    pub fn command(&self) -> Command {
        match &self.request {
            Request::Receive(receive) => Command::Receive(receive.clone()),
            Request::Look(key) => Command::Look(key.clone()),
        }
    }

    /// The queue whose messages it waits for, if any.
    pub fn receives_from(&self) -> Option<&QueueName> {
        match &self.request {
            Request::Receive(receive) => Some(&receive.queue),
            Request::Look(_) => None,
        }
    }

    /// The receiver of its answer.
    pub fn reply(&self) -> &R {
        &self.reply
    }

    /// Ends the wait. Called by the holder of its turn.
    pub fn end(self) -> R {
        self.turn.finish();
        self.reply
    }
}

impl<R> Default for Waiters<R> {
    fn default() -> Self {
        let (receivers, lookers, called) = (HashMap::new(), HashMap::new(), Vec::new());
        Self { receivers, lookers, called, is_draining: false, came: 0, stayed: 0 }
    }
}

impl<R> Waiters<R> {
    /// Adds a waiter. Returns it if its command is to be decided now.
    pub fn admit(&mut self, mut waiter: Waiter<R>) -> Option<Waiter<R>> {
        match waiter.turn.take() {
            Taken::Yes => return Some(waiter),
            Taken::Held => {
                waiter.is_passed_over = true;
                self.wait(waiter);
            }
            Taken::Over => {}
        }
        None
    }

    /// Whether any waiter was called.
    pub fn has_called(&self) -> bool {
        !self.called.is_empty()
    }

    /// Takes the waiters that were called: their commands come first in the next batch.
    pub fn take_called(&mut self) -> Vec<Waiter<R>> {
        std::mem::take(&mut self.called)
    }

    /// Answers a waiter whose turn is held, or lets it wait again.
    pub fn serve(&mut self, waiter: Waiter<R>, outcome: Outcome) -> Served<R> {
        match (&waiter.request, &outcome) {
            _ if self.is_draining => {}
            (Request::Receive(receive), Outcome::Received(messages)) if messages.is_empty() => {
                let queue = receive.queue.clone();
                return match waiter.turn.give_back() {
                    Given::Over => Served::Gone,
                    Given::Back => {
                        self.wait(waiter);
                        Served::Waits
                    }
                    Given::Missed => {
                        self.wait(waiter);
                        Served::PassedOver(queue)
                    }
                };
            }
            (Request::Look(_), Outcome::Key(view)) if !has_ended(view.place) => {
                if waiter.turn.give_back() == Given::Over {
                    return Served::Gone;
                }
                self.remove_gone();
                self.lookers.entry(view.digest).or_default().push(waiter);
                return Served::Waits;
            }
            _ => {}
        }
        Served::Answer(waiter.end(), outcome)
    }

    /// Messages of the queue can be received.
    pub fn wake(&mut self, queue: QueueId, machine: &Machine) {
        if let Some(name) = machine.queue_name(queue) {
            self.call_receivers(name, machine.ready(queue), |_| true);
        }
    }

    /// Calls receivers of a queue again that were skipped while another partition held their turns.
    /// All receivers of a deleted queue are called, to be refused.
    pub fn call_again(&mut self, queue: &QueueName, machine: &Machine) {
        if !machine.has_queue(queue) {
            return self.call_receivers(queue, u64::MAX, |_| true);
        }
        self.call_receivers(queue, machine.ready_in(queue), |waiter| waiter.is_passed_over);
    }

    /// The key's message has ended.
    pub fn ended(&mut self, digest: &Digest) {
        if self.lookers.is_empty() {
            return; // The common case costs no look-up.
        }
        if let Some(lookers) = self.lookers.remove(digest) {
            let called = lookers.into_iter().filter(|waiter| waiter.turn.take() == Taken::Yes);
            self.called.extend(called);
        }
    }

    /// Ends the wait of all receivers, which get nothing. From now on receivers do not wait.
    pub fn drain(&mut self) -> Vec<R> {
        self.is_draining = true;
        let receivers = std::mem::take(&mut self.receivers).into_values().flatten();
        receivers.filter(|waiter| waiter.turn.take() == Taken::Yes).map(Waiter::end).collect()
    }

    /// Ends the wait of all waiters, including those that were called.
    pub fn close(&mut self) -> Vec<R> {
        let receivers = std::mem::take(&mut self.receivers).into_values().flatten();
        let lookers = std::mem::take(&mut self.lookers).into_values().flatten();
        let waiting = receivers.chain(lookers);
        let waiting = waiting.filter(|waiter| waiter.turn.take() == Taken::Yes);
        self.called.drain(..).chain(waiting).map(Waiter::end).collect()
    }

    /// Lets a receiver wait. One whose turn another partition holds is called again if needed.
    fn wait(&mut self, waiter: Waiter<R>) {
        let Request::Receive(receive) = &waiter.request else {
            unreachable!("a looker waits at one partition, which holds its turn");
        };
        let queue = receive.queue.clone();
        self.remove_gone();
        self.receivers.entry(queue).or_default().push_back(waiter);
    }

    /// Calls as many of the receivers selected by `concerns` as there are ready messages for.
    fn call_receivers(
        &mut self,
        queue: &QueueName,
        ready: u64,
        concerns: impl Fn(&Waiter<R>) -> bool,
    ) {
        let Some(waiting) = self.receivers.get_mut(queue) else { return };
        let mut wanted = 0;
        let mut kept = Vec::new();
        while wanted < ready
            && let Some(mut waiter) = waiting.pop_front()
        {
            if !concerns(&waiter) {
                kept.push(waiter);
                continue;
            }
            let Request::Receive(receive) = &waiter.request else {
                unreachable!("a receiver receives")
            };
            match waiter.turn.take() {
                Taken::Yes => {
                    wanted += u64::from(receive.max);
                    waiter.is_passed_over = false;
                    self.called.push(waiter);
                }
                Taken::Held => {
                    waiter.is_passed_over = true;
                    kept.push(waiter);
                }
                Taken::Over => {}
            }
        }
        for waiter in kept.into_iter().rev() {
            waiting.push_front(waiter);
        }
        if waiting.is_empty() {
            self.receivers.remove(queue);
        }
    }

    /// Removes cancelled waiters, if enough were added since the last time.
    fn remove_gone(&mut self) {
        self.came += 1;
        if self.came <= self.stayed.max(CAME_MIN) {
            return;
        }
        self.came = 0;
        self.stayed = 0;
        self.receivers.retain(|_, waiting| {
            waiting.retain(|waiter| !waiter.turn.is_over());
            self.stayed += waiting.len();
            !waiting.is_empty()
        });
        self.lookers.retain(|_, waiting| {
            waiting.retain(|waiter| !waiter.turn.is_over());
            self.stayed += waiting.len();
            !waiting.is_empty()
        });
    }
}

/// Whether there is nothing more to wait for.
pub fn has_ended(place: Place) -> bool {
    matches!(place, Place::Done | Place::Dead | Place::Parked | Place::Discarded)
}

#[cfg(test)]
mod tests;
