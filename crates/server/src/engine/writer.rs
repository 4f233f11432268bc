//! A writer: the one thread that owns a partition.
//!
//! ```text
//!   inbox ─▶ gather ─▶ stamp time ─▶ decide, append ┄┄ sync ┄┄▶ answers, wakes, relays
//!     ▲                    next batch meanwhile                     │
//!     └───────────── those who wait, when there is news ◀───────────┘
//! ``` It sleeps only if there is nothing to do: an idle partition answers a single command
//! immediately, and under load everything that arrived during the last sync is one batch.
//!
//! Invariant: whoever waits is either in a waiting room or in a batch on its way, never in both,
//! and news of a batch is told after the outcomes of that batch, so that nobody misses it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax_core::{Command, Effect, Outcome, Stamp, Time};
use hapax_partition::wait::{Served, Waiter, Waiters};
use hapax_partition::{Answered, Clock, Partition, Ticket};
use hapax_store::disk::DiskStore;
use hapax_store::{Room, Sequence, Store, journal};

use super::inbox::{Ask, Inbox, Reply, Seen};
use super::shares::{Shares, Weighed};
use super::{Beat, Shared, Stopped};

/// A deadline that is due is met at once; this keeps a wrong one from being a busy loop.
const SLEEP_MIN: Duration = Duration::from_micros(200);
/// How long a writer sleeps at most: the wall clock is looked at this often.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// The same while asks wait for a checkpoint to come further.
const PACED_SLEEP_MAX: Duration = Duration::from_millis(1);
/// This part of the memory that is there for the time of a checkpoint can be taken at its
/// beginning; the rest follows as the checkpoint comes along.
const PACED_START: f64 = 0.25;

pub(super) struct Writer {
    partition: Partition<DiskStore>,
    number: usize,
    inbox: Arc<Inbox>,
    shared: Arc<Shared>,
    clock: Clock,
    start: Instant,
    /// What the inbox had.
    asked: Vec<Ask>,
    /// The requests that wait for the next batch.
    asks: Vec<Weighed>,
    /// What the batch that is being made is made of, and whose it is.
    taken: VecDeque<Ask>,
    parts: Vec<Part>,
    /// The requests whose answers are being returned.
    answering: VecDeque<Part>,
    /// The replies of the batches in flight, oldest first.
    batches: VecDeque<Batch>,
    waiters: Waiters<Reply>,
    /// The checkpoint under way, and when it was cut.
    cut: Option<(Sequence, Instant)>,
    /// How long the checkpoint before it took.
    cut_took: Option<Duration>,
    shares: Shares,
    /// What is left in `asks` waits for the checkpoint.
    is_paced: bool,
    stopping: bool,
    alarmed: bool,
    /// The disk has little room left, and that was logged.
    is_full: bool,
}

struct Batch {
    ticket: Ticket,
    submitted: Instant,
    parts: Vec<Part>,
    /// Outcomes that came, of a part whose others are still to come.
    outcomes: Vec<Outcome>,
}

/// The next outcomes of a batch, and whose they are.
enum Part {
    Reply(usize, Reply),
    Waiter(Waiter<Reply>),
    Seen(Seen),
}

impl Writer {
    pub(super) fn new(
        partition: Partition<DiskStore>,
        number: usize,
        inbox: Arc<Inbox>,
        shared: Arc<Shared>,
    ) -> Self {
        let start = Instant::now();
        let clock = Clock::start(partition.now(), crate::time::now(), 0);
        Self {
            partition,
            number,
            inbox,
            shared,
            clock,
            start,
            asked: Vec::new(),
            asks: Vec::new(),
            taken: VecDeque::new(),
            parts: Vec::new(),
            answering: VecDeque::new(),
            batches: VecDeque::new(),
            waiters: Waiters::default(),
            cut: None,
            cut_took: None,
            shares: Shares::default(),
            is_paced: false,
            stopping: false,
            alarmed: false,
            is_full: false,
        }
    }

