//! The task that drives a worker's stream.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;

use super::context::{Ask, Context, InHand};
use super::leases::{Due, Leases};
use crate::delivery::Delivery;
use crate::error::Error;
use crate::settle::{Done, Failure, Settle, Settled};
use crate::work::{Answered, Batch, Work};

/// How long the answers to the last settles are waited for.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// A settle that the broker could not take now is said again after this long.
const AGAIN: Duration = Duration::from_millis(500);
/// The recovery point that tells why a message is in doubt, and how much of it.
const DOUBT: &str = "in-doubt";
const DOUBT_BYTES: usize = 1_024;
/// The shortest lease there is.
const LEASE_MIN: Duration = Duration::from_millis(100);

type Ended = Result<Done, Failure>;

pub(super) struct Driver<R> {
    work: Work,
    run: R,
    concurrency: usize,
    prefetch: usize,
    drain: Duration,
    leases: Leases,
    /// Deliveries that no handler has begun with.
    waiting: VecDeque<Delivery>,
    tasks: JoinSet<Ended>,
    fences: HashMap<Id, u64>,
    /// Those whose effect has begun.
    begun: HashSet<u64>,
    asks: (mpsc::UnboundedSender<Ask>, mpsc::UnboundedReceiver<Ask>),
    /// What the settles without an answer were, by their tags.
    settles: HashMap<u64, Settling>,
    next_tag: u64,
    /// Settles to be said again, in the order of their time.
    again: VecDeque<(Instant, u64, Settle)>,
    stopping: watch::Sender<bool>,
}

/// A settle that waits for its answer.
enum Settling {
    Extend(u64),
    /// The end of a lease, with what was said if it may have to be said again.
    End(u64, Option<Settle>),
    Ask(u64, bool, oneshot::Sender<Result<Settled, Error>>),
    /// Said of a message that was let go: nothing depends on the answer.
    LastWords,
}

/// How far a stop has come.
enum Phase {
    Working,
    /// Until then handlers may go on.
    Draining(Instant),
    /// Until then the last answers may come.
    Ending(Instant),
}

