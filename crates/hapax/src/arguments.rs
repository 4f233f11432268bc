//! The tree of commands: their names, their first words and an example of each.

use clap::{Parser, Subcommand};

use crate::commands::{
    backup, bench, check, dead, demo, get, keys, log, manual, peek, proxy, queue, receive, relay,
    send, serve, settings, sql, tail, token, version, work,
};
use crate::exit;

/// A durable message queue in which every message carries an idempotency key: sent again under
/// its key, a message gets its first answer and has no second effect.
#[derive(Debug, Parser)]
#[command(name = "hapax", version, after_help = exit::HELP)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a broker for this machine, without tokens, and say what to try next.
    #[command(after_help = "Examples:
  hapax dev
  hapax dev --listen 127.0.0.1:0 --data scratch")]
    Dev(Box<serve::Serve>),
    /// Start a broker.
    #[command(after_help = "Examples:
  hapax serve --data data/hapax
  hapax serve --listen 0.0.0.0:4747 --tls-cert cert.pem --tls-key key.pem
  hapax serve --config hapax.toml --log-format json")]
    Serve(Box<serve::Serve>),
    /// Queues and their rules.
    #[command(
        subcommand,
        after_help = "Examples:
  hapax queue create orders
  hapax queue ls"
    )]
    Queue(queue::Command),
    /// Send a message, or many.
    #[command(after_help = "Examples:
  hapax send orders 'three lemons' --key order-42
  hapax send orders --key order-43 --file order.json --content-type application/json --wait 30s
  generate | hapax send orders - --delay 5m
  hapax send orders --batch < messages.ndjson")]
    Send(Box<send::Send>),
    /// Take messages by hand; they are yours until their leases end.
    #[command(after_help = "Examples:
  hapax receive orders --max 10 --wait 20s
  hapax receive orders --ack
  hapax receive orders -o json | jq -r .lease")]
    Receive(receive::Receive),
    /// Settle a message that was taken by hand.
    #[command(after_help = "Examples:
  hapax settle done orders LEASE 'receipt 17'
  hapax settle fail orders LEASE --error timeout")]
    Settle(receive::Settle),
    /// Run a command for every message.
    #[command(after_help = work::HELP)]
    Work(work::Work),
    /// Show a key: its state and why it is in it, its result, its history.
    #[command(
        after_help = "The history has the newest 64 events. Duplicates are one event with a \
count and the time of the last one, also where they did not come in a row: only an incident (a \
failure, a lost lease, a saved recovery point, a redrive, a replay ...) begins another. A lease \
and the end are no incidents. Some duplicates may be missing after a crash of the broker.

Examples:
  hapax get orders order-42
  hapax get orders order-42 --wait 30s --result > receipt.pdf"
    )]
    Get(get::Get),
    /// Put idempotency keys in front of any HTTP service: what was answered once is answered the
    /// same again, without a second effect.
    #[command(after_help = proxy::HELP)]
    Proxy(Box<proxy::Proxy>),
    /// Move messages from the outbox of a database to the broker.
    #[command(after_help = relay::HELP)]
    Relay(Box<relay::Relay>),
    /// Print the tables and statements of inbox and outbox, for your own database.
    #[command(after_help = sql::HELP)]
    Sql(sql::Sql),
    /// Look at messages without taking them.
    #[command(after_help = "Examples:
  hapax peek orders
  hapax peek orders --state delayed --limit 100 -o json")]
    Peek(peek::Peek),
    /// Follow what happens in a queue, by looking at it every 250 ms to 2 s.
    ///
    /// Messages that come and go between two looks are counted, not named, and so are those beyond
    /// the first 100 of a state. `hapax get` has the history of a key.
    #[command(after_help = "Examples:
  hapax tail orders
  hapax tail orders --key order- --for 1m -o json")]
    Tail(tail::Tail),
    /// Messages that were given up: list them, put them back, discard them.
    #[command(
        subcommand,
        after_help = "Examples:
  hapax dead ls orders
  hapax dead redrive orders --all --yes"
    )]
    Dead(dead::Command),
    /// Make a finished key unknown again: what is sent under it next is done again.
    #[command(after_help = "Examples:
  hapax forget orders order-42")]
    Forget(keys::Forget),
    /// Do a finished message again, as its next generation. Unless its queue keeps bodies, give its
    /// body again, the same as it was.
    #[command(after_help = "Examples:
  hapax replay orders order-42
  hapax replay orders order-42 'three lemons'
  hapax replay orders order-43 --file order.json --content-type application/json")]
    Replay(keys::Replay),
    /// Decide about a parked message, whose effect may have happened.
    #[command(after_help = "Examples:
  hapax resolve charges charge-7 --done 'charged, says the bank'
  hapax resolve charges charge-8 --retry")]
    Resolve(keys::Resolve),
    /// Measure a broker: producers and workers over real connections.
    #[command(after_help = bench::HELP)]
    Bench(bench::Bench),
    /// Check settings files and queue configurations for what would weaken a guarantee.
    #[command(after_help = "Exits with 2 where there are errors, with 1 for warnings if --strict.

