//! Claims: keys for callers that do the work themselves, one by one or by the list.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::{Allowance, Answer, Claim, Command, KeyName};
use tokio::time::Instant;

use super::turns::{Place, Turns};
use super::{Permit, Service, WAIT_MAX, answer};
use crate::engine::{List, Listed, Room, To};
use crate::lease::LEASE_BYTES;
use crate::problem::Problem;

/// The answer to a claim.
#[derive(Clone, Debug)]
pub struct Claimed {
    pub answer: Answer,
    /// The lease of a granted claim.
    pub lease: Option<[u8; LEASE_BYTES]>,
}

/// The end of a wait that begins now.
pub(crate) fn wait_until(wait: Duration) -> Instant {
    Instant::now() + wait.min(WAIT_MAX)
}

/// Whether a claim that got this answer waits for the caller who has the key.
pub(crate) fn is_awaited(answer: &Answer, until: Instant) -> bool {
    matches!(answer, Answer::InFlight(_)) && Instant::now() < until
}

impl Service {
    /// Claims a key, waiting while another caller holds it.
    pub async fn claim(
        &self,
        permit: &Permit,
        claim: Claim,
        wait: Duration,
    ) -> Result<Claimed, Problem> {
        let until = wait_until(wait);
        let mut answer = self.claim_now(permit, &claim).await?;
        let mut place = None;
        while is_awaited(&answer, until) {
            let mut own = place.take().unwrap_or_else(|| self.place(&self.0.turns, &claim));
            let left = until.saturating_duration_since(Instant::now());
            self.while_current(permit, left, self.wait_for_key(&mut own, until)).await??;
            answer = self.claim_now(permit, &claim).await?;
            place = own.after(&answer);
        }
        Ok(self.claimed(permit, answer))
    }

    /// The place of a claim among those who wait for its key.
    pub(crate) fn place(&self, turns: &Turns, claim: &Claim) -> Place {
        let content = &claim.content;
        let (queue, key) = (claim.queue.clone(), content.key().into());
        turns.place(KeyName { queue, key, group: content.group().map(Arc::from) })
    }

    /// Claims keys, as [`Service::start_send`] sends messages. Each is judged by itself, since they
    /// come of different callers. The answers are not the last ones of those who wait: see
    /// [`Service::claimed`].
    pub fn start_claim<T: Send + 'static>(
        &self,
        permit: &Permit,
        claims: List<T>,
        room: &Arc<Room>,
        reply: impl Fn(Vec<T>, Result<Listed, Problem>) + Clone + Send + 'static,
    ) {
        let List { tags, mut commands } = claims;
        let judge = |command: &mut Command| {
            let Command::Claim(claim) = command else { unreachable!("{command:?} is no claim") };
            claim.allowance = self.allowance(permit, 1);
            claim.allowance
        };
        let allowances: Vec<Allowance> = commands.iter_mut().map(judge).collect();
        let claims = List { tags: tags.into_iter().zip(allowances).collect(), commands };
        let (service, queue) = (self.clone(), permit.queue.clone());
        self.engine().dispatch(claims, &To::Key, room, move |tags: Vec<(T, Allowance)>, listed| {
            if let Ok(listed) = &listed {
                for ((_, allowance), outcome) in tags.iter().zip(&listed.outcomes) {
                    service.give_back(&queue, *allowance, std::iter::once(answer(outcome)));
                }
            }
            let tags = tags.into_iter().map(|(tag, _)| tag).collect();
            reply(tags, listed.map_err(Problem::from));
        });
    }

    /// Judged anew whenever the key may be free; whoever waits takes nothing from the rate.
    async fn claim_now(&self, permit: &Permit, claim: &Claim) -> Result<Answer, Problem> {
        let allowance = self.allowance(permit, 1);
        let answer = self.engine().claim(Claim { allowance, ..claim.clone() }).await?;
        self.give_back(&permit.queue, allowance, std::iter::once(&answer));
        Ok(answer)
    }

    /// The final answer to a claim, with the lease if it is granted.
    pub fn claimed(&self, permit: &Permit, answer: Answer) -> Claimed {
        self.0.metrics.answered(permit.queue(), std::iter::once(&answer));
        let lease = match &answer {
            Answer::Fresh(fresh) => {
                Some(self.0.seal.seal(&permit.queue, fresh.id.partition(), &fresh.lease))
            }
            _ => None,
        };
        Claimed { answer, lease }
    }
}
