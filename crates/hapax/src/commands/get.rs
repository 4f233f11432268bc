//! `hapax get`: everything about a key, and the why of it.

use std::time::Duration;

use clap::Args;
use hapax_wire::proto::{self, State};

use crate::duration;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::moment::{self, plain, relative};
use crate::screen::{Colour, Output, Screen, Table, body, brief, clean};
use crate::session::{Connection, KeyArguments, Session};
use crate::shapes;
use crate::why::why;

#[derive(Debug, Args)]
pub(crate) struct Get {
    #[command(flatten)]
    name: KeyArguments,
    /// Wait so long for the message to be done, dead or parked.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "0s")]
    wait: Duration,
    /// Print nothing but the bytes of the result.
    #[arg(long)]
    result: bool,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn run(get: &Get) -> Result<Exit, Failure> {
    get.connection.on(get.name.queue(), async |session| act(session, get).await).await
}

async fn act(session: &Session, get: &Get) -> Result<Exit, Failure> {
    let screen = get.output.screen();
    let key = session.look(get.name.request(), get.wait).await?;
    let exit = match key.state() {
        State::Done => Exit::Ok,
        State::Dead | State::Parked | State::Discarded if get.result || !get.wait.is_zero() => {
            Exit::Ended
        }
        _ if get.result || !get.wait.is_zero() => Exit::WaitOver,
        _ => Exit::Ok,
    };
    if get.result {
        return match (&key.result, exit) {
            (Some(result), _) => screen.bytes(&result.body).map(|()| exit).map_err(Failure::from),
            (None, Exit::Ok) => Ok(exit),
            (None, _) => Err(Failure::new(exit, why(get.name.queue(), &key, moment::now_ms()))),
        };
    }
    match screen.is_json() {
        true => screen.json(&shapes::Key::of(&key))?,
        false => print(screen, get.name.queue(), &key)?,
    }
    Ok(exit)
}

fn print(screen: Screen, queue: &str, key: &proto::Key) -> Result<(), Failure> {
    let now = moment::now_ms();
    let name = screen.paint(Colour::Bold, clean(&key.key));
    screen.line(format_args!("{name}  {}", screen.state(key.state())))?;
    screen.line(format_args!("  why         {}", why(queue, key, now)))?;
    let at = |ms: u64| format!("{} ({})", plain(ms), relative(now, ms));
    let mut fields = vec![
        ("queue", queue.to_owned()),
        ("id", shapes::id(&key.id)),
        ("accepted", at(key.accepted_at_ms)),
        ("attempts", key.attempts.to_string()),
        ("duplicates", key.duplicates.to_string()),
    ];
    let mut add = |name, text: Option<String>| fields.extend(text.map(|text| (name, text)));
    add("finished", key.finished_at_ms.map(at));
    add("remembered", key.remembered_until_ms.map(|ms| format!("until {}", at(ms))));
    add("deadline", key.deadline_ms.map(at));
    add("group", some(&key.group));
    add("worker", some(&key.worker));
    add("generation", (key.generation > 0).then(|| key.generation.to_string()));
    add("message", key.message.as_ref().map(blob));
    add("result", key.result.as_ref().map(blob));
    add("error", (!key.error.is_empty()).then(|| brief(&key.error, 1_000)));
    for (name, text) in fields {
        screen.line(format_args!("  {name:<11} {text}"))?;
    }
    list(screen, "headers", key.headers.iter().map(|(name, value)| (name, clean(value))))?;
    let points = key.recovery_points.iter().map(|(name, bytes)| (name, body(bytes, 200)));
    list(screen, "recovery points", points)?;
    history(screen, &key.history, now)
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| clean(text))
}

fn blob(blob: &proto::Blob) -> String {
    match blob.content_type.is_empty() {
        true => body(&blob.body, 1_000),
        false => format!("{}  ({})", body(&blob.body, 1_000), clean(&blob.content_type)),
    }
}

fn list<'a>(
    screen: Screen,
    title: &str,
    items: impl Iterator<Item = (&'a String, String)>,
) -> Result<(), Failure> {
    let mut items: Vec<_> = items.collect();
    if items.is_empty() {
        return Ok(());
    }
    items.sort();
    screen.line(format_args!("  {title}"))?;
    for (name, text) in items {
        screen.line(format_args!("    {}: {text}", clean(name)))?;
    }
    Ok(())
}

fn history(screen: Screen, events: &[proto::Event], now: u64) -> Result<(), Failure> {
    screen.line("")?;
    let mut table = Table::new(&["AT", "", "WHAT", "WHO", ""]);
    for event in events {
        // A storm of duplicates is one event with a count.
        let detail = match event.event.as_str() {
            "duplicate" if event.detail != "1" && !event.detail.is_empty() => {
                format!("× {}", clean(&event.detail))
            }
            "duplicate" => String::new(),
            _ => brief(&event.detail, 200),
        };
        table.row([
            plain(event.at_ms).into(),
            relative(now, event.at_ms).into(),
            clean(&event.event).into(),
            clean(&event.worker).into(),
            detail.into(),
        ]);
    }
    table.print(screen)?;
    Ok(())
}
