//! `hapax dead`: dead messages. Changes nothing without `--yes`.

mod discard;
mod redrive;

use clap::{Args, Subcommand};
use hapax_wire::proto::{self, State};

use super::peek::{self, PAGE, Pages};
use crate::counts;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::moment;
use crate::screen::{Output, say};
use crate::session::{Connection, Session};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List dead messages with their errors, the oldest first.
    #[command(after_help = "Examples:
  hapax dead ls orders
  hapax dead ls orders --error-contains timeout --limit 100
  hapax dead ls orders -o json | jq -r '.[].key'")]
    Ls(List),
    /// Make dead messages ready again under their own keys. Only counts them, unless --yes is
    /// given.
    #[command(after_help = "Examples:
  hapax dead redrive orders
  hapax dead redrive orders --all --rate 50 --yes
  hapax dead redrive orders --error-contains timeout --before 2h --yes
  hapax dead redrive orders --key order-42 --key order-43 --yes
  hapax dead redrive orders --all --id after-the-outage --yes
  hapax dead redrive orders --status after-the-outage
  hapax dead redrive orders --cancel after-the-outage")]
    Redrive(redrive::Redrive),
    /// Discard dead messages for good. Their keys stay remembered. Only lists them, unless --yes is
    /// given.
    #[command(after_help = "Examples:
  hapax dead discard orders --key order-42 --yes
  hapax dead discard orders --error-contains 'no such account'
  hapax dead discard orders --all --yes")]
    Discard(discard::Discard),
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// The queue.
    queue: String,
    /// At most this many messages.
    #[arg(long, default_value_t = 20, value_name = "COUNT", value_parser = counts::any::<usize>)]
    limit: usize,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    output: Output,
}

/// A filter of dead messages: all conditions that are given must match.
#[derive(Clone, Debug, Args)]
struct Filter {
    /// Only messages whose last error contains this text.
    #[arg(help_heading = "Filter")]
    #[arg(long, value_name = "TEXT")]
    error_contains: Option<String>,
    /// Only messages of this group. Keys are looked up in it, in queues that deduplicate per group.
    #[arg(help_heading = "Filter")]
    #[arg(long)]
    group: Option<String>,
    /// Only messages that died before this time, given as a date or an age.
    #[arg(help_heading = "Filter")]
    #[arg(long, value_name = "TIME", value_parser = moment::parse)]
    before: Option<u64>,
    /// Only messages that died at this time or later, given as a date or an age.
    #[arg(help_heading = "Filter")]
    #[arg(long, value_name = "TIME", value_parser = moment::parse)]
    after: Option<u64>,
}

/// The dead messages to change.
#[derive(Debug, Args)]
struct Selection {
    /// Only the message with this key. May be repeated.
    #[arg(long = "key", value_name = "KEY")]
    keys: Vec<String>,
    /// All dead messages of the queue.
    #[arg(long, conflicts_with_all = ["keys", "error_contains", "group", "before", "after"])]
    all: bool,
    /// Make the change. Without it, only report what would change.
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    filter: Filter,
}

impl Filter {
    fn is_empty(&self) -> bool {
        let has_time = self.before.is_some() || self.after.is_some();
        self.error_contains.is_none() && self.group.is_none() && !has_time
    }

    fn fits(&self, message: &proto::Key) -> bool {
        let has_error =
            self.error_contains.as_ref().is_none_or(|text| message.error.contains(text.as_str()));
        let has_group = self.group.as_ref().is_none_or(|group| *group == message.group);
        let died_at = peek::died_at(message);
        let is_early = self.before.is_none_or(|before| died_at < before);
        has_error && has_group && is_early && self.after.is_none_or(|after| died_at > after)
    }
}

impl Selection {
    /// Refuses an empty selection, which would change everything by mistake. With keys, the group
    /// belongs to the keys and is not a filter.
    fn check(&self) -> Result<(), Failure> {
        let mut filter = self.filter.clone();
        if !self.keys.is_empty() {
            filter.group = None;
        }
        let has_filter = !filter.is_empty();
        if self.yes && !self.all && self.keys.is_empty() && !has_filter {
            let next = "--key KEY, --error-contains TEXT, --group GROUP, --before TIME, \
                        --after TIME or --all";
            return Err(Failure::usage("no messages are selected").next(next));
        }
        if !self.keys.is_empty() && has_filter {
            return Err(Failure::usage("give keys or a filter, not both"));
        }
        Ok(())
    }
}

pub(crate) async fn run(command: &Command) -> Result<Exit, Failure> {
    match command {
        Command::Ls(list) => {
            list.connection.on_existing(&list.queue, async |session| ls(session, list).await).await
        }
        Command::Redrive(redrive) => redrive::run(redrive).await,
        Command::Discard(discard) => discard::run(discard).await,
    }
}

async fn ls(session: &Session, list: &List) -> Result<Exit, Failure> {
    let mut pages = Pages::new(session, &list.queue, State::Dead);
    let mut found = Vec::new();
    let mut has_more = false;
    while let Some(page) = pages.next(PAGE).await? {
        found.extend(page.into_iter().filter(|message| list.filter.fits(message)));
        if found.len() > list.limit {
            found.truncate(list.limit);
            has_more = true;
            break;
        }
    }
    peek::list_dead(list.output.screen(), &found)?;
    if has_more {
        say("there is more: --limit COUNT");
    }
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_fits_what_it_names_and_an_empty_one_everything() {
        let message = proto::Key {
            error: "connect timeout".to_owned(),
            group: "eu".to_owned(),
            accepted_at_ms: 1_000,
            history: vec![proto::Event {
                at_ms: 5_000,
                event: "dead".to_owned(),
                ..proto::Event::default()
            }],
            ..proto::Key::default()
        };
        let none = Filter { error_contains: None, group: None, before: None, after: None };
        assert!(none.is_empty() && none.fits(&message));
        let fits = |filter: Filter| filter.fits(&message);
        assert!(fits(Filter { error_contains: Some("timeout".to_owned()), ..none.clone() }));
        assert!(!fits(Filter { error_contains: Some("Timeout".to_owned()), ..none.clone() }));
        assert!(!fits(Filter { group: Some("us".to_owned()), ..none.clone() }));
        assert!(fits(Filter { before: Some(5_001), ..none.clone() }));
        assert!(fits(Filter { after: Some(4_999), ..none.clone() }));
        assert!(!fits(Filter { after: Some(5_000), ..none.clone() }));
        assert!(!fits(Filter { before: Some(5_000), ..none }), "it died then, it was sent before");
    }
}
