//! The one stream that all claims of a client share, and their settles. Callers submit jobs and
//! wait for their answers; a separate task packs all waiting jobs into frames. It starts with the
//! first claim and ends when its client is dropped.
//!
//! When the connection breaks, what has no answer is sent again: a claim under its id gets the same
//! lease, a settle the same answer. A claim whose caller has gone waits no longer at the broker,
//! and is released if it was granted: nobody else knows its id. If the connection broke meanwhile,
//! it is sent again for that, for as long as its lease would last.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hapax_wire::{AnswerKind, lean, proto};
use prost::Message as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use super::extend::Extensions;
use crate::client::Client;
use crate::error::Error;
use crate::message::{ms, new_key};
use crate::queue::Queue;
use crate::retry::moment;
use crate::settle::{Settle, Settled};
use crate::stream::{Pipe, Protocol};

/// The most claims that may wait, the most other claims, and the most settles without an answer.
/// Each takes one of these for every 4 KiB of it, so that they bound the bytes too: 16 MiB of each
/// kind. Claims that wait keep neither others from the stream, nor the settles that they wait for.
/// The broker reads while there are fewer than 16,384.
const WINDOW: usize = 4_096;
const WINDOW_UNIT_BYTES: usize = 4 * 1_024;
/// Larger claims and settles are separate calls: others would wait behind them, and the cost of a
/// call is small beside their bytes.
pub(super) const BYTES_MAX: usize = 64 * 1_024;
/// Jobs packed at once.
const JOBS_MAX: usize = 1_024;

type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// The answer to a caller.
pub(super) enum Asked<T> {
    Answered(Result<T, Error>),
    /// The broker has no such stream: use a call.
    ByCall,
}

/// A `ClaimRequest` without its queue, its reference and its wait.
pub(super) struct Encoded {
    pub(super) bytes: Vec<u8>,
    /// How long it would be leased.
    pub(super) lease: Duration,
}

enum Job {
    Claim {
        tag: u64,
        queue: Arc<str>,
        claim: Encoded,
        /// Until when it may wait.
        until: Instant,
        reply: Reply<proto::ClaimReply>,
        room: OwnedSemaphorePermit,
    },
    Settle {
        tag: u64,
        queue: Arc<str>,
        lease: Bytes,
        settle: Settle,
        reply: Reply<Settled>,
        room: OwnedSemaphorePermit,
    },
    /// The caller of a claim has gone.
    Gone(u64),
    /// The caller has gone, and its lease must be released.
    Release { tag: u64, queue: Arc<str>, lease: Bytes },
}

/// The handle of the task.
#[derive(Debug)]
pub(crate) struct Lane {
    jobs: Mutex<Option<mpsc::UnboundedSender<Job>>>,
    /// The beginning of its claims' ids, which no other client has.
    name: String,
    tags: AtomicU64,
    /// For claims that may wait.
    waits: Arc<Semaphore>,
    claims: Arc<Semaphore>,
    settles: Arc<Semaphore>,
    shared: Arc<Shared>,
    extensions: Extensions,
}

#[derive(Debug, Default)]
struct Shared {
    /// Why there is no connection, for callers that time out meanwhile.
    trouble: Mutex<Option<Error>>,
    /// Whether the broker has no such stream. Tried once.
    is_unknown: AtomicBool,
}

impl Default for Lane {
    fn default() -> Self {
        Self {
            jobs: Mutex::default(),
            name: new_key(),
            tags: AtomicU64::default(),
            waits: Arc::new(Semaphore::new(WINDOW)),
            claims: Arc::new(Semaphore::new(WINDOW)),
            settles: Arc::new(Semaphore::new(WINDOW)),
            shared: Arc::default(),
            extensions: Extensions::default(),
        }
    }
}

