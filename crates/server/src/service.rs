//! The operations of the broker, for HTTP and gRPC alike.
//! `doors` turns bytes into calls of this module and outcomes into bytes. Permissions are checked
//! here, once: every call takes a [`Permit`], and only [`Service::authorise`] makes one. Metrics
//! and limits wrap the calls here too, so that neither `doors` nor the core mention them.

mod claims;
mod keys;
mod memory;
mod queues;
mod received;
mod turns;
mod weight;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax_core::{Allowance, Answer, Command, Delivery, Fence, Outcome, QueueName, Quota, Receive};
use hapax_core::{Recipe, Refusal, SendMessage, Settle, Settled, Verb};
use hapax_wire::Code;
use jiff::Timestamp;
use tokio::sync::broadcast;

use crate::auth::{Action, Auth, Principal, authorise};
use crate::engine::{Engine, List, Listed, Omitted, Parts, Room, To, gather};
use crate::lease::{LEASE_BYTES, Seal};
use crate::log;
use crate::metrics::Metrics;
use crate::problem::Problem;
use crate::tenants::Tenants;

pub use claims::Claimed;
pub(crate) use claims::{is_awaited, wait_until};
pub(crate) use keys::{BROWSE_DEFAULT, key_bytes};
pub use memory::Admitted;
pub(crate) use memory::Memory;
use queues::Creating;
pub use queues::{Change, Queue, Queues, if_match};
pub use received::Received;
pub(crate) use turns::{Place, Turns};
pub use weight::Ceiling;
use weight::Weights;

/// The longest wait of a caller.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

/// The longest wait of a request for memory.
pub(crate) const ADMISSION: Duration = Duration::from_secs(10);

/// The broker as HTTP and gRPC see it. Cheap to clone.
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
    /// Calls that wait for keys; those on streams have turns of their own.
    turns: Turns,
    /// One new queue of a tenant at a time, where their number is limited.
    creating: Creating,
}

/// The parts of a service besides its engine.
#[derive(Debug)]
pub struct Options {
    pub auth: Auth,
    pub tenants: Tenants,
    /// The limits on what tenants hold.
    pub ceilings: BTreeMap<Box<str>, Ceiling>,
    pub metrics: Metrics,
    /// The handle to change the log filter.
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

/// The permission of a caller to do something to a queue.
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

/// A settle whose lease was opened; one that does not open is lost.
#[derive(Clone, Debug)]
pub enum Opened {
    Settle(u16, Settle),
    Lost,
}

/// Settles to submit to the partitions of their leases.
#[derive(Debug)]
pub struct Settles<T> {
    list: List<T>,
    /// One for each of the list.
    partitions: Vec<u16>,
    lost: Vec<T>,
}

impl<T> Default for Settles<T> {
    fn default() -> Self {
        Self { list: List::default(), partitions: Vec::new(), lost: Vec::new() }
    }
}

impl<T> Settles<T> {
    pub fn new(service: &Service) -> Self {
        Self { list: service.engine().empty_list(), ..Self::default() }
    }

    pub fn push(&mut self, tag: T, settle: Opened) {
        match settle {
            Opened::Settle(partition, settle) => {
                self.list.push(tag, Command::Settle(settle));
                self.partitions.push(partition);
            }
            Opened::Lost => self.lost.push(tag),
        }
    }

