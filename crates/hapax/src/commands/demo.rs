//! `hapax demo`: shows that nothing is lost or processed twice when a process is killed. A child
//! process sends every order twice, receives the orders, settles them with a receipt, and reports
//! every answer to this process. This process kills it again and again, and at the end looks up
//! every order in the data directory.

pub(crate) mod victim;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use hapax_core::{Answer, Command, Content, Outcome, QueueName, Recipe, SendMessage};
use serde_json::json;

use crate::partition::Local;
use crate::screen::Output;
pub(crate) use victim::Victim;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The data directory. Existing data of an earlier demo is continued.
    #[arg(long, default_value = "hapax-demo")]
    data: PathBuf,
    /// How many times to kill the process.
    #[arg(long, default_value_t = 10)]
    kills: u32,
    /// How long each process lives, in milliseconds.
    #[arg(long, default_value_t = 250)]
    life_ms: u64,
    #[command(flatten)]
    output: Output,
}

/// The answers that the child reported, by order: the first id, and whether the order is done.
#[derive(Default)]
struct Printed {
    accepted: BTreeMap<u64, String>,
    done: BTreeMap<u64, ()>,
    duplicates: u64,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let data = &arguments.data;
    ensure!(!data.join("broker.json").exists(), "{} is a broker's data", data.display());
    let screen = arguments.output.screen();
    let say = |text: String| if screen.is_json() { Ok(()) } else { screen.line(text) };
    say(format!(
        "Every order is sent twice, and the process that handles them is killed (kill -9)\n{} \
         times. Every answer it got before a kill must still hold afterwards.\n",
        arguments.kills
    ))?;
    let first = orders_so_far(data)?;
    let mut printed = Printed::default();
    for round in 1..=arguments.kills + 1 {
        let is_last = round > arguments.kills;
        let before = (printed.accepted.len(), printed.done.len(), printed.duplicates);
        let next = first + printed.accepted.len() as u64;
        let lived = live_and_die(arguments, next, is_last, &mut printed)?;
        say(format!(
            "  process {round:>2}   accepted {:>6}   duplicates absorbed {:>6}   done {:>6}   {}",
            printed.accepted.len() - before.0,
            printed.duplicates - before.2,
            printed.done.len() - before.1,
            if is_last {
                "finished the rest".to_owned()
            } else {
                format!("killed after {} ms", lived.as_millis())
            },
        ))?;
    }
    verify(data, first, &printed)?;
    if screen.is_json() {
        screen.json(&json!({
            "data": data.display().to_string(),
            "kills": arguments.kills,
            "accepted": printed.accepted.len(),
            "duplicates": printed.duplicates,
            "lost": 0,
            "doubled": 0,
        }))?;
        return Ok(());
    }
    let data = data.display();
    say(format!(
        "\n{} orders accepted, {} duplicates absorbed. Each was sent once more: all are done,\n0 \
         lost, 0 processed twice, every receipt is the first one.\n\nThe data is in {data}. \
         Verify it with:\n  hapax check {data}",
        printed.accepted.len(),
        printed.duplicates
    ))?;
    Ok(())
}

/// Runs one child; kills it in the middle of its work unless it is the last.
fn live_and_die(
    arguments: &Arguments,
    next: u64,
    is_last: bool,
    printed: &mut Printed,
) -> Result<Duration> {
    let mut child = Process::new(std::env::current_exe()?)
        .arg("victim")
        .arg(&arguments.data)
        .arg(next.to_string())
        .args(is_last.then_some("--finish"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let lines = listen(child.stdout.take().context("the child has an output")?);
    // Its life begins with its first answer: recovery does not count.
    let patience = Duration::from_secs(60);
    if let Ok(line) = lines.recv_timeout(patience) {
        note(printed, &line)?;
    }
    let start = Instant::now();
    let end = start + Duration::from_millis(arguments.life_ms);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match lines.recv_timeout(if is_last { patience } else { left }) {
            Ok(line) => note(printed, &line)?,
            Err(_) => break,
        }
        if !is_last && left.is_zero() {
            break;
        }
    }
    let lived = start.elapsed();
    if is_last {
        ensure!(child.wait()?.success(), "the last process failed");
    } else {
        child.kill()?;
        child.wait()?;
    }
    // What it printed before it died is in the pipe.
    for line in lines.iter() {
        note(printed, &line)?;
    }
    Ok(lived)
}

fn listen(output: std::process::ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

/// Reads one answer: `accepted N id`, `duplicate N id` or `done N`. A line that was cut by the kill
/// is ignored.
fn note(printed: &mut Printed, line: &str) -> Result<()> {
    let words: Vec<&str> = line.split(' ').collect();
    match words.as_slice() {
        ["accepted" | "duplicate", number, id, "."] => {
            let number: u64 = number.parse()?;
            let first = printed.accepted.entry(number).or_insert_with(|| (*id).to_owned());
            ensure!(first == id, "order {number} got a second id: {first}, {id}");
            printed.duplicates += u64::from(words.first() == Some(&"duplicate"));
        }
        ["done", number, "."] => {
            printed.done.insert(number.parse()?, ());
        }
        _ => {}
    }
    Ok(())
}

pub(crate) fn orders() -> Result<QueueName> {
    Ok(QueueName::new("demo", "orders")?)
}

pub(crate) fn order(number: u64) -> Result<Command> {
    let key = format!("order-{number}");
    let body = format!("{{\"order\":{number},\"amount\":\"19.90\"}}");
    let content =
        Content::builder(&key).content_type(Some("application/json")).build(body.as_bytes())?;
    Ok(Command::Send(SendMessage::new(&Recipe::First, orders()?, content)))
}

pub(crate) fn receipt(number: u64) -> String {
    format!("receipt for order-{number}")
}

fn orders_so_far(data: &Path) -> Result<u64> {
    let mut local = Local::open(data)?;
    let outcomes = local.call(vec![Command::Show(orders()?)])?;
    local.close()?;
    Ok(match outcomes.as_slice() {
        [Outcome::Queue(view)] => view.stats.sent_total,
        _ => 0,
    })
}

/// Checks every order by sending it once more.
fn verify(data: &Path, first: u64, printed: &Printed) -> Result<()> {
    let mut local = Local::open(data)?;
    let numbers: Vec<u64> = printed.accepted.keys().copied().collect();
    for numbers in numbers.chunks(1_000) {
        let commands = numbers.iter().map(|number| order(*number)).collect::<Result<_>>()?;
        for (number, outcome) in numbers.iter().zip(local.call(commands)?) {
            let Outcome::Sent(Answer::Done(done)) = outcome else {
                bail!("order {number} was accepted and is not done: {outcome:?}");
            };
            let id = printed.accepted.get(number);
            ensure!(id == Some(&done.id.to_string()), "order {number} has another id");
            let result = done.result.map(|result| result.body);
            let expected = receipt(*number);
            ensure!(result.as_deref() == Some(expected.as_bytes()), "another receipt: {number}");
        }
    }
    let outcomes = local.call(vec![Command::Show(orders()?)])?;
    local.close()?;
    let [Outcome::Queue(view)] = outcomes.as_slice() else {
        bail!("the queue is gone: {outcomes:?}");
    };
    let sent = view.stats.sent_total - first;
    ensure!(sent == printed.accepted.len() as u64, "{sent} messages for so many orders: doubled");
    ensure!(view.stats.messages() == 0, "something is unfinished: {:?}", view.stats);
    Ok(())
}
