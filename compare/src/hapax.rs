//! Hapax over its gRPC streams, by its own client: a queue as it is by default, exactly-once, its
//! keys remembered for seven days.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hapax_client::{Admin, Batch, Client, Message, Queue, Settle};
use rustix::process::Signal;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::load::{BACKLOG_PAUSE, Ledger, Load, REPEATED};
use crate::server::{self, Server};
use crate::system::{Before, Measured, Options, System, Tuning};

/// How long a worker without work looks away from whether there will be any.
const PAUSE: Duration = Duration::from_millis(50);

/// How long the broker may take until it answers.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// A batch is what a sender pushes before it looks for answers; as many batches as the pipeline
/// says are its window, and the credits of a worker.
const TUNING: Tuning = Tuning { producers: 2, workers: 2, batch: 1_024, pipeline: 4 };

#[derive(Debug)]
pub(crate) struct Hapax {
    tuning: Tuning,
    options: Options,
    running: Option<Running>,
    /// A queue of its own for every run.
    queues: u32,
}

#[derive(Debug)]
struct Running {
    address: String,
    runtime: Runtime,
    server: Server,
}

impl Hapax {
    pub(crate) fn new(options: &Options) -> Self {
        let tuning = TUNING.or(options);
        Self { tuning, options: options.clone(), running: None, queues: 0 }
    }

    /// The program that was asked for, or the one that was built with this one.
    fn program(&self) -> Result<PathBuf> {
        if let Some(program) = &self.options.hapax {
            ensure!(program.is_file(), "--hapax: there is no {}", program.display());
            return Ok(program.canonicalize()?);
        }
        let program = std::env::current_exe()?.with_file_name("hapax");
        ensure!(
            program.is_file(),
            "there is no {}: build it first with cargo build --release -p hapax, \
             or name one by --hapax",
            program.display()
        );
        Ok(program)
    }

    async fn live(&self, running: &Running, queue: &str, load: Load) -> Result<Measured> {
        let client = Client::connect(&running.address)?;
        let admin = Admin::new(client.clone());
        admin.put_queue(queue, "{}", None).await?;
        let before = Before::look(running.server.process_id())?;
        let ledger = Arc::new(Ledger::open(load));
        let mut tasks = JoinSet::new();
        for _ in 0..self.tuning.producers {
            let (ledger, tuning) = (Arc::clone(&ledger), self.tuning);
            let queue = Client::connect(&running.address)?.queue(queue);
            tasks.spawn(async move { ledger.ended(produce(&queue, &ledger, tuning).await) });
        }
        for _ in 0..self.tuning.workers {
            let (ledger, tuning) = (Arc::clone(&ledger), self.tuning);
            let queue = Client::connect(&running.address)?.queue(queue);
            tasks.spawn(async move { ledger.ended(work(&queue, &ledger, tuning).await) });
        }
        while let Some(ended) = tasks.join_next().await {
            ended?;
        }
        let ledger = Arc::into_inner(ledger).context("a task that did not end")?;
        let measured = before.measured(ledger.close()?)?;
        verify(&admin, &client.queue(queue), load).await?;
        Ok(measured)
    }
}

impl System for Hapax {
    fn name(&self) -> &'static str {
        "hapax"
    }

    fn describe(&self) -> &'static str {
        "Hapax, exactly-once"
    }

    fn is_peer(&self) -> bool {
        false
    }

    fn start(&mut self) -> Result<()> {
        let directory = server::directory_in(&self.options.dir, self.name())?;
        let port_file = directory.path().canonicalize()?.join("port");
        let command = command(&self.program()?, directory.path(), &port_file)?;
        let mut server = Server::start("hapax", command, Signal::KILL, directory)?;
        let address = server.wait_for(|| Ok(fs::read_to_string(&port_file)?))?;
        let address = format!("http://{}", address.trim());
        let runtime = Runtime::new()?;
        runtime.block_on(async { Client::connect(&address)?.ready(READY_TIMEOUT).await })?;
        self.running = Some(Running { address, runtime, server });
        Ok(())
    }

    fn process_id(&self) -> Option<u32> {
        Some(self.running.as_ref()?.server.process_id())
    }

    fn run(&mut self, load: Load) -> Result<Measured> {
        self.queues += 1;
        let queue = format!("run-{}", self.queues);
        let running = self.running.as_ref().context("Hapax was not started")?;
        running.runtime.block_on(self.live(running, &queue, load))
    }
}

