//! A partition under load: batches of whole lives, pipelined as a writer does it.
//!
//! A producer thread builds and hashes the messages, as connections do; the writer thread only does
//! the partition's work. Every outcome is checked.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::{self, Thread};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use hapax_bench::disk::Syncs;
use hapax_bench::{Messages, cpu};
use hapax_core::{
    Answer, Blob, Command, Config, Configure, Content, Guarantee, LeaseName, Outcome, QueueName,
    Receive, Recipe, SendMessage, Settle, Settled, Stamp, Time, Verb,
};
use hapax_partition::{Clock, Options, Partition, Ticket};
use hapax_store::disk::{self, DiskStore, Threads};

use crate::timed::{TimedVolume, take};

/// How new data is hashed.
static RECIPE: LazyLock<Recipe> = LazyLock::new(|| Recipe::second(&[7; 32]));

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) lives: u64,
    pub(crate) batch: u32,
    pub(crate) body_bytes: usize,
    pub(crate) result_bytes: usize,
    /// Off: an at-least-once queue, and messages without keys.
    pub(crate) dedup: bool,
}

/// The measurements of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    pub(crate) lives: u64,
    pub(crate) wall: Duration,
    pub(crate) writer_cpu: Duration,
    pub(crate) behind_cpu: Duration,
    /// Longest wall time of a `submit`; below, the most CPU time, which excludes time off the
    /// processor.
    pub(crate) longest_submit: Duration,
    pub(crate) longest_submit_cpu: Duration,
    /// Longest time the writer held callers back although the disk kept up.
    pub(crate) longest_hold: Duration,
    pub(crate) longest_confirm: Duration,
}

impl Measured {
    pub(crate) fn per_second(&self) -> f64 {
        self.lives as f64 / self.wall.as_secs_f64()
    }

    pub(crate) fn writer_us(&self) -> f64 {
        self.writer_cpu.as_secs_f64() * 1e6 / self.lives as f64
    }

    pub(crate) fn behind_us(&self) -> f64 {
        self.behind_cpu.as_secs_f64() * 1e6 / self.lives as f64
    }
}

/// A partition under load.
pub(crate) struct Rig {
    pub(crate) partition: Partition<DiskStore>,
    threads: Option<Threads>,
    clock: Clock,
    start: Instant,
    random: u64,
    syncs: Arc<Mutex<Syncs>>,
    next_key: u64,
}

impl Rig {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let (volume, syncs) = TimedVolume::create(path)?;
        let writer: Thread = thread::current();
        let wake = Arc::new(move || writer.unpark());
        let options = disk::Options { identity: 0x4841_5041_5820_2121, ..Default::default() };
        let (store, workers) = DiskStore::open(Arc::new(volume), options, wake)?;
        let threads = workers.spawn()?;
        let partition =
            Partition::open(store, Options { seed: 99, recipe: *RECIPE, ..Options::default() })?;
        let start = Instant::now();
        let clock = Clock::start(partition.now(), wall(), 0);
        let threads = Some(threads);
        Ok(Self { partition, threads, clock, start, random: 1, syncs, next_key: 0 })
    }

    pub(crate) fn stamp(&mut self) -> Stamp {
        let monotonic = self.start.elapsed().as_micros() as u64;
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        Stamp { at: self.clock.now(wall(), monotonic), random: self.random }
    }

    /// Submits and waits for the answers.
    pub(crate) fn call(&mut self, commands: Vec<Command>) -> Result<Vec<Outcome>> {
        let stamp = self.stamp();
        let ticket = self.partition.submit(stamp, commands)?;
        self.outcomes(ticket)
    }

    pub(crate) fn outcomes(&mut self, ticket: Ticket) -> Result<Vec<Outcome>> {
        let mut outcomes = Vec::new();
        loop {
            match self.partition.poll()? {
                Some(answered) if answered.ticket == ticket => {
                    outcomes.extend(answered.outcomes);
                    if !answered.more {
                        return Ok(outcomes);
                    }
                }
                Some(_) => {}
                None => thread::park_timeout(Duration::from_millis(50)),
            }
        }
    }

    pub(crate) fn queue(&mut self, name: &str, dedup: bool) -> Result<QueueName> {
        let queue = QueueName::new("bench", name)?;
        let guarantee = if dedup { Guarantee::ExactlyOnce } else { Guarantee::AtLeastOnce };
        let config = Config { guarantee, ..Config::default() };
        let configure = Configure { queue: queue.clone(), config, if_version: None };
        self.call(vec![Command::Configure(Box::new(configure))])?;
        Ok(queue)
    }

    pub(crate) fn close(self) -> Result<()> {
        self.partition.close()?;
        drop(self.threads);
        Ok(())
    }

    /// The syncs of the journal since the last call.
    pub(crate) fn take_syncs(&self) -> Syncs {
        take(&self.syncs)
    }

    /// Runs whole lives: send, receive, settle with a result, each confirmed.
    pub(crate) fn run(&mut self, queue: &QueueName, shape: Shape) -> Result<Measured> {
        let first = self.next_key;
        self.next_key += shape.lives;
        let (messages, producer) = produce(queue.clone(), shape, first)?;
        let before = (cpu::of_this_process(), cpu::of_this_thread());
        let start = Instant::now();
        let mut run = Run::new(self, queue.clone(), shape, messages);
        run.all()?;
        let mut measured = run.measured;
        measured.lives = shape.lives;
        measured.wall = start.elapsed();
        measured.writer_cpu = cpu::of_this_thread() - before.1;
        let producer_cpu = producer.join().ok().context("the producer failed")?;
        let process = cpu::of_this_process() - before.0;
        measured.behind_cpu =
            process.saturating_sub(measured.writer_cpu).saturating_sub(producer_cpu);
        Ok(measured)
    }
}