impl Lane {
    /// Claims a key, and waits for it until then if there is room for that. Every call is one
    /// claim: it has an id that no other caller knows.
    pub(super) async fn claim(
        &self,
        queue: &Queue,
        claim: Encoded,
        until: Instant,
        end: Instant,
    ) -> Asked<proto::ClaimReply> {
        let bytes = claim.bytes.len();
        let room = Arc::clone(&self.waits).try_acquire_many_owned(units(bytes)).ok();
        let room = room.filter(|_| Instant::now() < until);
        let until = if room.is_some() { until } else { Instant::now() };
        let ask = |jobs: &mpsc::UnboundedSender<Job>, room| {
            let (tag, (reply, answer)) = (self.tag(), oneshot::channel());
            let (jobs, queue) = (jobs.clone(), Arc::clone(queue.shared_name()));
            // The task runs as long as this handle exists.
            let _ = jobs.send(Job::Claim { tag, queue: queue.clone(), claim, until, reply, room });
            Caller { tag, queue, answer: Some(answer), jobs }.answer()
        };
        self.ask(queue.client(), (room, &self.claims), bytes, end, ask).await
    }

    /// Settles a claim.
    pub(super) async fn settle(
        &self,
        queue: &Queue,
        lease: &Bytes,
        settle: Settle,
        end: Instant,
    ) -> Asked<Settled> {
        let bytes = settle.bytes();
        let ask = |jobs: &mpsc::UnboundedSender<Job>, room| {
            let (tag, (reply, answer)) = (self.tag(), oneshot::channel());
            let (queue, lease) = (Arc::clone(queue.shared_name()), lease.clone());
            let _ = jobs.send(Job::Settle { tag, queue, lease, settle, reply, room });
            async { answer.await.ok() }
        };
        self.ask(queue.client(), (None, &self.settles), bytes, end, ask).await
    }

    /// Submits a job when there is room for it in its window, if it has none yet, and waits for the
    /// answer. No answer means that the task gave it up.
    async fn ask<T, F>(
        &self,
        client: &Client,
        (room, window): (Option<OwnedSemaphorePermit>, &Arc<Semaphore>),
        bytes: usize,
        end: Instant,
        ask: impl FnOnce(&mpsc::UnboundedSender<Job>, OwnedSemaphorePermit) -> F,
    ) -> Asked<T>
    where
        F: Future<Output = Option<Result<T, Error>>>,
    {
        if self.shared.is_unknown.load(Ordering::Acquire) {
            return Asked::ByCall;
        }
        let start = Instant::now();
        let answered = async {
            let room = match room {
                Some(room) => room,
                None => Arc::clone(window).acquire_many_owned(units(bytes)).await.ok()?,
            };
            ask(&self.jobs(client), room).await
        };
        match tokio::time::timeout_at(end, answered).await {
            Ok(Some(answer)) => Asked::Answered(answer),
            Ok(None) if self.shared.is_unknown.load(Ordering::Acquire) => Asked::ByCall,
            Ok(None) => {
                let detail = "the tokio runtime of this client has ended";
                Asked::Answered(Err(Error::invalid(detail)))
            }
            Err(_) => {
                let trouble = self.shared.trouble().clone();
                let late = || Error::TimedOut(end.saturating_duration_since(start));
                Asked::Answered(Err(trouble.unwrap_or_else(late)))
            }
        }
    }

    /// The extensions of the claims that callers hold.
    pub(super) fn extensions(&self) -> &Extensions {
        &self.extensions
    }

    /// An id for a claim that no other has. A random one for each would cost a system call.
    pub(super) fn claim_id(&self) -> String {
        format!("{}-{}", self.name, self.tag())
    }

    fn tag(&self) -> u64 {
        self.tags.fetch_add(1, Ordering::Relaxed)
    }

    fn jobs(&self, client: &Client) -> mpsc::UnboundedSender<Job> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(jobs) = jobs.as_ref().filter(|jobs| !jobs.is_closed()) {
            return jobs.clone();
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        let task = Task {
            // The client itself would keep the lane alive, and the lane the task, for ever.
            pipe: Pipe::new(&client.detached(), Claims::default()),
            shared: Arc::clone(&self.shared),
            queue: "".into(),
            open: HashMap::new(),
        };
        tokio::spawn(task.run(receiver));
        *jobs = Some(sender.clone());
        sender
    }
}

