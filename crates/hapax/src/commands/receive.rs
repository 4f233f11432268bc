//! `hapax receive` and `hapax settle`: receive and settle messages by hand.

use std::time::Duration;

use clap::{Args, Subcommand};
use hapax_core::limits;
use hapax_server::time::show_ms;
use hapax_wire::Code;
use hapax_wire::proto::{self, SettleKind, State, settle::Verb};
use serde::Serialize;

use crate::advice::Advice;
use crate::content::Body;
use crate::counts;
use crate::duration::{self, milliseconds};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::moment;
use crate::screen::{Output, Screen, Table, body, brief, clean, say};
use crate::session::{Connection, Session, worker_name};

#[derive(Debug, Args)]
pub(crate) struct Receive {
    /// The queue.
    queue: String,
    /// At most this many messages, 1 to 1000.
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    #[arg(value_parser = counts::up_to::<u32>(limits::RECEIVE_MAX.into()))]
    max: u32,
    /// Wait at most this long for the first message.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "0s")]
    wait: Duration,
    /// The length of the lease; by default that of the queue.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    lease: Option<Duration>,
    /// Settle them as done immediately, without a result.
    #[arg(long)]
    ack: bool,
    /// The worker's name, recorded in the history of the key.
    #[arg(long, default_value_t = worker_name())]
    worker: String,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Settle {
    #[command(subcommand)]
    command: Verdict,
}

/// How a lease ends.
#[derive(Debug, Subcommand)]
enum Verdict {
    /// Mark the message as done (ack). The body becomes its result.
    #[command(after_help = "Examples:
  hapax settle done orders LEASE 'receipt 17'
  hapax settle done orders LEASE --file receipt.pdf --content-type application/pdf")]
    Done {
        #[command(flatten)]
        lease: Lease,
        #[command(flatten)]
        result: Body,
        /// The content type of the result, such as application/json.
        #[arg(long, value_name = "TYPE")]
        content_type: Option<String>,
    },
    /// Mark the attempt as failed (nack): the message is tried again after the queue's backoff, or
    /// is dead after its last attempt.
    #[command(after_help = "Examples:
  hapax settle fail orders LEASE --error 'no such account'
  hapax settle fail orders LEASE --error 'card expired' --dead
  hapax settle fail orders LEASE --delay 10m")]
    Fail {
        #[command(flatten)]
        lease: Lease,
        /// The error, shown with the key.
        #[arg(long, default_value = "failed by hand")]
        error: String,
        /// Try again after this time instead of the queue's backoff.
        #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
        delay: Option<Duration>,
        /// Make no further attempt: the message is dead.
        #[arg(long)]
        dead: bool,
    },
    /// Report that the effect may or may not have happened. A message that was begun, in a queue
    /// with on-lost = park, is parked until an operator resolves it; otherwise this is the same as
    /// `fail`.
    #[command(after_help = "Examples:
  hapax settle park charges LEASE --error 'killed in the middle'
  hapax settle park charges LEASE --error 'its result is too large' --dead")]
    Park {
        #[command(flatten)]
        lease: Lease,
        /// What is known about it, for the operator who resolves it.
        #[arg(long, default_value = "in doubt")]
        error: String,
        /// If it counts as a failure: try again after this time instead of the queue's backoff.
        #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
        delay: Option<Duration>,
        /// If it counts as a failure: make no further attempt.
        #[arg(long)]
        dead: bool,
    },
    /// Give the message back. The attempt does not count.
    #[command(after_help = "Examples:
  hapax settle release orders LEASE")]
    Release {
        #[command(flatten)]
        lease: Lease,
    },
    /// Mark the start of an effect that must not happen twice. If the lease is lost after this, a
    /// queue with on-lost = park parks the message instead of delivering it again.
    #[command(after_help = "Examples:
  hapax settle begin charges LEASE")]
    Begin {
        #[command(flatten)]
        lease: Lease,
    },
    /// Save a recovery point, which the next attempt receives.
    #[command(after_help = "Examples:
  hapax settle save orders LEASE charged 'charge 17'
  hapax settle save \"$HAPAX_QUEUE\" \"$HAPAX_LEASE\" page --file page.json")]
    Save {
        #[command(flatten)]
        lease: Lease,
        /// The name of the recovery point.
        name: String,
        #[command(flatten)]
        data: Body,
    },
    /// Extend the lease.
    #[command(after_help = "Examples:
  hapax settle extend orders LEASE --lease 5m")]
    Extend {
        #[command(flatten)]
        lease: Lease,
        /// The new length of the lease, counted from now; by default that of the queue.
        #[arg(long = "lease", value_name = "DURATION", value_parser = duration::parse)]
        duration: Option<Duration>,
    },
}

