//! `hapax tail`: follows a queue. Polls the queue a few times a second and prints the changes:
//! messages that stay for a while by key, the rest as counts. Its memory is bounded.

use std::collections::HashMap;
use std::time::Duration;

use clap::Args;
use hapax_wire::proto::{Key, KeyRequest, QueueStats, State};
use serde_json::json;
use tokio::time::Instant;

use super::peek::PLACES;
use crate::duration;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::moment;
use crate::screen::{Colour, Output, Screen, body, brief, clean};
use crate::session::{Connection, Session};

/// The most messages of one state that are listed.
const PAGE: u32 = 100;
/// The most keys that are looked up in one round after they left their state.
const ASKED_MAX: usize = 32;
const ROUND_MIN: Duration = Duration::from_millis(250);
const ROUND_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(crate) struct Tail {
    /// The queue.
    queue: String,
    /// Stop after this time; by default run until Ctrl-C.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    r#for: Option<Duration>,
    /// List only keys that begin with this. The counts are those of the whole queue.
    #[arg(long, value_name = "PREFIX", default_value = "")]
    key: String,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    output: Output,
}

/// The last known state of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    key: String,
    group: String,
    state: State,
    attempts: u32,
}

/// The state that is kept between rounds.
#[derive(Debug, Default)]
struct Memory {
    stats: Option<QueueStats>,
    messages: HashMap<bytes::Bytes, Seen>,
}

pub(crate) async fn run(tail: &Tail) -> Result<Exit, Failure> {
    tail.connection.on_existing(&tail.queue, async |session| follow(session, tail).await).await
}

async fn follow(session: &Session, tail: &Tail) -> Result<Exit, Failure> {
    let screen = tail.output.screen();
    let end = tail.r#for.map(|span| Instant::now() + span);
    let mut memory = Memory::default();
    let mut pause = ROUND_MIN;
    loop {
        let printed = round(session, tail, screen, &mut memory).await?;
        pause = if printed > 0 { ROUND_MIN } else { (pause * 2).min(ROUND_MAX) };
        let next = Instant::now() + pause;
        if end.is_some_and(|end| next >= end) {
            return Ok(Exit::Ok);
        }
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            interrupted = tokio::signal::ctrl_c() => {
                interrupted?;
                return Ok(Exit::Ok);
            }
        }
    }
}

/// Polls once; returns the number of changes.
async fn round(
    session: &Session,
    tail: &Tail,
    screen: Screen,
    memory: &mut Memory,
) -> Result<usize, Failure> {
    let stats = session.client.queue(&tail.queue).await?.stats.unwrap_or_default();
    // An age grows by itself; that is not an event.
    let stats = QueueStats { oldest_ready_age_ms: None, ..stats };
    let is_first = memory.stats.is_none();
    if memory.stats == Some(stats) {
        return Ok(0);
    }
    let mut now = HashMap::new();
    let mut is_whole = true;
    let mut printed = 0;
    for place in PLACES {
        let page = session.client.browse(&tail.queue, place, PAGE, "").await?;
        is_whole &= page.next.is_empty();
        for message in page.messages.iter().filter(|message| message.key.starts_with(&tail.key)) {
            let seen = Seen {
                key: message.key.clone(),
                group: message.group.clone(),
                state: message.state(),
                attempts: message.attempts,
            };
            let is_new = memory.messages.get(&message.id) != Some(&seen);
            if is_new && !is_first {
                print_message(screen, message)?;
                printed += 1;
            }
            now.insert(message.id.clone(), seen);
        }
    }
    // If only part of a queue is listed, it is unknown whether a message left or is only not
    // listed.
    if is_whole {
        let left: Vec<&Seen> = memory
            .messages
            .iter()
            .filter(|(id, _)| !now.contains_key(*id))
            .map(|(_, seen)| seen)
            .take(ASKED_MAX)
            .collect();
        for seen in left {
            printed += usize::from(ask(session, tail, screen, seen).await?);
        }
    }
    printed += numbers(screen, memory.stats, stats)?;
    *memory = Memory { stats: Some(stats), messages: now };
    Ok(printed)
}

/// Prints the outcome of a message that is no longer listed in any state.
async fn ask(session: &Session, tail: &Tail, screen: Screen, seen: &Seen) -> Result<bool, Failure> {
    let name =
        KeyRequest { queue: tail.queue.clone(), key: seen.key.clone(), group: seen.group.clone() };
    match session.client.key(name, Duration::ZERO).await {
        Ok(key) => print_message(screen, &key).map(|()| true),
        // Forgotten already, or a message without a key.
        Err(error) if error.code() == hapax_wire::Code::NoSuchKey => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn print_message(screen: Screen, message: &Key) -> Result<(), Failure> {
    let now = moment::now_ms();
    if screen.is_json() {
        let at = moment::rfc3339(now);
        let event = message.state().as_str();
        let line = json!({ "at": at, "event": event, "message": message });
        screen.json_line(&line)?;
        return Ok(());
    }
    let state =
        screen.paint(Colour::of(message.state()), format_args!("{:<9}", message.state().as_str()));
    let detail = match message.state() {
        State::Done => match &message.result {
            Some(result) => format!("by {}: {}", clean(&message.worker), body(&result.body, 60)),
            None => format!("by {}", clean(&message.worker)),
        },
        State::Leased => format!("{}, attempt {}", clean(&message.worker), message.attempts),
        State::Ready => message.message.as_ref().map_or(String::new(), |it| body(&it.body, 60)),
        _ => brief(&message.error, 100),
    };
    let time = screen.paint(Colour::Dim, moment::of_day(now));
    screen.line(format_args!("{time}  {state}  {}  {detail}", clean(&message.key)))?;
    Ok(())
}

/// The totals that have grown since the last round.
fn numbers(
    screen: Screen,
    before: Option<QueueStats>,
    stats: QueueStats,
) -> Result<usize, Failure> {
    let before = before.unwrap_or(stats);
    let grew = [
        ("sent", stats.sent_total, before.sent_total),
        ("duplicates", stats.duplicate_total, before.duplicate_total),
        ("done", stats.done_total, before.done_total),
        ("failed", stats.failed_total, before.failed_total),
        ("leases lost", stats.lease_lost_total, before.lease_lost_total),
    ];
    let grew: Vec<(&str, u64)> = grew
        .into_iter()
        .filter_map(|(name, now, before)| Some((name, now.checked_sub(before)?)))
        .filter(|(_, count)| *count > 0)
        .collect();
    let time = moment::now_ms();
    if screen.is_json() {
        if !grew.is_empty() {
            let counts: serde_json::Map<_, _> = grew
                .iter()
                .map(|(name, count)| (name.replace(' ', "_"), (*count).into()))
                .collect();
            let at = moment::rfc3339(time);
            screen.json_line(&json!({ "at": at, "event": "counts", "counts": counts }))?;
        }
        return Ok(grew.len());
    }
    let counts: Vec<String> = grew.iter().map(|(name, count)| format!("+{count} {name}")).collect();
    let text = format!(
        "{}  {} ready, {} leased, {} delayed, {} parked, {} dead  {}",
        moment::of_day(time),
        stats.ready,
        stats.leased,
        stats.delayed,
        stats.parked,
        stats.dead,
        counts.join(", ")
    );
    screen.line(screen.paint(Colour::Dim, text.trim_end()))?;
    Ok(grew.len())
}
