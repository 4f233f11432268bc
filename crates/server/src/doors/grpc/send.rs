//! The Send stream: frames of messages up, frames of answers down. One task does both. It takes all
//! frames that have arrived, submits their messages as one list, and sends all answers that are
//! ready. While the caller does not read its answers, the task is not polled and reads no more: a
//! stalled caller costs only its messages in flight, which are bounded.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use hapax_core::{Answer, Command};
use hapax_wire::lean;
use tonic::Status;

use super::intake::{Admission, Intake};
use super::outbox::Outbox;
use super::part::{Part, RESULT_BYTES_MAX};
use super::status::{malformed, status, stopping};
use crate::auth::{Action, Principal};
use crate::doors::shape;
use crate::engine::{List, Listed, Room};
use crate::problem::Problem;
use crate::service::{Admitted, Permit, Service, revoked};

/// Messages of one stream that wait for their answers, and their bytes: more are not read.
const UNANSWERED_MAX: usize = 16_384;
const UNANSWERED_BYTES_MAX: usize = 4 * 1_024 * 1_024;
/// Messages submitted at once.
const GATHERED_MAX: usize = 4_096;
/// A frame down is about this large; a larger one has a single answer.
const FRAME_BYTES: usize = 32 * 1_024;

type Event = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(super) struct SendStream {
    service: Service,
    principal: Arc<Principal>,
    intake: Intake,
    /// Ready when the broker stops: then no more is read.
    draining: Event,
    /// Ready when the caller's token is not known any more.
    revoked: Event,
    /// Why no more is read, until it was sent to the caller.
    ending: Option<Problem>,
    /// The permit of the previous frame: most streams use one queue.
    permit: Option<Permit>,
    outbox: Outbox<Part<Answer>>,
    /// Outcomes of the writers, and where the next frame continues.
    parts: VecDeque<Part<Answer>>,
    arrived: Vec<Part<Answer>>,
    /// Encoded refusals that did not need a writer.
    refusals: Vec<u8>,
    unanswered: usize,
    unanswered_bytes: usize,
    results: Arc<Room>,
}

impl SendStream {
    pub(super) fn new(service: Service, principal: Arc<Principal>, intake: Intake) -> Self {
        Self {
            intake,
            draining: Box::pin(service.engine().draining()),
            revoked: Box::pin(service.revoked(&principal)),
            ending: None,
            service,
            principal,
            permit: None,
            outbox: Outbox::default(),
            parts: VecDeque::new(),
            arrived: Vec::new(),
            refusals: Vec::new(),
            unanswered: 0,
            unanswered_bytes: 0,
            results: Room::of_stream(RESULT_BYTES_MAX),
        }
    }

    /// Takes the frames that have arrived and submits their messages.
    fn take(&mut self, context: &mut Context<'_>) -> Result<(), Status> {
        if self.ending.is_none() && !self.intake.is_ended() {
            if self.draining.as_mut().poll(context).is_ready() {
                self.end(stopping());
            } else if self.revoked.as_mut().poll(context).is_ready() {
                self.end(revoked());
            }
        }
        let mut list = Unsubmitted::default();
        while self.unanswered + list.sends.len() < UNANSWERED_MAX
            && self.unanswered_bytes + list.bytes < UNANSWERED_BYTES_MAX
            && self.refusals.len() < FRAME_BYTES
        {
            let Poll::Ready(next) = self.intake.poll(context) else { break };
            let Some(frame) = next? else { break };
            self.read(frame, &mut list)?;
            if list.sends.len() >= GATHERED_MAX {
                self.hand_over(&mut list);
            }
        }
        self.hand_over(&mut list);
        Ok(())
    }

    /// Reads no more; submitted messages are still answered.
    fn end(&mut self, why: Problem) {
        self.intake.end();
        self.ending = Some(why);
    }

