//! The operations of the broker, for HTTP and gRPC alike.
//! `doors` turns bytes into calls of this module and outcomes into bytes. Permissions are checked
//! here, once: every call takes a [`Permit`], and only [`Service::authorise`] makes one. Metrics
//! and limits wrap the calls here too, so that neither `doors` nor the core mention them.

mod keys;
mod memory;
mod queues;
mod received;
mod weight;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax_core::{Allowance, Answer, Claim, Command, Delivery, Fence, Outcome, QueueName, Quota};
use hapax_core::{Receive, Refusal, SendMessage, Settle, Settled, Verb};
use hapax_wire::Code;
use jiff::Timestamp;
use tokio::sync::broadcast;

use crate::auth::{Action, Auth, Principal, authorise};
use crate::engine::{Engine, Listed, Omitted, Parts, Room, To, gather};
use crate::lease::{LEASE_BYTES, Seal};
use crate::log;
use crate::metrics::Metrics;
use crate::problem::Problem;
use crate::tenants::Tenants;

pub(crate) use keys::{BROWSE_DEFAULT, key_bytes};
pub use memory::Admitted;
pub(crate) use memory::Memory;
pub use queues::{Change, Queue, Queues, if_match};
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

/// What a claim got.
#[derive(Clone, Debug)]
pub struct Claimed {
    pub answer: Answer,
    /// The lease of a granted claim.
    pub lease: Option<[u8; LEASE_BYTES]>,
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

