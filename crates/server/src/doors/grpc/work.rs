//! The Work stream: credits and settles up, deliveries and settle answers down. One task does
//! everything, as with sends. It keeps a receive waiting for as many messages as the worker has
//! credit, and several while the queue is full, so that the next one is decided while the last is
//! synced. A worker that does not read its deliveries is not polled and not read from, and other
//! workers get its messages eventually. When the broker stops it notifies the worker, and the
//! stream ends when the worker holds no more leases.

mod settles;
mod unsent;

use std::collections::VecDeque;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use hapax_core::{DedupScope, Delivery, Receive, Settled};
use hapax_wire::{lean, proto};
use tokio::task::AbortHandle;
use tokio::time::Sleep;
use tonic::Status;

use super::intake::{Admission, Intake};
use super::outbox::Outbox;
use super::part::{Part, RESULT_BYTES_MAX};
use super::put;
use super::status::{malformed, misuse, status, stopping};
use crate::auth::{Action, Principal};
use crate::engine::Room;
use crate::problem::Problem;
use crate::service::{Permit, Service, WAIT_MAX, revoked};
use settles::Unsubmitted;
pub(super) use settles::{put_refusal, verb};
use unsent::Unsent;

/// Credit of one stream: what a worker may hold that it did not settle.
const CREDIT_MAX: u32 = 100_000;
/// Settles of one stream that wait for their answers, and their bytes: more are not read.
const UNANSWERED_MAX: usize = 16_384;
const UNANSWERED_BYTES_MAX: usize = 16 * 1_024 * 1_024;
/// Settles submitted at once.
const GATHERED_MAX: usize = 4_096;
/// A frame down is about this large; a larger message has its own frame.
const FRAME_BYTES: usize = 64 * 1_024;
/// About the most bytes of one receive, which wait here for the worker to read them.
const RECEIVE_BYTES: usize = 4 * 1_024 * 1_024;
/// The assumed size of messages before the first one.
const MESSAGE_BYTES: usize = 16 * 1_024;
/// Receives of one stream at once.
const STANDING_MAX: usize = 4;
/// How long a worker may continue with its leases when the broker stops.
const GRACE: Duration = Duration::from_secs(10);

type Received = Result<Vec<Delivery>, Problem>;
type Boxed<T> = Pin<Box<dyn Future<Output = Result<T, Problem>> + Send>>;

/// What other threads report to the stream.
enum News {
    Settled(Part<Settled>),
    Lost(u64),
    /// The number of messages that were given back because the worker did not read them.
    GivenBack(usize),
    Stopping,
}

pub(super) struct WorkStream {
    service: Service,
    principal: Arc<Principal>,
    intake: Intake,
    /// Ready when the worker's token is not known any more.
    revoked: Pin<Box<dyn Future<Output = ()> + Send>>,
    open: Option<Open>,
    credit: u32,
    /// The worker wants no more messages.
    is_drained: bool,
    standing: VecDeque<Standing>,
    /// The last receive returned all it asked for: there is more.
    is_flowing: bool,
    unsent: Arc<Unsent>,
    /// How large the last messages were.
    message_bytes: usize,
    /// The length of leases, as last sent to the worker.
    told_lease_ms: Option<u64>,
    outbox: Outbox<News>,
    arrived: Vec<News>,
    parts: VecDeque<Part<Settled>>,
    lost: Vec<u64>,
    /// Encoded answers that did not need a writer.
    refusals: Vec<u8>,
    unanswered: usize,
    unanswered_bytes: usize,
    results: Arc<Room>,
    /// Deliveries on this stream without a settle that ends them.
    held: usize,
    closing: Closing,
}

/// A receive in progress.
struct Standing {
    received: Boxed<Vec<Delivery>>,
    max: u32,
}

/// What the stream was opened for.
struct Open {
    permit: Permit,
    worker: Arc<str>,
    lease_ms: Option<u64>,
    /// Whether there is such a queue, and whether its keys are per group, until that is known.
    checking: Option<Boxed<bool>>,
    keys_per_group: bool,
    listening: AbortHandle,
}

