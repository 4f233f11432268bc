//! The Claims stream: claims and settles of claims up, their answers down. One task does both, as
//! with sends: it takes all frames that have arrived, submits their claims and their settles as one
//! list each, and sends all answers that are ready. A claim whose key another caller holds waits
//! aside, so that everything else goes on; it is made again, in a list, when the key may be free,
//! and its wait ends with the stream. While the caller does not read its answers, the task is not
//! polled and reads no more.

mod waiting;

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use hapax_core::{Answer, Claim, Command, Content, Settled, Time};
use hapax_wire::{lean, proto};
use tonic::Status;

use super::intake::{Admission, Intake};
use super::outbox::Outbox;
use super::part::{Part, RESULT_BYTES_MAX, WithResult, no_room};
use super::status::{malformed, status, stopping};
use super::work::{put_refusal as put_unsettled, verb};
use crate::auth::{Action, Principal};
use crate::doors::shape::{self, some};
use crate::engine::{List, Listed, Room};
use crate::problem::Problem;
use crate::service::{Admitted, Claimed, Permit, Service, Settles, into_answer, revoked};
use waiting::{Again, Patience, Waited, Waiting};

/// Claims and settles of one stream without an answer, and the bytes of those that are with the
/// writers: more are not read. Claims that wait count too.
const UNANSWERED_MAX: usize = 16_384;
const UNANSWERED_BYTES_MAX: usize = 4 * 1_024 * 1_024;
/// Claims and settles submitted at once.
const GATHERED_MAX: usize = 4_096;
/// A frame down is about this large; a larger one has a single answer.
const FRAME_BYTES: usize = 32 * 1_024;

type Event = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(super) struct ClaimsStream {
    service: Service,
    principal: Arc<Principal>,
    intake: Intake,
    /// Ready when the broker stops: then no more is read.
    draining: Event,
    /// Ready when the caller's token is not known any more.
    revoked: Event,
    /// Why no more is read, until it was sent to the caller.
    ending: Option<Problem>,
    /// The permits of the previous frame: most streams use one queue.
    permits: Option<Permits>,
    outbox: Outbox<News>,
    arrived: Vec<News>,
    /// Answers to claims that no frame had yet.
    claimed: VecDeque<Ready>,
    settled: VecDeque<Part<Settled>>,
    /// Encoded refusals that did not need a writer.
    refusals: Vec<u8>,
    waiting: Waiting,
    /// Claims that were answered with results for which there was no room: they are made again
    /// when the answers before them were read, as many as have room then.
    without_room: VecDeque<Again>,
    room_for: usize,
    /// What the writers have.
    unanswered: usize,
    unanswered_bytes: usize,
    results: Arc<Room>,
}

/// What the caller may do with the keys of a queue.
#[derive(Clone)]
struct Permits {
    queue: Box<str>,
    claim: Result<Permit, Problem>,
    settle: Result<Permit, Problem>,
}

impl Permits {
    /// Whether both permits allow one list.
    fn are_as(&self, other: &Self) -> bool {
        self.queue == other.queue
            && self.claim.is_ok() == other.claim.is_ok()
            && self.settle.is_ok() == other.settle.is_ok()
    }
}

/// What writers report to the stream.
enum News {
    Claimed(Decided),
    Settled(Part<Settled>),
}

/// A claim that the writers have.
struct Asked {
    number: u64,
    /// If it may wait.
    patience: Option<Box<Patience>>,
}

/// The answers of one partition to a list of claims.
struct Decided {
    permit: Permit,
    asked: Vec<Asked>,
    listed: Result<Listed, Problem>,
    /// How many bytes each claim counts for.
    each_bytes: usize,
}

/// An answer to be encoded.
struct Ready {
    number: u64,
    permit: Permit,
    claimed: Result<Claimed, Problem>,
    /// The bytes of its result, to be returned to the budget.
    result_bytes: usize,
}

impl ClaimsStream {
    pub(super) fn new(service: Service, principal: Arc<Principal>, intake: Intake) -> Self {
        Self {
            intake,
            draining: Box::pin(service.engine().draining()),
            revoked: Box::pin(service.revoked(&principal)),
            ending: None,
            service,
            principal,
            permits: None,
            outbox: Outbox::default(),
            arrived: Vec::new(),
            claimed: VecDeque::new(),
            settled: VecDeque::new(),
            refusals: Vec::new(),
            waiting: Waiting::default(),
            without_room: VecDeque::new(),
            room_for: GATHERED_MAX,
            unanswered: 0,
            unanswered_bytes: 0,
            results: Room::of_stream(RESULT_BYTES_MAX),
        }
    }