    /// Runs until it is told to stop, or the partition cannot go on. Whatever ends it, a panic
    /// too, everybody who waits is answered, and a broker that did not ask for it hears of it: a
    /// partition that nobody serves would look like one that is slow.
    pub(super) fn run(mut self) {
        let ended = catch_unwind(AssertUnwindSafe(|| self.work()));
        let failure = match ended {
            Ok(Ok(())) => self.partition.close().err().map(|error| error.to_string()),
            Ok(Err(error)) => Some(error.to_string()),
            // Memory may be half changed: what is on disk is left as a crash leaves it.
            Err(panic) => Some(format!("the writer panicked: {}", words_of(&*panic))),
        };
        let why = match failure {
            None => Stopped("the broker is stopping".into()),
            Some(error) => {
                tracing::error!(partition = self.number, error, "the partition has stopped");
                let why = Stopped(format!("partition {}: {error}", self.number).into());
                self.shared.failed.send_replace(Some(why.clone()));
                why
            }
        };
        let waiting = self.asks.drain(..).map(|weighed| weighed.ask);
        let left = self.inbox.close().into_iter().chain(self.asked.drain(..)).chain(waiting);
        left.chain(self.taken.drain(..)).for_each(|ask| refuse(ask, &why));
        let parts = self.batches.drain(..).flat_map(|batch| batch.parts);
        let parts = self.answering.drain(..).chain(parts).chain(self.parts.drain(..));
        parts.for_each(|part| part.refuse(&why));
        self.waiters.close().into_iter().for_each(|reply| reply.call(Err(why.clone())));
    }

    fn work(&mut self) -> Result<(), hapax_partition::Error> {
        loop {
            let mut idle = true;
            while let Some(answered) = self.partition.poll()? {
                idle = false;
                self.report();
                self.answer(answered);
            }
            self.watch_checkpoint();
            self.watch_room();
            if self.stopping && self.batches.is_empty() && !self.partition.is_waiting() {
                return self.finish();
            }
            if !self.partition.is_busy() && self.gather()? {
                idle = false;
            }
            if idle {
                self.sleep();
            }
        }
    }

    /// Makes a batch of what was asked. Tells whether there was anything to do.
    fn gather(&mut self) -> Result<bool, hapax_partition::Error> {
        // Those who have to wait for the next batch are in front of those who came since.
        self.inbox.take(&mut self.asked);
        self.asks.extend(self.asked.drain(..).map(Weighed::new));
        let now = self.now();
        let is_due = self.partition.next_deadline().is_some_and(|due| due <= now);
        if self.asks.is_empty() && !self.waiters.has_called() && !is_due {
            return Ok(false);
        }
        let asks = self.share_out();
        if asks.is_empty() && !self.waiters.has_called() && !is_due {
            return Ok(false);
        }
        let mut commands = Vec::new();
        // Those who waited longest come first.
        for waiter in self.waiters.take_called() {
            commands.push(waiter.command());
            self.parts.push(Part::Waiter(waiter));
        }
        let count = asks.iter().map(Ask::commands).sum();
        self.taken = asks.into();
        while let Some(ask) = self.taken.pop_front() {
            match ask {
                Ask::Commands(list, reply) => {
                    self.parts.push(Part::Reply(list.len(), reply));
                    if commands.is_empty() && self.taken.is_empty() {
                        commands = list;
                    } else {
                        if commands.capacity() < count {
                            commands.reserve_exact(count); // A list that doubles moves all of it.
                        }
                        commands.extend(list);
                    }
                }
                Ask::Wait(waiter) => {
                    if let Some(waiter) = self.waiters.admit(*waiter) {
                        commands.push(waiter.command());
                        self.parts.push(Part::Waiter(waiter));
                    }
                }
                Ask::CallAgain(queue) => {
                    self.waiters.call_again(&queue, self.partition.machine());
                }
                Ask::Inspect(look) => self.parts.push(Part::Seen(look(&self.partition))),
                Ask::Drain => self.drain(),
                Ask::Stop => {
                    self.drain();
                    self.stopping = true;
                }
            }
        }
        self.submit(now, commands)?;
        Ok(true)
    }

    /// What goes into the next batch; the others stay.
    fn share_out(&mut self) -> Vec<Ask> {
        let mut asks = std::mem::take(&mut self.asks);
        let now = Instant::now();
        let is_behind = self.partition.filling().is_some_and(|filled| filled > self.allowed(now));
        let reserve = is_behind.then(|| self.partition.reserve_bytes());
        self.shares.share_out(now, reserve, &mut asks, &mut self.asks);
        let rests = !self.shares.rests(now).is_zero();
        self.is_paced = (is_behind || rests) && !self.asks.is_empty();
        self.partition.set_in_flight_bytes(self.shares.in_flight_bytes(now));
        asks.into_iter().map(|weighed| weighed.ask).collect()
    }

    /// How far memory may be filled by now: as far as the checkpoint has come, if it takes as long
    /// as the one before.
    fn allowed(&self, now: Instant) -> f64 {
        let (Some((_, cut)), Some(took)) = (self.cut, self.cut_took) else { return 1.0 };
        let progress = now.saturating_duration_since(cut).as_secs_f64() / took.as_secs_f64();
        (PACED_START + (1.0 - PACED_START) * progress).min(1.0)
    }

