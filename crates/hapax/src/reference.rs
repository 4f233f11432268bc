//! The page of commands, docs/cli.md, generated from the commands.

use clap::{Arg, Command, CommandFactory};

use crate::arguments::Arguments;
use crate::exit::Exit;

const HEAD: &str = "\
# The command line

`hapax` is the broker and its command-line client in one program. `hapax help COMMAND` and
`hapax man` show the same texts as this page. This page is generated; run the tests of `hapax` with
`HAPAX_BLESS=1` to update it.

## A first look

```sh
hapax dev                                          # a broker, with its data in ./hapax-data
hapax queue create orders
hapax send orders 'three lemons' --key order-42    # accepted
hapax send orders 'three lemons' --key order-42    # in_flight: the same message, not a second one
hapax send orders 'four limes' --key order-42      # conflict, exit code 4
hapax work orders --exec 'tr a-z A-Z'              # processes it; then press Ctrl-C
hapax send orders 'three lemons' --key order-42    # done, with the result THREE LEMONS
hapax get orders order-42                          # its state, the reason, its history
```

## Which broker

Commands that talk to a broker connect by gRPC to `--server` (or `HAPAX_SERVER`), by default
`http://127.0.0.1:4747`. Several nodes of one broker are separated by commas: the one that serves
is found, and followed when another one takes over. `--token` is the API token, if the broker
requires one. Prefer `HAPAX_TOKEN`, since other users of the machine can read arguments. For
`https` addresses `--ca` (`HAPAX_CA`) names the CA certificate that signed the broker's;
`--client-cert` and `--client-key` (`HAPAX_CLIENT_CERT`, `HAPAX_CLIENT_KEY`) are for brokers with
mutual TLS. These options are not repeated below. An unknown variable that begins with `HAPAX_`
gives a warning.

`dev`, `serve` and `config show` take a flag for every setting: see [settings.md](settings.md).

## Output

Tables are for people and may change between releases. `-o json` is for programs: its fields are
those of the HTTP API, and new releases only add fields. Answers go to the standard output;
everything else (a generated key, a hint, a progress bar) goes to the standard error. Colours and
progress bars appear on a terminal only. `NO_COLOR` turns colours off, `CLICOLOR_FORCE=1` turns
them on without a terminal. Control characters in keys, errors and bodies are escaped;
`hapax get --result` and `-o json` print them unchanged. `hapax send` prints a result unchanged too,
but on a terminal it escapes them.

A command that exits with another code than 0 prints the reason to the standard error. With
`-o json` that is one line of JSON, the last one, with the exit code, whether the same command may
succeed later (`retryable`) and, if the broker refused, its error `code`. Shown on two lines here:

```json
{\"answer\":\"error\",\"code\":\"no_such_queue\",\"detail\":\"there is no queue ordres\",\"exit\":3,
 \"next\":\"did you mean orders? Or create it: hapax queue create ordres\",\"retryable\":false}
```

A send, a settle or a `get --wait` that has an answer also prints it to the standard output. Errors
in the command line itself are always text.

A duration is a number and a unit: `500ms`, `30s`, `5m`, `2h`, `7d`. A time is RFC 3339, or an age:
`2h` is two hours ago.

Commands that change many messages at once (`queue rm`, `queue purge`, `dead redrive`,
`dead discard`) only report what they would do, unless `--yes` is given.

## Exit codes

";

const WORK: &str = "
### Input and output of the command of `hapax work`

The command runs as `sh -c COMMAND`, in its own process group, once per delivery.

