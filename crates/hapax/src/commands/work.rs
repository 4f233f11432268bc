//! `hapax work`: runs a command for every message of a queue. The client's worker manages leases,
//! draining and settles; this module runs the command and derives the outcome of the message from
//! how it ended.

mod process;
mod report;

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use hapax_client::{Context, Delivery, Done, Failure as Failed, Worker};
use hapax_server::log;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::counts;
use crate::duration;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::{Output, count, say};
use crate::session::{Connection, Session, worker_name};
use process::{Ended, Process};
use report::Report;

pub(crate) const HELP: &str = "The command gets the body on its standard input, and HAPAX_KEY, \
HAPAX_QUEUE, HAPAX_ID, HAPAX_ATTEMPT, HAPAX_GENERATION, HAPAX_FENCE, HAPAX_LEASE, HAPAX_GROUP, \
HAPAX_CONTENT_TYPE, HAPAX_TENANT, HAPAX_LEASE_MS, HAPAX_HEADER_name and HAPAX_POINT_name in its \
environment. HAPAX_HEADERS and HAPAX_POINTS hold all headers and recovery points as JSON. Exit \
code 0 means done, with the standard output as the result. Exit code 75 means not now: the \
attempt failed and is retried after the queue's backoff. It counts like any other attempt: with \
the default configuration (10 attempts) a message that keeps exiting with 75 is dead after four \
minutes on average and nine at most, unless the queue has more --max-attempts or a longer \
--backoff-min. Exit code 76 means in doubt, and so does a command that was ended by a signal, by \
--timeout or by a second Ctrl-C: if it has begun (`hapax settle begin`) and the queue has on-lost \
= park, the message is parked, otherwise the attempt failed. Any other exit code is a failed \
attempt, with the end of the standard error as its error. When the lease is lost, the whole \
process group is stopped. Ctrl-C lets running commands finish and gives the other messages back.

Examples:
  hapax work orders --exec 'tr a-z A-Z'
  hapax work mail --exec './send-mail \"$HAPAX_KEY\"' --concurrency 8 --timeout 2m
  hapax work orders --exec 'curl -sf -H \"Idempotency-Key: $HAPAX_KEY\" --data-binary @- $URL' \
--idle 10s";

#[derive(Clone, Debug, Args)]
pub(crate) struct Work {
    /// The queue.
    queue: String,
    /// The command to run for every message, with `sh -c`.
    #[arg(long, value_name = "COMMAND", value_parser = command)]
    exec: String,
    /// How many commands run at once.
    #[arg(long, short, value_name = "COUNT", default_value_t = 1)]
    #[arg(value_parser = counts::any::<usize>)]
    concurrency: usize,
    /// Stop a command that takes longer. The attempt failed, or is in doubt if the command has
    /// begun.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    timeout: Option<Duration>,
    /// The length of a lease; by default that of the queue. Leases are extended while the command
    /// runs.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    lease: Option<Duration>,
    /// Exit when there was no message for this long.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    idle: Option<Duration>,
    /// How long running commands may take to finish after Ctrl-C.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "25s")]
    drain: Duration,
    /// The largest result. A message whose command writes more is dead, or parked if the command
    /// has begun and the queue has on-lost = park.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    max_result: usize,
    /// The content type of the results, such as application/json.
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// The worker's name, recorded in the history of the key.
    #[arg(long, default_value_t = worker_name())]
    worker: String,
    /// Print no line per message.
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    output: Output,
}

/// A command for the shell. An empty one would end well for every message.
fn command(text: &str) -> Result<String, String> {
    match text.trim().is_empty() {
        true => {
            Err("the command is empty: every message would be done without any work".to_owned())
        }
        false => Ok(text.to_owned()),
    }
}

pub(crate) async fn run(work: &Work) -> Result<Exit, Failure> {
    work.connection.on(&work.queue, async |session| act(session, work).await).await
}

async fn act(session: &Session, work: &Work) -> Result<Exit, Failure> {
    // A missing broker or queue is an error at the start; later the worker waits for them.
    session.client.queue(&work.queue).await?;
    // The worker's own warnings are reported here, in other words.
    let filter = "warn,hapax_client=error".parse().map_err(anyhow::Error::from)?;
    let _log = log::start(log::Format::Text, &filter, None);
    let job = Arc::new(Job::new(work));
    let stop = stop(Arc::clone(&job));
    let queue = session.client.client().queue(&work.queue);
    let mut worker = Worker::new(queue)
        .concurrency(work.concurrency)
        // Messages that would wait behind a slow command can be processed elsewhere.
        .prefetch(0)
        .name(&work.worker)
        .observe({
            let job = Arc::clone(&job);
            move |event| job.report.hear(event)
        })
        .drain_timeout(work.drain + 2 * process::PATIENCE);
    if let Some(lease) = work.lease {
        worker = worker.lease(lease);
    }
    let handler = {
        let job = Arc::clone(&job);
        move |delivery, context| handle(Arc::clone(&job), delivery, context)
    };
    let ended = worker.run_until(stop, handler).await;
    job.report.end();
    ended?;
    if !work.output.screen().is_json() {
        let runs = count(job.count.load(Ordering::Relaxed), "time");
        say(format_args!("ran the command {runs}"));
    }
    Ok(Exit::Ok)
}