    pub fn len(&self) -> usize {
        self.list.len() + self.lost.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Service {
    pub fn new(engine: Engine, options: Options) -> Self {
        let secret = engine.data().secret();
        let seal = match engine.data().recipe() {
            Recipe::First => Seal::new(secret).opening_first(secret),
            Recipe::Second(_) => Seal::new(secret),
        };
        Self(Arc::new(Inner {
            engine,
            auth: options.auth,
            tenants: options.tenants,
            weights: Weights::new(options.ceilings),
            metrics: options.metrics,
            log: options.log,
            seal,
            memory: Memory::new(options.budget_bytes),
            turns: Turns::default(),
            creating: Creating::default(),
        }))
    }

    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// How keys and bodies are hashed.
    pub fn recipe(&self) -> &Recipe {
        self.engine().data().recipe()
    }

    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Whether callers need tokens.
    pub fn wants_tokens(&self) -> bool {
        matches!(self.0.auth, Auth::Tokens(_))
    }

    /// Authenticates the caller by the value of the `authorization` header or metadata.
    pub fn authenticate(&self, authorization: Option<&[u8]>) -> Result<Arc<Principal>, Problem> {
        Ok(self.0.auth.authenticate(authorization, Timestamp::now())?)
    }

    /// Whether the caller of a stream is still authenticated. Cheap enough for every frame.
    pub fn is_current(&self, principal: &Principal) -> bool {
        self.0.auth.is_current(principal, Timestamp::now())
    }

    /// Completes when the caller of a stream is no longer authenticated.
    pub fn revoked(
        &self,
        principal: &Arc<Principal>,
    ) -> impl Future<Output = ()> + Send + 'static + use<> {
        self.0.auth.revoked(Arc::clone(principal))
    }

    /// Waits for a future while the permit's owner is authenticated.
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

    /// The only way to get a permit.
    pub fn authorise(
        &self,
        principal: &Arc<Principal>,
        action: Action,
        queue: &str,
    ) -> Result<Permit, Problem> {
        let name = QueueName::new(principal.tenant(), queue).map_err(|_| {
            Problem::invalid(
                "a queue's name must have 1 to 80 characters of A-Z a-z \
                                           0-9 . _ -",
            )
        })?;
        authorise(principal, action, queue).map_err(|denied| denied.problem(action, queue))?;
        Ok(Permit { principal: Arc::clone(principal), queue: name, action })
    }

    /// Checks the permission to operate the whole broker.
    pub fn operate(&self, principal: &Principal) -> Result<(), Problem> {
        authorise(principal, Action::Operate, "")
            .map_err(|denied| denied.problem(Action::Operate, ""))
    }

    /// Changes what is logged.
    pub fn set_log(&self, principal: &Principal, filter: &str) -> Result<(), Problem> {
        self.operate(principal)?;
        let Some(log) = &self.0.log else {
            return Err(Problem::new(
                Code::Unavailable,
                "the log filter of this broker cannot be \
                                                        changed: it is embedded in another \
                                                        program",
            ));
        };
        log.set(filter).map_err(|error| Problem::invalid(error.to_string()))
    }

    /// A request of a tenant that holds no memory yet: it takes some as its bytes arrive.
    pub fn request(&self, tenant: &Arc<str>) -> Admitted {
        self.0.memory.request(tenant)
    }

    /// Waits for memory for more bytes of a request, for a bounded time.
    pub async fn admit(&self, admitted: &mut Admitted, bytes: usize) -> Result<(), Problem> {
        let taken = tokio::time::timeout(ADMISSION, admitted.take(bytes)).await;
        taken.map_err(|_| no_memory())
    }

    /// Sends messages. `reply` is called for each part of them, on a writer's thread, with the
    /// caller's tags: it must not block.
    pub fn start_send<T: Send + 'static>(
        &self,
        permit: &Permit,
        mut sends: List<T>,
        room: &Arc<Room>,
        reply: impl Fn(Vec<T>, Result<Listed, Problem>) + Clone + Send + 'static,
    ) {
        let allowance = self.allowance(permit, sends.len());
        if allowance != Allowance::default() {
            for command in &mut sends.commands {
                let Command::Send(send) = command else { unreachable!("{command:?} is no send") };
                send.allowance = allowance;
            }
        }
        let (service, queue) = (self.clone(), permit.queue.clone());
        self.engine().dispatch(sends, &To::Key, room, move |tags, listed| {
            if let Ok(listed) = &listed {
                let answers = listed.outcomes.iter().map(answer);
                service.0.metrics.answered(&queue, answers.clone());
                service.give_back(&queue, allowance, answers);
            }
            reply(tags, listed.map_err(Problem::from));
        });
    }

