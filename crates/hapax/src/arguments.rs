//! The tree of commands: names, one-line descriptions and examples.

use clap::{Parser, Subcommand};

use crate::commands::{
    backup, bench, check, cluster, dead, demo, get, import, keys, log, manual, peek, proxy, queue,
    receive, relay, send, serve, settings, sql, tail, token, version, work,
};
use crate::exit;

/// A durable message queue in which every message has an idempotency key: a message that is sent
/// again under its key gets the first answer and has no second effect.
#[derive(Debug, Parser)]
#[command(name = "hapax", version, after_help = exit::HELP)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a broker for local development, without tokens, and print what to try next.
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
    /// Manage queues and their configuration.
    #[command(
        subcommand,
        after_help = "Examples:
  hapax queue create orders
  hapax queue ls"
    )]
    Queue(queue::Command),
    /// Send one message or a batch.
    #[command(after_help = "Examples:
  hapax send orders 'three lemons' --key order-42
  hapax send orders --key order-43 --file order.json --content-type application/json --wait 30s
  generate | hapax send orders - --delay 5m
  hapax send orders --batch < messages.ndjson")]
    Send(Box<send::Send>),
    /// Receive messages by hand. Each is leased to you until you settle it or its lease ends.
    #[command(after_help = "Examples:
  hapax receive orders --max 10 --wait 20s
  hapax receive orders --ack
  hapax receive orders -o json | jq -r .lease")]
    Receive(receive::Receive),
    /// Settle a message that was received by hand.
    #[command(after_help = "Examples:
  hapax settle done orders LEASE 'receipt 17'
  hapax settle fail orders LEASE --error timeout")]
    Settle(receive::Settle),
    /// Run a command for every message.
    #[command(after_help = work::HELP)]
    Work(work::Work),
    /// Show a key: its state and the reason for it, its result, its history.
    #[command(
        after_help = "The history holds the newest 64 events. Duplicates are counted in one \
event, with the time of the last one, even if a lease or the end of the message came in between; \
only an incident (a failure, a lost lease, a saved recovery point, a redrive, a replay ...) \
starts a new one. After a crash of the broker some duplicates may be missing.

Examples:
  hapax get orders order-42
  hapax get orders order-42 --wait 30s --result > receipt.pdf"
    )]
    Get(get::Get),
    /// Add idempotency keys to any HTTP service: a repeated request gets the stored response,
    /// without a second effect.
    #[command(after_help = proxy::HELP)]
    Proxy(Box<proxy::Proxy>),
    /// Move messages from a database's outbox table to the broker.
    #[command(after_help = relay::HELP)]
    Relay(Box<relay::Relay>),
    /// Print the SQL of the inbox and outbox tables for your own database.
    #[command(after_help = sql::HELP)]
    Sql(sql::Sql),
    /// List messages without receiving them.
    #[command(after_help = "Examples:
  hapax peek orders
  hapax peek orders --state delayed --limit 100 -o json")]
    Peek(peek::Peek),
    /// Follow a queue, by polling it every 250 ms to 2 s. Messages that come and go between two
    /// polls are counted but not listed, and so are those beyond the first 100 of a state. `hapax
    /// get` shows the history of a key.
    #[command(after_help = "Examples:
  hapax tail orders
  hapax tail orders --key order- --for 1m -o json")]
    Tail(tail::Tail),
    /// Manage dead messages: list, redrive or discard them.
    #[command(
        subcommand,
        after_help = "Examples:
  hapax dead ls orders
  hapax dead redrive orders --all --yes"
    )]
    Dead(dead::Command),
    /// Forget a finished key: the next message sent under it is a new one and is processed.
    #[command(after_help = "Examples:
  hapax forget orders order-42")]
    Forget(keys::Forget),
    /// Process a finished message again, as its next generation. Unless its queue has keep_bodies,
    /// give the same body again.
    #[command(after_help = "Examples:
  hapax replay orders order-42
  hapax replay orders order-42 'three lemons'
  hapax replay orders order-43 --file order.json --content-type application/json")]
    Replay(keys::Replay),
    /// Resolve a parked message, whose effect may have happened.
    #[command(override_usage = "hapax resolve [OPTIONS] <QUEUE> <KEY> <--done [<RESULT>]|--retry>")]
    #[command(after_help = "Examples:
  hapax resolve charges charge-7 --done 'charged, says the bank'
  hapax resolve charges charge-8 --retry")]
    Resolve(keys::Resolve),
    /// Benchmark a broker with producers and workers over real connections.
    #[command(after_help = bench::HELP)]
    Bench(bench::Bench),
    /// Check settings files and queue configurations for errors and for anything that weakens a
    /// guarantee.
    #[command(after_help = "Exits with 2 if there are errors, and with 1 if there are warnings \
                            and --strict is given.