| what | where |
|---|---|
| the body | standard input |
| key, queue and id | `HAPAX_KEY`, `HAPAX_QUEUE`, `HAPAX_ID` |
| attempt number | `HAPAX_ATTEMPT`, starting at 1 |
| number of replays | `HAPAX_GENERATION` |
| fencing token, which grows with every lease of the key | `HAPAX_FENCE`: a larger one is newer |
| the lease | `HAPAX_LEASE`, for `hapax settle save`, `begin` and `extend` |
| length of the lease | `HAPAX_LEASE_MS`, counted from its last extension |
| tenant | `HAPAX_TENANT` |
| group and content type | `HAPAX_GROUP`, `HAPAX_CONTENT_TYPE`; empty if there is none |
| headers | `HAPAX_HEADER_NAME`, in upper case, with other characters as `_`; all headers as \
JSON in `HAPAX_HEADERS` |
| recovery points | `HAPAX_POINT_NAME`, named the same way, if they are text; all points as \
JSON in `HAPAX_POINTS`, each with `body` or `body_base64` |

If two headers or two points give the same variable (`x-y` and `x_y`), neither is set; both are in
the JSON. Values with a zero byte, and values or JSON of more than 64 KiB, are left out, since no
command could be started with them; `hapax get` shows them.

| exit code | meaning |
|---|---|
| 0 | done, with the standard output as the result. If it is larger than `--max-result` or than \
the queue allows, the message is parked if the command has begun and the queue has \
`on-lost = park`, and dead otherwise, since running it again would not help |
| 75 | not now: the attempt failed, with the end of the standard error as its error, and is \
retried after the queue's backoff. It counts like any other attempt: with the default \
configuration (10 attempts) a message that keeps exiting with 75 is dead after four minutes \
on average and nine at most. For longer outages give the queue more `--max-attempts` or a longer \
`--backoff-min`, or redrive the message later |
| 76 | in doubt: it is unknown whether the effect happened. The message is parked if the command \
has begun (`hapax settle begin`) and the queue has `on-lost = park`; otherwise the attempt failed |
| 129 to 192, or killed by a signal | in doubt, as with 76. A shell exits with 128 plus the number \
of the signal that ended its last command |
| any other | the attempt failed, with the end of the standard error as its error, and is retried \
as with 75. After `begin` it means that the effect did not happen |

The lease is extended while the command runs. If it is lost (the broker could not be reached for
too long, or an operator intervened), the whole process group gets SIGTERM, and SIGKILL five
seconds later. Nothing is settled then, since another worker may have the message. With `--timeout`
a command that takes too long is stopped in the same way, and is in doubt as with 76. After Ctrl-C
or SIGTERM no new message is taken, running commands may finish, and messages that were not started
are given back without counting as an attempt. A second signal stops the commands, which are then
in doubt.

A line is printed when the broker has confirmed the outcome of a message: `done`, `not now`,
`failed`, `dead`, `parked`, `lost` if the lease ended first, or `unknown` if the broker could not be
reached again. Connection problems are printed to the standard error.

The effect of a command that was killed, or whose machine crashed, may have happened: deliveries
are at least once. If `hapax work` itself is killed (SIGKILL), its commands run on, also while
another worker has their messages. Use `HAPAX_KEY` as the idempotency key of every call that the
command makes.
";

fn page() -> String {
    let mut text = HEAD.to_owned();
    text += "| code | meaning |\n|---|---|\n";
    for exit in Exit::ALL {
        text += &format!("| {} | {} |\n", *exit as u8, exit.meaning());
    }
    text += "\n## Commands\n";
    let mut tree = Arguments::command();
    tree.build();
    section(&mut text, &tree, "hapax");
    text
}

fn section(text: &mut String, command: &Command, path: &str) {
    for child in command.get_subcommands().filter(|child| is_shown(child)) {
        let path = format!("{path} {}", child.get_name());
        let about = child.get_long_about().or(child.get_about());
        *text += &format!("\n### `{path}`\n\n{}\n", flat(&about.unwrap_or_default().to_string()));
        if child.has_subcommands() {
            section(text, child, &path);
            continue;
        }
        let mut usage = child.clone();
        let usage = usage.render_usage().to_string();
        *text += &format!("\n```text\n{}\n```\n", usage.trim_start_matches("Usage: "));
        options(text, child);
        let help = child.get_after_help().map(ToString::to_string).unwrap_or_default();
        let (before, examples) = help.split_once("Examples:\n").unwrap_or(("", &help));
        if !before.trim().is_empty() {
            *text += &format!("\n{}\n", before.trim());
        }
        let examples: Vec<&str> = examples.lines().map(|line| line.trim_start()).collect();
        *text += &format!("\n```sh\n{}\n```\n", examples.join("\n"));
        if path == "hapax work" {
            *text += WORK;
        }
    }
}