/// The state that all commands share.
struct Job {
    work: Work,
    report: Report,
    running: AtomicUsize,
    count: AtomicU64,
    /// The last time at which there was a message.
    active: watch::Sender<Instant>,
    /// Set by the second signal or at the end of the drain: commands must stop.
    hurry: watch::Sender<bool>,
}

impl Job {
    fn new(work: &Work) -> Self {
        Self {
            report: Report::new(work.output.screen(), work.quiet),
            work: work.clone(),
            running: AtomicUsize::new(0),
            count: AtomicU64::new(0),
            active: watch::Sender::new(Instant::now()),
            hurry: watch::Sender::new(false),
        }
    }
}

/// Returns when the worker must take no more messages, and keeps listening for a second signal.
async fn stop(job: Arc<Job>) {
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return;
    };
    tokio::select! {
        // The terminal has written ^C where the next line begins.
        _ = interrupt.recv() => end_line(),
        _ = terminate.recv() => {}
        () = idle(&job) => return,
    }
    let running = job.running.load(Ordering::Relaxed);
    if running > 0 {
        let commands = count(running as u64, "command");
        say(format_args!("finishing {commands}; press Ctrl-C again to stop them"));
    }
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            () = tokio::time::sleep(job.work.drain) => {}
        }
        job.hurry.send_replace(true);
    });
}

fn end_line() {
    if std::io::stderr().is_terminal() {
        say("");
    }
}

/// Returns when nothing has run for the time given by `--idle`.
async fn idle(job: &Job) {
    let Some(most) = job.work.idle else { return std::future::pending().await };
    let mut active = job.active.subscribe();
    loop {
        let last = *active.borrow_and_update();
        let is_running = job.running.load(Ordering::Relaxed) > 0;
        tokio::select! {
            _ = active.changed() => {}
            () = tokio::time::sleep_until((last + most).into()), if !is_running => return,
        }
    }
}

async fn handle(job: Arc<Job>, delivery: Delivery, context: Context) -> Result<Done, Failed> {
    job.running.fetch_add(1, Ordering::Relaxed);
    job.active.send_replace(Instant::now());
    let start = Instant::now();
    let ended = execute(&job, &delivery, &context).await;
    job.running.fetch_sub(1, Ordering::Relaxed);
    job.count.fetch_add(1, Ordering::Relaxed);
    job.active.send_replace(Instant::now());
    job.report.ended(&delivery, &ended, start.elapsed());
    match ended {
        Ended::Done(output) if output.is_empty() => Ok(Done::new()),
        Ended::Done(output) => {
            let result = hapax_client::Blob::new(output);
            Ok(Done::new().result(match &job.work.content_type {
                Some(content_type) => result.content_type(content_type),
                None => result,
            }))
        }
        Ended::RetryLater(error) | Ended::Failed(error) => Err(Failed::new(error)),
        // The command may have called `begin` itself: the broker knows.
        Ended::InDoubt(error) => Err(Failed::in_doubt(error)),
        Ended::TooMuch(error) => Err(Failed::in_doubt(Failed::dead(error))),
        // Not reported: another worker has the lease.
        Ended::Lost => Err(Failed::new("the lease was lost")),
    }
}

async fn execute(job: &Job, delivery: &Delivery, context: &Context) -> Ended {
    let command = Process::new(&job.work.exec, &job.work.queue, delivery);
    let mut hurry = job.hurry.subscribe();
    let timeout = async {
        match job.work.timeout {
            Some(most) => tokio::time::sleep(most).await,
            None => std::future::pending().await,
        }
    };
    let stop = async {
        tokio::select! {
            () = context.lost() => Ended::Lost,
            _ = hurry.wait_for(|is_set| *is_set) => {
                Ended::InDoubt("stopped by its worker before it was finished".to_owned())
            }
            () = timeout => {
                let most = job.work.timeout.unwrap_or_default();
                let most = duration::short(duration::milliseconds(most));
                Ended::InDoubt(format!("took longer than {most}, and was stopped"))
            }
        }
    };
    command.run(delivery.body().clone(), job.work.max_result, stop).await
}