/// The progress of notifying the worker that the broker stops.
enum Closing {
    Not,
    /// Not notified yet.
    Untold,
    /// Notified; it may continue for this long.
    Told(Pin<Box<Sleep>>),
    /// The stream has ended.
    Over,
}

impl WorkStream {
    pub(super) fn new(service: Service, principal: Arc<Principal>, intake: Intake) -> Self {
        Self {
            intake,
            unsent: Arc::new(Unsent::new(service.clone())),
            revoked: Box::pin(service.revoked(&principal)),
            service,
            principal,
            open: None,
            credit: 0,
            is_drained: false,
            standing: VecDeque::new(),
            is_flowing: false,
            message_bytes: MESSAGE_BYTES,
            told_lease_ms: None,
            outbox: Outbox::default(),
            arrived: Vec::new(),
            parts: VecDeque::new(),
            lost: Vec::new(),
            refusals: Vec::new(),
            unanswered: 0,
            unanswered_bytes: 0,
            results: Room::of_stream(RESULT_BYTES_MAX),
            held: 0,
            closing: Closing::Not,
        }
    }

    /// Takes the frames that have arrived and submits their settles.
    fn take(&mut self, context: &mut Context<'_>) -> Result<(), Status> {
        let mut list = Unsubmitted::default();
        while self.unanswered + list.settles.len() < UNANSWERED_MAX
            && self.unanswered_bytes + list.bytes < UNANSWERED_BYTES_MAX
            && self.refusals.len() < FRAME_BYTES
        {
            let Poll::Ready(next) = self.intake.poll(context) else { break };
            let Some(frame) = next? else { break };
            self.read(frame, &mut list)?;
            if list.settles.len() >= GATHERED_MAX {
                self.hand_over(&mut list);
            }
        }
        self.hand_over(&mut list);
        Ok(())
    }

    fn read(&mut self, (bytes, memory): Admission, list: &mut Unsubmitted) -> Result<(), Status> {
        if !self.service.is_current(&self.principal) {
            return Err(status(&revoked()));
        }
        let mut frame = lean::WorkFrame::read(&bytes).map_err(malformed)?;
        match (frame.open.take(), &self.open) {
            (Some(open), None) => self.open(open).map_err(|problem| status(&problem))?,
            (None, None) => {
                return Err(misuse(
                    "the first frame of a Work stream must be the open \
                                               request",
                ));
            }
            (Some(_), Some(_)) => return Err(misuse("the stream is already open")),
            (None, Some(_)) => {}
        }
        self.credit = self.credit.saturating_add(frame.credit).min(CREDIT_MAX);
        if frame.drain {
            self.is_drained = true;
            self.standing.clear(); // What it may have leased meanwhile is released, uncounted.
        }
        while let Some(settle) = frame.next().map_err(malformed)? {
            self.read_settle(&settle, list)?;
        }
        list.bytes += bytes.len();
        list.memory.push(memory);
        Ok(())
    }

    fn open(&mut self, open: proto::WorkOpen) -> Result<(), Problem> {
        let permit = self.service.authorise(&self.principal, Action::Work, &open.queue)?;
        let (unsent, outbox) = (Arc::clone(&self.unsent), self.outbox.clone());
        let listening = tokio::spawn(listen(self.service.clone(), permit.clone(), unsent, outbox));
        let (service, asked) = (self.service.clone(), permit.clone());
        let checking: Boxed<bool> = Box::pin(async move {
            Ok(service.show(&asked).await?.view.config.dedup_scope == DedupScope::Group)
        });
        self.open = Some(Open {
            permit,
            worker: open.worker.into(),
            lease_ms: open.lease_ms,
            checking: Some(checking),
            keys_per_group: false,
            listening: listening.abort_handle(),
        });
        Ok(())
    }

    /// Takes the news of other threads.
    fn collect(&mut self, context: &Context<'_>) {
        self.outbox.swap(&mut self.arrived, context.waker());
        for news in self.arrived.drain(..) {
            match news {
                News::Lost(fence) => self.lost.push(fence),
                News::GivenBack(count) => {
                    self.held = self.held.saturating_sub(count);
                    let credit = u32::try_from(count).unwrap_or(u32::MAX);
                    self.credit = self.credit.saturating_add(credit).min(CREDIT_MAX);
                }
                News::Stopping => {
                    self.standing.clear();
                    self.closing = Closing::Untold;
                }
                News::Settled(part) => {
                    let count = part.count();
                    self.unanswered = self.unanswered.saturating_sub(count);
                    let bytes = count * part.each_bytes;
                    self.unanswered_bytes = self.unanswered_bytes.saturating_sub(bytes);
                    self.parts.push_back(part);
                }
            }
        }
    }