    fn submit(&mut self, at: Time, commands: Vec<Command>) -> Result<(), hapax_partition::Error> {
        let count = commands.len();
        let stamp = Stamp { at, random: fastrand::u64(..) };
        self.shared.hear(self.number, |report| self.partition.hear(report));
        let ticket = self.partition.submit(stamp, commands)?;
        self.report();
        let parts = std::mem::take(&mut self.parts);
        let (submitted, outcomes) = (Instant::now(), Vec::new());
        self.batches.push_back(Batch { ticket, submitted, parts, outcomes });
        self.shared.beat(self.number, Beat::Submitted { commands: count });
        Ok(())
    }

    /// Tells the other partitions what this one holds, before anybody is answered.
    fn report(&mut self) {
        let reports = self.partition.take_reports();
        if !reports.is_empty() {
            self.shared.report(&reports);
        }
    }

    /// Gives a durable batch to those who asked, and then its news to those who wait.
    fn answer(&mut self, answered: Answered) {
        // The first batch of all tells of relays that were under way, and nobody asked for it.
        let asked = self.batches.front().is_some_and(|batch| batch.ticket == answered.ticket);
        if let Some(mut batch) = self.batches.pop_front_if(|_| asked) {
            let waited = batch.submitted.elapsed();
            self.shared.beat(self.number, Beat::Durable { waited });
            if batch.outcomes.is_empty() {
                batch.outcomes = answered.outcomes;
            } else {
                batch.outcomes.extend(answered.outcomes);
            }
            if answered.more {
                let (parts, outcomes) = batch.whole_parts();
                if let Some(Part::Reply(_, reply)) = batch.parts.first_mut() {
                    reply.see(&mut batch.outcomes); // Its part would grow without a bound.
                }
                self.batches.push_front(batch);
                self.hand_out(parts, outcomes);
            } else {
                self.hand_out(batch.parts, batch.outcomes);
            }
        }
        self.tell(answered.effects);
    }

    fn hand_out(&mut self, mut parts: Vec<Part>, mut outcomes: Vec<Outcome>) {
        if let [Part::Reply(count, _)] = parts.as_slice()
            && *count == outcomes.len()
            && let Some(Part::Reply(_, reply)) = parts.pop()
        {
            return reply.call(Ok(outcomes)); // The list as it is.
        }
        let mut outcomes = outcomes.drain(..);
        self.answering = parts.into();
        while let Some(part) = self.answering.pop_front() {
            match part {
                Part::Reply(count, reply) => {
                    reply.call(Ok(outcomes.by_ref().take(count).collect()));
                }
                Part::Waiter(waiter) => {
                    let Some(outcome) = outcomes.next() else {
                        unreachable!("every command has an outcome");
                    };
                    match self.waiters.serve(waiter, outcome) {
                        Served::Answer(reply, outcome) => reply.call(Ok(vec![outcome])),
                        Served::PassedOver(queue) => {
                            self.shared.call_elsewhere(self.number, &queue);
                        }
                        Served::Waits | Served::Gone => {}
                    }
                }
                Part::Seen(seen) => seen(),
            }
        }
        assert!(outcomes.next().is_none(), "every outcome has somebody who asked for it");
    }

    fn tell(&mut self, effects: Vec<Effect>) {
        let mut relays = Vec::new();
        for effect in effects {
            match effect {
                Effect::Wake(queue) => self.waiters.wake(queue, self.partition.machine()),
                Effect::Ended { digest } => self.waiters.ended(&digest),
                Effect::Relay(relay) => relays.push(*relay),
                Effect::Lost { queue, fence, .. } => {
                    if let Some(name) = self.partition.machine().queue_name(queue) {
                        self.shared.lost(name, fence);
                    }
                }
            }
        }
        if !relays.is_empty() {
            self.shared.relay(self.number, relays);
        }
    }

    fn drain(&mut self) {
        for reply in self.waiters.drain() {
            reply.call(Ok(vec![Outcome::Received(Vec::new())]));
        }
    }

    fn watch_checkpoint(&mut self) {
        let through = self.partition.checkpoint_through();
        if through == self.cut.map(|(through, _)| through) {
            return;
        }
        if let Some((_, cut)) = self.cut {
            let took = cut.elapsed();
            self.cut_took = Some(took);
            self.shared.beat(self.number, Beat::Checkpointed { took });
        }
        self.cut = through.map(|through| (through, Instant::now()));
        self.shares.begin(Instant::now());
    }