/// What so many bytes take of a window.
fn units(bytes: usize) -> u32 {
    (bytes / WINDOW_UNIT_BYTES + 1) as u32
}

impl Shared {
    fn trouble(&self) -> std::sync::MutexGuard<'_, Option<Error>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A caller that waits for the answer to its claim. If it goes away, the claim is cancelled or
/// released.
struct Caller {
    tag: u64,
    queue: Arc<str>,
    /// Absent once it is taken.
    answer: Option<oneshot::Receiver<Result<proto::ClaimReply, Error>>>,
    jobs: mpsc::UnboundedSender<Job>,
}

impl Caller {
    async fn answer(mut self) -> Option<Result<proto::ClaimReply, Error>> {
        let answer = self.answer.as_mut()?.await.ok();
        self.answer = None;
        answer
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let Some(mut answer) = self.answer.take() else { return };
        answer.close();
        let tag = self.tag;
        let job = match answer.try_recv() {
            Ok(Ok(reply)) if is_granted(&reply) => {
                Job::Release { tag, queue: Arc::clone(&self.queue), lease: reply.lease }
            }
            Ok(_) => return,
            Err(_) => Job::Gone(tag),
        };
        let _ = self.jobs.send(job);
    }
}

/// Copies what a caller may keep for long: a part of a frame would keep the whole of it in memory.
fn own(reply: &mut proto::ClaimReply) {
    reply.lease = Bytes::copy_from_slice(&reply.lease);
    for point in reply.recovery_points.values_mut() {
        *point = Bytes::copy_from_slice(point);
    }
    let outcome = reply.answer.as_mut().and_then(|answer| answer.outcome.as_mut());
    outcome.into_iter().for_each(|outcome| own_blob(&mut outcome.result));
}

fn own_blob(blob: &mut Option<proto::Blob>) {
    if let Some(blob) = blob {
        blob.body = Bytes::copy_from_slice(&blob.body);
    }
}

fn is_granted(reply: &proto::ClaimReply) -> bool {
    reply.answer.as_ref().is_some_and(|answer| answer.kind() == AnswerKind::Fresh)
}

pub(super) fn is_in_flight(reply: &proto::ClaimReply) -> bool {
    reply.answer.as_ref().is_some_and(|answer| answer.kind() == AnswerKind::InFlight)
}

/// The stream, as far as it differs from others.
#[derive(Debug, Default)]
struct Claims {
    /// Until when claims without an answer may wait, by their references. Repeated later, they wait
    /// for what is left of it.
    waits: HashMap<u64, Instant>,
}

impl Protocol for Claims {
    const PATH: &'static str = "/hapax.v1.Hapax/Claims";

    fn open(&self) -> Option<Bytes> {
        None
    }

