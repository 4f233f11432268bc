//! `hapax get`: a key, its history, and the reason for its state.

use std::time::Duration;

use clap::Args;
use hapax_server::time::show_ms;
use hapax_wire::proto::{self, State};
use hapax_wire::{DedupScope, OnGroupDead, Order, QueueConfig};

use super::peek::PAGE;
use crate::duration;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::moment::{self, plain, relative};
use crate::screen::{Colour, Output, Screen, Table, body, brief, clean};
use crate::session::{Connection, KeyArguments, Session};
use crate::why::{Around, Held, why};

#[derive(Debug, Args)]
pub(crate) struct Get {
    #[command(flatten)]
    name: KeyArguments,
    /// Wait at most this long for the message to be done, dead or parked.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "0s")]
    wait: Duration,
    /// Print only the bytes of the result.
    #[arg(long)]
    result: bool,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn run(get: &Get) -> Result<Exit, Failure> {
    get.connection.on_existing(get.name.queue(), async |session| act(session, get).await).await
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
            (None, _) => {
                let around = around(session, get.name.queue(), &key).await;
                Err(Failure::new(exit, why(get.name.queue(), &key, &around, moment::now_ms())))
            }
        };
    }
    if screen.is_json() {
        screen.json(&key)?;
    } else {
        let around = around(session, get.name.queue(), &key).await;
        print(screen, get.name.queue(), &key, &around)?;
    }
    let state = key.state().as_str();
    match exit {
        Exit::Ok => Ok(exit),
        Exit::WaitOver => {
            let within = show_ms(duration::milliseconds(get.wait));
            let what = format!("not done within {within}: the message is {state}");
            Err(Failure::new(exit, what))
        }
        _ => Err(Failure::new(exit, format!("the message is {state}, so there is no result"))),
    }
}

/// The facts about the queue that explain the state of a key, as far as the token allows.
async fn around(session: &Session, queue: &str, key: &proto::Key) -> Around {
    if !matches!(key.state(), State::Ready | State::Parked | State::Dead) {
        return Around::default();
    }
    let Ok(shown) = session.client.queue(queue).await else { return Around::default() };
    let rules = shown.config().unwrap_or_default();
    let held = match key.state() {
        State::Ready if shown.paused => Held::Paused,
        State::Ready => held(session, queue, key, &rules).await,
        _ => Held::Free,
    };
    Around { held, keys_per_group: rules.dedup_scope == DedupScope::Group }
}

/// Finds what a ready message waits for. Only the first page of each state that can block a group
/// is read; a blocking message beyond it, or one that the token may not see, is not reported.
async fn held(session: &Session, queue: &str, key: &proto::Key, rules: &QueueConfig) -> Held {
    if rules.order != Order::Group || key.group.is_empty() {
        return Held::Free;
    }
    let dead_hold = rules.on_group_dead == OnGroupDead::Park;
    for place in [State::Leased, State::Parked, State::Delayed, State::Dead] {
        if place == State::Dead && !dead_hold {
            continue;
        }
        let Ok(page) = session.client.browse(queue, place, PAGE, "").await else { continue };
        // A requested delay does not block a group; a backoff does.
        let holds = |it: &&proto::Key| {
            it.group == key.group && (place != State::Delayed || it.attempts > 0)
        };
        if let Some(first) = page.messages.iter().find(holds) {
            return Held::Behind { key: first.key.clone(), state: place };
        }
    }
    Held::Free
}

fn print(screen: Screen, queue: &str, key: &proto::Key, around: &Around) -> Result<(), Failure> {
    let now = moment::now_ms();
    let name = screen.paint(Colour::Bold, clean(&key.key));
    screen.line(format_args!("{name}  {}", screen.state(key.state())))?;
    screen.line(format_args!("  why         {}", why(queue, key, around, now)))?;
    let at = |ms: u64| format!("{} ({})", plain(ms), relative(now, ms));
    let mut fields = vec![
        ("queue", queue.to_owned()),
        ("id", hapax_wire::Id::of(&key.id).to_string()),
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
    let mut table = Table::new(&["AT", "AGE", "WHAT", "WHO", "~DETAIL"]);
    for event in events {
        // Consecutive duplicates are one event with a count.
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
