//! Claims: keys held by callers that do the work themselves.

use std::future::Future;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hapax_wire::{Blob, proto};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::answer::{Answer, Outcome};
use crate::client::SENT_BYTES_MAX;
use crate::delivery::Lease;
use crate::error::Error;
use crate::message::{ms, new_key, since_epoch};
use crate::queue::Queue;
use crate::retry::Retry;
use crate::settle::{Done, Settle, Settled};

/// How long a claim outlives its process, where nothing is said.
const LEASE: Duration = Duration::from_secs(30);
/// What a call that waits may take beyond its wait.
const WAIT_SLACK: Duration = Duration::from_secs(10);
/// A claim is extended when this part of its lease is over.
const EXTEND_AT: f64 = 0.4;
/// The shortest time between two extensions, however short the lease.
const EXTEND_MIN: Duration = Duration::from_millis(20);

/// A claim to be made: see [`Queue::claim`].
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    queue: Queue,
    request: proto::ClaimRequest,
    lease: Duration,
    wait: Duration,
}

impl ClaimRequest {
    pub(crate) fn new(queue: &Queue, key: String) -> Self {
        let request =
            proto::ClaimRequest { queue: queue.name().to_owned(), key, ..Default::default() };
        Self { queue: queue.clone(), request, lease: LEASE, wait: Duration::ZERO }
    }

    /// What the operation is about. It is not stored: a second claim of the key with another body
    /// is a conflict.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.request.body = body.into();
        self
    }

    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.request.content_type = content_type.into();
        self
    }

    /// Kept with the claim, for those who look at its key.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.request.headers.insert(name.into(), value.into());
        self
    }

    /// What a retry is told from another operation by, instead of the body.
    pub fn fingerprint(mut self, fingerprint: impl Into<String>) -> Self {
        self.request.fingerprint = Some(fingerprint.into());
        self
    }

    /// How long the key stays taken if this process dies: 30 s where nothing is said. While the
    /// claim is held it is extended by itself.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Wait so long for the one who has the key.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// A name that histories show, of at most 64 bytes.
    pub fn worker(mut self, name: impl Into<String>) -> Self {
        self.request.worker = name.into();
        self
    }

    /// Sets when the operation was issued, for keys without a date.
    pub fn issued_at(mut self, at: SystemTime) -> Self {
        self.request.issued_at_ms = Some(since_epoch(at));
        self
    }

    /// Takes the key, or tells what became of it. Retries while the broker cannot be reached, for
    /// at most the client's timeout. All tries of a call have one id: where the first took the key
    /// and its answer was lost, the next gets the same lease.
    pub async fn take(mut self) -> Result<Claim, Error> {
        self.request.claim_id = new_key();
        self.request.lease_ms = Some(ms(self.lease));
        let wait_until = Instant::now() + self.wait;
        let client = self.queue.client();
        let claim = || {
            let left = wait_until.saturating_duration_since(Instant::now());
            let request = proto::ClaimRequest { wait_ms: ms(left), ..self.request.clone() };
            client.call_within(left + WAIT_SLACK, |mut rpc| async move { rpc.claim(request).await })
        };
        let reply = Retry::within(client.timeout() + self.wait).run(claim).await?;
        self.taken(reply)
    }

    fn taken(self, reply: proto::ClaimReply) -> Result<Claim, Error> {
        let answer = reply.answer.clone().unwrap_or_default();
        let is_fresh = answer.kind() == proto::AnswerKind::Fresh;
        let answer = Answer::of(answer)?;
        if is_fresh {
            return Ok(Claim::Fresh(Held::new(self, reply)));
        }
        Ok(match answer.outcome {
            Outcome::Done { .. } => Claim::Done(answer),
            Outcome::Dead { .. } => Claim::Dead(answer),
            Outcome::Parked { .. } => Claim::Parked(answer),
            Outcome::Accepted | Outcome::InFlight { .. } => Claim::InFlight(answer),
        })
    }
}

/// What a claim got.
#[derive(Debug)]
pub enum Claim {
    /// The key is the caller's now.
    Fresh(Held),
    /// It was done before; the result is in the answer.
    Done(Answer),
    /// Another caller holds the key.
    InFlight(Answer),
    /// It was given up.
    Dead(Answer),
    /// The holder lost its lease after the effect began; an operator has to resolve it.
    Parked(Answer),
}

/// A key in the caller's hands. It is extended by itself as long as this is held.
///
/// Dropped without a word, the key is freed when its lease is over, or parked where the effect
/// had begun ([`Held::begin`]) and the queue parks; [`Held::release`] frees it at once.
#[derive(Debug)]
pub struct Held {
    queue: Queue,
    lease: Lease,
    fence: u64,
    recovery_points: std::collections::BTreeMap<String, Bytes>,
    lost: watch::Receiver<bool>,
    lease_length: Duration,
    tenant: String,
    /// Until when the caller wants the key: an automatic extension never asks for less.
    wanted: watch::Sender<Instant>,
    _extending: Extending,
}

/// The task that extends, ended with its claim.
#[derive(Debug)]
struct Extending(tokio::task::JoinHandle<()>);