    /// Keeps receives waiting while there is credit.
    fn receive(&mut self, context: &mut Context<'_>) -> Result<(), Status> {
        let Some(open) = &mut self.open else { return Ok(()) };
        if let Some(checking) = &mut open.checking {
            let Poll::Ready(checked) = checking.as_mut().poll(context) else { return Ok(()) };
            open.keys_per_group = checked.map_err(|problem| status(&problem))?;
            open.checking = None;
        }
        while self.unsent.lock().is_empty() {
            self.stand();
            let Some((received, max)) = self.received(context) else { return Ok(()) };
            let messages = received.map_err(|problem| status(&problem))?;
            if messages.is_empty() && self.service.engine().is_draining() {
                return Ok(()); // It will be reported.
            }
            let count = u32::try_from(messages.len()).unwrap_or(u32::MAX);
            let bytes: usize = messages.iter().map(|message| message.content.size()).sum();
            if let Some(average) = bytes.checked_div(messages.len()) {
                self.message_bytes = average + 128;
            }
            self.is_flowing = count >= max;
            self.credit = self.credit.saturating_sub(count);
            self.held += messages.len();
            self.unsent.lock().fill(messages);
        }
        Ok(())
    }

    /// The oldest receive that is answered, and how much it asked for. All of them are polled: a
    /// receive starts when it is first polled.
    fn received(&mut self, context: &mut Context<'_>) -> Option<(Received, u32)> {
        let mut answered = None;
        for (place, standing) in self.standing.iter_mut().enumerate() {
            if let Poll::Ready(received) = standing.received.as_mut().poll(context) {
                answered = Some((place, received));
                break;
            }
        }
        let (place, received) = answered?;
        let standing = self.standing.remove(place)?;
        Some((received, standing.max))
    }

    fn stand(&mut self) {
        let Some(open) = self.open.as_ref() else { return };
        let is_closing = !matches!(self.closing, Closing::Not);
        if self.is_drained || is_closing || self.intake.is_ended() {
            return;
        }
        let most = if self.is_flowing { STANDING_MAX } else { 1 };
        let fits = u32::try_from(RECEIVE_BYTES / self.message_bytes).unwrap_or(u32::MAX).max(1);
        while self.standing.len() < most {
            let asked: u32 = self.standing.iter().map(|standing| standing.max).sum();
            let max = self.credit.saturating_sub(asked);
            let max = max.min(hapax_core::limits::RECEIVE_MAX).min(fits);
            if max == 0 {
                return;
            }
            let receive = Receive {
                queue: open.permit.queue().clone(),
                max,
                lease_ms: open.lease_ms,
                worker: Arc::clone(&open.worker),
                receive_id: None,
                several_per_group: false,
            };
            let (service, permit) = (self.service.clone(), open.permit.clone());
            let received =
                Box::pin(async move { service.receive(&permit, receive, WAIT_MAX).await });
            self.standing.push_back(Standing { received, max });
        }
    }

    /// The next frame down, if there is anything to send.
    fn reply(&mut self, context: &mut Context<'_>) -> Option<Vec<u8>> {
        let mut frame = std::mem::take(&mut self.refusals);
        while frame.len() < FRAME_BYTES
            && let Some(part) = self.parts.front_mut()
        {
            part.put(&mut frame, FRAME_BYTES);
            if let Some(read) = self.parts.pop_front_if(|part| part.is_empty()) {
                self.service.engine().reuse(read.into_list());
            }
        }
        self.put_rare(&mut frame, context);
        self.put_deliveries(&mut frame);
        (!frame.is_empty()).then_some(frame)
    }

