//! Producers and workers, each a task with a connection of its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hapax_client::{Batch, Client, Message, Sender, Settle};
use hdrhistogram::Histogram;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::ledger::Ledger;
use crate::failure::Failure;

/// The longest latency that is told exactly, in microseconds.
const LONGEST_US: u64 = 600_000_000;
/// No progress for so long is a broker that hangs.
const STALL: Duration = Duration::from_secs(60);

/// How often a producer that waits for workers looks how far they are.
const BACKLOG: Duration = Duration::from_millis(1);

pub(super) fn histogram() -> Histogram<u64> {
    let bounded = Histogram::new_with_bounds(1, LONGEST_US, 3);
    // The bounds are right; without them it grows as it needs to.
    bounded.unwrap_or_else(|_| Histogram::new(3).unwrap_or_else(|_| unreachable!("three digits")))
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) producers: usize,
    pub(super) workers: usize,
    pub(super) window: usize,
    /// Messages that are sent and not yet done: at so many producers wait.
    pub(super) backlog: u64,
    pub(super) has_keys: bool,
    /// Messages per second of all producers; as many as go through without it.
    pub(super) rate: Option<u64>,
}

/// What a run took.
#[derive(Debug)]
pub(super) struct Lived {
    /// From the first send to the last confirmation of one.
    pub(super) sends: Duration,
    /// From the first send to the last confirmation of a settle.
    pub(super) lives: Duration,
    /// From when a message should have been sent to its confirmation, in microseconds.
    pub(super) confirms: Histogram<u64>,
}

#[derive(Clone)]
pub(super) struct Load {
    shape: Shape,
    queue: String,
    ledger: Arc<Ledger>,
    start: Instant,
}

impl Load {
    pub(super) fn new(shape: Shape, queue: &str, ledger: Arc<Ledger>) -> Self {
        Self { shape, queue: queue.to_owned(), ledger, start: Instant::now() }
    }

    pub(super) async fn run(
        mut self,
        clients: &dyn Fn() -> Result<Client, Failure>,
    ) -> Result<Lived, Failure> {
        let (over, _) = watch::channel(false);
        let mut workers = JoinSet::new();
        for number in 0..self.shape.workers {
            let worker = self.clone();
            workers.spawn(worker.work(clients()?, number, over.clone()));
        }
        let mut producers = JoinSet::new();
        self.start = Instant::now();
        for number in 0..self.shape.producers {
            producers.spawn(self.clone().produce(clients()?, number));
        }
        let mut confirms = histogram();
        while let Some(ended) = producers.join_next().await {
            confirms += ended.context("a producer was lost")??;
        }
        let sends = self.start.elapsed();
        self.until_done(&mut workers).await?;
        let lives = self.start.elapsed();
        over.send_replace(true);
        while let Some(ended) = workers.join_next().await {
            ended.context("a worker was lost")??;
        }
        Ok(Lived { sends, lives, confirms })
    }

    /// Waits for the last settle; a worker that ends before it has failed.
    async fn until_done(&self, workers: &mut JoinSet<Result<()>>) -> Result<()> {
        let mut seen = (self.ledger.done(), Instant::now());
        while self.ledger.done() < self.ledger.count() {
            tokio::select! {
                Some(ended) = workers.join_next() => ended.context("a worker was lost")??,
                () = tokio::time::sleep(Duration::from_micros(500)) => {}
            }
            if self.ledger.done() != seen.0 {
                seen = (self.ledger.done(), Instant::now());
            }
            if seen.1.elapsed() > STALL {
                let missing = self.ledger.count() - seen.0;
                bail!("nothing moved for {} s, with {missing} lives to go", STALL.as_secs());
            }
        }
        Ok(())
    }

    /// The numbers of a producer: every so-manieth.
    fn numbers(&self, producer: usize) -> impl Iterator<Item = u64> + use<> {
        (producer as u64..self.ledger.count()).step_by(self.shape.producers)
    }

    async fn produce(self, client: Client, producer: usize) -> Result<Histogram<u64>> {
        let sender = client.queue(&self.queue).sender().window(self.shape.window);
        match self.shape.rate {
            Some(rate) => self.paced(sender, producer, rate).await,
            None => self.flat_out(sender, producer).await,
        }
    }

    /// Whether the workers have come so far that this message may follow.
    fn has_room_for(&self, number: u64) -> bool {
        number < self.ledger.done().saturating_add(self.shape.backlog)
    }

    fn push(&self, sender: &mut Sender, number: u64) {
        let message = Message::new(self.ledger.body(number));
        match self.shape.has_keys {
            true => sender.push(message.key(key(number)), number),
            false => sender.push_unkeyed(message, number),
        }
    }

    /// Fills the window, and again whatever was answered.
    async fn flat_out(self, mut sender: Sender, producer: usize) -> Result<Histogram<u64>> {
        let mut confirms = histogram();
        let mut numbers = self.numbers(producer).peekable();
        let mut sent_at = Sent::new(self.shape.producers as u64);
        let mut answers = Vec::new();
        while numbers.peek().is_some() || sender.unanswered() > 0 {
            let now = self.start.elapsed();
            while sender.room() > 0
                && let Some(number) = numbers.next_if(|number| self.has_room_for(*number))
            {
                sent_at.put(number, now);
                self.push(&mut sender, number);
            }
            if sender.unanswered() == 0 {
                tokio::time::sleep(BACKLOG).await;
                continue;
            }
            sender.answers(&mut answers).await?;
            let now = self.start.elapsed();
            for answered in answers.drain(..) {
                self.confirmed(answered.tag, answered.answer);
                let took = now.saturating_sub(sent_at.take(answered.tag));
                confirms.saturating_record(took.as_micros() as u64);
            }
            sent_at.trim();
        }
        Ok(confirms)
    }

