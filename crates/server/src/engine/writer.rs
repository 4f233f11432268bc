//! A writer: the one thread that owns a partition.
//!
//! ```text
//!   inbox ─▶ gather ─▶ stamp time ─▶ decide, append ┄┄ sync ┄┄▶ answers, wakes, relays
//!     ▲                    next batch meanwhile                     │
//!     └───────────── waiters, when something changed ◀──────────────┘
//! ```
//!
//! It sleeps only if there is nothing to do: an idle partition answers a single command
//! immediately, and under load everything that arrived during the last sync is one batch.
//!
//! Invariant: a waiter is either waiting or in a batch in flight, never both, and the effects of a
//! batch are applied after its outcomes, so that no waiter misses them.

mod end;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax_core::{Effect, Outcome, Stamp, Time};
use hapax_partition::wait::{Served, Waiter, Waiters};
use hapax_partition::{Answered, Clock, Commands, Partition, Ticket};
use hapax_store::{Sequence, Store, journal};

use end::End;

use super::inbox::{Ask, Inbox, Reply, Seen};
use super::shares::{Shares, Weighed};
use super::{AnyStore, Beat, Shared, Stopped, Wall};

/// Keeps a wrong deadline from causing a busy loop.
const SLEEP_MIN: Duration = Duration::from_micros(200);
/// A batch of at most this many commands with nothing behind it is synced by the writer itself:
/// there is nothing to decide meanwhile, and two thread switches are saved.
const LONE_COMMANDS_MAX: usize = 64;
/// The longest sleep of a writer: the wall clock is read this often.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// The same while the last checkpoint is written.
const STOP_SLEEP_MAX: Duration = Duration::from_millis(5);
/// The same while requests wait for the progress of a checkpoint.
const PACED_SLEEP_MAX: Duration = Duration::from_millis(1);
/// While floods wait for a checkpoint, a batch of them goes this often.
const HELD_MAX: Duration = Duration::from_millis(20);
/// The part of the memory for the duration of a checkpoint that is available at its beginning; the
/// rest is released as the checkpoint progresses.
const PACED_START: f64 = 0.25;

/// What the clocks show at the beginning of a turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) monotonic: Instant,
    pub(super) wall: Time,
}

impl Now {
    pub(super) fn read(wall: &Wall) -> Self {
        let monotonic = Instant::now();
        Self { monotonic, wall: wall.now(monotonic) }
    }
}

/// What a writer waits for after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// Nothing: its next turn comes at once.
    None,
    /// Until the store has news, or somebody asks where it `takes` asks, or the time is over.
    Sleep { takes: bool, longest: Duration },
    /// It was told to stop, and everything is written.
    End,
}

pub(super) struct Writer {
    partition: Partition<AnyStore>,
    number: usize,
    inbox: Arc<Inbox>,
    shared: Arc<Shared>,
    clock: Clock,
    start: Instant,
    now: Now,
    random: fastrand::Rng,
    /// When it went to sleep for the sake of its pace, and for how long.
    resting: Option<(Instant, Duration)>,
    /// The contents of the inbox.
    asked: Vec<Ask>,
    /// The requests that wait for the next batch.
    asks: Vec<Weighed>,
    /// The requests of the batch that is being built.
    taken: VecDeque<Ask>,
    parts: Vec<Part>,
    /// The requests whose answers are being returned.
    answering: VecDeque<Part>,
    /// The replies of the batches in flight, oldest first.
    batches: VecDeque<Batch>,
    waiters: Waiters<Reply>,
    /// The checkpoint in progress, and when it began.
    cut: Option<(Sequence, Instant)>,
    shares: Shares,
    /// The rest of `asks` waits for the checkpoint.
    is_paced: bool,
    /// Since when floods wait for the checkpoint, or when some of them went last.
    held_since: Option<Instant>,
    stopping: bool,
    /// Since when everything is answered after a stop, and whether the last checkpoint was begun.
    finishing: Option<(Instant, bool)>,
    alarmed: bool,
    /// The disk has little room left, and that was logged.
    is_full: bool,
}

struct Batch {
    ticket: Ticket,
    submitted: Instant,
    parts: Vec<Part>,
    /// Outcomes so far of a part that is not complete.
    outcomes: Vec<Outcome>,
}

