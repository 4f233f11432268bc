//! `hapax send`: sends one message or a batch.

mod batch;

use std::time::Duration;

use clap::Args;
use hapax_server::time::show_ms;
use hapax_wire::{Answer, AnswerKind, Answered, Id, Problem, State};

use crate::advice::Advice;
use crate::content::{Body, Envelope, new_key};
use crate::duration;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::moment;
use crate::screen::{Colour, Output, Screen, brief, clean, complain, count, say};
use crate::session::{Connection, Session};
use crate::why::{redrive, resolve};

#[derive(Debug, Args)]
pub(crate) struct Send {
    /// The queue.
    queue: String,
    #[command(flatten)]
    body: Body,
    /// The idempotency key. A message that is sent again under its key gets the first answer and
    /// has no second effect. By default a UUIDv7 is generated and printed.
    #[arg(long, short)]
    key: Option<String>,
    #[command(flatten)]
    envelope: Envelope,
    /// Wait at most this long for the message to be done, and print its result.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    wait: Option<Duration>,
    /// Retry for this long, under the same key, while the broker cannot be reached or answers with
    /// a retryable error.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "0s")]
    retry: Duration,
    /// Read messages from the standard input, one JSON document per line, and send them in batches.
    /// Stops at the first invalid line. Every line needs a key, unless the queue is at-least-once
    /// or --make-keys is given. Fields:
    /// {"key":…,"body":… or "body_base64":…,"group":…,"content_type":…,"headers":{…},"delay_ms":…,
    /// "ttl_ms":…,"fingerprint":…,"issued_at":…}
    #[arg(long, conflicts_with_all = ["body", "file", "key", "wait"])]
    batch: bool,
    /// With --batch: generate a key for every line that has none, and print it with the number of
    /// the line to the standard error before the line is sent. To repeat the batch safely, add
    /// these keys to the lines.
    #[arg(long, requires = "batch")]
    make_keys: bool,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn run(send: &Send) -> Result<Exit, Failure> {
    send.connection.on(&send.queue, async |session| act(session, send).await).await
}

async fn act(session: &Session, send: &Send) -> Result<Exit, Failure> {
    let screen = send.output.screen();
    // Not found by `requires`, since --batch conflicts with a body.
    if send.make_keys && !send.batch {
        let next = "without --batch a key is generated and printed if --key is not given";
        return Err(Failure::usage("--make-keys is for --batch").next(next));
    }
    if send.batch {
        return batch::run(session, send, screen).await;
    }
    let body = send.body.read()?;
    let key = match &send.key {
        Some(key) => key.clone(),
        None => {
            let key = new_key();
            say(format_args!("the key is {key}; repeat it with --key to retry safely"));
            key
        }
    };
    let message = send.envelope.message(&key, body)?;
    let mut answers = session.send(&send.queue, vec![message], send.retry).await?;
    let unanswered = || Failure::new(Exit::Failure, "the broker did not answer the send");
    let answer = answers.pop().ok_or_else(unanswered)?;
    let answer = match send.wait {
        Some(wait) => session.wait_for(&send.queue, &key, &send.envelope, answer, wait).await?,
        None => answer,
    };
    let name = Name { queue: &send.queue, key: &key, group: send.envelope.group() };
    print_answer(screen, name, &answer, send.wait)
}

/// The arguments that name the message in the suggested command.
#[derive(Clone, Copy)]
struct Name<'a> {
    queue: &'a str,
    key: &'a str,
    group: Option<&'a str>,
}

/// An answer as it is printed.
fn answered<'a>(queue: &'a str, key: &'a str, answer: &Answer) -> Answered<'a> {
    let (key, answer) = (key.into(), answer.clone());
    Answered { queue: Some(queue), key, answer, result_omitted: false }
}

/// Prints an answer. Without the outcome that the caller asked for, that is a failure.
fn print_answer(
    screen: Screen,
    name: Name<'_>,
    answer: &Answer,
    wait: Option<Duration>,
) -> Result<Exit, Failure> {
    let Name { queue, key, .. } = name;
    if screen.is_json() {
        screen.json(&answered(queue, key, answer))?;
    }
    if let Some(problem) = &answer.problem {
        return Err(refused(name, problem));
    }
    let outcome = answer.outcome.clone().unwrap_or_default();
    let since = moment::relative(moment::now_ms(), answer.accepted_at_ms);
    let mut kind = answer.kind().as_str();
    let (colour, what) = match answer.kind() {
        AnswerKind::Done => (
            Colour::Green,
            format!("accepted {since}, done after {}", count(outcome.attempts, "attempt")),
        ),
        AnswerKind::Dead if answer.state() == State::Discarded => {
            kind = State::Discarded.as_str();
            (Colour::Red, format!("accepted {since}, discarded by an operator"))
        }
        AnswerKind::Dead => {
            let error = brief(&outcome.error, 200);
            (Colour::Red, format!("after {}: {error}", count(outcome.attempts, "attempt")))
        }
        AnswerKind::Parked => (Colour::Yellow, "its effect had begun".to_owned()),
        AnswerKind::InFlight => {
            (Colour::Cyan, format!("{}, sent before ({since})", answer.state().as_str()))
        }
        _ => (Colour::Green, answer.state().as_str().to_owned()),
    };
    if !screen.is_json() {
        let (kind, id) = (screen.paint(colour, kind), Id::of(&answer.id));
        screen.line(format_args!("{kind}  {}  {what}  (id {id})", clean(key)))?;
        if let Some(result) = &outcome.result {
            screen.result(&result.body)?;
        }
    }
    without_outcome(name, answer, wait).map_or(Ok(Exit::Ok), Err)
}

