//! What the broker does for a caller, whatever door it came through.
//!
//! A door turns bytes into calls of this and outcomes into bytes. Who may do what is decided here,
//! once: every call takes a [`Permit`], and only [`Service::authorise`] makes one. Counting and
//! limits wrap the calls here too, so that neither doors nor rules mention them.

mod keys;
mod memory;
mod queues;
mod received;
mod weight;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax_core::{Answer, Claim, Command, Delivery, Fence, Outcome, QueueName, Receive, Send};
use hapax_core::{Refusal, Settle, Settled, Verb};
use hapax_partition::route;
use hapax_wire::Code;
use jiff::Timestamp;
use tokio::sync::broadcast;

use crate::auth::{Action, Auth, Principal, authorise};
use crate::engine::{Engine, Kept, Omitted, Room, Stopped};
use crate::lease::{LEASE_BYTES, Seal};
use crate::log;
use crate::metrics::Metrics;
use crate::problem::Problem;
use crate::tenants::Tenants;

pub(crate) use keys::key_bytes;
pub use memory::Admitted;
pub(crate) use memory::Memory;
pub use queues::{Change, Queue, Queues};
pub use received::Received;
pub use weight::Ceiling;
use weight::Weights;

/// How long a caller may wait at most.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

/// How long a request waits for memory at most.
pub(crate) const ADMISSION: Duration = Duration::from_secs(10);

/// The broker as doors see it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Service(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    engine: Engine,
    auth: Auth,
    tenants: Tenants,
    weights: Weights,
    metrics: Metrics,
    log: Option<log::Handle>,
    seal: Seal,
    memory: Memory,
}

/// What a service is made of, besides its engine.
#[derive(Debug)]
pub struct Options {
    pub auth: Auth,
    pub tenants: Tenants,
    /// What tenants may hold.
    pub ceilings: BTreeMap<Box<str>, Ceiling>,
    pub metrics: Metrics,
    /// To change what is logged.
    pub log: Option<log::Handle>,
    /// Memory for requests in flight.
    pub budget_bytes: usize,
}

impl Default for Options {
    /// Everything is allowed to everybody, as in `hapax dev`.
    fn default() -> Self {
        Self {
            auth: Auth::off(),
            tenants: Tenants::unlimited(Instant::now()),
            ceilings: BTreeMap::new(),
            metrics: Metrics::default(),
            log: None,
            budget_bytes: 64 * 1_024 * 1_024,
        }
    }
}

/// Somebody may do something to a queue.
#[derive(Clone, Debug)]
pub struct Permit {
    principal: Arc<Principal>,
    queue: QueueName,
    action: Action,
}

impl Permit {
    pub fn queue(&self) -> &QueueName {
        &self.queue
    }

    pub fn tenant(&self) -> &Arc<str> {
        self.principal.tenant()
    }
}

/// What a claim got.
#[derive(Clone, Debug)]
pub struct Claimed {
    pub answer: Answer,
    /// Of a fresh one.
    pub lease: Option<[u8; LEASE_BYTES]>,
}

/// Answers to one list of a stream, and the places of those whose results had no room.
#[derive(Clone, Debug)]
pub struct Listed<T> {
    pub answers: Vec<T>,
    pub omitted: Vec<usize>,
}

/// A settle whose lease was opened; one that does not open is lost.
#[derive(Clone, Debug)]
pub enum Opened {
    Settle(u16, Settle),
    Lost,
}

impl Service {
    pub fn new(engine: Engine, options: Options) -> Self {
        let seal = Seal::new(*engine.data().secret());
        Self(Arc::new(Inner {
            engine,
            auth: options.auth,
            tenants: options.tenants,
            weights: Weights::new(options.ceilings),
            metrics: options.metrics,
            log: options.log,
            seal,
            memory: Memory::new(options.budget_bytes),
        }))
    }

    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Whether callers have to show tokens.
    pub fn wants_tokens(&self) -> bool {
        matches!(self.0.auth, Auth::Tokens(_))
    }

    /// Who asks, by the value of the `authorization` header or metadata.
    pub fn authenticate(&self, authorization: Option<&[u8]>) -> Result<Arc<Principal>, Problem> {
        Ok(self.0.auth.authenticate(authorization, Timestamp::now())?)
    }

    /// Whether somebody who was known when a stream began still is. Cheap enough for every frame.
    pub fn is_current(&self, principal: &Principal) -> bool {
        self.0.auth.is_current(principal, Timestamp::now())
    }