    /// Sends each message at its time, whatever became of the ones before.
    async fn paced(self, mut sender: Sender, producer: usize, rate: u64) -> Result<Histogram<u64>> {
        let (due, mut ticks) = mpsc::unbounded_channel();
        let pacer = self.clone();
        // The runtime's timer counts whole milliseconds; the kernel's is much finer.
        std::thread::spawn(move || pacer.pace(producer, rate, &due));
        let mut confirms = histogram();
        let mut intended: HashMap<u64, Duration> = HashMap::new();
        let mut answers = Vec::new();
        let mut is_over = false;
        while !is_over || sender.unanswered() > 0 {
            tokio::select! {
                tick = ticks.recv(), if !is_over => match tick {
                    Some((number, at)) => {
                        intended.insert(number, at);
                        self.push(&mut sender, number);
                        sender.flush();
                    }
                    None => is_over = true,
                },
                answered = sender.answers(&mut answers), if sender.unanswered() > 0 => answered?,
            }
            let now = self.start.elapsed();
            for answered in answers.drain(..) {
                self.confirmed(answered.tag, answered.answer);
                let at = intended.remove(&answered.tag).unwrap_or(now);
                confirms.saturating_record(now.saturating_sub(at).as_micros() as u64);
            }
        }
        Ok(confirms)
    }

    /// Tells every message's time, when it has come.
    fn pace(&self, producer: usize, rate: u64, due: &mpsc::UnboundedSender<(u64, Duration)>) {
        for number in self.numbers(producer) {
            let at = Duration::from_secs_f64(number as f64 / rate as f64);
            std::thread::sleep(at.saturating_sub(self.start.elapsed()));
            if due.send((number, at)).is_err() {
                return;
            }
        }
    }

    fn confirmed(&self, number: u64, answer: Result<hapax_client::Answer, hapax_client::Error>) {
        match answer {
            // After a broken connection a send is repeated, and its answer is a duplicate's.
            Ok(answer) => self.ledger.sent(number, answer.id),
            Err(error) => {
                self.ledger.faults.refused.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%error, number, "a send was refused");
            }
        }
    }

    async fn work(self, client: Client, number: usize, over: watch::Sender<bool>) -> Result<()> {
        let name = format!("bench-{number}");
        let mut work = client.queue(&self.queue).work().worker(name).open();
        work.credit(u32::try_from(self.shape.window).unwrap_or(u32::MAX));
        let mut over = over.subscribe();
        let mut batch = Batch::default();
        let faults = &self.ledger.faults;
        loop {
            tokio::select! {
                came = work.next(&mut batch) => came?,
                _ = over.wait_for(|is_over| *is_over) => return Ok(()),
            }
            for delivery in batch.deliveries.drain(..) {
                let Some(number) = self.ledger.read(delivery.body()) else { continue };
                if self.shape.has_keys && number_of(delivery.key()) != Some(number) {
                    faults.changed.fetch_add(1, Ordering::Relaxed);
                }
                self.ledger.delivered(number, delivery.id());
                work.settle(delivery.lease(), Settle::done(), number);
            }
            let answered = u32::try_from(batch.settled.len()).unwrap_or(u32::MAX);
            for settled in batch.settled.drain(..) {
                match settled.answer?.is_ok() {
                    true => self.ledger.settled(settled.tag),
                    false => drop(faults.leases_lost.fetch_add(1, Ordering::Relaxed)),
                }
            }
            work.credit(answered);
            batch.lost.clear();
            if batch.is_closing {
                bail!("the broker stops");
            }
        }
    }
}

fn key(number: u64) -> String {
    format!("bench-{number:016x}")
}

/// Without making a key anew, to compare it with.
fn number_of(key: &str) -> Option<u64> {
    let digits = key.strip_prefix("bench-").filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok()
}

/// When messages without an answer were sent. Their numbers are close together: a queue of times
/// that begins at the oldest of them.
struct Sent {
    step: u64,
    first: Option<u64>,
    times: std::collections::VecDeque<Option<Duration>>,
}

impl Sent {
    fn new(step: u64) -> Self {
        Self { step, first: None, times: std::collections::VecDeque::new() }
    }

    /// Numbers come in order.
    fn put(&mut self, number: u64, at: Duration) {
        self.first.get_or_insert(number);
        self.times.push_back(Some(at));
    }

    fn take(&mut self, number: u64) -> Duration {
        let place = (number - self.first.unwrap_or(number)) / self.step;
        self.times.get_mut(place as usize).and_then(Option::take).unwrap_or_default()
    }

    fn trim(&mut self) {
        while let Some(None) = self.times.front() {
            self.times.pop_front();
            self.first = self.first.map(|first| first + self.step);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_tells_its_number() {
        assert_eq!(number_of(&key(0xab_cdef)), Some(0xab_cdef));
        assert_eq!(number_of("bench-1"), None);
        assert_eq!(number_of("order-42"), None);
    }

    #[test]
    fn times_are_found_by_number_in_any_order() {
        let mut sent = Sent::new(3);
        for place in 0..4u64 {
            sent.put(1 + 3 * place, Duration::from_millis(place));
        }
        assert_eq!(sent.take(4), Duration::from_millis(1));
        sent.trim();
        assert_eq!(sent.take(1), Duration::ZERO);
        sent.trim();
        assert_eq!(sent.times.len(), 2);
        assert_eq!(sent.take(10), Duration::from_millis(3));
        assert_eq!(sent.take(7), Duration::from_millis(2));
        sent.trim();
        sent.put(13, Duration::from_millis(9));
        assert_eq!(sent.take(13), Duration::from_millis(9));
    }
}