/// The receiver of the next outcomes of a batch.
enum Part {
    Reply(usize, Reply),
    Waiter(Waiter<Reply>),
    Seen(Seen),
}

impl Writer {
    pub(super) fn new(
        partition: Partition<AnyStore>,
        number: usize,
        inbox: Arc<Inbox>,
        shared: Arc<Shared>,
        now: Now,
    ) -> Self {
        let start = now.monotonic;
        let clock = Clock::start(partition.now(), shared.wall.start_at(now.wall, start), 0);
        Self {
            partition,
            number,
            inbox,
            shared,
            clock,
            start,
            now,
            random: fastrand::Rng::new(),
            resting: None,
            asked: Vec::new(),
            asks: Vec::new(),
            taken: VecDeque::new(),
            parts: Vec::new(),
            answering: VecDeque::new(),
            batches: VecDeque::new(),
            waiters: Waiters::default(),
            cut: None,
            shares: Shares::default(),
            is_paced: false,
            held_since: None,
            stopping: false,
            finishing: None,
            alarmed: false,
            is_full: false,
        }
    }

    /// Runs until it is stopped, or the partition fails. However it ends, even by a panic, all
    /// waiting callers are answered and the broker is notified: otherwise a dead partition would
    /// look like a slow one.
    pub(super) fn run(mut self) {
        let ended = catch_unwind(AssertUnwindSafe(|| self.work()));
        let end = match ended {
            Ok(Ok(())) => match self.partition.close() {
                Ok(_) => End::Stopped,
                Err(error) => End::of(&error),
            },
            Ok(Err(error)) => End::of(&error),
            // Memory may be inconsistent: the disk is left as after a crash.
            Err(panic) => End::Failed(format!("the writer panicked: {}", words_of(&*panic))),
        };
        let why = self.shared.writer_ended(self.number, end);
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
            match self.turn(Now::read(&self.shared.wall))? {
                Rest::None => {}
                Rest::Sleep { takes, longest } => self.inbox.sleep(takes, longest),
                Rest::End => return Ok(()),
            }
        }
    }

    /// Does what there is to do at this time, without sleeping: answers what is durable, makes a
    /// batch of what was asked. A thread calls it again and again, or a test does, step by step.
    pub(super) fn turn(&mut self, now: Now) -> Result<Rest, hapax_partition::Error> {
        self.now = now;
        self.wake_up();
        let has_answered = self.answer_durable()?;
        self.watch_checkpoint();
        self.watch_room();
        if self.stopping && self.batches.is_empty() && !self.partition.is_waiting() {
            return self.finish();
        }
        let has_gathered = !self.partition.is_busy() && self.gather()?;
        Ok(if has_answered || has_gathered { Rest::None } else { self.rest() })
    }

    /// Answers what is durable. Returns whether there was anything.
    fn answer_durable(&mut self) -> Result<bool, hapax_partition::Error> {
        let mut answers = false;
        while let Some(answered) = self.partition.poll()? {
            answers = true;
            self.report();
            self.answer(answered);
        }
        Ok(answers)
    }

    /// Builds a batch of the waiting requests. Returns whether there was anything to do.
    fn gather(&mut self) -> Result<bool, hapax_partition::Error> {
        // Requests that waited for the next batch come before newer ones.
        self.inbox.take(&mut self.asked);
        self.asks.extend(self.asked.drain(..).map(Weighed::new));
        let now = self.time();
        let is_due = self.partition.next_deadline().is_some_and(|due| due <= now);
        if self.asks.is_empty() && !self.waiters.has_called() && !is_due {
            return Ok(false);
        }
        let asks = self.share_out();
        if asks.is_empty() && !self.waiters.has_called() && !is_due {
            return Ok(false);
        }
        let mut commands = Commands::default();
        // The oldest waiters come first.
        for waiter in self.waiters.take_called() {
            commands.push(vec![waiter.command()]);
            self.parts.push(Part::Waiter(waiter));
        }
        self.taken = asks.into();
        while let Some(ask) = self.taken.pop_front() {
            match ask {
                Ask::Commands(list, reply) => {
                    self.parts.push(Part::Reply(list.len(), reply));
                    commands.push(list);
                }
                Ask::Wait(waiter) => {
                    if let Some(waiter) = self.waiters.admit(*waiter) {
                        commands.push(vec![waiter.command()]);
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

    /// The requests for the next batch; the others stay.
    fn share_out(&mut self) -> Vec<Ask> {
        let mut asks = std::mem::take(&mut self.asks);
        let now = self.now.monotonic;
        let is_behind = self.holds_floods();
        let reserve = is_behind.then(|| self.partition.reserve_bytes());
        self.shares.share_out(now, reserve, &mut asks, &mut self.asks);
        let rests = !self.shares.rests(now).is_zero();
        self.is_paced = (is_behind || rests) && !self.asks.is_empty();
        self.partition.set_in_flight_bytes(self.shares.in_flight_bytes(now));
        asks.into_iter().map(|weighed| weighed.ask).collect()
    }

    /// Whether floods wait for the checkpoint. Others fill memory too, who settle: so as long as
    /// there is some, a batch of those who wait goes now and then.
    fn holds_floods(&mut self) -> bool {
        // What a full disk refuses takes no memory, and a checkpoint may wait for space for ever.
        let filled = self.partition.filling().filter(|_| !self.is_full);
        let Some(filled) = filled.filter(|filled| *filled > self.allowed()) else {
            self.held_since = None;
            return false;
        };
        let now = self.now.monotonic;
        let since = *self.held_since.get_or_insert(now);
        let goes_on = filled < 1.0 && now.saturating_duration_since(since) >= HELD_MAX;
        if goes_on {
            self.held_since = Some(now);
        }
        !goes_on
    }

    /// How far memory may be filled by now: in proportion to the checkpoint's progress, so that
    /// floods get slower and do not stop at its end.
    fn allowed(&self) -> f64 {
        allowed_at(self.partition.store().checkpoint_progress())
    }

    fn submit(&mut self, at: Time, commands: Commands) -> Result<(), hapax_partition::Error> {
        let count = commands.len();
        let is_lone =
            count <= LONE_COMMANDS_MAX && self.batches.is_empty() && self.inbox.is_empty();
        if is_lone {
            self.partition.store_mut().hold();
        }
        let stamp = Stamp { at, random: self.random.u64(..) };
        self.shared.hear(self.number, |report| self.partition.hear(report));
        self.partition.reuse(self.shared.spare.outcomes.take());
        let ticket = self.partition.submit(stamp, commands)?;
        self.partition
            .take_spent()
            .into_iter()
            .for_each(|list| self.shared.spare.commands.give(list));
        self.report();
        let parts = std::mem::take(&mut self.parts);
        let (submitted, outcomes) = (self.now.monotonic, Vec::new());
        self.batches.push_back(Batch { ticket, submitted, parts, outcomes });
        self.shared.beat(self.number, Beat::Submitted { commands: count });
        if is_lone {
            // The answers are given after it, in the same turn.
            self.now.monotonic += self.partition.store_mut().flush()?;
            self.answer_durable()?;
            self.partition.store_mut().mark()?;
        }
        Ok(())
    }

    /// Reports to the other partitions what this one holds, before any answer.
    fn report(&mut self) {
        let reports = self.partition.take_reports();
        if !reports.is_empty() {
            self.shared.report(&reports);
        }
    }

    /// Answers a durable batch, and then applies its effects to the waiters.
    fn answer(&mut self, answered: Answered) {
        // The first batch returns relays that were in flight, and was not requested.
        let asked = self.batches.front().is_some_and(|batch| batch.ticket == answered.ticket);
        if let Some(mut batch) = self.batches.pop_front_if(|_| asked) {
            let waited = self.now.monotonic.saturating_duration_since(batch.submitted);
            self.shared.beat(self.number, Beat::Durable { waited });
            if batch.outcomes.is_empty() {
                batch.outcomes = answered.outcomes;
            } else {
                batch.outcomes.extend(answered.outcomes);
            }
            if answered.more {
                let (parts, outcomes) = batch.whole_parts();
                if let Some(Part::Reply(_, reply)) = batch.parts.first_mut() {
                    reply.see(&mut batch.outcomes); // Its part would grow without bound.
                }
                self.batches.push_front(batch);
                self.hand_out(parts, outcomes);
            } else {
                self.hand_out(batch.parts, batch.outcomes);
            }
        }
        self.tell(answered.effects);
    }

    fn hand_out(&mut self, mut parts: Vec<Part>, mut list: Vec<Outcome>) {
        if let [Part::Reply(count, _)] = parts.as_slice()
            && *count == list.len()
            && let Some(Part::Reply(_, reply)) = parts.pop()
        {
            return reply.call(Ok(list)); // The list as it is.
        }
        let mut outcomes = list.drain(..);
        self.answering = parts.into();
        while let Some(part) = self.answering.pop_front() {
            match part {
                Part::Reply(count, reply) => {
                    let mut list = self.shared.spare.outcomes.take();
                    list.extend(outcomes.by_ref().take(count));
                    reply.call(Ok(list));
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
        drop(outcomes);
        self.shared.spare.outcomes.give(list);
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
        self.shared.tail(self.number, self.partition.journal_bytes());
        let through = self.partition.checkpoint_through();
        if through == self.cut.map(|(through, _)| through) {
            return;
        }
        if let Some((_, cut)) = self.cut {
            let took = self.now.monotonic.saturating_duration_since(cut);
            self.shared.beat(self.number, Beat::Checkpointed { took });
        }
        self.cut = through.map(|through| (through, self.now.monotonic));
        self.shares.begin(self.now.monotonic);
    }

    /// Logs that sends are refused for lack of disk space, and when they are accepted again.
    fn watch_room(&mut self) {
        let is_full = self.partition.store_mut().room().is_low();
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

    /// The partition's time.
    fn time(&mut self) -> Time {
        let elapsed = self.now.monotonic.saturating_duration_since(self.start);
        let now = self.clock.now(self.now.wall, elapsed.as_micros() as u64);
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
        self.shared.wall.tell(now, self.now.monotonic);
        now
    }

    fn rest(&mut self) -> Rest {
        let now = self.time();
        let due = self.partition.next_deadline();
        // A busy partition is woken by its store, not by requests.
        let takes = !self.partition.is_busy();
        if takes && !self.asks.is_empty() && !self.is_paced {
            return Rest::None;
        }
        let until = due.filter(|_| takes).map(|due| Duration::from_millis(due.since(now)));
        let asleep = self.now.monotonic;
        let rests = Some(self.shares.rests(asleep)).filter(|rests| !rests.is_zero());
        let most = match (self.is_paced, rests) {
            (true, rests) => rests.unwrap_or(PACED_SLEEP_MAX).min(PACED_SLEEP_MAX),
            (false, _) => SLEEP_MAX,
        };
        let longest = until.unwrap_or(most).min(most).max(SLEEP_MIN);
        self.resting = self.is_paced.then_some((asleep, longest));
        Rest::Sleep { takes, longest }
    }

    /// Notes how late it was woken, where the pace depends on it.
    fn wake_up(&mut self) {
        if let Some((asleep, longest)) = self.resting.take()
            && let Some(late) =
                self.now.monotonic.saturating_duration_since(asleep).checked_sub(longest)
        {
            self.shares.woken(late);
        }
    }

    /// Writes everything to its place, so that the next start has nothing to replay. The
    /// checkpoint under way may not have everything; the one that follows has. On a full disk
    /// neither may come to an end.
    fn finish(&mut self) -> Result<Rest, hapax_partition::Error> {
        let (since, is_last) = *self.finishing.get_or_insert((self.now.monotonic, false));
        let is_late = self.now.monotonic.saturating_duration_since(since) >= super::STOP_MAX;
        if self.partition.is_checkpointing() && !is_late {
            return Ok(Rest::Sleep { takes: false, longest: STOP_SLEEP_MAX });
        }
        if is_last || is_late {
            return Ok(Rest::End);
        }
        self.partition.checkpoint()?;
        self.finishing = Some((since, true));
        Ok(Rest::None)
    }
}

impl Batch {
    /// Removes the parts whose outcomes are complete, with their outcomes.
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

fn allowed_at(progress: f64) -> f64 {
    PACED_START + (1.0 - PACED_START) * progress
}

/// The message of a panic.
fn words_of(panic: &(dyn std::any::Any + Send)) -> &str {
    let owned = || panic.downcast_ref::<String>().map(String::as_str);
    panic.downcast_ref::<&str>().copied().or_else(owned).unwrap_or("see the log")
}
