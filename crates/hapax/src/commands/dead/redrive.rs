//! `hapax dead redrive`: the broker moves them, under an id; this starts it and watches.

use std::time::Duration;

use clap::Args;
use hapax_wire::DedupScope;
use hapax_wire::proto::{self, redrive_request::Select};

use super::Selection;
use crate::advice::Advice;
use crate::content::new_key;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::{Output, Screen, clean, count, progress, say};
use crate::session::{Connection, Session};

const WATCH: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
pub(crate) struct Redrive {
    /// The queue.
    queue: String,
    /// At most this many per second; one per partition where there are more partitions.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// The name of this redrive: repeated under it, nothing moves twice; another selection or rate
    /// under it is refused (an age such as 2h is another time when it is repeated). Made up without
    /// one.
    #[arg(long)]
    id: Option<String>,
    /// Do not wait for its end.
    #[arg(long)]
    no_wait: bool,
    /// Show how far the redrive of this name has come, and start none.
    #[arg(long, value_name = "ID")]
    #[arg(conflicts_with_all = ["cancel", "id", "rate", "keys", "all", "yes"])]
    status: Option<String>,
    /// Stop the redrive of this name where it is; what it moved stays moved.
    #[arg(long, value_name = "ID", conflicts_with_all = ["id", "rate", "keys", "all", "yes"])]
    cancel: Option<String>,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    output: Output,
}

pub(super) async fn run(redrive: &Redrive) -> Result<Exit, Failure> {
    redrive
        .connection
        .on_existing(&redrive.queue, async |session| act(session, redrive).await)
        .await
}

async fn act(session: &Session, redrive: &Redrive) -> Result<Exit, Failure> {
    redrive.selection.check()?;
    let screen = redrive.output.screen();
    if let Some(id) = &redrive.status {
        let told = session.client.redrive_progress(&redrive.queue, id).await?;
        return tell(screen, &redrive.queue, &told);
    }
    if let Some(id) = &redrive.cancel {
        let told = session.client.cancel_redrive(&redrive.queue, id).await?;
        return tell(screen, &redrive.queue, &told);
    }
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
    let exit = tell(screen, &redrive.queue, &last)?;
    if !last.missing.is_empty() && keys_per_group(session, &redrive.queue).await {
        say("its keys count per group: name those of a group with --group GROUP");
    }
    if is_dry && !screen.is_json() {
        screen.line("nothing was changed; add --yes to do it")?;
    }
    Ok(exit)
}

/// Whether a key of the queue is another one in another group.
async fn keys_per_group(session: &Session, queue: &str) -> bool {
    let shown = session.client.queue(queue).await.unwrap_or_default();
    shown.config().is_ok_and(|rules| rules.dedup_scope == DedupScope::Group)
}

fn select(selection: &Selection) -> Select {
    let filter = &selection.filter;
    if !selection.keys.is_empty() {
        let (keys, group) = (selection.keys.clone(), filter.group.clone());
        return Select::Keys(proto::RedriveKeys { keys, group });
    }
    if filter.is_empty() {
        return Select::All(proto::RedriveAll {});
    }
    Select::Filter(proto::RedriveFilter {
        error_contains: filter.error_contains.clone(),
        group: filter.group.clone(),
        dead_before_ms: filter.before,
        dead_after_ms: filter.after,
    })
}

/// Asks until it is done. Whoever stops watching does not stop it, and is told so.
async fn watch(
    session: &Session,
    queue: &str,
    mut latest: proto::RedriveProgress,
) -> Result<proto::RedriveProgress, Failure> {
    let whole = |told: &proto::RedriveProgress| told.total.unwrap_or(told.matched);
    let bar = progress(whole(&latest), "{bar:40} {human_pos}/{human_len}, {rate}, {eta} left");
    while !latest.done {
        bar.set_length(whole(&latest));
        bar.set_position(latest.moved);
        tokio::select! {
            () = tokio::time::sleep(WATCH) => {}
            _ = tokio::signal::ctrl_c() => break,
        }
        latest = session.client.redrive_progress(queue, &latest.id).await?;
    }
    bar.finish_and_clear();
    Ok(latest)
}

/// Tells how far it has come. A key that is not dead was meant, and not moved: that is no success.
fn tell(screen: Screen, queue: &str, told: &proto::RedriveProgress) -> Result<Exit, Failure> {
    if screen.is_json() {
        screen.json(&told)?;
    } else {
        let proto::RedriveProgress { id, moved, matched, .. } = told;
        let of = told.total.unwrap_or(*matched);
        screen.line(match (told.dry_run, told.cancelled, told.done) {
            (true, _, _) => format!("would redrive {}", count(*matched, "dead message")),
            (_, true, _) => format!("redrive {id} is cancelled: {moved} of {of} moved"),
            (_, _, true) => format!("redrove {} (redrive {id})", count(*moved, "dead message")),
            _ => format!(
                "redrive {id} goes on: {moved} of {of} moved; watch it with: {}, stop it with: {}",
                Advice::new("hapax dead redrive", &[queue]).option("--status", id),
                Advice::new("hapax dead redrive", &[queue]).option("--cancel", id)
            ),
        })?;
    }
    for key in &told.missing {
        say(format_args!("{} is not dead: nothing to redrive", clean(key)));
    }
    Ok(if told.missing.is_empty() { Exit::Ok } else { Exit::Missing })
}