    /// Ends when somebody who was known when a stream began is not known any more.
    pub fn revoked(
        &self,
        principal: &Arc<Principal>,
    ) -> impl Future<Output = ()> + std::marker::Send + 'static + use<> {
        self.0.auth.revoked(Arc::clone(principal))
    }

    /// Waits for something as long as the permit's owner is known.
    async fn while_current<T>(
        &self,
        permit: &Permit,
        wait: Duration,
        something: impl Future<Output = T>,
    ) -> Result<T, Problem> {
        if wait.is_zero() {
            return Ok(something.await);
        }
        tokio::select! {
            it = something => Ok(it),
            () = self.revoked(&permit.principal) => Err(revoked()),
        }
    }

    /// The one way to a permit.
    pub fn authorise(
        &self,
        principal: &Arc<Principal>,
        action: Action,
        queue: &str,
    ) -> Result<Permit, Problem> {
        let name = QueueName::new(principal.tenant(), queue)
            .map_err(|_| Problem::invalid("a queue's name has 1 to 80 of A-Z a-z 0-9 . _ -"))?;
        authorise(principal, action, queue).map_err(|denied| denied.problem(action, queue))?;
        Ok(Permit { principal: Arc::clone(principal), queue: name, action })
    }

    /// Whether somebody may do what concerns the whole broker.
    pub fn operate(&self, principal: &Principal) -> Result<(), Problem> {
        authorise(principal, Action::Operate, "")
            .map_err(|denied| denied.problem(Action::Operate, ""))
    }

    /// Changes what is logged.
    pub fn set_log(&self, principal: &Principal, filter: &str) -> Result<(), Problem> {
        self.operate(principal)?;
        let Some(log) = &self.0.log else {
            return Err(Problem::new(Code::Unavailable, "this broker does not log by itself"));
        };
        log.set(filter).map_err(|error| Problem::invalid(error.to_string()))
    }

    /// A request of a tenant that holds no memory yet: it takes some as its bytes arrive.
    pub fn request(&self, tenant: &Arc<str>) -> Admitted {
        self.0.memory.request(tenant)
    }

    /// Waits for memory for so many bytes more of a request, for a bounded time.
    pub async fn admit(&self, admitted: &mut Admitted, bytes: usize) -> Result<(), Problem> {
        let taken = tokio::time::timeout(ADMISSION, admitted.take(bytes)).await;
        taken.map_err(|_| no_memory())
    }

    /// Sends messages; the answers are in their order, refusals among them.
    pub async fn send(&self, permit: &Permit, sends: Vec<Send>) -> Result<Vec<Answer>, Problem> {
        self.check_rate(permit, sends.len())?;
        let answers = self.engine().send(sends).await.map_err(stopped)?;
        self.0.metrics.answered(permit.queue(), &answers);
        Ok(answers)
    }

    /// As [`Service::send`], with as many results as have room together. Says of each answer
    /// whether its result was left out.
    pub async fn send_within(
        &self,
        permit: &Permit,
        sends: Vec<Send>,
        bytes: usize,
    ) -> Result<(Vec<Answer>, Vec<Omitted>), Problem> {
        self.check_rate(permit, sends.len())?;
        let told = self.engine().send_within(sends, bytes).await.map_err(stopped)?;
        let (answers, omitted): (Vec<_>, Vec<_>) = told.into_iter().unzip();
        self.0.metrics.answered(permit.queue(), &answers);
        Ok((answers, omitted))
    }

    /// As [`Service::send`], for streams: `reply` is called for each part of the messages, on a
    /// writer's thread, with the numbers that came along. It must not block. Where all are refused
    /// at once, their numbers come back.
    pub fn send_parts(
        &self,
        permit: &Permit,
        sends: Vec<(u64, Send)>,
        room: &Arc<Room>,
        reply: impl Fn(Vec<u64>, Result<Listed<Answer>, Problem>) + Clone + Sendable,
    ) -> Result<(), (Vec<u64>, Problem)> {
        if let Err(problem) = self.check_rate(permit, sends.len()) {
            return Err((sends.into_iter().map(|(number, _)| number).collect(), problem));
        }
        let (service, queue) = (self.clone(), permit.queue.clone());
        self.engine().submit_sends(sends, room, move |numbers, kept| {
            let listed = kept.map_err(stopped).map(|Kept { outcomes, omitted }| {
                let answers = answers(outcomes);
                service.0.metrics.answered(&queue, &answers);
                Listed { answers, omitted }
            });
            reply(numbers, listed);
        });
        Ok(())
    }

    /// Takes messages, waiting for the first one.
    pub async fn receive(
        &self,
        permit: &Permit,
        receive: Receive,
        wait: Duration,
    ) -> Result<Vec<Delivery>, Problem> {
        debug_assert!(permit.action == Action::Work, "{permit:?}");
        // Whoever waits here and goes away leaves its messages to others.
        let received = self.engine().receive(receive, wait.min(WAIT_MAX));
        let received = self.while_current(permit, wait, received).await?;
        let messages = received.map_err(stopped)?.map_err(|refusal| refused(permit, refusal))?;
        if !messages.is_empty() && !self.is_current(&permit.principal) {
            self.engine().give_back(messages);
            return Err(revoked());
        }
        Ok(messages)
    }

    /// A lease as it goes out with a delivery.
    pub fn seal(&self, permit: &Permit, delivery: &Delivery) -> [u8; LEASE_BYTES] {
        self.0.seal.seal(&permit.queue, delivery.id.partition(), &delivery.lease)
    }

    /// A settle of a lease as it came in.
    pub fn open(&self, permit: &Permit, lease: &[u8], verb: Verb) -> Opened {
        match self.0.seal.open(&permit.queue, lease) {
            Some((partition, lease)) if usize::from(partition) < self.engine().partitions() => {
                Opened::Settle(partition, Settle { lease, verb })
            }
            _ => Opened::Lost,
        }
    }

    /// Whether the permit's owner may emit to a queue of its tenant.
    pub fn may_emit(&self, principal: &Arc<Principal>, queue: &str) -> Result<QueueName, Problem> {
        Ok(self.authorise(principal, Action::Send, queue)?.queue)
    }

    /// Settles leases; the answers are in their order.
    pub async fn settle(
        &self,
        permit: &Permit,
        items: Vec<Opened>,
    ) -> Result<Vec<Settled>, Problem> {
        self.settle_within(permit, items, usize::MAX).await.map(|(settled, _)| settled)
    }

    /// As [`Service::settle`], with as many results as have room together: see
    /// [`Service::send_within`].
    pub async fn settle_within(
        &self,
        permit: &Permit,
        items: Vec<Opened>,
        bytes: usize,
    ) -> Result<(Vec<Settled>, Vec<Omitted>), Problem> {
        if items.iter().all(|item| matches!(item, Opened::Lost)) {
            self.show(permit).await?; // An absent queue says so, as one that cannot be seen.
        }
        let is_open: Vec<bool> =
            items.iter().map(|item| matches!(item, Opened::Settle(..))).collect();
        let settles = items.into_iter().filter_map(|item| match item {
            Opened::Settle(partition, settle) => Some((partition, settle)),
            Opened::Lost => None,
        });
        let settled = self.engine().settle_within(settles.collect(), bytes).await;
        let mut settled = settled.map_err(stopped)?.into_iter();
        let (answers, omitted): (Vec<Settled>, Vec<Omitted>) = is_open
            .into_iter()
            .map(|is_open| if is_open { settled.next() } else { None }.unwrap_or((LOST, false)))
            .unzip();
        self.0.metrics.settled(permit.queue(), &answers);
        Ok((answers, omitted))
    }

    /// As [`Service::settle`], for streams: see [`Service::send_parts`].
    pub fn settle_parts(
        &self,
        permit: &Permit,
        items: Vec<(u64, Opened)>,
        room: &Arc<Room>,
        reply: impl Fn(Vec<u64>, Result<Listed<Settled>, Problem>) + Clone + Sendable,
    ) {
        let (mut settles, mut lost) = (Vec::with_capacity(items.len()), Vec::new());
        for (number, item) in items {
            match item {
                Opened::Settle(partition, settle) => {
                    settles.push((usize::from(partition), number, Command::Settle(settle)));
                }
                Opened::Lost => lost.push(number),
            }
        }
        if !lost.is_empty() {
            let answers = vec![LOST; lost.len()];
            self.0.metrics.settled(permit.queue(), &answers);
            reply(lost, Ok(Listed { answers, omitted: Vec::new() }));
        }
        let engine = self.engine();
        for part in route::split(engine.partitions(), settles.into_iter()) {
            let (reply, service, queue) = (reply.clone(), self.clone(), permit.queue.clone());
            engine.submit_within(part.partition, part.commands, room, move |kept| {
                let listed = kept.map_err(stopped).map(|Kept { outcomes, omitted }| {
                    let answers = settled(outcomes);
                    service.0.metrics.settled(&queue, &answers);
                    Listed { answers, omitted }
                });
                reply(part.tags, listed);
            });
        }
    }

    /// Leases of any queue that are lost from now on; who listens picks its own.
    pub fn lost(&self) -> broadcast::Receiver<(QueueName, Fence)> {
        self.engine().lost()
    }

    /// Takes a key for the caller to work under, waiting for the one who has it.
    pub async fn claim(
        &self,
        permit: &Permit,
        claim: Claim,
        wait: Duration,
    ) -> Result<Claimed, Problem> {
        self.check_rate(permit, 1)?;
        let until = tokio::time::Instant::now() + wait.min(WAIT_MAX);
        loop {
            let answer = self.engine().claim(claim.clone()).await.map_err(stopped)?;
            let left = until.saturating_duration_since(tokio::time::Instant::now());
            if !matches!(answer, Answer::InFlight(_)) || left.is_zero() {
                self.0.metrics.answered(permit.queue(), std::slice::from_ref(&answer));
                let lease = self.seal_claim(permit, &answer);
                return Ok(Claimed { answer, lease });
            }
            let key = self.key_name(permit, claim.content.key(), claim.content.group());
            let ended = self.engine().look(key, left);
            let _ended = self.while_current(permit, left, ended).await?.map_err(stopped)?;
        }
    }

    fn seal_claim(&self, permit: &Permit, answer: &Answer) -> Option<[u8; LEASE_BYTES]> {
        let Answer::Fresh { id, lease, .. } = answer else { return None };
        Some(self.0.seal.seal(&permit.queue, id.partition(), lease))
    }

    fn check_rate(&self, permit: &Permit, sends: usize) -> Result<(), Problem> {
        debug_assert!(matches!(permit.action, Action::Send | Action::Claim), "{permit:?}");
        let tenant = &permit.queue.tenant;
        self.0.weights.check(tenant)?;
        let taken = self.0.tenants.take_sends(tenant, sends as u64, Instant::now());
        taken.map_err(|retry_after_ms| Problem {
            retry_after_ms: Some(retry_after_ms),
            ..Problem::new(Code::RateLimited, "more than the tenant's sends_per_s")
        })
    }
}