/// The failure of a send whose message cannot be done, or was not done within the wait.
fn without_outcome(name: Name<'_>, answer: &Answer, wait: Option<Duration>) -> Option<Failure> {
    let Name { queue, key, group } = name;
    let state = answer.state().as_str();
    let ended = |what: String, next: String| Some(Failure::new(Exit::Ended, what).next(next));
    match (answer.kind(), wait) {
        (AnswerKind::Dead, _) if answer.state() == State::Discarded => {
            let forget = Advice::new("hapax forget", &[queue, key]).group(group);
            let what = format!("the message of {} was discarded, and is not run", clean(key));
            ended(what, format!("{forget} makes the key new"))
        }
        (AnswerKind::Dead, _) => {
            let what = format!("the message of {} is dead, and is not run", clean(key));
            ended(what, format!("when the cause is fixed: {}", redrive(queue, key, group)))
        }
        (AnswerKind::Parked, _) => {
            let what = format!(
                "the message of {} is parked: it is unknown whether its effect happened",
                clean(key)
            );
            ended(what, format!("{}, or --retry", resolve(queue, key, group).flag("--done")))
        }
        (AnswerKind::Accepted | AnswerKind::InFlight, Some(wait)) => {
            let within = show_ms(duration::milliseconds(wait));
            let what = format!("not done within {within}: the message is {state}");
            let get = Advice::new("hapax get", &[queue, key]).group(group);
            let next = format!("{get} shows what it waits for; the same send can be repeated");
            Some(Failure::new(Exit::WaitOver, what).next(next))
        }
        _ => None,
    }
}

/// Prints a conflict, with the time and the id of the first message.
fn refused(name: Name<'_>, problem: &Problem) -> Failure {
    let Name { queue, key, group } = name;
    let failure = Failure::of_problem(problem);
    if failure.exit != Exit::Conflict || problem.differs.is_empty() {
        return failure;
    }
    let since = moment::relative(moment::now_ms(), problem.accepted_at_ms);
    let what = format!(
        "conflict: the key {} was used {since} for another operation: {} differs (id {}). \
         Nothing was sent",
        clean(key),
        problem.differs.join(", "),
        Id::of(&problem.id)
    );
    // Where the group differs, the key is one over all groups.
    let group = group.filter(|_| !problem.differs.iter().any(|field| field == "group"));
    let next = format!(
        "{} shows the first one; use one key per operation, or --fingerprint if the body changes \
         between retries",
        Advice::new("hapax get", &[queue, key]).group(group)
    );
    Failure { what, next: Some(next), ..failure }
}

/// The answers of a batch: the refused ones are reported, the others counted. The failure of the
/// batch is that of the first refused message.
#[derive(Debug, Default)]
struct Tally {
    accepted: u64,
    duplicates: u64,
    refused: u64,
    first: Option<Failure>,
}

impl Tally {
    fn count(&mut self, screen: Screen, line: u64, key: &str, answer: &Answer) {
        match (answer.kind(), &answer.problem) {
            (_, Some(problem)) => {
                let failure = Failure::of_problem(problem);
                // As JSON it is already printed.
                if !screen.is_json() {
                    complain(&format!("line {line}, key {}: {}", clean(key), failure.what), None);
                }
                self.refused += 1;
                self.first.get_or_insert(failure);
            }
            (AnswerKind::Accepted, None) => self.accepted += 1,
            _ => self.duplicates += 1,
        }
    }

    fn end(self) -> Result<Exit, Failure> {
        let Some(first) = self.first else { return Ok(Exit::Ok) };
        let what = match self.refused {
            1 => format!("1 message was refused: {}", first.what),
            many => format!("{many} messages were refused, the first of them: {}", first.what),
        };
        Err(Failure { what, ..first })
    }
}
