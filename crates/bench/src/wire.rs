//! The load over the network: producers and workers of Hapax's client, each a task with its own
//! connection.
//!
//! Without a rate, as many lives as the broker can take. With one, messages are sent at a fixed
//! rate, and latencies count from the moment a message should have been sent, whether or not the
//! one before was answered: a broker that stalls cannot hide it.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hapax_client::{Answered, Batch, Client, Message, Queue, Sender, Settle};
use hdrhistogram::Histogram;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::ledger::{BACKLOG_PAUSE, Ledger};
use crate::messages::Messages;
use crate::report::histogram;

/// A broker that makes no progress for this long hangs.
const STALL: Duration = Duration::from_secs(60);

/// Pause between two looks at the progress.
const INTERVAL: Duration = Duration::from_millis(25);

#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub producers: usize,
    pub workers: usize,
    /// Messages of a producer without an answer, and of a worker without a settle.
    pub window: usize,
    /// A producer sends only when its window has room for this many.
    pub batch: usize,
    pub has_keys: bool,
    /// Messages per second of all producers.
    pub rate: Option<u64>,
    /// Workers start when the ledger's backlog is full.
    pub piles_up: bool,
}

/// The measurements of a run.
#[derive(Debug)]
pub struct Lived {
    /// From the first send to the last confirmation of one.
    pub sends: Duration,
    /// From the first send to the last confirmation of a settle.
    pub lives: Duration,
    /// From sending a message, or when it should have been sent, to its confirmation, in
    /// microseconds.
    pub confirms: Histogram<u64>,
    /// The same of the messages that were sent when there were workers.
    pub confirms_beside: Histogram<u64>,
    /// From settling a message to the confirmation of that, in microseconds.
    pub settles: Histogram<u64>,
    /// When workers started.
    pub piled: Duration,
}

/// Sends, receives and settles every message of the ledger. `connect` is called for each producer
/// and worker.
pub async fn run(
    shape: Shape,
    queue: &str,
    ledger: &Arc<Ledger>,
    connect: impl Fn() -> Result<Client>,
) -> Result<Lived> {
    let (over, _) = watch::channel(false);
    let (mut workers, mut producers) = (JoinSet::new(), JoinSet::new());
    let piled = Arc::new(OnceLock::new());
    for _ in 0..shape.producers {
        let sender = connect()?.queue(queue).sender().window(shape.window);
        let (ledger, piled) = (Arc::clone(ledger), Arc::clone(&piled));
        producers.spawn(Producer { sender, shape, ledger, piled }.produce());
    }
    let (mut confirms, mut settles) = (Confirms::new(), histogram());
    let mut sends = Duration::ZERO;
    let mut progress = (0, Instant::now());
    while !producers.is_empty() || !ledger.is_complete() {
        if piled.get().is_none() && (!shape.piles_up || ledger.is_full()) {
            piled.get_or_init(|| ledger.elapsed());
            for number in 0..shape.workers {
                let queue = connect()?.queue(queue);
                workers.spawn(work(queue, number, shape, Arc::clone(ledger), over.subscribe()));
            }
        }
        tokio::select! {
            Some(ended) = producers.join_next() => {
                confirms.add(ended.context("a producer was lost")??);
                sends = ledger.elapsed();
            }
            Some(ended) = workers.join_next() => {
                settles += ended.context("a worker was lost")??;
            }
            () = tokio::time::sleep(INTERVAL) => {}
        }
        let made = ledger.taken() + ledger.done();
        if made != progress.0 {
            progress = (made, Instant::now());
        }
        if progress.1.elapsed() > STALL {
            let missing = ledger.messages().count() - ledger.done();
            bail!("no progress for {} s, {missing} messages are not done", STALL.as_secs());
        }
    }
    over.send_replace(true);
    while let Some(ended) = workers.join_next().await {
        settles += ended.context("a worker was lost")??;
    }
    let lives = ledger.took().context("the last settle was not confirmed")?;
    let piled = piled.get().copied().unwrap_or_default();
    let Confirms { all: confirms, beside: confirms_beside } = confirms;
    Ok(Lived { sends, lives, confirms, confirms_beside, settles, piled })
}

/// The message of a number, without its key.
pub fn message(messages: &Messages, number: u64) -> Message {
    Message::new(messages.body(number))
}

struct Producer {
    sender: Sender,
    shape: Shape,
    ledger: Arc<Ledger>,
    piled: Arc<OnceLock<Duration>>,
}

/// How long confirmations took: all of them, and those of messages sent beside workers.
struct Confirms {
    all: Histogram<u64>,
    beside: Histogram<u64>,
}

impl Confirms {
    fn new() -> Self {
        Self { all: histogram(), beside: histogram() }
    }