    fn put_deliveries(&mut self, frame: &mut Vec<u8>) {
        let Some(open) = &self.open else { return };
        let mut unsent = self.unsent.lock();
        while frame.len() < FRAME_BYTES
            && let Some(message) = unsent.next()
        {
            if frame.capacity() < FRAME_BYTES {
                frame.reserve(FRAME_BYTES + self.message_bytes);
            }
            if self.told_lease_ms != Some(message.lease_ms) {
                let is_first = self.told_lease_ms.is_none();
                self.told_lease_ms = Some(message.lease_ms);
                let mut told = proto::WorkReply {
                    lease_ms: self.told_lease_ms,
                    ..proto::WorkReply::default()
                };
                if is_first {
                    told.tenant = open.permit.queue().tenant.to_string();
                    told.keys_per_group = open.keys_per_group;
                }
                put_whole(frame, &told);
            }
            let lease = self.service.seal(&open.permit, &message);
            put::delivery(frame, &message, &lease);
        }
        if !unsent.is_empty() {
            self.unsent.are_left();
        }
    }

    /// Lost leases, and the end of the broker.
    fn put_rare(&mut self, frame: &mut Vec<u8>, context: &mut Context<'_>) {
        let closing = matches!(self.closing, Closing::Untold);
        if closing {
            let mut grace = Box::pin(tokio::time::sleep(GRACE));
            let _ = grace.as_mut().poll(context);
            self.closing = Closing::Told(grace);
        }
        if closing || !self.lost.is_empty() {
            let lost = std::mem::take(&mut self.lost);
            put_whole(frame, &proto::WorkReply { lost, closing, ..proto::WorkReply::default() });
        }
    }

    /// Whether and how the stream ended.
    fn end(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Vec<u8>, Status>>> {
        if self.unanswered > 0 {
            return Poll::Pending;
        }
        if self.intake.is_ended() {
            return Poll::Ready(None);
        }
        let Closing::Told(grace) = &mut self.closing else { return Poll::Pending };
        if self.held > 0 && grace.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        self.closing = Closing::Over;
        self.intake.end();
        Poll::Ready(Some(Err(status(&stopping()))))
    }
}

/// Appends fields to a frame: concatenated protobuf messages are merged.
fn put_whole(frame: &mut Vec<u8>, reply: &proto::WorkReply) {
    // A vector grows, so encoding cannot fail.
    let _ = prost::Message::encode(reply, frame);
}

/// Reports lost leases of the queue, messages that were released, and the stop of the broker.
async fn listen(service: Service, permit: Permit, unsent: Arc<Unsent>, outbox: Outbox<News>) {
    use tokio::sync::broadcast::error::RecvError;
    let mut lost = service.lost();
    let mut draining = Some(Box::pin(service.engine().draining()));
    let mut watching = pin!(unsent.watch(|count| outbox.push(News::GivenBack(count))));
    loop {
        let stops = async {
            match &mut draining {
                Some(draining) => draining.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            next = lost.recv() => match next {
                Ok((queue, fence)) if queue == *permit.queue() => outbox.push(News::Lost(fence.0)),
                // A worker that missed some learns it from its next extension.
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            },
            never = &mut watching => match never {},
            () = stops => {
                draining = None;
                outbox.push(News::Stopping);
            }
        }
    }
}

impl Stream for WorkStream {
    type Item = Result<Vec<u8>, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let stream = self.get_mut();
        if !stream.intake.is_ended() && stream.revoked.as_mut().poll(context).is_ready() {
            stream.intake.end();
            stream.standing.clear();
            return Poll::Ready(Some(Err(status(&revoked()))));
        }
        // The rest of the last frame first: until it is sent no more is read.
        if let Some(frame) = stream.reply(context) {
            return Poll::Ready(Some(Ok(frame)));
        }
        if let Err(status) = stream.take(context).and_then(|()| stream.receive(context)) {
            return Poll::Ready(Some(Err(status)));
        }
        stream.collect(context);
        match stream.reply(context) {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None => stream.end(context),
        }
    }
}

impl Drop for WorkStream {
    fn drop(&mut self) {
        let Some(open) = &self.open else { return };
        open.listening.abort();
        // Messages that were leased for the worker and not sent are released, uncounted.
        self.unsent.give_back();
    }
}