    fn again(&self, frame: &Bytes, is_open: &dyn Fn(u64) -> bool) -> Option<Bytes> {
        let mut frame = proto::ClaimsFrame::decode(frame.clone()).ok()?;
        frame.claims.retain(|claim| is_open(claim.r#ref));
        frame.settles.retain(|settle| is_open(settle.r#ref));
        if frame.claims.is_empty() && frame.settles.is_empty() {
            return None;
        }
        for claim in &mut frame.claims {
            if let Some(until) = self.waits.get(&claim.r#ref) {
                claim.wait_ms = ms(until.saturating_duration_since(Instant::now()));
            }
        }
        Some(frame.encode_to_vec().into())
    }
}

/// A claim or a settle without an answer.
struct Open {
    reference: u64,
    queue: Arc<str>,
    who: Who,
    /// A claim that was granted would be leased for so long.
    lease: Duration,
    /// Until when a claim whose caller has gone is sent again, to be released.
    kept_until: Option<Instant>,
    _room: Option<OwnedSemaphorePermit>,
}

impl Open {
    fn new(queue: Arc<str>, who: Who, room: Option<OwnedSemaphorePermit>) -> Self {
        let (reference, lease, kept_until) = (0, Duration::ZERO, None);
        Self { reference, queue, who, lease, kept_until, _room: room }
    }

    /// Whether it is sent again on the next connection.
    fn is_repeated(&mut self) -> bool {
        let now = Instant::now();
        match &self.who {
            Who::Claims(reply) if reply.is_closed() => {
                now < *self.kept_until.get_or_insert_with(|| moment(now, self.lease))
            }
            Who::Settles(reply) => !reply.is_closed(),
            Who::Claims(_) | Who::Nobody => true,
        }
    }
}

enum Who {
    Claims(Reply<proto::ClaimReply>),
    Settles(Reply<Settled>),
    /// The release of a lease whose caller has gone.
    Nobody,
}

impl Who {
    fn refuse(self, error: &Error) {
        match self {
            Self::Claims(reply) => drop(reply.send(Err(error.clone()))),
            Self::Settles(reply) => drop(reply.send(Err(error.clone()))),
            Self::Nobody => {}
        }
    }
}

struct Task {
    pipe: Pipe<Claims>,
    shared: Arc<Shared>,
    /// The queue of the frame that is being filled.
    queue: Arc<str>,
    /// By their tags.
    open: HashMap<u64, Open>,
}

impl Task {
    async fn run(mut self, mut jobs: mpsc::UnboundedReceiver<Job>) {
        let mut list = Vec::new();
        loop {
            let is_waiting = !self.open.is_empty();
            tokio::select! {
                count = jobs.recv_many(&mut list, JOBS_MAX) => {
                    if count == 0 {
                        return; // Nobody can wait for an answer any more.
                    }
                    // The runtime runs a task that was woken before those that are ready already.
                    // After them there are more jobs for the same frame.
                    tokio::task::yield_now().await;
                    list.drain(..).for_each(|job| self.start(job));
                    while let Ok(job) = jobs.try_recv() {
                        self.start(job);
                    }
                    self.pipe.flush();
                }
                reply = self.pipe.next(), if is_waiting => {
                    if let Err(error) = reply.and_then(|reply| self.take(reply)) {
                        self.trouble(&error);
                    }
                }
            }
            if self.shared.is_unknown.load(Ordering::Acquire) && self.open.is_empty() {
                return; // Callers use calls from now on.
            }
        }
    }

    fn start(&mut self, job: Job) {
        match job {
            Job::Claim { tag, queue, claim, until, reply, room } => {
                if reply.is_closed() {
                    return;
                }
                let wait = until.saturating_duration_since(Instant::now());
                let put = |frame: &mut Vec<u8>, reference| {
                    lean::put_claim(frame, reference, ms(wait), &claim.bytes);
                };
                let mut open = Open::new(queue, Who::Claims(reply), Some(room));
                open.lease = claim.lease;
                let added = self.add(tag, open, claim.bytes.len(), put);
                if let Some(reference) = added.filter(|_| !wait.is_zero()) {
                    self.pipe.protocol.waits.insert(reference, until);
                }
            }
            Job::Settle { tag, queue, lease, settle, reply, room } => {
                if reply.is_closed() {
                    return;
                }
                let bytes = settle.bytes();
                let put = |frame: &mut Vec<u8>, reference| settle.put(frame, reference, lease);
                self.add(tag, Open::new(queue, Who::Settles(reply), Some(room)), bytes, put);
            }
            Job::Gone(tag) => {
                if let Some(open) = self.open.get(&tag) {
                    self.leave(open.reference);
                }
            }
            Job::Release { tag, queue, lease } => self.release(tag, queue, lease),
        }
    }

    /// Adds a member of about this size to the current frame and returns its reference.
    fn add(
        &mut self,
        tag: u64,
        mut open: Open,
        bytes: usize,
        put: impl FnOnce(&mut Vec<u8>, u64),
    ) -> Option<u64> {
        if open.queue != self.queue {
            self.pipe.flush();
            self.queue = Arc::clone(&open.queue);
        }
        let head = |frame: &mut Vec<u8>| lean::frame_head(frame, &open.queue);
        match self.pipe.fill(bytes, tag, head, put) {
            Ok(reference) => {
                open.reference = reference;
                self.open.insert(tag, open);
                Some(reference)
            }
            Err(error) => {
                open.who.refuse(&error);
                None
            }
        }
    }

    /// The caller of a claim has gone. The broker still answers it.
    fn leave(&mut self, reference: u64) {
        if self.pipe.protocol.waits.remove(&reference).is_some() {
            self.pipe.flush(); // It may be in the frame that is being filled.
            let frame = proto::ClaimsFrame { leave: vec![reference], ..Default::default() };
            self.pipe.say(frame.encode_to_vec().into());
            // Repeated on another connection, it does not wait.
            self.pipe.protocol.waits.insert(reference, Instant::now());
        }
    }

    /// Releases a lease whose caller has gone.
    fn release(&mut self, tag: u64, queue: Arc<str>, lease: Bytes) {
        let put = |frame: &mut Vec<u8>, reference| Settle::Release.put(frame, reference, lease);
        self.add(tag, Open::new(queue, Who::Nobody, None), 0, put);
    }

    fn take(&mut self, reply: Bytes) -> Result<(), Error> {
        let malformed = |_| Error::malformed(lean::Malformed);
        let reply = proto::ClaimsReply::decode(reply).map_err(malformed)?;
        *self.shared.trouble() = None;
        for mut claim in reply.claims {
            own(&mut claim);
            let reference = claim.answer.as_ref().map_or(0, |answer| answer.r#ref);
            self.pipe.protocol.waits.remove(&reference);
            let Some((tag, open)) = self.answered(reference) else { continue };
            let Who::Claims(reply) = open.who else { continue };
            if let Err(Ok(unwanted)) = reply.send(Ok(claim))
                && is_granted(&unwanted)
            {
                self.release(tag, open.queue, unwanted.lease);
            }
        }
        for mut settled in reply.settled {
            let Some((_, open)) = self.answered(settled.r#ref) else { continue };
            if let Who::Settles(reply) = open.who {
                own_blob(&mut settled.result);
                let _ = reply.send(Settled::of(settled));
            }
        }
        self.pipe.flush();
        Ok(())
    }

    fn answered(&mut self, reference: u64) -> Option<(u64, Open)> {
        let tag = self.pipe.unanswered.answer(reference)?;
        Some((tag, self.open.remove(&tag)?))
    }

    /// The connection broke. Waiting callers get their answers from the next one, unless the error
    /// is permanent.
    fn trouble(&mut self, error: &Error) {
        self.pipe.flush();
        if error.is_retryable() {
            tracing::debug!(%error, "connecting again");
            *self.shared.trouble() = Some(error.clone());
            self.open.retain(|_, open| open.is_repeated());
            let (open, unanswered) = (&self.open, &mut self.pipe.unanswered);
            unanswered.retain(|tag| open.contains_key(&tag));
        } else {
            let is_unknown = self.pipe.is_unknown();
            self.shared.is_unknown.fetch_or(is_unknown, Ordering::AcqRel);
            self.pipe.hang_up();
            self.pipe.unanswered.give_up();
            for (_, open) in self.open.drain() {
                // Without an answer, callers repeat the request by a call.
                if !is_unknown {
                    open.who.refuse(error);
                }
            }
        }
        let unanswered = &self.pipe.unanswered;
        self.pipe.protocol.waits.retain(|reference, _| unanswered.is_open(*reference));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the task is told when a caller goes that has this answer, or none yet.
    fn left_behind(answer: Option<AnswerKind>) -> Option<Job> {
        let (jobs, mut told) = mpsc::unbounded_channel();
        let (reply, receiver) = oneshot::channel();
        let reply = match answer {
            None => Some(reply),
            Some(kind) => {
                let answer = Some(proto::Answer { kind: kind.into(), ..Default::default() });
                let lease = Bytes::from_static(b"lease");
                let granted = proto::ClaimReply { answer, lease, ..Default::default() };
                reply.send(Ok(granted)).unwrap();
                None
            }
        };
        drop(Caller { tag: 7, queue: "charges".into(), answer: Some(receiver), jobs });
        drop(reply);
        told.try_recv().ok()
    }

    #[test]
    fn a_caller_that_goes_leaves_no_lease_behind() {
        let released = left_behind(Some(AnswerKind::Fresh)).unwrap();
        let Job::Release { tag, queue, lease } = released else { panic!("not released") };
        assert_eq!((tag, &*queue, &lease[..]), (7, "charges", &b"lease"[..]));
        assert!(left_behind(Some(AnswerKind::InFlight)).is_none());
        assert!(matches!(left_behind(None), Some(Job::Gone(7))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_is_sent_again_for_a_caller_who_has_gone_as_long_as_its_lease_lasts() {
        let (reply, receiver) = oneshot::channel();
        let mut open = Open::new("charges".into(), Who::Claims(reply), None);
        open.lease = Duration::from_secs(30);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(open.is_repeated(), "somebody waits for it");
        drop(receiver);
        assert!(open.is_repeated());
        tokio::time::advance(Duration::from_secs(29)).await;
        assert!(open.is_repeated());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!open.is_repeated());
        let (reply, receiver) = oneshot::channel();
        let mut settle = Open::new("charges".into(), Who::Settles(reply), None);
        assert!(settle.is_repeated());
        drop(receiver);
        assert!(!settle.is_repeated(), "whoever settles knows that it has no answer");
    }

    #[test]
    fn what_is_asked_again_has_no_answer_and_waits_for_what_is_left() {
        let mut frame = Vec::new();
        lean::frame_head(&mut frame, "charges");
        for reference in [7, 8, 9] {
            let key = format!("k{reference}");
            let request = proto::ClaimRequest {
                key,
                wait_ms: 60_000,
                r#ref: reference,
                ..Default::default()
            };
            lean::put_nested(&mut frame, lean::CLAIM, &request);
        }
        Settle::Release.put(&mut frame, 10, Bytes::from_static(b"lease"));
        let frame = Bytes::from(frame);
        let soon = Instant::now() + Duration::from_secs(5);
        let claims = Claims { waits: [(8, soon), (9, Instant::now())].into() };
        let again = claims.again(&frame, &|reference| reference >= 8).unwrap();
        let again = proto::ClaimsFrame::decode(again).unwrap();
        assert_eq!(again.queue, "charges");
        let asked: Vec<_> = again.claims.iter().map(|claim| (claim.r#ref, &*claim.key)).collect();
        assert_eq!(asked, [(8, "k8"), (9, "k9")]);
        assert!((1..=5_000).contains(&again.claims[0].wait_ms), "{:?}", again.claims[0]);
        assert_eq!(again.claims[1].wait_ms, 0);
        assert_eq!(again.settles[0].r#ref, 10);
        assert_eq!(claims.again(&frame, &|_| false), None);
    }
    /// A task without a connection.
    fn task() -> Task {
        let client = Client::connect("http://127.0.0.1:1").unwrap();
        Task {
            pipe: Pipe::new(&client, Claims::default()),
            shared: Arc::default(),
            queue: "".into(),
            open: HashMap::new(),
        }
    }

    fn room(window: &Arc<Semaphore>) -> OwnedSemaphorePermit {
        Arc::clone(window).try_acquire_owned().unwrap()
    }

    impl Task {
        fn claim(&mut self, tag: u64, queue: &str, wait: Duration) -> Answered<proto::ClaimReply> {
            let (reply, answer) = oneshot::channel();
            let request = proto::ClaimRequest { key: format!("k{tag}"), ..Default::default() };
            let (bytes, lease) = (request.encode_to_vec(), Duration::from_secs(1));
            let (queue, claim) = (queue.into(), Encoded { bytes, lease });
            let (until, room) = (Instant::now() + wait, room(&Arc::new(Semaphore::new(1))));
            self.start(Job::Claim { tag, queue, claim, until, reply, room });
            answer
        }

        fn settle(&mut self, tag: u64, window: &Arc<Semaphore>) -> Answered<Settled> {
            let (reply, answer) = oneshot::channel();
            self.start(settle(tag, reply, window));
            answer
        }
    }

    type Answered<T> = oneshot::Receiver<Result<T, Error>>;

    fn settle(tag: u64, reply: Reply<Settled>, window: &Arc<Semaphore>) -> Job {
        let (queue, lease, room) = ("charges".into(), Bytes::from_static(b"lease"), room(window));
        Job::Settle { tag, queue, lease, settle: Settle::Release, reply, room }
    }

    #[tokio::test]
    async fn a_settle_whose_caller_has_gone_is_not_sent_and_makes_room() {
        let (mut task, window) = (task(), Arc::new(Semaphore::new(2)));
        let (reply, receiver) = oneshot::channel();
        drop(receiver);
        task.start(settle(1, reply, &window));
        assert!(task.open.is_empty() && task.pipe.unanswered.len() == 0);
        assert_eq!(window.available_permits(), 2);
        // One that is on its way is not sent again, and those beside it are.
        drop(task.settle(2, &window));
        let _waits = task.settle(3, &window);
        assert_eq!(window.available_permits(), 0, "the broker has both");
        task.trouble(&Error::TimedOut(Duration::ZERO));
        assert_eq!(task.open.keys().collect::<Vec<_>>(), [&3]);
        assert_eq!((task.pipe.unanswered.len(), window.available_permits()), (1, 1));
    }

    #[tokio::test]
    async fn those_that_wait_are_told_why_there_will_be_no_answer() {
        let (mut task, window) = (task(), Arc::new(Semaphore::new(1)));
        let mut claimed = task.claim(1, "charges", Duration::ZERO);
        let mut settled = task.settle(2, &window);
        task.trouble(&Error::invalid("refused for good"));
        assert!(matches!(claimed.try_recv().unwrap(), Err(Error::Invalid(_))));
        assert!(matches!(settled.try_recv().unwrap(), Err(Error::Invalid(_))));
        assert_eq!((task.pipe.unanswered.len(), window.available_permits()), (0, 1));
    }

    #[tokio::test]
    async fn a_frame_is_of_one_queue() {
        let mut task = task();
        let queues = ["charges", "charges", "refunds", "charges"];
        let claims = (0..).zip(queues);
        let _answers: Vec<_> =
            claims.map(|(tag, queue)| task.claim(tag, queue, Duration::ZERO)).collect();
        task.pipe.flush();
        let frames = task.pipe.unanswered.frames();
        let frames = frames.map(|frame| proto::ClaimsFrame::decode(frame.clone()).unwrap());
        let frames: Vec<_> = frames.map(|frame| (frame.queue, frame.claims.len())).collect();
        let expected = [("charges", 2), ("refunds", 1), ("charges", 1)];
        assert_eq!(frames, expected.map(|(queue, claims)| (queue.to_owned(), claims)));
    }

    #[tokio::test]
    async fn a_claim_whose_caller_has_gone_does_not_wait_on_the_next_connection() {
        let mut task = task();
        drop(task.claim(1, "charges", Duration::from_secs(60)));
        task.pipe.flush();
        task.start(Job::Gone(1));
        task.trouble(&Error::TimedOut(Duration::ZERO));
        let frame = task.pipe.unanswered.frames().next().unwrap();
        let again = task.pipe.protocol.again(frame, &|_| true).unwrap();
        let again = proto::ClaimsFrame::decode(again).unwrap();
        assert_eq!(again.claims[0].wait_ms, 0, "it is sent again to be released");
    }

    #[test]
    fn what_is_large_takes_more_of_a_window() {
        assert_eq!([0, 4_095, 4_096, BYTES_MAX].map(units), [1, 1, 2, 17]);
    }
}