    /// Authenticates the caller by the value of the `authorization` header or metadata.
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
    ) -> impl Future<Output = ()> + Send + 'static + use<> {
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
        let name = QueueName::new(principal.tenant(), queue).map_err(|_| {
            Problem::invalid(
                "a queue's name must have 1 to 80 characters of A-Z a-z \
                                           0-9 . _ -",
            )
        })?;
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

    /// Waits for memory for so many bytes more of a request, for a bounded time.
    pub async fn admit(&self, admitted: &mut Admitted, bytes: usize) -> Result<(), Problem> {
        let taken = tokio::time::timeout(ADMISSION, admitted.take(bytes)).await;
        taken.map_err(|_| no_memory())
    }

    /// Sends messages. `reply` is called for each part of them, on a writer's thread, with what the
    /// caller knows them by: it must not block.
    pub fn start_send<T: Send + 'static>(
        &self,
        permit: &Permit,
        sends: Vec<(T, SendMessage)>,
        room: &Arc<Room>,
        reply: impl Fn(Vec<T>, Result<Listed<Answer>, Problem>) + Clone + Send + 'static,
    ) {
        let allowance = self.allowance(permit, sends.len());
        let (service, queue) = (self.clone(), permit.queue.clone());
        let items = sends
            .into_iter()
            .map(|(tag, send)| (tag, To::Key, Command::Send(SendMessage { allowance, ..send })));
        self.engine().dispatch(items, room, move |tags, outcomes| {
            let listed = outcomes.map_err(Problem::from).map(|listed| {
                let listed = listed.map(answer);
                service.0.metrics.answered(&queue, &listed.answers);
                service.give_back(&queue, allowance, &listed.answers);
                listed
            });
            reply(tags, listed);
        });
    }

    /// Sends messages; the answers are in their order, refusals among them, with as many results as
    /// have room together. Says of each whether its result was left out.
    pub async fn send(
        &self,
        permit: &Permit,
        sends: Vec<SendMessage>,
        bytes: usize,
    ) -> Result<Vec<(Answer, Omitted)>, Problem> {
        let (count, sends) = (sends.len(), sends.into_iter().enumerate().collect());
        let start = |parts: Parts<_, _>| {
            let reply = move |places, listed| drop(parts.send((places, listed)));
            self.start_send(permit, sends, &Room::of_list(bytes), reply);
        };
        gather(count, start).await
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
        // Whoever waits here and goes away leaves its messages to others.
        let received = self.engine().receive(receive, wait.min(WAIT_MAX));
        let received = self.while_current(permit, wait, received).await?;
        let messages = received?.map_err(|refusal| refused(permit, refusal))?;
        if !messages.is_empty() && !self.is_current(&permit.principal) {
            // Under an id, whoever asked for them before may hold them: those stay leased.
            if !has_id {
                self.engine().give_back(messages);
            }
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

    /// Settles leases, as [`Service::start_send`] sends messages.
    pub fn start_settle<T: Send + 'static>(
        &self,
        permit: &Permit,
        items: Vec<(T, Opened)>,
        room: &Arc<Room>,
        reply: impl Fn(Vec<T>, Result<Listed<Settled>, Problem>) + Clone + Send + 'static,
    ) {
        let (mut settles, mut lost) = (Vec::with_capacity(items.len()), Vec::new());
        for (tag, item) in items {
            match item {
                Opened::Settle(partition, settle) => {
                    let to = To::Partition(usize::from(partition));
                    settles.push((tag, to, Command::Settle(settle)));
                }
                Opened::Lost => lost.push(tag),
            }
        }
        if !lost.is_empty() {
            let answers = vec![LOST; lost.len()];
            self.0.metrics.settled(permit.queue(), &answers);
            reply(lost, Ok(Listed { answers, omitted: Vec::new() }));
        }
        let (service, queue) = (self.clone(), permit.queue.clone());
        self.engine().dispatch(settles.into_iter(), room, move |tags, outcomes| {
            let listed = outcomes.map_err(Problem::from).map(|listed| {
                let listed = listed.map(settled);
                service.0.metrics.settled(&queue, &listed.answers);
                listed
            });
            reply(tags, listed);
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
            self.show(permit).await?; // An absent queue says so, as one that cannot be seen.
        }
        let (count, items) = (items.len(), items.into_iter().enumerate().collect());
        let start = |parts: Parts<_, _>| {
            let reply = move |places, listed| drop(parts.send((places, listed)));
            self.start_settle(permit, items, &Room::of_list(bytes), reply);
        };
        gather(count, start).await
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
        let allowance = self.allowance(permit, 1);
        let claim = Claim { allowance, ..claim };
        let until = tokio::time::Instant::now() + wait.min(WAIT_MAX);
        loop {
            let answer = self.engine().claim(claim.clone()).await?;
            let left = until.saturating_duration_since(tokio::time::Instant::now());
            if !matches!(answer, Answer::InFlight(_)) || left.is_zero() {
                self.0.metrics.answered(permit.queue(), std::slice::from_ref(&answer));
                self.give_back(&permit.queue, allowance, std::slice::from_ref(&answer));
                let lease = self.seal_claim(permit, &answer);
                return Ok(Claimed { answer, lease });
            }
            let key = self.key_name(permit, claim.content.key(), claim.content.group());
            let ended = self.engine().look(key, left);
            let _ended = self.while_current(permit, left, ended).await??;
        }
    }

    fn seal_claim(&self, permit: &Permit, answer: &Answer) -> Option<[u8; LEASE_BYTES]> {
        let Answer::Fresh { id, lease, .. } = answer else { return None };
        Some(self.0.seal.seal(&permit.queue, id.partition(), lease))
    }

    /// What the quotas of the tenant itself leave to new messages. Which of them are new only
    /// their partitions can tell; [`Self::give_back`] makes up for those that are not.
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
    fn give_back(&self, queue: &QueueName, allowance: Allowance, answers: &[Answer]) {
        if allowance != Allowance::Queue || !self.0.tenants.is_rated() {
            return;
        }
        let is_new =
            |answer: &&Answer| matches!(answer, Answer::Accepted { .. } | Answer::Fresh { .. });
        let known = answers.len() - answers.iter().filter(is_new).count();
        self.0.tenants.give_back(&queue.tenant, known as u64);
    }
}

/// Whether the queue of these messages is absent. Where it was made or deleted meanwhile, some
/// partitions may know it and others not: then each message is answered for itself.
pub fn is_no_such_queue(answers: &[(Answer, Omitted)]) -> bool {
    !answers.is_empty() && answers.iter().all(|(answer, _)| *answer == Answer::NoSuchQueue)
}

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
    let detail = "the token was revoked or changed, or has expired";
    Problem::new(Code::Unauthorized, detail)
}

/// The requests of the tenant, or of all tenants, hold as much memory as they may.
pub(crate) fn no_memory() -> Problem {
    let detail = "the broker has no memory left for a request of this size now: other requests \
                  use it";
    Problem::new(Code::Unavailable, detail)
}

/// What was asked is answered, or a caller would wait for ever.
fn answer(outcome: Outcome) -> Answer {
    match outcome {
        Outcome::Sent(answer) => answer,
        other => unreachable!("a send is not answered by {other:?}"),
    }
}

fn settled(outcome: Outcome) -> Settled {
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