#[derive(Debug, Args)]
struct Lease {
    /// The queue.
    queue: String,
    /// The lease, as `hapax receive` printed it.
    #[arg(value_name = "LEASE", value_parser = parse_lease, allow_hyphen_values = true)]
    lease: bytes::Bytes,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    output: Output,
}

/// Reads a lease from its text form.
fn parse_lease(text: &str) -> Result<bytes::Bytes, String> {
    let lease = hapax_wire::Lease::read(text.trim().trim_end_matches('='));
    let is_one = !lease.is_empty();
    is_one.then_some(lease).ok_or_else(|| "not a lease: copy it from `hapax receive`".to_owned())
}

/// The answer to a settle, with the lease that it is about.
#[derive(Serialize)]
struct Settled<'a> {
    lease: hapax_wire::Lease<'a>,
    #[serde(flatten)]
    answer: &'a proto::SettleAnswer,
}

pub(crate) async fn run(receive: &Receive) -> Result<Exit, Failure> {
    receive.connection.on(&receive.queue, async |session| act(session, receive).await).await
}

async fn act(session: &Session, receive: &Receive) -> Result<Exit, Failure> {
    let screen = receive.output.screen();
    let request = proto::ReceiveRequest {
        queue: receive.queue.clone(),
        max: receive.max,
        wait_ms: milliseconds(receive.wait),
        lease_ms: receive.lease.map(milliseconds),
        worker: receive.worker.clone(),
        receive_id: None,
        several_per_group: false,
    };
    let deliveries = session.client.receive(request).await?;
    if deliveries.is_empty() {
        let what = match receive.wait.is_zero() {
            true => "there is no message to receive".to_owned(),
            false => format!("no message came within {}", show_ms(milliseconds(receive.wait))),
        };
        let show = Advice::new("hapax queue show", &[&receive.queue]);
        return Err(Failure::new(Exit::WaitOver, what).next(format!("{show} shows what it holds")));
    }
    print(screen, &deliveries, receive.ack)?;
    if !receive.ack {
        return Ok(Exit::Ok);
    }
    let done = || Verb::Done(proto::Done::default());
    let settles = deliveries.iter().zip(0..).map(|(delivery, number)| proto::Settle {
        r#ref: number,
        lease: delivery.lease.clone(),
        verb: Some(done()),
    });
    let answers = session.client.settle(&receive.queue, settles.collect()).await?;
    let mut first = None;
    for (delivery, answer) in deliveries.iter().zip(&answers) {
        if answer.kind() != SettleKind::Ok {
            let failure = unsettled(answer);
            let what = format!("{}: {}", clean(&delivery.key), failure.what);
            match first {
                None => first = Some(Failure { what, ..failure }),
                Some(_) => say(what),
            }
        }
    }
    first.map_or(Ok(Exit::Ok), Err)
}