    /// Sends messages; the answers are in order, refusals included, with as many results as fit
    /// together. Reports for each whether its result was left out.
    pub async fn send(
        &self,
        permit: &Permit,
        sends: Vec<SendMessage>,
        bytes: usize,
    ) -> Result<Vec<(Answer, Omitted)>, Problem> {
        let count = sends.len();
        let commands = sends.into_iter().map(Command::Send).collect();
        let sends = List { tags: (0..count).collect(), commands };
        let start = |parts: Parts<_>| {
            let reply = move |places, listed| drop(parts.send((places, listed)));
            self.start_send(permit, sends, &Room::of_list(bytes), reply);
        };
        let outcomes = gather(count, start).await?;
        Ok(outcomes.into_iter().map(|(outcome, omitted)| (into_answer(outcome), omitted)).collect())
    }

    /// Takes messages, waiting for the first one.
    pub async fn receive(
        &self,
        permit: &Permit,
        receive: Receive,
        wait: Duration,
    ) -> Result<Vec<Delivery>, Problem> {
        debug_assert!(permit.action == Action::Work, "{permit:?}");
        let has_id = receive.receive_id.is_some();
        // If the caller goes away, its messages are left to others.
        let received = self.engine().receive(receive, wait.min(WAIT_MAX));
        let received = self.while_current(permit, wait, received).await?;
        let messages = received?.map_err(|refusal| refused(permit, refusal))?;
        if !messages.is_empty() && !self.is_current(&permit.principal) {
            // Under an id an earlier caller may hold them: those stay leased.
            if !has_id {
                self.engine().give_back(messages);
            }
            return Err(revoked());
        }
        Ok(messages)
    }

    /// Seals the lease of a delivery.
    pub fn seal(&self, permit: &Permit, delivery: &Delivery) -> [u8; LEASE_BYTES] {
        self.0.seal.seal(&permit.queue, delivery.id.partition(), &delivery.lease)
    }

    /// Opens the lease of a settle.
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

    /// Settles leases, as [`Service::start_send`] sends messages.
    pub fn start_settle<T: Send + 'static>(
        &self,
        permit: &Permit,
        settles: Settles<T>,
        room: &Arc<Room>,
        reply: impl Fn(Vec<T>, Result<Listed, Problem>) + Clone + Send + 'static,
    ) {
        let Settles { list, partitions, lost } = settles;
        if !lost.is_empty() {
            let outcomes = vec![Outcome::Settled(LOST); lost.len()];
            self.0.metrics.settled(permit.queue(), outcomes.iter().map(settled));
            reply(lost, Ok(Listed { outcomes, omitted: Vec::new() }));
        }
        let (service, queue) = (self.clone(), permit.queue.clone());
        self.engine().dispatch(list, &To::Partitions(partitions), room, move |tags, listed| {
            if let Ok(listed) = &listed {
                service.0.metrics.settled(&queue, listed.outcomes.iter().map(settled));
            }
            reply(tags, listed.map_err(Problem::from));
        });
    }

    /// Settles leases; the answers are in their order, as those of [`Service::send`].
    pub async fn settle(
        &self,
        permit: &Permit,
        items: Vec<Opened>,
        bytes: usize,
    ) -> Result<Vec<(Settled, Omitted)>, Problem> {
        if items.iter().all(|item| matches!(item, Opened::Lost)) {
            self.show(permit).await?; // A missing queue is reported, as is one that cannot be seen.
        }
        let count = items.len();
        let mut settles = Settles::new(self);
        items.into_iter().enumerate().for_each(|(place, item)| settles.push(place, item));
        let start = |parts: Parts<_>| {
            let reply = move |places, listed| drop(parts.send((places, listed)));
            self.start_settle(permit, settles, &Room::of_list(bytes), reply);
        };
        let outcomes = gather(count, start).await?;
        Ok(outcomes
            .into_iter()
            .map(|(outcome, omitted)| (into_settled(outcome), omitted))
            .collect())
    }

