//! `hapax queue`: queues and their configuration.

mod rules;

use clap::{Args, Subcommand};
use hapax_wire::QueueConfig;
use hapax_wire::proto::{self, ListQueuesReply};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::advice::Advice;
use crate::duration::short;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::moment;
use crate::screen::{Cell, Colour, Output, Screen, Table, count, say};
use crate::session::{Connection, Session};
use rules::Rules;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a queue. If it exists, it is not changed: the command succeeds if the given fields
    /// have the given values, and names the fields that have other values than the defaults.
    #[command(after_help = "Examples:
  hapax queue create orders
  hapax queue create payments --order group --lease 2m --retention 30d
  hapax queue create charges --on-lost park")]
    Create(Change),
    /// List the queues with their message counts.
    #[command(
        after_help = "READY counts all ready messages, and HELD those among them that wait for \
another message of their group. OLDEST is the age of the oldest message that a worker can receive \
now.

Examples:
  hapax queue ls
  hapax queue ls -o json | jq '.[] | select(.stats.dead > 0) | .queue'"
    )]
    Ls(List),
    /// Show a queue: its configuration, its message counts and its totals.
    #[command(after_help = "Examples:
  hapax queue show orders
  hapax queue show orders -o json")]
    Show(One),
    /// Change the given fields of a queue's configuration.
    #[command(after_help = "Examples:
  hapax queue set orders --lease 5m --max-attempts 20
  hapax queue set orders --retention forever --sends-per-s none")]
    Set(Change),
    /// Delete a queue with its messages and keys. Only shows what would be deleted, unless --yes is
    /// given.
    #[command(after_help = "Examples:
  hapax queue rm orders
  hapax queue rm orders --yes")]
    Rm(Remove),
    /// Stop delivering messages. Sends and settles continue.
    #[command(after_help = "Examples:
  hapax queue pause orders")]
    Pause(One),
    /// Start delivering messages again.
    #[command(after_help = "Examples:
  hapax queue resume orders")]
    Resume(One),
    /// Discard the messages of a queue that no worker holds: ready, delayed, parked and dead ones.
    /// Their keys stay remembered. Only counts them, unless --yes is given. Discarded messages are
    /// not delivered any more; the counts of a large queue follow within seconds.
    #[command(after_help = "Examples:
  hapax queue purge orders
  hapax queue purge orders --yes
  hapax queue purge orders --keys --yes")]
    Purge(Purge),
}