    /// Takes the frames that have arrived and submits their claims and settles.
    fn take(&mut self, context: &mut Context<'_>) -> Result<(), Status> {
        if self.ending.is_none() && !self.intake.is_ended() {
            if self.draining.as_mut().poll(context).is_ready() {
                self.end(stopping());
            } else if self.revoked.as_mut().poll(context).is_ready() {
                self.end(revoked());
            }
        }
        let mut list = Unsubmitted::default();
        while self.unanswered + self.waits() + list.len() < UNANSWERED_MAX
            && self.unanswered_bytes + list.bytes < UNANSWERED_BYTES_MAX
            && self.refusals.len() < FRAME_BYTES
        {
            let Poll::Ready(next) = self.intake.poll(context) else { break };
            let Some(frame) = next? else { break };
            self.read(frame, &mut list)?;
            if list.len() >= GATHERED_MAX {
                self.hand_over(&mut list);
            }
        }
        self.hand_over(&mut list);
        Ok(())
    }

    /// How many claims wait.
    fn waits(&self) -> usize {
        self.waiting.len() + self.without_room.len()
    }

    /// Reads no more; what the writers have is answered. Who waits asks again elsewhere.
    fn end(&mut self, why: Problem) {
        self.intake.end();
        self.waiting.clear();
        self.without_room.clear();
        self.ending = Some(why);
    }

    fn read(
        &mut self,
        (bytes, mut memory): Admission,
        list: &mut Unsubmitted,
    ) -> Result<(), Status> {
        let mut frame = lean::ClaimsFrame::read(&bytes).map_err(malformed)?;
        frame.leave.iter().for_each(|number| self.waiting.leave(*number));
        if frame.is_empty() {
            return Ok(());
        }
        let permits = self.permits_for(frame.queue);
        // Also if the caller's permissions changed since the previous frame.
        if list.permits.as_ref().is_some_and(|before| !before.are_as(&permits)) {
            self.hand_over(list);
        }
        if list.claims.commands.capacity() == 0 {
            list.claims = self.service.engine().empty_list();
        }
        while let Some(claim) = frame.next_claim().map_err(malformed)? {
            self.read_claim(&permits, &claim, &mut memory, list);
        }
        while let Some(settle) = frame.next_settle().map_err(malformed)? {
            self.read_settle(&permits, &settle, list)?;
        }
        list.permits = Some(permits);
        list.bytes += bytes.len();
        list.memory.push(memory);
        Ok(())
    }

    fn permits_for(&mut self, queue: &str) -> Permits {
        let authorise = |action| match self.service.is_current(&self.principal) {
            true => self.service.authorise(&self.principal, action, queue),
            false => Err(revoked()),
        };
        if let Some(known) = &self.permits
            && *known.queue == *queue
            && self.service.is_current(&self.principal)
        {
            return known.clone();
        }
        let (claim, settle) = (authorise(Action::Claim), authorise(Action::Work));
        let permits = Permits { queue: queue.into(), claim, settle };
        self.permits = Some(permits.clone());
        permits
    }

    fn read_claim(
        &mut self,
        permits: &Permits,
        request: &lean::Claim<'_>,
        memory: &mut Admitted,
        list: &mut Unsubmitted,
    ) {
        let number = request.reference;
        let claim = permits.claim.as_ref().map_err(Clone::clone).and_then(|permit| {
            if !request.queue.is_empty() && *request.queue != *permits.queue {
                let detail = "the queue of a claim on a stream is that of its frame";
                return Err(Problem::invalid(detail));
            }
            command(&self.service, permit, request)
        });
        match claim {
            Ok(claim) => {
                let patience = (request.wait_ms > 0).then(|| {
                    let wait = Duration::from_millis(request.wait_ms);
                    // Held while the claim waits, which may be longer than its frame lives.
                    let memory = memory.split(request.bytes());
                    Box::new(self.waiting.patience(number, claim.clone(), wait, memory))
                });
                list.claims.push(Asked { number, patience }, Command::Claim(Box::new(claim)));
            }
            Err(problem) => put_refusal(&mut self.refusals, number, &problem),
        }
    }

    fn read_settle(
        &mut self,
        permits: &Permits,
        settle: &lean::Settle<'_>,
        list: &mut Unsubmitted,
    ) -> Result<(), Status> {
        let verb = verb(&self.service, &self.principal, settle).map_err(malformed)?;
        let permit = permits.settle.as_ref().map_err(Clone::clone);
        let opened = permit.and_then(|permit| Ok(self.service.open(permit, settle.lease, verb?)));
        match opened {
            Ok(opened) => {
                if list.settles.is_empty() {
                    list.settles = Settles::new(&self.service);
                }
                list.settles.push(settle.reference, opened);
            }
            Err(problem) => put_unsettled(&mut self.refusals, settle.reference, &problem),
        }
        Ok(())
    }