fn is_shown(command: &Command) -> bool {
    !command.is_hide_set() && command.get_name() != "help"
}

fn options(text: &mut String, command: &Command) {
    let arguments: Vec<&Arg> = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && arg.get_id() != "help" && arg.get_id() != "version")
        .filter(|arg| {
            let heading = arg.get_help_heading().unwrap_or_default();
            heading != "Connection" && !heading.starts_with("Settings")
        })
        .collect();
    if arguments.is_empty() {
        return;
    }
    *text += "\n| argument | meaning |\n|---|---|\n";
    for arg in arguments {
        let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string);
        let help = flat(&help.unwrap_or_default());
        let variable = arg.get_env().map(|name| format!(" Variable `{}`.", name.display()));
        let variable = variable.unwrap_or_default();
        *text +=
            &format!("| `{}` | {help}{}{}{variable} |\n", name(arg), choices(arg), default(arg));
    }
}

/// The argument as it is typed.
fn name(arg: &Arg) -> String {
    let values = arg.get_value_names().unwrap_or_default();
    let value = values.iter().map(|value| value.to_string()).collect::<Vec<_>>().join(" ");
    let takes = arg.get_num_args().is_some_and(|count| count.takes_values());
    match (arg.get_short(), arg.get_long()) {
        (None, None) => value,
        (short, long) => {
            let short = short.map(|short| format!("-{short}"));
            let long = long.map(|long| format!("--{long}"));
            let names: Vec<String> = [short, long].into_iter().flatten().collect();
            let value = if takes { format!(" {value}") } else { String::new() };
            format!("{}{value}", names.join(", "))
        }
    }
}

fn choices(arg: &Arg) -> String {
    let takes = arg.get_num_args().is_some_and(|count| count.takes_values());
    let values = arg.get_possible_values();
    if !takes || values.is_empty() {
        return String::new();
    }
    let names: Vec<String> = values.iter().map(|value| format!("`{}`", value.get_name())).collect();
    format!(" One of {}.", names.join(", "))
}

fn default(arg: &Arg) -> String {
    let takes = arg.get_num_args().is_some_and(|count| count.takes_values());
    let values = arg.get_default_values();
    // The name of a worker is that of this machine.
    if !takes || values.is_empty() || arg.get_id() == "worker" {
        return String::new();
    }
    let values: Vec<_> = values.iter().map(|value| value.to_string_lossy()).collect();
    format!(" Default `{}`.", values.join(" "))
}

/// Joins a text to one paragraph, and escapes what would end a table cell.
fn flat(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    if text.ends_with(['.', '…', '}']) || text.is_empty() { text } else { format!("{text}.") }
}

/// Compares a page of `docs/` with the generated one, or writes it with `HAPAX_BLESS=1`.
pub(crate) fn check_page(name: &str, made: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/").to_owned() + name;
    if std::env::var_os("HAPAX_BLESS").is_some() {
        std::fs::write(&path, made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == made, "docs/{name} is not current: run this test with HAPAX_BLESS=1");
}

#[test]
fn the_page_of_commands_is_current() {
    check_page("cli.md", &page());
}

#[test]
fn the_page_names_every_command_and_every_exit_code() {
    let page = page();
    for command in ["hapax dev", "hapax queue purge", "hapax dead redrive", "hapax settle extend"] {
        assert!(page.contains(&format!("\n### `{command}`\n")), "{command}");
    }
    assert!(page.contains("| 75 | "), "{page}");
    let host = crate::session::worker_name();
    assert!(!page.contains(&host), "no value of this machine");
}