    fn record(&mut self, took: Duration, is_beside: bool) {
        let took = took.as_micros() as u64;
        self.all.saturating_record(took);
        if is_beside {
            self.beside.saturating_record(took);
        }
    }

    fn add(&mut self, other: Self) {
        self.all += other.all;
        self.beside += other.beside;
    }
}

impl Producer {
    async fn produce(self) -> Result<Confirms> {
        match self.shape.rate {
            Some(rate) => self.send_at(rate).await,
            None => self.send_all().await,
        }
    }

    /// Whether there were workers at this time.
    fn is_beside(&self, at: Duration) -> bool {
        self.piled.get().is_some_and(|piled| *piled < at)
    }

    fn push(&mut self, number: u64) {
        let messages = self.ledger.messages();
        let message = message(messages, number);
        match self.shape.has_keys {
            true => self.sender.push(message.key(messages.key(number).to_string()), number),
            false => self.sender.push_unkeyed(message, number),
        }
    }

    fn confirmed(&self, answered: Answered) -> Result<()> {
        let number = answered.tag;
        let answer =
            answered.answer.with_context(|| format!("message {number} was not accepted"))?;
        if !answer.is_new() {
            self.ledger.duplicate();
        }
        self.ledger.sent(number, Some(answer.id));
        Ok(())
    }

    /// Fills the window, and refills it as answers arrive.
    async fn send_all(mut self) -> Result<Confirms> {
        let mut confirms = Confirms::new();
        let mut sent = SendTimes::default();
        let mut answers = Vec::new();
        let batch = self.shape.batch as u64;
        loop {
            let now = self.ledger.elapsed();
            while let Some(numbers) = self.ledger.take(batch, self.sender.room() as u64) {
                sent.put(numbers.clone(), now);
                numbers.for_each(|number| self.push(number));
            }
            if self.sender.unanswered() == 0 {
                if self.ledger.is_taken() {
                    return Ok(confirms);
                }
                tokio::time::sleep(BACKLOG_PAUSE).await;
                continue;
            }
            self.sender.answers(&mut answers).await?;
            let now = self.ledger.elapsed();
            for answered in answers.drain(..) {
                let sent_at = sent.take(answered.tag);
                confirms.record(now.saturating_sub(sent_at), self.is_beside(sent_at));
                self.confirmed(answered)?;
            }
        }
    }

    /// Sends each message at its time, whether or not earlier ones were answered.
    async fn send_at(mut self, rate: u64) -> Result<Confirms> {
        let due_at = move |number: u64| Duration::from_secs_f64(number as f64 / rate as f64);
        let timer = Timer::new()?;
        let mut confirms = Confirms::new();
        let mut answers = Vec::new();
        let mut next = self.ledger.take(1, 1);
        while next.is_some() || self.sender.unanswered() > 0 {
            let is_waiting = self.sender.unanswered() > 0;
            let number = next.as_ref().map(|number| number.start);
            let left = number.map(|number| due_at(number).saturating_sub(self.ledger.elapsed()));
            tokio::select! {
                slept = timer.sleep(left.unwrap_or_default()), if left.is_some() => {
                    slept?;
                    number.into_iter().for_each(|number| self.push(number));
                    self.sender.flush();
                    next = self.ledger.take(1, 1);
                }
                answered = self.sender.answers(&mut answers), if is_waiting => answered?,
            }
            let now = self.ledger.elapsed();
            for answered in answers.drain(..) {
                let due = due_at(answered.tag);
                confirms.record(now.saturating_sub(due), self.is_beside(due));
                self.confirmed(answered)?;
            }
        }
        Ok(confirms)
    }
}

/// A timer of the kernel: the runtime's counts whole milliseconds, and a thread that sleeps does so
/// for too long and has to hand over to the producer's task, which is not the broker's time.
struct Timer(pipe::Receiver);

impl Timer {
    fn new() -> Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // It is read like a pipe: a number of 8 bytes whenever it has expired.
        Ok(Self(pipe::Receiver::from_owned_fd_unchecked(timer)?))
    }

    /// Cancel-safe: the next sleep sets it anew.
    async fn sleep(&self, length: Duration) -> Result<()> {
        if length.is_zero() {
            return Ok(());
        }
        let it_interval = Timespec::default();
        let it_value = Timespec::try_from(length)?;
        let set = Itimerspec { it_interval, it_value };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &set)?;
        loop {
            self.0.readable().await?;
            match self.0.try_read(&mut [0; 8]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return Ok(read.map(drop)?),
            }
        }
    }
}