/// Whether the queue of these messages is absent. Where it was made or deleted meanwhile, some
/// partitions may know it and others not: then each message is answered for itself.
pub fn is_no_such_queue(answers: &[Answer]) -> bool {
    !answers.is_empty() && answers.iter().all(|answer| *answer == Answer::NoSuchQueue)
}

/// What may go to a writer's thread. The name `Send` is taken by the message here.
pub trait Sendable: std::marker::Send + 'static {}

impl<T: std::marker::Send + 'static> Sendable for T {}

/// What a lease gets that was never given, or for another queue.
const LOST: Settled = Settled::LeaseLost { place: None, result: None };

/// A refusal on its way to the caller. A queue that is absent gets the words of one that the caller
/// may not see.
fn refused(permit: &Permit, refusal: Refusal) -> Problem {
    match refusal {
        Refusal::NoSuchQueue => Problem::no_such_queue(&permit.queue.queue),
        other => other.into(),
    }
}

/// The token is not known any more.
pub(crate) fn revoked() -> Problem {
    let detail = "the token was revoked, changed, or has expired meanwhile";
    Problem::new(Code::Unauthorized, detail)
}

/// The requests of the tenant, or of all tenants, hold as much memory as they may.
pub(crate) fn no_memory() -> Problem {
    let detail = "the broker has no memory left for requests of this size; others use it";
    Problem::new(Code::Unavailable, detail)
}

/// The partition stopped: whether the command was carried out is not known, and a retry is safe.
pub(crate) fn stopped(stopped: Stopped) -> Problem {
    Problem::new(Code::Unavailable, stopped.to_string())
}

/// What was asked is answered, or a caller would wait for ever.
fn answers(outcomes: Vec<Outcome>) -> Vec<Answer> {
    let answers = outcomes.into_iter().map(|outcome| match outcome {
        Outcome::Sent(answer) => answer,
        other => unreachable!("a send is not answered by {other:?}"),
    });
    answers.collect()
}

fn settled(outcomes: Vec<Outcome>) -> Vec<Settled> {
    let settled = outcomes.into_iter().map(|outcome| match outcome {
        Outcome::Settled(settled) => settled,
        other => unreachable!("a settle is not answered by {other:?}"),
    });
    settled.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_absent_where_no_partition_knows_it() {
        assert!(is_no_such_queue(&[Answer::NoSuchQueue]) && !is_no_such_queue(&[]));
        assert!(!is_no_such_queue(&[Answer::NoSuchQueue, Answer::StoreFull]));
    }
}
