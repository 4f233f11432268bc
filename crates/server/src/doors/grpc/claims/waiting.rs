//! Claims that wait for another caller's to end. Each is a future of its own beside its stream,
//! which is ready when the claim is to be made again. It holds memory of the request and for the
//! wait. They are dropped with their stream, and with them their wait.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hapax_core::{Answer, Claim};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::problem::Problem;
use crate::service::{Admitted, Permit, Place, Service, Turns, is_awaited, no_memory, wait_until};

/// What a claim takes while it waits, about: its future, and its place among those who wait.
const WAITING_BYTES: usize = 4 * 1_024;

/// What a claim needs to wait.
pub(super) struct Patience {
    pub(super) claim: Claim,
    until: Instant,
    /// Ready when the caller has left.
    left: oneshot::Receiver<()>,
    memory: Admitted,
    /// Absent before it waits for the first time, and when it has to wait anew.
    place: Option<Place>,
    /// Whether it has memory for its wait.
    is_admitted: bool,
}

impl Patience {
    /// Whether it waits, after this answer to its claim.
    pub(super) fn waits_after(&mut self, answer: &Answer) -> Result<bool, Problem> {
        self.place = self.place.take().and_then(|place| place.after(answer));
        if !is_awaited(answer, self.until) {
            return Ok(false);
        }
        self.is_admitted = self.is_admitted || self.memory.try_take(WAITING_BYTES);
        if self.is_admitted { Ok(true) } else { Err(no_memory()) }
    }

    /// Whether it may ask again for a result that had no room.
    pub(super) fn has_time(&self) -> bool {
        Instant::now() < self.until
    }
}

/// A claim that is to be made again, and its number.
pub(super) type Again = (Permit, u64, Box<Patience>);

/// A claim that has waited.
pub(super) enum Waited {
    Again(Again),
    /// It waits no longer: its caller has left, or the broker cannot answer.
    Over(Permit, u64, Result<Answer, Problem>),
}

#[derive(Default)]
pub(super) struct Waiting {
    futures: FuturesUnordered<Pin<Box<dyn Future<Output = Waited> + Send>>>,
    /// How to end the wait of a claim that may wait, by its number, until it is answered.
    leaving: HashMap<u64, oneshot::Sender<()>>,
    turns: Turns,
}

impl Waiting {
    /// How long a claim may wait from now on.
    pub(super) fn patience(
        &mut self,
        number: u64,
        claim: Claim,
        wait: Duration,
        memory: Admitted,
    ) -> Patience {
        let (leave, left) = oneshot::channel();
        self.leaving.insert(number, leave);
        let (until, place, is_admitted) = (wait_until(wait), None, false);
        Patience { claim, until, left, memory, place, is_admitted }
    }

    /// A claim got this answer, and waits.
    pub(super) fn push(
        &mut self,
        service: &Service,
        permit: &Permit,
        number: u64,
        mut patience: Box<Patience>,
        answer: Answer,
    ) {
        let (service, permit, turns) = (service.clone(), permit.clone(), self.turns.clone());
        self.futures.push(Box::pin(async move {
            let Patience { claim, until, left, place, .. } = &mut *patience;
            // Only a caller who leaves ends the wait, not a number that is given twice.
            let left = async {
                if left.is_terminated() || left.await.is_err() {
                    std::future::pending().await
                }
            };
            let place = place.get_or_insert_with(|| service.place(&turns, claim));
            let waited = tokio::select! {
                waited = service.wait_for_key(place, *until) => waited,
                () = left => return Waited::Over(permit, number, Ok(answer)),
            };
            match waited {
                Ok(()) => Waited::Again((permit, number, patience)),
                Err(problem) => Waited::Over(permit, number, Err(problem)),
            }
        }));
    }

    /// The caller of a claim has left: it waits no longer.
    pub(super) fn leave(&mut self, number: u64) {
        if let Some(leave) = self.leaving.remove(&number) {
            let _ = leave.send(());
        }
    }

    /// A claim is answered.
    pub(super) fn forget(&mut self, number: u64) {
        self.leaving.remove(&number);
    }

    /// The next claim that has waited; `None` if none waits.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Waited>> {
        self.futures.poll_next_unpin(context)
    }

    pub(super) fn len(&self) -> usize {
        self.futures.len()
    }

    pub(super) fn clear(&mut self) {
        self.futures.clear();
        self.leaving.clear();
    }
}