    fn read(&mut self, (bytes, memory): Admission, list: &mut Unsubmitted) -> Result<(), Status> {
        let mut frame = lean::Frame::read(&bytes).map_err(malformed)?;
        let permit = match self.permit_for(frame.queue) {
            Ok(permit) => permit,
            Err(problem) => {
                while let Some(message) = frame.next().map_err(malformed)? {
                    self.refuse(message.reference, &problem);
                }
                return Ok(());
            }
        };
        if list.permit.as_ref().is_some_and(|before| before.queue() != permit.queue()) {
            self.hand_over(list);
        }
        if list.sends.commands.capacity() == 0 {
            list.sends = self.service.engine().empty_list();
        }
        while let Some(message) = frame.next().map_err(malformed)? {
            match shape::send(self.service.recipe(), permit.queue(), &message) {
                Ok(send) => list.sends.push(message.reference, Command::Send(send)),
                Err(problem) => self.refuse(message.reference, &problem),
            }
        }
        list.permit = Some(permit);
        list.bytes += bytes.len();
        list.memory.push(memory);
        Ok(())
    }

    fn permit_for(&mut self, queue: &str) -> Result<Permit, Problem> {
        if !self.service.is_current(&self.principal) {
            return Err(revoked());
        }
        if let Some(permit) = self.permit.as_ref().filter(|known| *known.queue().queue == *queue) {
            return Ok(permit.clone());
        }
        let permit = self.service.authorise(&self.principal, Action::Send, queue)?;
        self.permit = Some(permit.clone());
        Ok(permit)
    }

    fn refuse(&mut self, number: u64, problem: &Problem) {
        put_refusal(&mut self.refusals, number, problem);
    }

    fn hand_over(&mut self, list: &mut Unsubmitted) {
        let Unsubmitted { permit, sends, bytes, memory } = std::mem::take(list);
        let (Some(permit), false) = (permit, sends.is_empty()) else { return };
        let count = sends.len();
        let each_bytes = bytes.div_ceil(count);
        let outbox = self.outbox.clone();
        // Memory is returned when everything submitted is answered.
        let memory = Arc::new(memory);
        let results = Arc::clone(&self.results);
        let reply = move |numbers: Vec<u64>, listed: Result<Listed, Problem>| {
            let _until_now = &memory;
            outbox.push(Part::new(numbers, listed, Arc::clone(&results), each_bytes));
        };
        self.service.start_send(&permit, sends, &self.results, reply);
        self.unanswered += count;
        self.unanswered_bytes += count * each_bytes;
    }

    /// Takes the outcomes of the writers.
    fn collect(&mut self, context: &Context<'_>) {
        self.outbox.swap(&mut self.arrived, context.waker());
        for part in self.arrived.drain(..) {
            let count = part.count();
            self.unanswered = self.unanswered.saturating_sub(count);
            self.unanswered_bytes = self.unanswered_bytes.saturating_sub(count * part.each_bytes);
            self.parts.push_back(part);
        }
    }

    /// The next frame down, if there is anything to send.
    fn reply(&mut self) -> Option<Vec<u8>> {
        let mut frame = std::mem::take(&mut self.refusals);
        while frame.len() < FRAME_BYTES
            && let Some(part) = self.parts.front_mut()
        {
            frame.reserve(FRAME_BYTES + FRAME_BYTES / 4);
            part.put(&mut frame, FRAME_BYTES);
            if let Some(read) = self.parts.pop_front_if(|part| part.is_empty()) {
                self.service.engine().reuse(read.into_list());
            }
        }
        (!frame.is_empty()).then_some(frame)
    }
}

pub(super) fn put_refusal(frame: &mut Vec<u8>, number: u64, problem: &Problem) {
    lean::put_nested(frame, lean::ANSWER, &shape::refused(number, problem));
}

/// Messages of one queue that were read and not yet submitted.
#[derive(Default)]
struct Unsubmitted {
    permit: Option<Permit>,
    sends: List<u64>,
    bytes: usize,
    memory: Vec<Admitted>,
}

impl Stream for SendStream {
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
        if let Some(frame) = stream.reply() {
            return Poll::Ready(Some(Ok(frame)));
        }
        if !stream.intake.is_ended() || stream.unanswered > 0 {
            return Poll::Pending;
        }
        Poll::Ready(stream.ending.take().map(|why| Err(status(&why))))
    }
}