    fn hand_over(&mut self, list: &mut Unsubmitted) {
        let count = list.len();
        let Unsubmitted { permits, claims, settles, bytes, memory } = std::mem::take(list);
        let (Some(permits), 1..) = (permits, count) else { return };
        let each_bytes = bytes.div_ceil(count);
        self.unanswered += count;
        self.unanswered_bytes += count * each_bytes;
        // Memory is returned when everything submitted is answered.
        let memory = Arc::new(memory);
        if let (Ok(permit), false) = (&permits.claim, claims.is_empty()) {
            self.start_claims(permit, claims, each_bytes, Arc::clone(&memory));
        }
        if let (Ok(permit), false) = (&permits.settle, settles.is_empty()) {
            let (outbox, results) = (self.outbox.clone(), Arc::clone(&self.results));
            let reply = move |numbers: Vec<u64>, listed: Result<Listed, Problem>| {
                let _until_now = &memory;
                let part = Part::new(numbers, listed, Arc::clone(&results), each_bytes);
                outbox.push(News::Settled(part));
            };
            self.service.start_settle(permit, settles, &self.results, reply);
        }
    }

    /// Hands over claims, with memory that is given back when they are answered.
    fn start_claims(
        &self,
        permit: &Permit,
        claims: List<Asked>,
        each_bytes: usize,
        memory: Arc<Vec<Admitted>>,
    ) {
        let (outbox, permit_of) = (self.outbox.clone(), permit.clone());
        let reply = move |asked: Vec<Asked>, listed: Result<Listed, Problem>| {
            let _until_now = &memory;
            let permit = permit_of.clone();
            outbox.push(News::Claimed(Decided { permit, asked, listed, each_bytes }));
        };
        self.service.start_claim(permit, claims, &self.results, reply);
    }

    /// Takes over what the writers said.
    fn collect(&mut self, context: &Context<'_>) {
        self.outbox.swap(&mut self.arrived, context.waker());
        for news in std::mem::take(&mut self.arrived) {
            let (count, each_bytes) = match &news {
                News::Claimed(decided) => (decided.asked.len(), decided.each_bytes),
                News::Settled(part) => (part.count(), part.each_bytes),
            };
            self.unanswered -= count;
            self.unanswered_bytes -= count * each_bytes;
            match news {
                News::Claimed(decided) => self.decided(decided),
                News::Settled(part) => self.settled.push_back(part),
            }
        }
    }

    /// Answers claims, and lets those wait that may.
    fn decided(&mut self, Decided { permit, asked, listed, .. }: Decided) {
        let (outcomes, omitted) = match listed {
            Ok(Listed { outcomes, omitted }) => (outcomes, omitted),
            Err(problem) => {
                for Asked { number, .. } in asked {
                    self.answer(number, &permit, Err(problem.clone()), 0);
                }
                return;
            }
        };
        // Next time as many as fitted, and more while all do.
        self.room_for = match omitted.len() {
            0 => (2 * self.room_for).min(GATHERED_MAX),
            omitted => asked.len().saturating_sub(omitted).max(1),
        };
        let mut omitted = omitted.into_iter().peekable();
        assert_eq!(asked.len(), outcomes.len(), "everything that was asked has an answer");
        for (place, (asked, outcome)) in asked.into_iter().zip(outcomes).enumerate() {
            let is_omitted = omitted.next_if_eq(&place).is_some();
            self.decided_one(&permit, asked, into_answer(outcome), is_omitted);
        }
    }

    fn decided_one(&mut self, permit: &Permit, asked: Asked, answer: Answer, is_omitted: bool) {
        let Asked { number, mut patience } = asked;
        let waits = patience.as_mut().map_or(Ok(false), |it| it.waits_after(&answer));
        match (waits, patience) {
            (Err(problem), _) => self.answer(number, permit, Err(problem), 0),
            (Ok(true), Some(patience)) => {
                // A stream that ends leaves it without an answer: it is asked again elsewhere.
                if self.ending.is_none() {
                    self.waiting.push(&self.service, permit, number, patience, answer);
                }
            }
            (Ok(_), Some(patience)) if is_omitted && patience.has_time() => {
                if self.ending.is_none() {
                    self.without_room.push_back((permit.clone(), number, patience));
                }
            }
            _ if is_omitted => self.answer(number, permit, Err(no_room()), 0),
            _ => {
                let bytes = answer.result_bytes();
                let claimed = self.service.claimed(permit, answer);
                self.answer(number, permit, Ok(claimed), bytes);
            }
        }
    }

    fn answer(
        &mut self,
        number: u64,
        permit: &Permit,
        claimed: Result<Claimed, Problem>,
        result_bytes: usize,
    ) {
        self.waiting.forget(number);
        self.claimed.push_back(Ready { number, permit: permit.clone(), claimed, result_bytes });
    }

