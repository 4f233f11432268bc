//! The task that drives a worker's stream.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;

use super::away::Away;
use super::context::{Ask, Context, InHand};
use super::event::{Event, Observer};
use super::leases::{Due, Leases, Number};
use crate::delivery::Delivery;
use crate::error::Error;
use crate::retry::{Retry, moment};
use crate::settle::{Done, Failure, Settle, Settled};
use crate::work::{Answered, Batch, Work};

/// How long to wait for the answers to the last settles.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// A settle with a retryable refusal is sent again after this long, or after the time that the
/// broker asks for.
const AGAIN: Duration = Duration::from_millis(500);

type Ended = Result<Done, Failure>;

/// The limits of a worker.
pub(super) struct Limits {
    pub(super) concurrency: usize,
    pub(super) prefetch: usize,
    pub(super) drain: Duration,
}

pub(super) struct Driver<R> {
    work: Work,
    run: R,
    limits: Limits,
    observer: Observer,
    leases: Leases,
    /// Deliveries that no handler has started.
    waiting: VecDeque<(Number, Delivery)>,
    tasks: JoinSet<Ended>,
    numbers: HashMap<Id, Number>,
    asks: (mpsc::UnboundedSender<Ask>, mpsc::UnboundedReceiver<Ask>),
    /// The settles without an answer, by their tags.
    settles: HashMap<u64, Settling>,
    next_tag: u64,
    /// Settles to send again, in the order of their time.
    again: VecDeque<(Instant, Number, Settle)>,
    retry: Retry,
    stopping: watch::Sender<bool>,
    /// Whether there is no connection, and what was reported of it.
    away: Away,
}

/// A settle that waits for its answer.
enum Settling {
    /// The lease is held until then if the answer is ok.
    Extend(Number, Instant),
    /// The final settle of a lease; it may have to be sent again.
    End(Number, Settle),
    Ask(Number, Asked, oneshot::Sender<Result<Settled, Error>>),
}

/// What a handler asked for.
#[derive(Clone, Copy)]
enum Asked {
    /// A request to keep the lease until then.
    Extend(Instant),
    /// A request that does not affect the lease.
    Other,
}

/// The phase of a stop.
enum Phase {
    Working,
    /// Handlers may continue until then.
    Draining(Instant),
    /// The last answers are waited for until then.
    Ending(Instant),
}

