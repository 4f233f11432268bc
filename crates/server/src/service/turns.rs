//! Turns of callers who wait for a key that another caller has claimed. One of them watches the
//! key and claims it when it may be free; the others wait for their turn. If each watched it, every
//! end of the key would wake all of them, and all but one would wait again. When the key is done,
//! dead or parked, that is the answer for everybody, and nobody waits for a turn any more.
//!
//! Who does not go on holds up those behind it. So the callers of a stream, which stands still
//! while nobody reads it, have turns of their own.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hapax_core::{Answer, KeyName, QueueName};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::Service;
use crate::problem::Problem;

/// Those who wait, by key. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns(Arc<Mutex<HashMap<Key, Arc<Semaphore>>>>);

type Key = (QueueName, Arc<str>, Option<Arc<str>>);

/// A place among those who wait for a key.
#[derive(Debug)]
pub(crate) struct Place {
    turns: Turns,
    key: KeyName,
    /// One permit: who has it, has the turn. Closed when nobody needs one any more.
    gate: Arc<Semaphore>,
    turn: Option<OwnedSemaphorePermit>,
}

impl Turns {
    /// A place behind all others that wait for the key.
    pub(crate) fn place(&self, key: KeyName) -> Place {
        let gate = match self.lock().entry(named(&key)) {
            Entry::Occupied(known) => Arc::clone(known.get()),
            Entry::Vacant(new) => Arc::clone(new.insert(Arc::new(Semaphore::new(1)))),
        };
        Place { turns: self.clone(), key, gate, turn: None }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Semaphore>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }
}

fn named(key: &KeyName) -> Key {
    (key.queue.clone(), Arc::clone(&key.key), key.group.clone())
}

impl Place {
    /// Waits for the turn. Without one the time is over, or nobody needs it any more.
    async fn wait(&mut self, until: Instant) -> bool {
        if self.turn.is_none() {
            let turn = timeout_at(until, Arc::clone(&self.gate).acquire_owned()).await;
            self.turn = turn.ok().and_then(Result::ok);
        }
        self.turn.is_some()
    }

    /// What the claim got. Returns the place if there is still something to wait for.
    pub(crate) fn after(self, answer: &Answer) -> Option<Self> {
        match answer {
            // It keeps the turn; where that is not needed any more, others wait anew as well.
            Answer::InFlight(_) => (!self.gate.is_closed()).then_some(self),
            Answer::Done(_) | Answer::Dead { .. } | Answer::Parked { .. } => {
                self.gate.close();
                None
            }
            _ => None, // The next one has the turn.
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.turn = None;
        let mut gates = self.turns.lock();
        if let Entry::Occupied(known) = gates.entry(named(&self.key))
            && Arc::ptr_eq(known.get(), &self.gate)
            // The map has one, and this place.
            && (self.gate.is_closed() || Arc::strong_count(&self.gate) <= 2)
        {
            known.remove();
        }
    }
}

impl Service {
    /// Waits until the key of a place may be free, or the time is over.
    pub(crate) async fn wait_for_key(
        &self,
        place: &mut Place,
        until: Instant,
    ) -> Result<(), Problem> {
        if place.wait(until).await {
            let left = until.saturating_duration_since(Instant::now());
            // Boxed: most of those who wait are not there yet.
            drop(Box::pin(self.engine().look(place.key.clone(), left)).await?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use hapax_core::{InFlight, MessageId, Time};
    use std::time::Duration;

    fn key(name: &str) -> KeyName {
        let queue = QueueName::new("default", "charges").unwrap();
        KeyName { queue, key: name.into(), group: None }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Whether it has the turn now.
    fn has_turn(place: &mut Place) -> bool {
        place.wait(soon()).now_or_never().unwrap_or(false)
    }

    fn in_flight() -> Answer {
        Answer::InFlight(InFlight {
            id: MessageId::new(Time(1), 0, 1),
            accepted_at: Time(1),
            place: hapax_core::Place::Leased,
            attempts: 1,
            deadline: None,
        })
    }

    fn parked() -> Answer {
        Answer::Parked { id: MessageId::new(Time(1), 0, 1), accepted_at: Time(1), attempts: 1 }
    }

    #[tokio::test]
    async fn one_of_those_who_wait_for_a_key_has_the_turn() {
        let turns = Turns::default();
        let [mut first, mut second, mut other] = ["k", "k", "j"].map(|it| turns.place(key(it)));
        assert!(has_turn(&mut first) && !has_turn(&mut second) && has_turn(&mut other));
        let first = first.after(&in_flight()).unwrap();
        assert!(!has_turn(&mut second), "who waits again keeps the turn");
        assert!(first.after(&Answer::StoreFull).is_none());
        assert!(has_turn(&mut second), "and hands it on when it is answered");
        drop((second, other));
        assert!(turns.is_empty());
    }

    #[tokio::test]
    async fn an_end_is_for_everybody() {
        let turns = Turns::default();
        let [mut first, second, third] = ["k"; 3].map(|it| turns.place(key(it)));
        assert!(has_turn(&mut first));
        assert!(first.after(&parked()).is_none());
        let mut anew = turns.place(key("k"));
        assert!(has_turn(&mut anew), "who comes later waits anew");
        for mut place in [second, third] {
            assert!(!place.wait(soon()).await, "who waited waits no longer");
            assert!(place.after(&in_flight()).is_none(), "and anew, if at all");
        }
        assert!(!has_turn(&mut turns.place(key("k"))), "there is one turn");
        drop(anew);
        assert!(turns.is_empty());
    }
}