impl Drop for Extending {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Held {
    fn new(claim: ClaimRequest, reply: proto::ClaimReply) -> Self {
        let lease = Lease(reply.lease);
        // A broker of release 0.1 does not tell, and does as it is told.
        let told = Some(reply.lease_ms).filter(|told| *told > 0).map(Duration::from_millis);
        let length = told.unwrap_or(claim.lease);
        let (sender, lost) = watch::channel(false);
        let wanted = watch::Sender::new(Instant::now());
        let task = extend(claim.queue.clone(), lease.clone(), length, wanted.subscribe(), sender);
        Self {
            queue: claim.queue,
            lease,
            fence: reply.fence,
            recovery_points: reply.recovery_points,
            lost,
            lease_length: length,
            tenant: reply.tenant,
            wanted,
            _extending: Extending(tokio::spawn(task)),
        }
    }

    /// Grows with every claim; of two claims of one key the larger is the newer.
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// The queue that the key was claimed in.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// How long the key stays taken, from the last extension on, if this process dies.
    pub fn lease_length(&self) -> Duration {
        self.lease_length
    }

    /// The tenant of the key. Empty with a broker of release 0.1.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// What an earlier claim of the key saved before it was released or lost.
    pub fn recovery_point(&self, name: &str) -> Option<&Bytes> {
        self.recovery_points.get(name)
    }

    /// Stores the result, for everybody who claims the key again.
    pub async fn complete(self, result: impl Into<Blob>) -> Result<Settled, Error> {
        self.finish(Done::new().result(result)).await
    }

    /// As [`Held::complete`], with follow-ups.
    pub async fn finish(self, done: impl Into<Done>) -> Result<Settled, Error> {
        self.settle(Settle::Done(done.into())).await
    }

    /// Frees the key: the next claim is fresh.
    pub async fn release(self) -> Result<Settled, Error> {
        self.settle(Settle::Release).await
    }

    /// Marks that a non-repeatable effect starts now. In a queue that parks, the key is not free
    /// again if the lease is lost from here on, until somebody resolves it.
    pub async fn begin(&self) -> Result<(), Error> {
        self.keep(Settle::Begin).await
    }

    /// Stores a recovery point, for the next claim of the key.
    pub async fn save(&self, name: &str, data: impl Into<Bytes>) -> Result<(), Error> {
        self.keep(Settle::Save { name: name.to_owned(), data: data.into() }).await
    }

    /// Keeps the key for at least so long from now on, or for its lease. It is done by itself as
    /// long as the claim is held; this is for a caller that is about to block for longer.
    pub async fn extend(&self, lease: Option<Duration>) -> Result<(), Error> {
        let now = Instant::now();
        let before = *self.wanted.borrow();
        let length = lease.unwrap_or_default().max(self.lease_length);
        let until = before.max(now + length);
        // Before it is asked: an automatic extension may go out meanwhile.
        self.wanted.send_replace(until);
        let extended = self.keep(Settle::Extend(Some(until - now))).await;
        if extended.is_err() {
            self.wanted.send_replace(before);
        }
        extended
    }

    pub fn is_lost(&self) -> bool {
        *self.lost.borrow()
    }

    /// Ends when the lease is lost. Whoever works under it should stop then.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> + 'static {
        let mut lost = self.lost.clone();
        async move {
            if lost.wait_for(|lost| *lost).await.is_err() {
                std::future::pending().await
            }
        }
    }

    /// Settles like [`Held::settle`], and fails if the lease was lost.
    async fn keep(&self, settle: Settle) -> Result<(), Error> {
        match self.settle(settle).await? {
            Settled::Ok { .. } => Ok(()),
            Settled::LeaseLost { .. } => Err(Error::lease_lost()),
        }
    }

    /// Says what becomes of the key, and can be asked again where the broker was not reached in
    /// the client's timeout: the same said again gets the same answer. A claim that was ended is
    /// not extended any more.
    pub async fn settle(&self, settle: Settle) -> Result<Settled, Error> {
        settle_one(&self.queue, &self.lease, settle).await
    }
}

/// Extends until the lease is lost, or its time is over without the broker being reached.
async fn extend(
    queue: Queue,
    lease: Lease,
    length: Duration,
    wanted: watch::Receiver<Instant>,
    lost: watch::Sender<bool>,
) {
    let mut until = Instant::now() + length;
    loop {
        tokio::time::sleep(length.mul_f64(EXTEND_AT).max(EXTEND_MIN)).await;
        // Counted from before the call: the broker counts from later.
        let asked = Instant::now();
        let length = length.max(wanted.borrow().saturating_duration_since(asked));
        let extended = settle_one(&queue, &lease, Settle::Extend(Some(length)));
        let end = until.max(*wanted.borrow());
        match tokio::time::timeout_at(end, extended).await {
            Ok(Ok(Settled::Ok { .. })) => until = asked + length,
            Ok(Ok(Settled::LeaseLost { .. })) => break,
            Ok(Err(error)) if error.is_retryable() && Instant::now() < end => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "a claim could not be extended");
                break;
            }
            Err(_) => break,
        }
    }
    lost.send_replace(true);
}

/// Settles one lease, retrying while the broker cannot be reached.
async fn settle_one(queue: &Queue, lease: &Lease, settle: Settle) -> Result<Settled, Error> {
    let bytes = settle.bytes();
    if bytes > SENT_BYTES_MAX {
        return Err(Error::too_large(bytes, SENT_BYTES_MAX));
    }
    let client = queue.client();
    let items = vec![settle.into_wire(0, lease.0.clone())];
    let request = proto::SettleRequest { queue: queue.name().to_owned(), items };
    let settle = || async {
        let request = request.clone();
        let mut reply = client.call(|mut rpc| async move { rpc.settle(request).await }).await?;
        Settled::of(reply.answers.pop().unwrap_or_default())
    };
    Retry::within(client.timeout()).run(settle).await
}