Examples:
  hapax lint hapax.toml
  hapax lint --strict deploy/*.toml
  curl -s localhost:4747/v1/queues/orders | jq .config | hapax lint -")]
    Lint(settings::Lint),
    /// Verify every file of a data directory and print what was found. Changes nothing.
    #[command(after_help = "Examples:
  hapax check hapax-data
  hapax check hapax-data -o json")]
    Check(check::Check),
    /// Make a verified copy of a broker's data, stopped or running.
    #[command(after_help = "Examples:
  hapax backup hapax-data backups/monday
  hapax backup --online backups/monday")]
    Backup(backup::Backup),
    /// Make a verified copy of a backup in a new data directory, with the broker's secret, and its
    /// tokens if it has any.
    #[command(after_help = "Examples:
  hapax restore backups/monday hapax-data")]
    Restore(backup::Restore),
    /// Move the data of a stopped broker from its directory into an empty PostgreSQL database.
    #[command(after_help = import::HELP)]
    Import(import::Import),
    /// Show the nodes of a broker whose data is in PostgreSQL, or accept a loss of the database.
    #[command(
        subcommand,
        after_help = "Examples:
  hapax cluster status
  hapax cluster accept-loss"
    )]
    Cluster(cluster::Command),
    /// Manage API tokens.
    #[command(
        subcommand,
        after_help = "Examples:
  hapax token create --tenant shop --queue 'orders.*' --can send,work,admin
  hapax token ls"
    )]
    Token(token::Command),
    /// Show the settings that a broker would start with.
    #[command(
        subcommand,
        after_help = "Examples:
  hapax config show"
    )]
    Config(settings::Command),
    /// Change the log filter of a running broker.
    #[command(after_help = "Examples:
  hapax log debug
  hapax log info,hapax_server::engine=trace")]
    Log(log::Log),
    /// Print a shell completion script.
    #[command(after_help = "Examples:
  hapax completions bash > ~/.local/share/bash-completion/completions/hapax
  hapax completions zsh > ~/.zfunc/_hapax
  hapax completions fish > ~/.config/fish/completions/hapax.fish")]
    Completions(manual::Completions),
    /// Print a manual page, or write all of them to a directory.
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
    /// Send, deliver and settle orders in a process that is killed again and again, then show that
    /// nothing was lost or processed twice.
    #[command(after_help = "Examples:
  hapax demo
  hapax demo --kills 50 --life-ms 100")]
    Demo(demo::Arguments),
    /// The process that `demo` kills.
    #[command(hide = true)]
    Victim(demo::Victim),
}

impl Command {
    /// Whether the command reads the broker's settings; such a command warns of unknown variables.
    pub(crate) fn reads_settings(&self) -> bool {
        matches!(self, Self::Dev(_) | Self::Serve(_) | Self::Config(_) | Self::Victim(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    use crate::settings;

    /// Whether the command prints a text or a log instead of an answer.
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

    #[test]
    fn every_count_is_at_least_one() {
        let mut counts = 0;
        visit(&Arguments::command(), "hapax", &mut |path, command| {
            // The fields of a queue have bounds in the broker.
            let fields =
                command.get_arguments().filter(|it| it.get_help_heading() != Some("Rules"));
            let names = |it: &clap::Arg| it.get_value_names().unwrap_or_default().to_vec();
            for argument in fields.filter(|it| names(it) == ["COUNT"]) {
                let flag = format!("--{}", argument.get_long().unwrap());
                let refused = command.clone().try_get_matches_from(["x", &flag, "0"]).unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::ValueValidation, "{path} {flag}");
                counts += 1;
            }
        });
        assert!(counts > 10, "{counts}");
    }

    #[test]
    fn a_heading_covers_its_own_arguments_alone() {
        let connection = ["server", "token", "ca", "client_cert", "client_key"];
        visit(&Arguments::command(), "hapax", &mut |path, command| {
            let is_setting = |it: &clap::Arg| {
                it.get_help_heading().is_some_and(|heading| heading.starts_with("Settings"))
            };
            for it in command.get_arguments() {
                let (id, is_positional) = (it.get_id().as_str(), it.is_positional());
                let heading = it.get_help_heading();
                if heading == Some("Connection") {
                    assert!(connection.contains(&id), "{path} {id}");
                }
                if is_setting(it) {
                    assert!(settings::names().iter().any(|name| name == id), "{path} {id}");
                }
                assert!(!is_positional || heading.is_none(), "{path} {id} is under {heading:?}");
            }
        });
    }
}