fn print(screen: Screen, deliveries: &[proto::Delivery], is_settled: bool) -> Result<(), Failure> {
    if screen.is_json() {
        for delivery in deliveries {
            screen.json_line(&delivery)?;
        }
        return Ok(());
    }
    let now = moment::now_ms();
    let mut table = Table::new(&["KEY", ">ATTEMPT", "DEADLINE", "~BODY", "LEASE"]);
    for delivery in deliveries {
        let lease = match is_settled {
            true => "settled as done".to_owned(),
            false => hapax_wire::Lease(&delivery.lease).to_string(),
        };
        table.row([
            brief(&delivery.key, 60).into(),
            delivery.attempt.into(),
            moment::relative(now, delivery.deadline_ms).into(),
            body(&delivery.body, 60).into(),
            lease.into(),
        ]);
    }
    table.print(screen)?;
    Ok(())
}

pub(crate) async fn settle(settle: &Settle) -> Result<Exit, Failure> {
    let (lease, verb) = match &settle.command {
        Verdict::Done { lease, result, content_type } => {
            let content_type = content_type.clone().unwrap_or_default();
            let result = match result.is_given() {
                true => Some(proto::Blob { body: result.read()?, content_type }),
                false => None,
            };
            (lease, Verb::Done(proto::Done { result, emits: Vec::new() }))
        }
        Verdict::Fail { lease, error, delay, dead } => {
            let delay_ms = delay.map(milliseconds);
            (lease, Verb::Fail(proto::Fail { error: error.clone(), delay_ms, dead: *dead }))
        }
        Verdict::Park { lease, error, delay, dead } => {
            let delay_ms = delay.map(milliseconds);
            (lease, Verb::Park(proto::Park { error: error.clone(), delay_ms, dead: *dead }))
        }
        Verdict::Release { lease } => (lease, Verb::Release(proto::Release {})),
        Verdict::Begin { lease } => (lease, Verb::Begin(proto::Begin {})),
        Verdict::Save { lease, name, data } => {
            let (name, body) = (name.clone(), data.read()?);
            (lease, Verb::Save(proto::Save { name, body }))
        }
        Verdict::Extend { lease, duration } => {
            (lease, Verb::Extend(proto::Extend { lease_ms: duration.map(milliseconds) }))
        }
    };
    let item = proto::Settle { r#ref: 0, lease: lease.lease.clone(), verb: Some(verb) };
    lease.connection.on(&lease.queue, async |session| settle_one(session, lease, item).await).await
}

async fn settle_one(
    session: &Session,
    lease: &Lease,
    item: proto::Settle,
) -> Result<Exit, Failure> {
    let screen = lease.output.screen();
    let answers = session.client.settle(&lease.queue, vec![item]).await?;
    let Some(answer) = answers.first() else {
        return Err(Failure::new(Exit::Failure, "the broker did not answer the settle"));
    };
    if screen.is_json() {
        screen.json(&Settled { lease: hapax_wire::Lease(&lease.lease), answer })?;
    }
    if answer.kind() != SettleKind::Ok {
        return Err(unsettled(answer));
    }
    if !screen.is_json() {
        let now = moment::now_ms();
        let until = match (answer.state(), answer.deadline_ms) {
            (_, None) => String::new(),
            (State::Leased, Some(at)) => format!("; its lease ends {}", moment::relative(now, at)),
            (_, Some(at)) => format!("; due {}", moment::relative(now, at)),
        };
        screen.line(format_args!("ok  the message is {}{until}", answer.state().as_str()))?;
    }
    Ok(Exit::Ok)
}

fn unsettled(answer: &proto::SettleAnswer) -> Failure {
    if let Some(problem) = &answer.problem {
        return Failure::of_problem(problem);
    }
    let state = answer.state().as_str();
    let what = match &answer.result {
        Some(result) => format!(
            "lease_lost: the message is {state} by somebody else, with the result {}",
            body(&result.body, 200)
        ),
        None => format!("lease_lost: the lease is no longer yours; the message is {state}"),
    };
    let failure = Failure::new(Exit::of(Code::LeaseLost), what);
    let failure = failure.next("stop working on it: nothing was changed");
    Failure { code: Some(Code::LeaseLost), ..failure }
}
