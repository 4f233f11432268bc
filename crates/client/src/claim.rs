//! Claims: keys held by callers that do the work themselves.

mod extend;
mod lane;

use std::future::Future;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hapax_wire::{Blob, Code, proto};
use prost::Message as _;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::answer::{Answer, Outcome};
use crate::client::{Rpc, SENT_BYTES_MAX};
use crate::delivery::Lease;
use crate::error::Error;
use crate::message::{ms, since_epoch};
use crate::queue::Queue;
use crate::retry::{Retry, moment};
use crate::settle::{Done, Settle, Settled};
use extend::{Extending, extend};
pub(crate) use lane::Lane;
use lane::{Asked, Encoded};

/// The default lease of a claim.
const LEASE: Duration = Duration::from_secs(30);
/// The pauses of a claim between the rounds of its wait.
const ROUND_PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Time allowed beyond the requested wait.
const WAIT_SLACK: Duration = Duration::from_secs(10);

/// A request to claim a key: see [`Queue::claim`].
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    queue: Queue,
    /// Without its queue, which a stream has in the head of a frame.
    request: proto::ClaimRequest,
    lease: Duration,
    wait: Duration,
}

impl ClaimRequest {
    pub(crate) fn new(queue: &Queue, key: String) -> Self {
        let request = proto::ClaimRequest { key, ..Default::default() };
        Self { queue: queue.clone(), request, lease: LEASE, wait: Duration::ZERO }
    }

    /// The body of the operation, for the fingerprint. It is not stored. A second claim of the key
    /// with another body is a conflict.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.request.body = body.into();
        self
    }

    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.request.content_type = content_type.into();
        self
    }

    /// Adds a header that is stored with the claim and shown with its key.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.request.headers.insert(name.into(), value.into());
        self
    }

    /// Sets the fingerprint that distinguishes a retry from another operation, instead of the body.
    pub fn fingerprint(mut self, fingerprint: impl Into<String>) -> Self {
        self.request.fingerprint = Some(fingerprint.into());
        self
    }

    /// How long the key stays claimed if this process dies; 30 s by default. While the claim is
    /// held, its lease is extended automatically.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// The longest wait for the current holder of the key to end.
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

    /// Claims the key, or returns its state. Retries while the broker cannot be reached, for at
    /// most the client's timeout. All tries of a call have the same claim id: if the first one
    /// claimed the key and its answer was lost, the next gets the same lease.
    pub async fn take(mut self) -> Result<Claim, Error> {
        self.request.claim_id = self.queue.client().claim_lane().claim_id();
        self.request.lease_ms = Some(ms(self.lease));
        let wait_until = moment(Instant::now(), self.wait);
        let end = moment(wait_until, self.queue.client().timeout());
        let mut rounds = Retry::until(wait_until).pauses(ROUND_PAUSES.0, ROUND_PAUSES.1);
        loop {
            let asked = Instant::now();
            let reply = self.take_once(wait_until, end).await?;
            // The broker waits for at most 60 s, and the stream may have no room to wait in.
            if !lane::is_in_flight(&reply) || !rounds.pause(None).await {
                return self.taken(asked, reply);
            }
        }
    }

    /// Claims the key. If it is in flight, waits for as long as the broker does.
    async fn take_once(
        &self,
        wait_until: Instant,
        end: Instant,
    ) -> Result<proto::ClaimReply, Error> {
        let (client, request) = (self.queue.client(), &self.request);
        let encode = || Encoded { bytes: request.encode_to_vec(), lease: self.lease };
        let mut by_stream = (request.encoded_len() <= lane::BYTES_MAX).then(encode);
        let claim = || {
            // A claim that the stream has no room for now is made by a call.
            let by_stream = by_stream.take();
            async move {
                if let Some(encoded) = by_stream {
                    let lane = client.claim_lane();
                    let asked = lane.claim(&self.queue, encoded, wait_until, end).await;
                    if let Asked::Answered(answer) = asked {
                        return answer.and_then(unless_unavailable);
                    }
                }
                let left = wait_until.saturating_duration_since(Instant::now());
                let queue = self.queue.name().to_owned();
                let request = proto::ClaimRequest { queue, wait_ms: ms(left), ..request.clone() };
                // A call that hangs is repeated while there is time.
                let most = left.saturating_add(WAIT_SLACK);
                let most = most.min(end.saturating_duration_since(Instant::now()));
                let claim = |mut rpc: Rpc| async move { rpc.claim(request).await };
                // Boxed: a call is rare, and its future large.
                Box::pin(client.call_within(most, claim)).await
            }
        };
        Retry::until(end).run(claim).await
    }

    /// The answer to a claim that was sent first at `asked`.
    fn taken(self, asked: Instant, reply: proto::ClaimReply) -> Result<Claim, Error> {
        let answer = reply.answer.clone().unwrap_or_default();
        let is_fresh = answer.kind() == proto::AnswerKind::Fresh;
        let answer = Answer::of(answer)?;
        if is_fresh {
            return Ok(Claim::Fresh(Held::new(self, asked, reply)));
        }
        Ok(match answer.outcome {
            Outcome::Done { .. } => Claim::Done(answer),
            Outcome::Dead { .. } => Claim::Dead(answer),
            Outcome::Parked { .. } => Claim::Parked(answer),
            Outcome::Accepted | Outcome::InFlight { .. } => Claim::InFlight(answer),
        })
    }
}