async fn work(
    queue: Queue,
    number: usize,
    shape: Shape,
    ledger: Arc<Ledger>,
    mut over: watch::Receiver<bool>,
) -> Result<Histogram<u64>> {
    let mut work = queue.work().worker(format!("bench-{number}")).open();
    work.credit(u32::try_from(shape.window).unwrap_or(u32::MAX));
    let mut batch = Batch::default();
    let mut settled = Vec::new();
    let mut settles = histogram();
    loop {
        tokio::select! {
            came = work.next(&mut batch) => came?,
            _ = over.wait_for(|is_over| *is_over) => return Ok(settles),
        }
        let now = ledger.elapsed();
        for delivery in batch.deliveries.drain(..) {
            let key = shape.has_keys.then(|| Uuid::try_parse(delivery.key())).transpose()?;
            let number = ledger.delivered(key, delivery.body(), Some(delivery.id()))?;
            work.settle(delivery.lease(), Settle::done(), Tag { number, at: now }.pack());
        }
        let answered = u32::try_from(batch.settled.len()).unwrap_or(u32::MAX);
        for answered in batch.settled.drain(..) {
            let tag = Tag::unpack(answered.tag, now);
            settles.saturating_record(now.saturating_sub(tag.at).as_micros() as u64);
            match answered.answer?.is_ok() {
                true => settled.push(tag.number),
                false => ledger.lease_lost(),
            }
        }
        ledger.settled(settled.drain(..));
        work.credit(answered);
        batch.lost.clear();
        if batch.is_closing {
            bail!("the broker stops");
        }
    }
}

/// The number of a message and when it was settled, in the tag of its settle: a look-up for every
/// settle would cost the client more than the rest of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tag {
    number: u64,
    at: Duration,
}

impl Tag {
    const NUMBER_BITS: u32 = 40;
    /// What the time is counted in: the other bits then last for half an hour.
    const TICK_US: u64 = 128;
    const TICKS: u64 = 1 << (u64::BITS - Self::NUMBER_BITS);

    fn pack(self) -> u64 {
        let ticks = self.at.as_micros() as u64 / Self::TICK_US % Self::TICKS;
        assert!(self.number < 1 << Self::NUMBER_BITS, "a run is not that long");
        self.number | ticks << Self::NUMBER_BITS
    }

    /// Times before `now` are known to a tick.
    fn unpack(tag: u64, now: Duration) -> Self {
        let ticks = now.as_micros() as u64 / Self::TICK_US;
        let ago = ticks.wrapping_sub(tag >> Self::NUMBER_BITS) % Self::TICKS;
        let at = Duration::from_micros(ticks.saturating_sub(ago) * Self::TICK_US);
        Self { number: tag & ((1 << Self::NUMBER_BITS) - 1), at }
    }
}

/// When messages without an answer were sent: ranges of numbers, in order, each with its time and
/// how many of it have no answer.
#[derive(Debug, Default)]
struct SendTimes(VecDeque<(Range<u64>, Duration, u64)>);

impl SendTimes {
    /// Ranges come in order.
    fn put(&mut self, numbers: Range<u64>, at: Duration) {
        let count = numbers.end - numbers.start;
        self.0.push_back((numbers, at, count));
    }

    fn take(&mut self, number: u64) -> Duration {
        let place = self.0.partition_point(|(numbers, ..)| numbers.end <= number);
        let Some((_, at, left)) = self.0.get_mut(place) else { return Duration::ZERO };
        let at = *at;
        *left = left.saturating_sub(1);
        while self.0.pop_front_if(|(.., left)| *left == 0).is_some() {}
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_has_its_number_and_its_time() {
        let tick = Duration::from_micros(Tag::TICK_US);
        let half_an_hour = Duration::from_secs(35 * 60);
        for at in [0, 1, 99, (1 << 24) - 1, 1 << 24, (1 << 24) + 5].map(|ticks| tick * ticks) {
            for number in [0, 7, (1 << Tag::NUMBER_BITS) - 1] {
                for later in [Duration::ZERO, tick / 2, tick * 3, half_an_hour] {
                    let tag = Tag { number, at };
                    assert_eq!(Tag::unpack(tag.pack(), at + later), tag);
                }
            }
        }
    }

    #[test]
    fn times_are_found_by_number_in_any_order() {
        let ms = Duration::from_millis;
        let mut sent = SendTimes::default();
        sent.put(2..4, ms(1));
        sent.put(7..8, ms(2));
        sent.put(9..11, ms(3));
        assert_eq!(sent.take(7), ms(2));
        assert_eq!((sent.take(3), sent.take(10)), (ms(1), ms(3)));
        assert_eq!(sent.0.len(), 3);
        assert_eq!(sent.take(2), ms(1));
        assert_eq!(sent.0.len(), 1);
        sent.put(20..21, ms(4));
        assert_eq!((sent.take(20), sent.take(9)), (ms(4), ms(3)));
        assert!(sent.0.is_empty());
    }
}