#[derive(Debug, Args)]
pub(crate) struct One {
    /// The queue.
    queue: String,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Change {
    /// The queue's name: 1 to 80 characters of A-Z a-z 0-9 . _ -
    queue: String,
    #[command(flatten)]
    rules: Rules,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Remove {
    /// The queue.
    queue: String,
    /// Make the change. Without it, only report what would change.
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Purge {
    /// The queue.
    queue: String,
    /// Forget the keys too: a message sent again under one of them is processed again.
    #[arg(long)]
    keys: bool,
    /// Make the change. Without it, only report what would change.
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn run(command: &Command) -> Result<Exit, Failure> {
    match command {
        Command::Create(change) => {
            change.connection.on(&change.queue, async |session| create(session, change).await).await
        }
        Command::Ls(list) => list.connection.open(async |session| ls(session, list).await).await,
        Command::Show(one) => {
            one.connection.on(&one.queue, async |session| show(session, one).await).await
        }
        Command::Set(change) => {
            change.connection.on(&change.queue, async |session| set(session, change).await).await
        }
        Command::Rm(remove) => {
            let connection = &remove.connection;
            connection.on_existing(&remove.queue, async |session| rm(session, remove).await).await
        }
        Command::Pause(one) => {
            one.connection.on(&one.queue, async |session| pause(session, one).await).await
        }
        Command::Resume(one) => {
            one.connection.on(&one.queue, async |session| resume(session, one).await).await
        }
        Command::Purge(args) => {
            let connection = &args.connection;
            connection.on_existing(&args.queue, async |session| purge(session, args).await).await
        }
    }
}

/// Creates a queue. An existing queue is never changed: a script that runs twice must not undo a
/// change made in between.
async fn create(session: &Session, change: &Change) -> Result<Exit, Failure> {
    let screen = change.output.screen();
    let fields = &change.rules.0;
    let existing = session.client.queues().await?.queues;
    if let Some(existing) = existing.iter().find(|existing| existing.queue == change.queue) {
        let config = config(existing);
        let others = differing(fields, &config);
        if !others.is_empty() {
            let what = format!(
                "the queue {} exists with another configuration: {}",
                change.queue,
                others.join(", ")
            );
            let set = Advice::new("hapax queue set", &[&change.queue]);
            let next = format!("{set} changes them");
            return Err(Failure::new(Exit::Conflict, what).next(next));
        }
        let mut defaults = defaults();
        defaults.retain(|name, _| !fields.contains_key(name));
        let others = differing_from_defaults(&config, &defaults);
        let what = match others.is_empty() {
            true => format!("{} already exists with this configuration", change.queue),
            false => format!(
                "{} already exists and was not changed; fields with other values than the \
                 defaults: {}",
                change.queue,
                others.join(", ")
            ),
        };
        return print_queue(screen, existing, what);
    }
    let created = session.client.put_queue(&change.queue, &text(fields), None).await;
    let queue = created.map_err(rules::refused)?;
    print_queue(screen, &queue, format!("created {}", change.queue))
}

async fn set(session: &Session, change: &Change) -> Result<Exit, Failure> {
    let given = change.rules.0.clone();
    if given.is_empty() {
        let next = "hapax queue set --help lists them";
        return Err(Failure::usage("give at least one field to change").next(next));
    }
    let before = session.client.queue(&change.queue).await?;
    let mut fields = config(&before);
    let changed = differing(&given, &fields);
    fields.extend(given);
    let etag = Some(before.etag.as_str());
    let put = session.client.put_queue(&change.queue, &text(&fields), etag).await;
    let queue = put.map_err(rules::refused)?;
    let what = match changed.is_empty() {
        true => format!("{} already has this configuration", change.queue),
        false => format!("changed {}: {}", change.queue, changed.join(", ")),
    };
    print_queue(change.output.screen(), &queue, what)
}

fn print_queue(screen: Screen, queue: &proto::Queue, what: String) -> Result<Exit, Failure> {
    match screen.is_json() {
        true => screen.json(queue)?,
        false => screen.line(what)?,
    }
    Ok(Exit::Ok)
}

fn config(queue: &proto::Queue) -> Map<String, Value> {
    serde_json::from_str(&queue.config_json).unwrap_or_default()
}

fn text(fields: &Map<String, Value>) -> String {
    serde_json::to_string(fields).unwrap_or_default()
}

/// The configuration of a queue that is created without any field.
fn defaults() -> Map<String, Value> {
    match serde_json::to_value(QueueConfig::default()) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

/// The given fields that have another value, as `--flag before → after`.
fn differing(given: &Map<String, Value>, before: &Map<String, Value>) -> Vec<String> {
    let other = given.iter().filter(|(name, value)| before.get(*name) != Some(value));
    other
        .map(|(name, value)| {
            let before = rules::written(name, before.get(name).unwrap_or(&Value::Null));
            format!("{} {before} → {}", rules::flag_of(name), rules::written(name, value))
        })
        .collect()
}

/// The fields that have another value than these defaults, as `--flag value`.
fn differing_from_defaults(
    config: &Map<String, Value>,
    defaults: &Map<String, Value>,
) -> Vec<String> {
    let other = defaults.iter().filter_map(|(name, default)| {
        let value = config.get(name).filter(|value| *value != default)?;
        Some(format!("{} {}", rules::flag_of(name), rules::written(name, value)))
    });
    other.collect()
}

/// A queue of a list, with the partitions whose share of the counts is missing or outdated.
#[derive(Serialize)]
struct Listed<'a> {
    #[serde(flatten)]
    queue: &'a proto::Queue,
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    unanswered: &'a [u32],
}

async fn ls(session: &Session, list: &List) -> Result<Exit, Failure> {
    let screen = list.output.screen();
    let ListQueuesReply { mut queues, unanswered } = session.client.queues().await?;
    queues.sort_by(|a, b| a.queue.cmp(&b.queue));
    if let Some(silent) = silent(&unanswered) {
        say(silent);
    }
    if screen.is_json() {
        let listed = |queue| Listed { queue, unanswered: &unanswered };
        screen.json(&queues.iter().map(listed).collect::<Vec<_>>())?;
        return Ok(Exit::Ok);
    }
    if queues.is_empty() {
        say(match list.connection.has_token() {
            true => {
                "there are no queues that this token may see; a token sees those that it can \
                 send to, work on or administer"
            }
            false => "there are no queues yet; create one with: hapax queue create orders",
        });
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&[
        "QUEUE", ">READY", ">HELD", ">DELAYED", ">LEASED", ">PARKED", ">DEAD", ">KEYS", ">OLDEST",
        "",
    ]);
    for queue in &queues {
        let stats = queue.stats.unwrap_or_default();
        let age = stats.oldest_ready_age_ms.map_or("-".to_owned(), short);
        table.row([
            (&queue.queue).into(),
            stats.ready.into(),
            stats.held.into(),
            stats.delayed.into(),
            stats.leased.into(),
            alarming(Colour::Yellow, stats.parked),
            alarming(Colour::Red, stats.dead),
            stats.keys.into(),
            age.into(),
            Cell::coloured(Colour::Yellow, if queue.paused { "paused" } else { "" }),
        ]);
    }
    table.print(screen)?;
    Ok(Exit::Ok)
}

/// The warning about partitions that did not answer.
fn silent(unanswered: &[u32]) -> Option<String> {
    let names: Vec<String> = unanswered.iter().map(ToString::to_string).collect();
    let which = match names.len() {
        0 => return None,
        1 => "partition",
        _ => "partitions",
    };
    Some(format!(
        "{which} {} did not answer in time: its share of the counts is outdated or missing",
        names.join(", ")
    ))
}

fn alarming(colour: Colour, number: u64) -> Cell {
    if number == 0 { number.into() } else { Cell::coloured(colour, number) }
}

async fn show(session: &Session, one: &One) -> Result<Exit, Failure> {
    let screen = one.output.screen();
    let queue = session.client.queue(&one.queue).await?;
    if screen.is_json() {
        screen.json(&queue)?;
        return Ok(Exit::Ok);
    }
    let stats = queue.stats.unwrap_or_default();
    let paused = if queue.paused { "  (paused: hapax queue resume)" } else { "" };
    screen.line(format_args!("{}{paused}", screen.paint(Colour::Bold, &queue.queue)))?;
    let created = moment::relative(moment::now_ms(), queue.created_at_ms);
    screen.line(format_args!("  created {created}, etag {}", queue.etag))?;
    let held = match stats.held {
        0 => String::new(),
        held => format!(" ({held} behind others of their group)"),
    };
    screen.line(format_args!(
        "  holds   {} ready{held}, {} delayed, {} leased, {} parked, {} dead; remembers {}",
        stats.ready,
        stats.delayed,
        stats.leased,
        stats.parked,
        stats.dead,
        count(stats.keys, "key")
    ))?;
    if let Some(age) = stats.oldest_ready_age_ms {
        screen.line(format_args!("  oldest  ready message is {} old", short(age)))?;
    }
    screen.line(format_args!(
        "  so far  {} sent, {} absorbed, {} done, {} failed, {} lost",
        stats.sent_total,
        count(stats.duplicate_total, "duplicate"),
        stats.done_total,
        stats.failed_total,
        count(stats.lease_lost_total, "lease")
    ))?;
    screen.line("  rules")?;
    let fields = config(&queue);
    let width = fields.keys().map(String::len).max().unwrap_or(0);
    for (name, value) in &fields {
        screen.line(format_args!("    {name:width$}  {}", rules::readable(name, value)))?;
    }
    Ok(Exit::Ok)
}

async fn rm(session: &Session, remove: &Remove) -> Result<Exit, Failure> {
    let queue = session.client.queue(&remove.queue).await?;
    let screen = remove.output.screen();
    if remove.yes {
        session.client.delete_queue(&remove.queue).await?;
    }
    if screen.is_json() {
        let (deleted, dry_run) = (remove.yes, !remove.yes);
        let answer = json!({
            "queue": remove.queue, "deleted": deleted, "dry_run": dry_run, "stats": queue.stats
        });
        screen.json(&answer)?;
    } else if remove.yes {
        screen.line(format_args!("deleted {} with {}", remove.queue, holds(&queue)))?;
    } else {
        screen.line(format_args!("would delete {} with {}", remove.queue, holds(&queue)))?;
        screen.line(NOTHING_CHANGED)?;
    }
    Ok(Exit::Ok)
}

async fn pause(session: &Session, one: &One) -> Result<Exit, Failure> {
    session.client.pause_queue(&one.queue).await?;
    let what = format!("{} delivers nothing until it is resumed", one.queue);
    print_queue(one.output.screen(), &session.client.queue(&one.queue).await?, what)
}

async fn resume(session: &Session, one: &One) -> Result<Exit, Failure> {
    session.client.resume_queue(&one.queue).await?;
    let what = format!("{} delivers messages again", one.queue);
    print_queue(one.output.screen(), &session.client.queue(&one.queue).await?, what)
}

async fn purge(session: &Session, args: &Purge) -> Result<Exit, Failure> {
    let queue = session.client.queue(&args.queue).await?;
    let screen = args.output.screen();
    let stats = queue.stats.unwrap_or_default();
    let waiting = stats.ready + stats.delayed + stats.parked + stats.dead;
    if args.yes {
        session.client.purge_queue(&args.queue, args.keys).await?;
    }
    if screen.is_json() {
        let answer = json!({
            "queue": args.queue,
            "messages": waiting,
            "ready": stats.ready,
            "delayed": stats.delayed,
            "parked": stats.parked,
            "dead": stats.dead,
            "leased": stats.leased,
            "keys": args.keys,
            "purged": args.yes,
            "dry_run": !args.yes,
        });
        screen.json(&answer)?;
        return Ok(Exit::Ok);
    }
    let messages = format!(
        "{} ({} ready, {} delayed, {} parked, {} dead)",
        count(waiting, "message"),
        stats.ready,
        stats.delayed,
        stats.parked,
        stats.dead
    );
    screen.line(match (args.yes, args.keys) {
        (true, true) => {
            format!("discarded {messages} and forgot every key: sent again, they are new")
        }
        (true, false) => {
            format!("discarded {messages} and kept the keys: sent again, they stay discarded")
        }
        (false, true) => {
            format!("would discard {messages} and forget every key: sent again, they would be new")
        }
        (false, false) => {
            format!(
                "would discard {messages} and keep the keys: sent again, they would stay \
                     discarded"
            )
        }
    })?;
    match args.yes {
        false => screen.line(NOTHING_CHANGED)?,
        true if stats.leased > 0 => {
            let verb = if stats.leased == 1 { "is" } else { "are" };
            screen.line(format_args!("{} {verb} leased and not affected", stats.leased))?;
        }
        true => {}
    }
    Ok(Exit::Ok)
}

const NOTHING_CHANGED: &str = "nothing was changed; add --yes to do it";

fn holds(queue: &proto::Queue) -> String {
    let stats = queue.stats.unwrap_or_default();
    let messages = stats.ready + stats.delayed + stats.leased + stats.parked + stats.dead;
    let messages = count(messages, "message");
    format!("{messages} ({} dead, {} leased)", stats.dead, stats.leased)
}