fn command(program: &Path, directory: &Path, port_file: &Path) -> Result<Command> {
    let mut command = Command::new(program);
    command.args(["serve", "--listen", "127.0.0.1:0", "--auth", "off", "--data"]);
    command.arg(directory.canonicalize()?.join("data")).arg("--port-file").arg(port_file);
    // The settings of whoever runs this are not meant for this broker,
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HAPAX_") {
            command.env_remove(name);
        }
    }
    // nor is a settings file in the directory where they do.
    command.current_dir(directory);
    Ok(command)
}

async fn produce(queue: &Queue, ledger: &Ledger, tuning: Tuning) -> Result<()> {
    let batch = usize::from(tuning.batch);
    let mut sender = queue.sender().window(batch * usize::from(tuning.pipeline));
    let mut answers = Vec::new();
    let mut is_over = false;
    loop {
        while !is_over && sender.room() >= batch && ledger.has_room(u64::from(tuning.batch)) {
            let Some(numbers) = ledger.take(u64::from(tuning.batch))? else {
                is_over = true;
                break;
            };
            for number in numbers {
                sender.push(message(&ledger.load, number), number);
            }
        }
        if is_over && sender.unanswered() == 0 {
            return Ok(());
        }
        if sender.unanswered() == 0 {
            ledger.fail_if_over()?;
            tokio::time::sleep(BACKLOG_PAUSE).await;
            continue;
        }
        sender.answers(&mut answers).await?;
        ledger.accepted(answers.len() as u64);
        for answered in answers.drain(..) {
            let is_new = answered.answer?.is_new();
            ensure!(is_new, "the new key of message {} was taken for known", answered.tag);
        }
    }
}

fn message(load: &Load, number: u64) -> Message {
    let mut body = Vec::new();
    load.body(number, &mut body);
    Message::new(body).key(load.key(number).to_string())
}

async fn work(queue: &Queue, ledger: &Ledger, tuning: Tuning) -> Result<()> {
    let mut work = queue.work().open();
    let mut batch = Batch::default();
    let mut scratch = Vec::new();
    work.credit(u32::from(tuning.batch) * u32::from(tuning.pipeline));
    while !ledger.is_complete()? {
        // The end comes without a word to a worker that waits.
        if let Ok(came) = tokio::time::timeout(PAUSE, work.next(&mut batch)).await {
            came?;
        }
        for delivery in batch.deliveries.drain(..) {
            let key = Uuid::try_parse(delivery.key())?;
            ledger.delivered(key, delivery.body(), &mut scratch)?;
            work.settle(delivery.lease(), Settle::done(), 0);
        }
        let settled = u32::try_from(batch.settled.len())?;
        for answered in batch.settled.drain(..) {
            ensure!(answered.answer?.is_ok(), "a lease was lost");
        }
        ensure!(batch.lost.is_empty(), "{} leases were lost", batch.lost.len());
        ledger.settled(u64::from(settled));
        work.credit(settled);
    }
    Ok(())
}

/// Nothing is left, and keys that were sent are known.
async fn verify(admin: &Admin, queue: &Queue, load: Load) -> Result<()> {
    let messages = load.count.min(REPEATED);
    let repeated = (0..messages).map(|number| message(&load, number));
    let mut accepted = 0;
    for answer in queue.send_all(repeated).await? {
        accepted += u64::from(answer?.is_new());
    }
    ensure!(accepted == 0, "{accepted} of {messages} repeated keys were accepted again");
    let stats = admin.queue(queue.name()).await?.stats.context("a queue without figures")?;
    let left = stats.ready + stats.delayed + stats.leased + stats.parked + stats.dead;
    ensure!(left == 0, "{left} messages are left in the queue");
    ensure!(stats.keys == load.count, "Hapax has {} keys, not {}", stats.keys, load.count);
    Ok(())
}