/// The outcome of a claim.
#[derive(Debug)]
pub enum Claim {
    /// The caller holds the key now.
    Fresh(Held),
    /// It was done before; the result is in the answer.
    Done(Answer),
    /// Another caller holds the key.
    InFlight(Answer),
    /// It is dead.
    Dead(Answer),
    /// The holder lost its lease after the effect began; an operator has to resolve it.
    Parked(Answer),
}

/// A claimed key. Its lease is extended automatically as long as this value exists.
///
/// If it is dropped, the key is freed when its lease ends, or parked if the effect had begun
/// ([`Held::begin`]) and the queue parks. [`Held::release`] frees it at once.
#[derive(Debug)]
pub struct Held {
    queue: Queue,
    lease: Lease,
    fence: u64,
    recovery_points: std::collections::BTreeMap<String, Bytes>,
    lost: watch::Receiver<bool>,
    lease_length: Duration,
    /// When the claim was sent first: its lease is not older.
    asked: Instant,
    /// Whether the queue parks what has begun, if the broker knows.
    parks: Option<bool>,
    tenant: String,
    /// The time until which the caller wants the key; an automatic extension never shortens it.
    wanted: watch::Sender<Instant>,
    _extending: Extending,
}

impl Held {
    fn new(claim: ClaimRequest, asked: Instant, reply: proto::ClaimReply) -> Self {
        let lease = Lease(reply.lease);
        // A broker of release 0.1 does not return it, and uses the requested one.
        let told = Some(reply.lease_ms).filter(|told| *told > 0).map(Duration::from_millis);
        let length = told.unwrap_or(claim.lease);
        let (sender, lost) = watch::channel(false);
        let wanted = watch::Sender::new(Instant::now());
        let (queue, extended) = (claim.queue.clone(), lease.clone());
        let ask = move |length| {
            let (queue, lease) = (queue.clone(), extended.clone());
            async move { settle_one(&queue, &lease, Settle::Extend(Some(length))).await }
        };
        let now = Instant::now();
        let extension = extend(ask, now, length, wanted.subscribe(), sender);
        let extensions = claim.queue.client().claim_lane().extensions();
        let extending = extensions.add(moment(now, extend::pause(length)), extension);
        Self {
            queue: claim.queue,
            lease,
            fence: reply.fence,
            recovery_points: reply.recovery_points,
            lost,
            lease_length: length,
            asked,
            parks: reply.parks,
            tenant: reply.tenant,
            wanted,
            _extending: extending,
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

    /// How long the key stays claimed after the last extension if this process dies.
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

    /// Finishes the claim with a result that every later claim of the key gets.
    pub async fn complete(self, result: impl Into<Blob>) -> Result<Settled, Error> {
        self.finish(Done::new().result(result)).await
    }

    /// Like [`Held::complete`], with follow-up messages.
    pub async fn finish(self, done: impl Into<Done>) -> Result<Settled, Error> {
        self.settle(Settle::Done(done.into())).await
    }

    /// Frees the key: the next claim is fresh.
    pub async fn release(self) -> Result<Settled, Error> {
        self.settle(Settle::Release).await
    }

    /// Marks that a non-repeatable effect starts now. If the lease is lost after this, a queue with
    /// `on_lost = park` parks the key until an operator resolves it.
    pub async fn begin(&self) -> Result<(), Error> {
        self.keep(Settle::Begin).await
    }

    /// Whether [`Held::begin`] is needed before an effect. It is not in a queue that did not park
    /// when the key was claimed, as long as the lease cannot have ended yet: then it would only
    /// cost a round trip and a sync.
    pub fn must_begin(&self) -> bool {
        self.parks != Some(false) || self.asked.elapsed() >= self.lease_length / 2
    }

    /// Stores a recovery point, for the next claim of the key.
    pub async fn save(&self, name: &str, data: impl Into<Bytes>) -> Result<(), Error> {
        self.keep(Settle::Save { name: name.to_owned(), data: data.into() }).await
    }

    /// Extends the lease to at least this long from now, by default to its own length. Leases are
    /// extended automatically; this is for a caller that is about to block for longer.
    pub async fn extend(&self, lease: Option<Duration>) -> Result<(), Error> {
        let now = Instant::now();
        let before = *self.wanted.borrow();
        let length = lease.unwrap_or_default().max(self.lease_length);
        let until = before.max(moment(now, length));
        // Set before the call: an automatic extension may be sent meanwhile.
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

    /// Resolves when the lease is lost. Work under the lease should stop then.
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

    /// Settles the claim. If the broker was not reached within the client's timeout, the call can
    /// be repeated: the same settle gets the same answer. A claim that has ended is no longer
    /// extended.
    pub async fn settle(&self, settle: Settle) -> Result<Settled, Error> {
        settle_one(&self.queue, &self.lease, settle).await
    }
}

/// A partition that does not answer refuses a call as a whole, and a claim on a stream in its
/// place: both are errors, so that both are retried.
fn unless_unavailable(reply: proto::ClaimReply) -> Result<proto::ClaimReply, Error> {
    match reply.answer.as_ref().and_then(|answer| answer.problem.as_ref()) {
        Some(problem) if problem.code == Code::Unavailable.as_str() => {
            Err(Error::of_problem(problem.clone()))
        }
        _ => Ok(reply),
    }
}

/// Settles one lease, retrying while the broker cannot be reached.
async fn settle_one(queue: &Queue, lease: &Lease, settle: Settle) -> Result<Settled, Error> {
    let bytes = settle.bytes();
    if bytes > SENT_BYTES_MAX {
        return Err(Error::too_large(bytes, SENT_BYTES_MAX));
    }
    let client = queue.client();
    let end = moment(Instant::now(), client.timeout());
    let mut by_stream = bytes <= lane::BYTES_MAX;
    let settle = &settle;
    let settling = || {
        let by_stream = std::mem::take(&mut by_stream);
        async move {
            if by_stream {
                let lane = client.claim_lane();
                let asked = lane.settle(queue, &lease.0, settle.clone(), end).await;
                if let Asked::Answered(answer) = asked {
                    return answer;
                }
            }
            let items = vec![settle.clone().into_wire(0, lease.0.clone())];
            let request = proto::SettleRequest { queue: queue.name().to_owned(), items };
            let left = end.saturating_duration_since(Instant::now());
            let settle = |mut rpc: Rpc| async move { rpc.settle(request).await };
            // Boxed: a call is rare, and its future large.
            let mut reply = Box::pin(client.call_within(left, settle)).await?;
            Settled::of(reply.answers.pop().unwrap_or_default())
        }
    };
    Retry::until(end).run(settling).await
}
