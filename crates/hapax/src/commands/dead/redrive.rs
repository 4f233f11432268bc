//! `hapax dead redrive`: the broker moves them, under an id; this starts it and watches.

use std::time::Duration;

use clap::Args;
use hapax_wire::proto::{self, redrive_request::Select};
use serde_json::json;

use super::Selection;
use crate::content::new_key;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::{Output, Screen, progress};
use crate::session::{Connection, Session};

const WATCH: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
pub(crate) struct Redrive {
    /// The queue.
    queue: String,
    /// At most so many per second.
    #[arg(long, value_name = "COUNT")]
    rate: Option<u32>,
    /// The name of this redrive: repeated under it, nothing moves twice. Made up without one.
    #[arg(long)]
    id: Option<String>,
    /// Do not wait for its end.
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    output: Output,
}

pub(super) async fn run(redrive: &Redrive) -> Result<Exit, Failure> {
    redrive.connection.on(&redrive.queue, async |session| act(session, redrive).await).await
}

async fn act(session: &Session, redrive: &Redrive) -> Result<Exit, Failure> {
    redrive.selection.check()?;
    let screen = redrive.output.screen();
    let is_dry = !redrive.selection.yes;
    let request = proto::RedriveRequest {
        queue: redrive.queue.clone(),
        // A dry run asks what there is now, not what became of the redrive of that name.
        id: redrive.id.clone().filter(|_| !is_dry).unwrap_or_else(new_key),
        select: Some(select(&redrive.selection)),
        dry_run: is_dry,
        per_s: redrive.rate,
    };
    let started = session.client.redrive(request).await?;
    let last = match redrive.no_wait && !is_dry {
        true => started,
        // Counting takes its time too, where there are many.
        false => watch(session, &redrive.queue, started).await?,
    };
    tell(screen, &last, is_dry)?;
    if is_dry && !screen.is_json() {
        screen.line("nothing was changed; add --yes to do it")?;
    }
    Ok(Exit::Ok)
}

fn select(selection: &Selection) -> Select {
    let filter = &selection.filter;
    if !selection.keys.is_empty() {
        return Select::Keys(proto::RedriveKeys { keys: selection.keys.clone() });
    }
    if filter.is_empty() {
        return Select::All(proto::RedriveAll {});
    }
    Select::Filter(proto::RedriveFilter {
        error_contains: filter.error_contains.clone(),
        group: filter.group.clone(),
        dead_before_ms: filter.before,
        ..Default::default()
    })
}

/// Asks until it is done. Whoever stops watching does not stop it.
async fn watch(
    session: &Session,
    queue: &str,
    mut latest: proto::RedriveProgress,
) -> Result<proto::RedriveProgress, Failure> {
    let bar = progress(latest.matched, "{bar:40} {human_pos}/{human_len}, {per_sec}, {eta} left");
    while !latest.done {
        bar.set_length(latest.matched);
        bar.set_position(latest.moved);
        tokio::time::sleep(WATCH).await;
        latest = session.client.redrive_progress(queue, &latest.id).await?;
    }
    bar.finish_and_clear();
    Ok(latest)
}

fn tell(screen: Screen, told: &proto::RedriveProgress, is_dry: bool) -> Result<(), Failure> {
    if screen.is_json() {
        screen.json(&json!({
            "id": told.id,
            "matched": told.matched,
            "moved": told.moved,
            "done": told.done,
            "dry_run": is_dry,
        }))?;
        return Ok(());
    }
    let text = match (is_dry, told.done) {
        (true, _) => format!("would redrive {} dead messages", told.matched),
        (false, true) => format!("redrove {} dead messages (redrive {})", told.moved, told.id),
        (false, false) => format!(
            "redrive {} goes on: {} of {} moved; repeat the command with --id {} to watch it",
            told.id, told.moved, told.matched, told.id
        ),
    };
    screen.line(text)?;
    Ok(())
}