    /// Logs that sends are refused for lack of disk, and that they are taken again.
    fn watch_room(&mut self) {
        let is_full = self.partition.store_mut().room() == Room::Low;
        if is_full == self.is_full {
            return;
        }
        self.is_full = is_full;
        let partition = self.number;
        let free_bytes_min = journal::Options::default().free_bytes_min;
        if is_full {
            tracing::warn!(
                partition,
                free_bytes_min,
                "the disk is almost full: sends are refused until there is more space; receives \
                 and settles continue"
            );
        } else {
            tracing::info!(partition, "the disk has space again: sends are accepted");
        }
    }

    fn now(&mut self) -> Time {
        let monotonic_us = self.start.elapsed().as_micros() as u64;
        let now = self.clock.now(crate::time::now(), monotonic_us);
        let alarm = self.clock.alarm();
        if let Some(ahead_ms) = alarm.filter(|_| !self.alarmed) {
            tracing::warn!(
                partition = self.number,
                ahead_ms,
                "the wall clock jumped; the partition's clock follows slowly, so that no key or \
                 lease ends early"
            );
        }
        self.alarmed = alarm.is_some();
        self.shared.clock_ahead(self.number, alarm.unwrap_or(0));
        now
    }

    fn sleep(&mut self) {
        let now = self.now();
        let due = self.partition.next_deadline();
        // A busy partition is woken by its disk, not by what is asked.
        let takes = !self.partition.is_busy();
        if takes && !self.asks.is_empty() && !self.is_paced {
            return;
        }
        let until = due.filter(|_| takes).map(|due| Duration::from_millis(due.since(now)));
        let asleep = Instant::now();
        let rests = Some(self.shares.rests(asleep)).filter(|rests| !rests.is_zero());
        let most = match (self.is_paced, rests) {
            (true, rests) => rests.unwrap_or(PACED_SLEEP_MAX).min(PACED_SLEEP_MAX),
            (false, _) => SLEEP_MAX,
        };
        let longest = until.unwrap_or(most).min(most).max(SLEEP_MIN);
        self.inbox.sleep(takes, longest);
        if self.is_paced
            && let Some(late) = asleep.elapsed().checked_sub(longest)
        {
            self.shares.woken(late);
        }
    }

    /// Writes everything to its place, so that the next start has nothing to replay.
    fn finish(&mut self) -> Result<(), hapax_partition::Error> {
        let started = Instant::now();
        // The one under way may not have everything; the second one has.
        for _ in 0..2 {
            self.partition.checkpoint()?;
            while self.partition.is_checkpointing() && started.elapsed() < super::STOP_MAX {
                self.partition.poll()?;
                std::thread::park_timeout(Duration::from_millis(5));
            }
        }
        Ok(())
    }
}

impl Batch {
    /// Takes the parts out whose outcomes are all there, with their outcomes.
    fn whole_parts(&mut self) -> (Vec<Part>, Vec<Outcome>) {
        let (mut whole, mut taken) = (0, 0);
        for part in &self.parts {
            let count = match part {
                Part::Reply(count, _) => *count,
                Part::Waiter(_) => 1,
                Part::Seen(_) => 0,
            };
            if taken + count > self.outcomes.len() {
                break;
            }
            (whole, taken) = (whole + 1, taken + count);
        }
        (self.parts.drain(..whole).collect(), self.outcomes.drain(..taken).collect())
    }
}

impl Part {
    fn refuse(self, why: &Stopped) {
        match self {
            Self::Reply(_, reply) => reply.call(Err(why.clone())),
            Self::Waiter(waiter) => waiter.end().call(Err(why.clone())),
            Self::Seen(_) => {}
        }
    }
}

pub(super) fn refuse(ask: Ask, why: &Stopped) {
    match ask {
        Ask::Commands(_, reply) => reply.call(Err(why.clone())),
        Ask::Wait(waiter) => {
            if let Some(waiter) = Waiters::default().admit(*waiter) {
                waiter.end().call(Err(why.clone()));
            }
        }
        Ask::CallAgain(_) | Ask::Inspect(_) | Ask::Drain | Ask::Stop => {}
    }
}

/// What a panic said.
fn words_of(panic: &(dyn std::any::Any + Send)) -> &str {
    let owned = || panic.downcast_ref::<String>().map(String::as_str);
    panic.downcast_ref::<&str>().copied().or_else(owned).unwrap_or("see the log")
}