    /// Leases of any queue that are lost from now on; a listener filters its own.
    pub fn lost(&self) -> broadcast::Receiver<(QueueName, Fence)> {
        self.engine().lost()
    }

    /// What the tenant's quotas allow for new messages. Only their partitions know which are new;
    /// [`Self::give_back`] returns what was taken for the others.
    fn allowance(&self, permit: &Permit, sends: usize) -> Allowance {
        debug_assert!(matches!(permit.action, Action::Send | Action::Claim), "{permit:?}");
        let tenant = &permit.queue.tenant;
        if let Some(quota) = self.0.weights.used_up(tenant) {
            return Allowance::UsedUp { quota, retry_after_ms: weight::EVERY_MS };
        }
        match self.0.tenants.take_sends(tenant, sends as u64, Instant::now()) {
            Ok(()) => Allowance::Queue,
            Err(retry_after_ms) => Allowance::UsedUp { quota: Quota::TenantRate, retry_after_ms },
        }
    }

    /// Returns to the tenant's rate what was taken for messages that were not accepted.
    fn give_back<'a>(
        &self,
        queue: &QueueName,
        allowance: Allowance,
        answers: impl Iterator<Item = &'a Answer>,
    ) {
        if allowance != Allowance::Queue || !self.0.tenants.is_rated() {
            return;
        }
        let is_known =
            |answer: &&Answer| !matches!(answer, Answer::Accepted { .. } | Answer::Fresh(_));
        let known = answers.filter(is_known).count();
        self.0.tenants.give_back(&queue.tenant, known as u64);
    }
}

/// Whether the queue of these messages is missing. If it is being created or deleted, some
/// partitions may know it and others not: then each message is answered separately.
pub fn is_no_such_queue(answers: &[(Answer, Omitted)]) -> bool {
    !answers.is_empty() && answers.iter().all(|(answer, _)| *answer == Answer::NoSuchQueue)
}

/// The answer to a lease that was never granted, or belongs to another queue.
const LOST: Settled = Settled::LeaseLost { place: None, result: None };

/// Converts a refusal. A missing queue is answered like one that the caller may not see.
fn refused(permit: &Permit, refusal: Refusal) -> Problem {
    match refusal {
        Refusal::NoSuchQueue => Problem::no_such_queue(&permit.queue.queue),
        other => other.into(),
    }
}

/// The token is no longer valid.
pub(crate) fn revoked() -> Problem {
    let detail = "the token was revoked or changed, or has expired";
    Problem::new(Code::Unauthorized, detail)
}

/// The requests of the tenant, or of all tenants, hold as much memory as they may.
pub(crate) fn no_memory() -> Problem {
    let detail = "the broker has no memory left for a request of this size now: other requests \
                  use it";
    Problem::new(Code::Unavailable, detail)
}

/// Every command is answered; otherwise a caller would wait for ever.
fn answer(outcome: &Outcome) -> &Answer {
    match outcome {
        Outcome::Sent(answer) | Outcome::Claimed(answer) => answer,
        other => unreachable!("a send or a claim is not answered by {other:?}"),
    }
}

pub(crate) fn into_answer(outcome: Outcome) -> Answer {
    match outcome {
        Outcome::Sent(answer) | Outcome::Claimed(answer) => answer,
        other => unreachable!("a send or a claim is not answered by {other:?}"),
    }
}

fn settled(outcome: &Outcome) -> &Settled {
    match outcome {
        Outcome::Settled(settled) => settled,
        other => unreachable!("a settle is not answered by {other:?}"),
    }
}

pub(crate) fn into_settled(outcome: Outcome) -> Settled {
    match outcome {
        Outcome::Settled(settled) => settled,
        other => unreachable!("a settle is not answered by {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_absent_where_no_partition_knows_it() {
        let absent = (Answer::NoSuchQueue, false);
        assert!(is_no_such_queue(std::slice::from_ref(&absent)) && !is_no_such_queue(&[]));
        assert!(!is_no_such_queue(&[absent, (Answer::StoreFull, false)]));
    }
}