impl<R, F> Driver<R>
where
    R: Fn(Delivery, Context) -> F,
    F: Future<Output = Ended> + Send + 'static,
{
    pub(super) fn new(work: Work, run: R, limits: Limits, observer: Observer) -> Self {
        Self {
            work,
            run,
            limits,
            observer,
            leases: Leases::new(),
            waiting: VecDeque::new(),
            tasks: JoinSet::new(),
            numbers: HashMap::new(),
            asks: mpsc::unbounded_channel(),
            settles: HashMap::new(),
            next_tag: 0,
            again: VecDeque::new(),
            retry: Retry::forever().pauses(AGAIN, AGAIN),
            stopping: watch::Sender::new(false),
            away: Away::default(),
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
                came = self.work.try_next(&mut batch) => match came {
                    Ok(()) => {
                        self.back();
                        self.take(&mut batch, working);
                    }
                    Err(error) if error.is_retryable() => self.away(&error),
                    Err(error) => return Err(error),
                },
                Some(ended) = self.tasks.join_next_with_id() => self.ended(ended),
                Some(ask) = self.asks.1.recv() => self.ask(ask),
                () = tokio::time::sleep_until(wake) => self.tick(&mut phase),
                () = &mut stop, if working => {
                    phase = Phase::Draining(moment(Instant::now(), self.limits.drain));
                    self.stop();
                }
            }
            // Other finished handlers go into the same frame.
            while let Some(ended) = self.tasks.try_join_next_with_id() {
                self.ended(ended);
            }
        }
    }

    fn away(&mut self, error: &Error) {
        if self.away.lost(Instant::now(), &error.to_string()) {
            tracing::warn!(%error, "cannot reach the broker; retrying");
            self.observer.tell(Event::Away(error));
        }
    }

    fn back(&mut self) {
        if self.away.back() {
            tracing::info!("the broker can be reached again");
            self.observer.tell(Event::Back);
        }
    }

    /// Starts handlers for waiting deliveries, as long as there are free ones.
    fn start(&mut self) {
        while self.tasks.len() < self.limits.concurrency
            && let Some((number, delivery)) = self.waiting.pop_front()
        {
            let Some(lost) = self.leases.watch(number) else { continue };
            let context = Context {
                message: Arc::new(InHand::new(number, delivery.clone())),
                asks: self.asks.0.clone(),
                lost,
                stopping: self.stopping.subscribe(),
            };
            let task = self.tasks.spawn((self.run)(delivery, context));
            self.numbers.insert(task.id(), number);
        }
    }

    /// Asks for as many messages as there is room for, in batches.
    fn give_credit(&mut self) {
        let most = self.limits.concurrency + self.limits.prefetch;
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
            let number = self.leases.take(delivery.fence(), delivery.lease(), now);
            if working {
                self.waiting.push_back((number, delivery));
            } else {
                self.end(number, Settle::Release);
            }
        }
        for Answered { tag, answer } in batch.settled.drain(..) {
            self.answered(tag, answer);
        }
        if !batch.lost.is_empty() {
            self.leases.doubt(&batch.lost, now);
            batch.lost.clear();
        }
        batch.is_closing = false;
    }

    fn lost(&mut self, number: Number) {
        if !self.leases.lose(number) {
            return;
        }
        let before = self.waiting.len();
        self.waiting.retain(|(waiting, _)| *waiting != number);
        if self.waiting.len() < before {
            // No handler has started it, and none will.
            self.leases.drop(number);
        }
    }

    fn answered(&mut self, tag: u64, answer: Result<Settled, Error>) {
        match self.settles.remove(&tag) {
            Some(Settling::Extend(number, until)) => match answer {
                Ok(Settled::Ok { .. }) => self.leases.extended(number, until),
                Ok(Settled::LeaseLost { .. }) => self.lost(number),
                Err(_) => self.leases.not_extended(number),
            },
            Some(Settling::Ask(number, asked, reply)) => {
                self.ask_answered(number, asked, &answer);
                let _ = reply.send(answer);
            }
            Some(Settling::End(number, settle)) => self.end_answered(number, settle, answer),
            None => {}
        }
    }

    fn ask_answered(&mut self, number: Number, asked: Asked, answer: &Result<Settled, Error>) {
        match (asked, answer) {
            (_, Ok(Settled::LeaseLost { .. })) => self.lost(number),
            (Asked::Extend(until), Ok(Settled::Ok { .. })) => {
                self.leases.granted(number, Some(until));
            }
            (Asked::Extend(_), Err(_)) => self.leases.granted(number, None),
            (Asked::Other, Ok(Settled::Ok { .. }) | Err(_)) => {}
        }
    }

    fn end_answered(&mut self, number: Number, settle: Settle, answer: Result<Settled, Error>) {
        match (&answer, &settle) {
            (Err(error), _) if error.is_retryable() => {
                let pause = self.retry.next_pause(error.retry_after());
                let at = moment(Instant::now(), pause);
                let place = self.again.partition_point(|(earlier, ..)| *earlier <= at);
                self.again.insert(place, (at, number, settle));
                return;
            }
            (Err(error), Settle::Done(_)) => {
                // The result or the follow-ups cannot be stored, now or later.
                tracing::warn!(%error, "a result was refused");
                let refused = format!("the result was refused: {error}");
                // Another attempt would not help. Only the broker knows for sure whether an effect
                // has begun: another process may have reported it.
                self.end(number, Settle::Fail(Failure::in_doubt(Failure::dead(refused))));
                return;
            }
            (Err(error), _) => tracing::warn!(%error, "a settle was refused"),
            (Ok(_), _) => {}
        }
        if let Some(lease) = self.leases.lease(number) {
            let (lease, settle, answer) = (&lease, &settle, &answer);
            self.observer.tell(Event::Settled { lease, settle, answer });
        }
        self.forget(number);
    }

    fn forget(&mut self, number: Number) {
        self.leases.drop(number);
    }

    /// A handler has ended.
    fn ended(&mut self, ended: Result<(Id, Ended), JoinError>) {
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let Some(number) = self.numbers.remove(&id) else { return };
        let settle = match ended {
            Ok((_, Ok(done))) => Settle::Done(done),
            Ok((_, Err(failure))) => Settle::Fail(failure),
            // After a panic it is unknown whether a begun effect happened.
            Err(error) => Settle::park(panic_text(error)),
        };
        self.end(number, settle);
    }

    /// Sends the final settle of a lease. The lease is extended until the answer arrives.
    fn end(&mut self, number: Number, settle: Settle) {
        // A late success is still reported. A late failure is not: another worker has the message,
        // or it is in doubt and must stay so.
        let is_done = matches!(settle, Settle::Done(_));
        if !is_done && self.leases.is_lost(number, Instant::now()) {
            if let Some(lease) = self.leases.lease(number) {
                self.observer.tell(Event::Lost { lease: &lease });
            }
            return self.forget(number);
        }
        self.settle(number, settle.clone(), Settling::End(number, settle));
    }

    fn ask(&mut self, mut ask: Ask) {
        let now = Instant::now();
        let asked = match &mut ask.settle {
            Settle::Extend(length) => {
                let wanted = length.unwrap_or(self.leases.length());
                let wanted = self.leases.want(ask.number, wanted, now);
                *length = Some(wanted);
                Asked::Extend(moment(now, wanted))
            }
            _ => Asked::Other,
        };
        self.settle(ask.number, ask.settle, Settling::Ask(ask.number, asked, ask.reply));
    }

    fn settle(&mut self, number: Number, settle: Settle, settling: Settling) {
        let Some(lease) = self.leases.lease(number) else { return };
        let tag = self.next_tag;
        self.next_tag += 1;
        self.settles.insert(tag, settling);
        self.work.settle(lease, settle, tag);
    }

    /// Takes no more messages, and gives back those that no handler has started.
    fn stop(&mut self) {
        self.stopping.send_replace(true);
        self.work.drain();
        while let Some((number, _)) = self.waiting.pop_front() {
            self.end(number, Settle::Release);
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
                Due::Extend { number, length } => {
                    let settling = Settling::Extend(number, now + length);
                    self.settle(number, Settle::Extend(Some(length)), settling);
                }
                Due::Lost(number) => self.lost(number),
            }
        }
        while let Some((at, ..)) = self.again.front()
            && *at <= now
            && let Some((_, number, settle)) = self.again.pop_front()
        {
            self.end(number, settle);
        }
        if let Phase::Draining(until) = phase
            && *until <= now
        {
            self.give_up();
            *phase = Phase::Ending(now + LAST_ANSWERS);
        }
    }

    /// The drain timeout has passed. The messages of running handlers fail, except if an effect has
    /// begun.
    fn give_up(&mut self) {
        let left: Vec<Number> = self.numbers.drain().map(|(_, number)| number).collect();
        tracing::warn!(handlers = left.len(), "handlers were stopped before they had finished");
        self.tasks.abort_all();
        self.tasks.detach_all();
        for number in left {
            self.end(number, Settle::park("the worker stopped before it was finished"));
        }
    }

    /// Whether a stop is complete.
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
            Phase::Ending(until) => (idle && is_settled) || *until <= Instant::now(),
        }
    }
}

fn panic_text(error: JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "the handler was dropped".to_owned() };
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("the handler panicked: {}", text.unwrap_or_default())
}