Examples:
  hapax lint hapax.toml
  hapax lint --strict deploy/*.toml
  curl -s localhost:4747/v1/queues/orders | jq .config | hapax lint -")]
    Lint(settings::Lint),
    /// Verify a data directory from end to end and print what was found. Changes nothing.
    #[command(after_help = "Examples:
  hapax check hapax-data
  hapax check hapax-data -o json")]
    Check(check::Check),
    /// Copy the data of a broker, verified: of a stopped one, or of one that goes on.
    #[command(after_help = "Examples:
  hapax backup hapax-data backups/monday
  hapax backup --online backups/monday")]
    Backup(backup::Backup),
    /// Copy a backup to where it will be used, verified, with the broker's secret and tokens.
    #[command(after_help = "Examples:
  hapax restore backups/monday hapax-data")]
    Restore(backup::Restore),
    /// Tokens: who may do what.
    #[command(
        subcommand,
        after_help = "Examples:
  hapax token create --tenant shop --queue 'orders.*' --can send,work,admin
  hapax token ls"
    )]
    Token(token::Command),
    /// The settings that a broker would start with.
    #[command(
        subcommand,
        after_help = "Examples:
  hapax config show"
    )]
    Config(settings::Command),
    /// Change what a running broker logs.
    #[command(after_help = "Examples:
  hapax log debug
  hapax log info,hapax_server::engine=trace")]
    Log(log::Log),
    /// Print a script that completes commands in a shell.
    #[command(after_help = "Examples:
  hapax completions bash > ~/.local/share/bash-completion/completions/hapax
  hapax completions zsh > ~/.zfunc/_hapax
  hapax completions fish > ~/.config/fish/completions/hapax.fish")]
    Completions(manual::Completions),
    /// Print a page of the manual, or write all of them.
    #[command(after_help = "Examples:
  hapax man | man -l -
  hapax man queue create | man -l -
  hapax man --dir man/man1")]
    Man(manual::Man),
    /// Print the version of this program.
    #[command(after_help = "Examples:
  hapax version
  hapax version -o json")]
    Version(version::Version),
    /// Send, deliver and settle orders while being killed; then show that nothing was lost or
    /// doubled.
    #[command(after_help = "Examples:
  hapax demo
  hapax demo --kills 50 --life-ms 100")]
    Demo(demo::Arguments),
    /// The process that `demo` kills.
    #[command(hide = true)]
    Victim(demo::Victim),
}

impl Command {
    /// Whether it reads the broker's settings, and with them says which variables mean nothing.
    pub(crate) fn reads_settings(&self) -> bool {
        matches!(self, Self::Dev(_) | Self::Serve(_) | Self::Config(_) | Self::Victim(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// What these print is no answer but a text of its own, or a log.
    const WITHOUT_OUTPUT: [&str; 7] = [
        "hapax dev",
        "hapax serve",
        "hapax proxy",
        "hapax relay",
        "hapax sql",
        "hapax completions",
        "hapax man",
    ];

    fn visit(command: &clap::Command, path: &str, each: &mut impl FnMut(&str, &clap::Command)) {
        for child in command.get_subcommands().filter(|child| !child.is_hide_set()) {
            let path = format!("{path} {}", child.get_name());
            each(&path, child);
            visit(child, &path, each);
        }
    }

    #[test]
    fn the_tree_is_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_with_an_answer_prints_it_as_json_too() {
        visit(&Arguments::command(), "hapax", &mut |path, command| {
            let has_output = command.get_arguments().any(|argument| argument.get_id() == "format");
            let is_group = command.has_subcommands();
            assert_eq!(has_output, !is_group && !WITHOUT_OUTPUT.contains(&path), "{path}");
        });
    }

    #[test]
    fn every_command_says_what_it_does_and_shows_an_example() {
        let mut count = 0;
        visit(&Arguments::command(), "hapax", &mut |path, command| {
            count += 1;
            assert!(command.get_about().is_some(), "{path}");
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let (_, examples) = help.split_once("Examples:\n").unwrap_or_else(|| panic!("{path}"));
            assert!(examples.contains(path), "{path}: {examples}");
        });
        assert!(count > 30, "{count}");
    }
}