struct Run<'a> {
    rig: &'a mut Rig,
    queue: QueueName,
    shape: Shape,
    messages: Receiver<Vec<Command>>,
    measured: Measured,
    settles: Vec<LeaseName>,
    submitted: VecDeque<(Ticket, Instant)>,
    sent: u64,
    receives_owed: u64,
    done: u64,
    result: Blob,
    worker: Arc<str>,
}

impl<'a> Run<'a> {
    fn new(
        rig: &'a mut Rig,
        queue: QueueName,
        shape: Shape,
        messages: Receiver<Vec<Command>>,
    ) -> Self {
        let result = Blob { content_type: None, body: vec![b'r'; shape.result_bytes].into() };
        Self {
            rig,
            queue,
            shape,
            messages,
            measured: Measured::default(),
            settles: Vec::new(),
            submitted: VecDeque::new(),
            sent: 0,
            receives_owed: 0,
            done: 0,
            result,
            worker: "bench-1".into(),
        }
    }

    fn all(&mut self) -> Result<()> {
        while self.done < self.shape.lives {
            let mut commands = Vec::with_capacity(self.shape.batch as usize * 2 + 1);
            if self.receives_owed > 0 {
                self.receives_owed -= 1;
                commands.push(self.receive());
            }
            for lease in self.settles.drain(..) {
                let result = (self.shape.result_bytes > 0).then(|| self.result.clone());
                let verb = Verb::Done { result, emits: Vec::new() };
                commands.push(Command::Settle(Settle { lease, verb }));
            }
            if self.sent < self.shape.lives {
                let sends = self.messages.recv().context("the producer ended early")?;
                self.sent += sends.len() as u64;
                commands.extend(sends);
            }
            if commands.is_empty() {
                self.wait()?;
                continue;
            }
            self.submit(commands)?;
            self.drain()?;
            self.hold()?;
        }
        Ok(())
    }

    fn receive(&self) -> Command {
        Command::Receive(Receive {
            queue: self.queue.clone(),
            max: self.shape.batch,
            lease_ms: None,
            worker: Arc::clone(&self.worker),
            receive_id: None,
            several_per_group: false,
        })
    }

    fn submit(&mut self, commands: Vec<Command>) -> Result<()> {
        let stamp = self.rig.stamp();
        let (start, before) = (Instant::now(), cpu::of_this_thread());
        let ticket = self.rig.partition.submit(stamp, commands)?;
        let took = cpu::of_this_thread().saturating_sub(before);
        self.measured.longest_submit = self.measured.longest_submit.max(start.elapsed());
        self.measured.longest_submit_cpu = self.measured.longest_submit_cpu.max(took);
        self.submitted.push_back((ticket, start));
        Ok(())
    }

    fn drain(&mut self) -> Result<()> {
        while let Some(answered) = self.rig.partition.poll()? {
            if let Some((ticket, at)) = self.submitted.pop_front_if(|_| !answered.more) {
                ensure!(ticket == answered.ticket, "answers come in order");
                self.measured.longest_confirm = self.measured.longest_confirm.max(at.elapsed());
            }
            let mut accepted = 0;
            for outcome in answered.outcomes {
                match outcome {
                    Outcome::Sent(Answer::Accepted { .. }) => accepted += 1,
                    Outcome::Received(deliveries) => {
                        self.settles.extend(deliveries.iter().map(|delivery| delivery.lease));
                    }
                    Outcome::Settled(Settled::Ok { .. }) => self.done += 1,
                    other => bail!("an unexpected answer: {other:?}"),
                }
            }
            self.receives_owed += u64::from(accepted > 0);
        }
        Ok(())
    }

    /// Waits while the partition is busy. What exceeds the disk's time is our own delay.
    fn hold(&mut self) -> Result<()> {
        let start = Instant::now();
        while self.rig.partition.is_busy() {
            self.wait()?;
        }
        self.measured.longest_hold = self.measured.longest_hold.max(start.elapsed());
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        thread::park_timeout(Duration::from_millis(10));
        self.drain()
    }
}

/// Builds messages on a separate thread, which returns its CPU time.
fn produce(
    queue: QueueName,
    shape: Shape,
    first: u64,
) -> Result<(Receiver<Vec<Command>>, thread::JoinHandle<Duration>)> {
    let (sender, receiver) = sync_channel(4);
    let producer = move || {
        let mut next = first;
        let end = first + shape.lives;
        let messages = messages(shape.body_bytes);
        while next < end {
            let count = u64::from(shape.batch).min(end - next);
            let batch = (next..next + count)
                .filter_map(|number| send(&queue, &messages, number, shape.dedup).ok());
            if sender.send(batch.collect()).is_err() {
                break;
            }
            next += count;
        }
        cpu::of_this_thread()
    };
    let producer = thread::Builder::new().name("producer".to_owned()).spawn(producer)?;
    Ok((receiver, producer))
}

/// The messages of every measurement. A rig numbers them.
pub(crate) fn messages(size: usize) -> Messages {
    Messages::new(u64::MAX, size, 0)
}

/// The command that sends the message of a number. A queue without deduplication gets no keys.
pub(crate) fn send(
    queue: &QueueName,
    messages: &Messages,
    number: u64,
    dedup: bool,
) -> Result<Command> {
    let key = if dedup { messages.key(number).to_string() } else { String::new() };
    let content = Content::builder(&key).build(&messages.body(number))?;
    Ok(Command::Send(SendMessage::new(&RECIPE, queue.clone(), content)))
}

fn wall() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(since.as_millis() as u64)
}
