//! `hapax dead discard`: discards one key after the other. If interrupted, it can be repeated.

use clap::Args;
use hapax_wire::Code;
use hapax_wire::proto::{self, State};
use serde_json::json;

use super::super::peek::{self, PAGE, Pages};
use super::Selection;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::{Output, clean, count, progress, say};
use crate::session::{Connection, Session};

/// The most messages that a dry run lists.
const SHOWN: usize = 20;

#[derive(Debug, Args)]
pub(crate) struct Discard {
    /// The queue.
    queue: String,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    output: Output,
}

pub(super) async fn run(discard: &Discard) -> Result<Exit, Failure> {
    discard
        .connection
        .on_existing(&discard.queue, async |session| act(session, discard).await)
        .await
}

async fn act(session: &Session, discard: &Discard) -> Result<Exit, Failure> {
    discard.selection.check()?;
    let screen = discard.output.screen();
    if !discard.selection.keys.is_empty() {
        return keys(session, discard).await;
    }
    let mut pages = Pages::new(session, &discard.queue, State::Dead);
    let mut discarded = 0u64;
    let mut seen = 0u64;
    let mut shown = Vec::new();
    let dead = session.client.queue(&discard.queue).await?.stats.unwrap_or_default().dead;
    let bar = progress(dead, "{bar:40} {human_pos}/{human_len} looked at, {eta} left");
    while let Some(page) = pages.next(PAGE).await? {
        for message in page {
            bar.inc(1);
            if !discard.selection.filter.fits(&message) {
                continue;
            }
            seen += 1;
            match discard.selection.yes {
                true => discarded += u64::from(one(session, &discard.queue, &message).await?),
                false if shown.len() < SHOWN => shown.push(message),
                false => {}
            }
        }
    }
    bar.finish_and_clear();
    if screen.is_json() {
        let dry_run = !discard.selection.yes;
        let summary = json!({ "matched": seen, "discarded": discarded, "dry_run": dry_run });
        screen.json(&summary)?;
        return Ok(Exit::Ok);
    }
    if discard.selection.yes {
        screen.line(format_args!("discarded {}", count(discarded, "dead message")))?;
        return Ok(Exit::Ok);
    }
    peek::list_dead(screen, &shown)?;
    screen.line(format_args!("would discard {}", count(seen, "dead message")))?;
    screen.line("nothing was changed; add --yes to do it")?;
    Ok(Exit::Ok)
}

async fn one(session: &Session, queue: &str, message: &proto::Key) -> Result<bool, Failure> {
    let (key, group) = (message.key.clone(), message.group.clone());
    let name = proto::KeyRequest { queue: queue.to_owned(), key, group };
    match session.client.discard_key(name).await {
        Ok(()) => Ok(true),
        // Redriven or discarded meanwhile.
        Err(error) if matches!(error.code(), Code::NoSuchKey | Code::Invalid) => {
            say(format_args!("{}: {error}", clean(&message.key)));
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

async fn keys(session: &Session, discard: &Discard) -> Result<Exit, Failure> {
    let screen = discard.output.screen();
    let group = discard.selection.filter.group.clone().unwrap_or_default();
    let mut discarded = 0u64;
    let mut found = Vec::new();
    for key in &discard.selection.keys {
        let name = proto::KeyRequest {
            queue: discard.queue.clone(),
            key: key.clone(),
            group: group.clone(),
        };
        let message = session.client.key(name.clone(), std::time::Duration::ZERO).await?;
        if message.state() != State::Dead {
            let what = format!("{} is {}, not dead", clean(key), message.state().as_str());
            return Err(Failure::new(Exit::Conflict, what));
        }
        if discard.selection.yes {
            session.client.discard_key(name).await?;
            discarded += 1;
        }
        found.push(message);
    }
    let (matched, dry_run) = (found.len(), !discard.selection.yes);
    if screen.is_json() {
        let summary = json!({ "matched": matched, "discarded": discarded, "dry_run": dry_run });
        screen.json(&summary)?;
    } else if dry_run {
        peek::list_dead(screen, &found)?;
        screen.line(format_args!("would discard {}", count(matched as u64, "dead message")))?;
        screen.line("nothing was changed; add --yes to do it")?;
    } else {
        screen.line(format_args!("discarded {}", count(discarded, "dead message")))?;
    }
    Ok(Exit::Ok)
}