impl<R, F> Driver<R>
where
    R: Fn(Delivery, Context) -> F,
    F: Future<Output = Ended> + Send + 'static,
{
    pub(super) fn new(
        work: Work,
        run: R,
        concurrency: usize,
        prefetch: usize,
        drain: Duration,
    ) -> Self {
        Self {
            work,
            run,
            concurrency,
            prefetch,
            drain,
            leases: Leases::new(),
            waiting: VecDeque::new(),
            tasks: JoinSet::new(),
            fences: HashMap::new(),
            begun: HashSet::new(),
            asks: mpsc::unbounded_channel(),
            settles: HashMap::new(),
            next_tag: 0,
            again: VecDeque::new(),
            stopping: watch::Sender::new(false),
        }
    }

    pub(super) async fn run(mut self, stop: impl Future<Output = ()>) -> Result<(), Error> {
        let mut stop = pin!(stop);
        let mut phase = Phase::Working;
        let mut batch = Batch::default();
        loop {
            let working = matches!(phase, Phase::Working);
            if working {
                self.start();
                self.give_credit();
            }
            if self.is_over(&mut phase) {
                return Ok(());
            }
            let wake = self.wake_at(&phase);
            tokio::select! {
                came = self.work.next(&mut batch) => match came {
                    Ok(()) => self.take(&mut batch, working),
                    Err(error) if error.is_retryable() => {
                        tracing::warn!(%error, "the broker is away; going on when it is back");
                    }
                    Err(error) => return Err(error),
                },
                Some(ended) = self.tasks.join_next_with_id() => self.ended(ended),
                Some(ask) = self.asks.1.recv() => self.ask(ask),
                () = tokio::time::sleep_until(wake) => self.tick(&mut phase),
                () = &mut stop, if working => {
                    phase = Phase::Draining(Instant::now() + self.drain);
                    self.stop();
                }
            }
            // What else is finished goes into the same frame.
            while let Some(ended) = self.tasks.try_join_next_with_id() {
                self.ended(ended);
            }
        }
    }

    /// Handlers for those who wait, while there are any free.
    fn start(&mut self) {
        while self.tasks.len() < self.concurrency
            && let Some(delivery) = self.waiting.pop_front()
        {
            let fence = delivery.fence();
            let Some(lost) = self.leases.watch(fence) else { continue };
            let context = Context {
                message: Arc::new(InHand::new(delivery.clone())),
                asks: self.asks.0.clone(),
                lost,
                stopping: self.stopping.subscribe(),
            };
            let task = self.tasks.spawn((self.run)(delivery, context));
            self.fences.insert(task.id(), fence);
        }
    }

    /// Asks for as many messages as there is room for, not one by one.
    fn give_credit(&mut self) {
        let most = self.concurrency + self.prefetch;
        let credits = self.work.credits() as usize;
        let room = most.saturating_sub(self.leases.len() + credits);
        if room > 0 && (room * 4 >= most || credits == 0) {
            self.work.credit(u32::try_from(room).unwrap_or(u32::MAX));
        }
    }

    fn take(&mut self, batch: &mut Batch, working: bool) {
        if let Some(length) = batch.lease.take() {
            self.leases.set_length(length);
        }
        let now = Instant::now();
        for delivery in batch.deliveries.drain(..) {
            let fence = delivery.fence();
            self.leases.take(fence, delivery.lease(), now);
            if working {
                self.waiting.push_back(delivery);
            } else {
                self.end(fence, Settle::Release);
            }
        }
        for Answered { tag, answer } in batch.settled.drain(..) {
            self.answered(tag, answer);
        }
        for fence in batch.lost.drain(..) {
            self.lost(fence);
        }
        batch.is_closing = false;
    }

    fn lost(&mut self, fence: u64) {
        if !self.leases.lose(fence) {
            return;
        }
        let before = self.waiting.len();
        self.waiting.retain(|delivery| delivery.fence() != fence);
        if self.waiting.len() < before {
            // Nobody has begun with it, and nobody will.
            self.leases.drop(fence);
        }
    }

    fn answered(&mut self, tag: u64, answer: Result<Settled, Error>) {
        let is_lost = matches!(answer, Ok(Settled::LeaseLost { .. }));
        match self.settles.remove(&tag) {
            Some(Settling::Extend(fence)) => match answer {
                Ok(Settled::Ok { .. }) => self.leases.extended(fence),
                Ok(Settled::LeaseLost { .. }) => self.lost(fence),
                Err(_) => self.leases.not_extended(fence),
            },
            Some(Settling::Ask(fence, begins, reply)) => {
                if is_lost {
                    self.lost(fence);
                } else if begins && answer.is_ok() {
                    self.begun.insert(fence);
                }
                let _ = reply.send(answer);
            }
            Some(Settling::End(fence, settle)) => self.end_answered(fence, settle, answer),
            Some(Settling::LastWords) | None => {}
        }
    }

    fn end_answered(&mut self, fence: u64, settle: Option<Settle>, answer: Result<Settled, Error>) {
        match (answer, settle) {
            (Err(error), Some(settle)) if error.is_retryable() => {
                self.again.push_back((Instant::now() + AGAIN, fence, settle));
            }
            (Err(error), Some(Settle::Done(_))) => {
                // The result or the follow-ups cannot be stored, now or later.
                tracing::warn!(%error, "a result was refused");
                self.end(fence, Settle::fail(format!("the result was refused: {error}")));
            }
            (Err(error), _) => {
                tracing::warn!(%error, "a settle was refused");
                self.forget(fence);
            }
            (Ok(_), _) => self.forget(fence),
        }
    }

    fn forget(&mut self, fence: u64) {
        self.leases.drop(fence);
        self.begun.remove(&fence);
    }

    /// A handler is finished.
    fn ended(&mut self, ended: Result<(Id, Ended), JoinError>) {
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let Some(fence) = self.fences.remove(&id) else { return };
        let begun = self.begun.contains(&fence);
        match ended {
            Ok((_, Ok(done))) => self.end(fence, Settle::Done(done)),
            Ok((_, Err(failure))) if begun && failure.is_in_doubt() => {
                self.let_go(fence, failure.error());
            }
            Ok((_, Err(failure))) => self.end(fence, Settle::Fail(failure)),
            // A panic says nothing about an effect that had begun.
            Err(error) if begun => self.let_go(fence, &panic_text(error)),
            Err(error) => self.end(fence, Settle::fail(panic_text(error))),
        }
    }

    /// Nobody knows whether an effect happened. To fail the message would be to say that it did
    /// not: so its lease is left to run out, soon, and the queue says what becomes of it.
    fn let_go(&mut self, fence: u64, error: &str) {
        let data = error.get(..error.floor_char_boundary(DOUBT_BYTES)).unwrap_or_default();
        let doubt = Settle::Save { name: DOUBT.to_owned(), data: data.to_owned().into() };
        self.settle(fence, doubt, Settling::LastWords);
        self.settle(fence, Settle::Extend(Some(LEASE_MIN)), Settling::LastWords);
        self.forget(fence);
    }

    /// Settles a lease for good. It is held until the answer is there.
    fn end(&mut self, fence: u64, settle: Settle) {
        let again = match &settle {
            Settle::Done(_) | Settle::Fail(_) => Some(settle.clone()),
            _ => None,
        };
        self.settle(fence, settle, Settling::End(fence, again));
    }

    fn ask(&mut self, ask: Ask) {
        let begins = matches!(ask.settle, Settle::Begin);
        self.settle(ask.fence, ask.settle, Settling::Ask(ask.fence, begins, ask.reply));
    }

    fn settle(&mut self, fence: u64, settle: Settle, settling: Settling) {
        let Some(lease) = self.leases.lease(fence) else { return };
        let tag = self.next_tag;
        self.next_tag += 1;
        self.settles.insert(tag, settling);
        self.work.settle(lease, settle, tag);
    }

    /// No more messages; those that nobody has begun with are given back.
    fn stop(&mut self) {
        self.stopping.send_replace(true);
        self.work.drain();
        while let Some(delivery) = self.waiting.pop_front() {
            self.end(delivery.fence(), Settle::Release);
        }
    }

    fn wake_at(&self, phase: &Phase) -> Instant {
        let phase = match phase {
            Phase::Working => None,
            Phase::Draining(until) | Phase::Ending(until) => Some(*until),
        };
        let again = self.again.front().map(|(at, ..)| *at);
        let times = [self.leases.next_due(), again, phase];
        let later = Instant::now() + Duration::from_secs(3_600);
        times.into_iter().flatten().min().unwrap_or(later)
    }

    fn tick(&mut self, phase: &mut Phase) {
        let now = Instant::now();
        for due in self.leases.due(now) {
            match due {
                Due::Extend { fence, lease, length } => {
                    let tag = self.next_tag;
                    self.next_tag += 1;
                    self.settles.insert(tag, Settling::Extend(fence));
                    self.work.settle(lease, Settle::Extend(Some(length)), tag);
                }
                Due::Lost(fence) => self.lost(fence),
            }
        }
        while let Some((at, ..)) = self.again.front()
            && *at <= now
            && let Some((_, fence, settle)) = self.again.pop_front()
        {
            self.end(fence, settle);
        }
        if let Phase::Draining(until) = phase
            && *until <= now
        {
            self.give_up();
            *phase = Phase::Ending(now + LAST_ANSWERS);
        }
    }

    /// The handlers had their time. Their messages go back, except where an effect has begun.
    fn give_up(&mut self) {
        let left: Vec<u64> = self.fences.drain().map(|(_, fence)| fence).collect();
        tracing::warn!(handlers = left.len(), "stopped before they were finished");
        self.tasks.abort_all();
        self.tasks.detach_all();
        for fence in left {
            if self.begun.contains(&fence) || self.leases.is_lost(fence) {
                self.forget(fence);
            } else {
                self.end(fence, Settle::fail("the worker stopped before it was finished"));
            }
        }
    }

    /// Whether a stop has come to its end.
    fn is_over(&self, phase: &mut Phase) -> bool {
        let idle = self.tasks.is_empty() && self.again.is_empty();
        let is_settled = self.work.unanswered() == 0;
        match phase {
            Phase::Working => false,
            Phase::Draining(_) if idle && is_settled => true,
            Phase::Draining(_) if idle => {
                *phase = Phase::Ending(Instant::now() + LAST_ANSWERS);
                false
            }
            Phase::Draining(_) => false,
            Phase::Ending(until) => is_settled || *until <= Instant::now(),
        }
    }
}

fn panic_text(error: JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "the handler was dropped".to_owned() };
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("the handler panicked: {}", text.unwrap_or_default())
}