    /// Makes claims again that have waited.
    fn waited(&mut self, context: &mut Context<'_>) {
        let mut again = Vec::new();
        while again.len() < GATHERED_MAX
            && let Poll::Ready(Some(waited)) = self.waiting.poll(context)
        {
            match waited {
                Waited::Again(claim) => again.push(claim),
                Waited::Over(permit, number, answer) => {
                    let claimed = answer.map(|answer| self.service.claimed(&permit, answer));
                    self.answer(number, &permit, claimed, 0);
                }
            }
        }
        if again.len() == GATHERED_MAX {
            context.waker().wake_by_ref(); // There may be more.
        }
        if self.claimed.is_empty() && self.settled.is_empty() {
            let room_for = self.room_for.min(self.without_room.len());
            again.extend(self.without_room.drain(..room_for));
        }
        let mut again = again.into_iter().peekable();
        while let Some((permit, ..)) = again.peek() {
            let permit = permit.clone();
            let mut claims = self.service.engine().empty_list();
            while let Some((_, number, patience)) =
                again.next_if(|(other, ..)| other.queue() == permit.queue())
            {
                let claim = Command::Claim(Box::new(patience.claim.clone()));
                claims.push(Asked { number, patience: Some(patience) }, claim);
            }
            self.unanswered += claims.len();
            self.start_claims(&permit, claims, 0, Arc::default());
        }
    }

    /// The next frame down, if there is anything to send.
    fn reply(&mut self) -> Option<Vec<u8>> {
        let mut frame = std::mem::take(&mut self.refusals);
        while frame.len() < FRAME_BYTES
            && let Some(ready) = self.claimed.pop_front()
        {
            let Ready { number, permit, claimed, result_bytes } = ready;
            self.results.give_back(result_bytes);
            match claimed {
                Ok(claimed) => {
                    let reply = shape::claimed(number, &permit, claimed);
                    lean::put_nested(&mut frame, lean::CLAIMED, &reply);
                }
                Err(problem) => put_refusal(&mut frame, number, &problem),
            }
        }
        while frame.len() < FRAME_BYTES
            && let Some(part) = self.settled.front_mut()
        {
            part.put(&mut frame, FRAME_BYTES);
            if let Some(read) = self.settled.pop_front_if(|part| part.is_empty()) {
                self.service.engine().reuse(read.into_list());
            }
        }
        (!frame.is_empty()).then_some(frame)
    }
}

fn put_refusal(frame: &mut Vec<u8>, number: u64, problem: &Problem) {
    let answer = Some(shape::refused(number, problem));
    let reply = proto::ClaimReply { answer, ..proto::ClaimReply::default() };
    lean::put_nested(frame, lean::CLAIMED, &reply);
}

/// What a request to claim a key asks for.
pub(super) fn command(
    service: &Service,
    permit: &Permit,
    it: &lean::Claim<'_>,
) -> Result<Claim, Problem> {
    // A claim needs a key in any queue, so a missing key is an empty one.
    hapax_wire::key::check(it.key)?;
    let mut builder = Content::builder(it.key).content_type(some(it.content_type));
    for (name, value) in &it.headers {
        builder = builder.header(name, value);
    }
    let (content, recipe) = (builder.build(b"")?, service.recipe());
    let own = shape::own_fingerprint(recipe, "fingerprint", it.fingerprint)?;
    let fingerprint = own.unwrap_or_else(|| recipe.fingerprint(it.body, None));
    let mut claim = Claim::new(recipe, permit.queue().clone(), content, fingerprint);
    claim.lease_ms = it.lease_ms;
    claim.worker = it.worker.into();
    claim.issued_at = it.issued_at_ms.map(Time);
    claim.claim_id = some(it.claim_id).map(Arc::from);
    Ok(claim)
}

/// Claims and settles of one queue that were read and not yet submitted.
#[derive(Default)]
struct Unsubmitted {
    permits: Option<Permits>,
    claims: List<Asked>,
    settles: Settles<u64>,
    bytes: usize,
    memory: Vec<Admitted>,
}

impl Unsubmitted {
    fn len(&self) -> usize {
        self.claims.len() + self.settles.len()
    }
}

impl Stream for ClaimsStream {
    type Item = Result<Vec<u8>, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let stream = self.get_mut();
        // The rest of the last answers first: until they are sent no more is read.
        if let Some(frame) = stream.reply() {
            return Poll::Ready(Some(Ok(frame)));
        }
        if let Err(status) = stream.take(context) {
            return Poll::Ready(Some(Err(status)));
        }
        stream.collect(context);
        stream.waited(context);
        if let Some(frame) = stream.reply() {
            return Poll::Ready(Some(Ok(frame)));
        }
        if !stream.intake.is_ended() || stream.unanswered + stream.waits() > 0 {
            return Poll::Pending;
        }
        Poll::Ready(stream.ending.take().map(|why| Err(status(&why))))
    }
}
