//! The page of commands, docs/cli.md, made from the commands themselves.

use clap::{Arg, Command, CommandFactory};

use crate::arguments::Arguments;
use crate::exit::Exit;

const HEAD: &str = "\
# The command line

`hapax` is the broker and everything people do with one from a terminal. `hapax help COMMAND` says
what this page says, and `hapax man` prints it as a manual. This page is generated; run the tests
of `hapax` with `HAPAX_BLESS=1` to renew it.

## A first look

```sh
hapax dev                                          # a broker, with its data in ./hapax-data
hapax queue create orders
hapax send orders 'three lemons' --key order-42    # accepted
hapax send orders 'three lemons' --key order-42    # in_flight: the same message, not a second one
hapax send orders 'four limes' --key order-42      # conflict, exit code 4
hapax work orders --exec 'tr a-z A-Z'              # does it; Ctrl-C when it is done
hapax send orders 'three lemons' --key order-42    # done, with the result THREE LEMONS
hapax get orders order-42                          # its state, its history, and why
```

## Which broker

Commands that talk to a broker speak gRPC to `--server` (or `HAPAX_SERVER`), by default
`http://127.0.0.1:4747`. `--token` is the API token, for brokers that want one (better:
`HAPAX_TOKEN`, since arguments are visible to everybody on the machine). For `https` addresses
`--ca` (`HAPAX_CA`) names the certificate that signed the broker's; `--client-cert` and
`--client-key` (`HAPAX_CLIENT_CERT`, `HAPAX_CLIENT_KEY`) are for brokers that ask for one. These
options are not repeated below. Variables that begin with `HAPAX_` and mean nothing are warned of.

`dev`, `serve` and `config show` take a flag for every setting: see [settings.md](settings.md).

## What is printed

Tables are for people and may change. `-o json` is for programs, and every command that answers
something takes it: its fields are those of the HTTP door and are only ever added to. Answers go to
the standard output, everything said besides (a key that was made up, a hint, a progress bar) to
the standard error. Colours and progress bars appear on a terminal only; `NO_COLOR` turns colours
off, `CLICOLOR_FORCE=1` turns them on where there is no terminal. Texts that others wrote (keys,
errors, bodies) are shown with control characters escaped; `hapax get --result` and `-o json` give
them as they are.

A command that fails says why on the standard error. With `-o json` that is one line of JSON, the
last one; the exit code is in it, and the broker's `code` where the broker refused. Shown on two
lines here:

```json
{\"answer\":\"error\",\"code\":\"no_such_queue\",\"detail\":\"there is no queue ordres\",\"exit\":3,
 \"next\":\"did you mean orders?\",\"retryable\":false}
```

A send or a settle that is refused is an answer as well, and is on the standard output too. Only
mistakes in the command line itself are text always.

Durations are a number and a unit: `500ms`, `30s`, `5m`, `2h`, `7d`. Times are RFC 3339, or an
age: `2h` is two hours ago.

What changes much (`queue rm`, `queue purge`, `dead redrive`, `dead discard`) only tells what it
would do, unless `--yes` is given.

## Exit codes

";

const WORK: &str = "
### What the command of `hapax work` gets and gives

The command runs as `sh -c COMMAND`, in a process group of its own, once per delivery.

| what | where |
|---|---|
| the body | standard input |
| key, queue and id | `HAPAX_KEY`, `HAPAX_QUEUE`, `HAPAX_ID` |
| attempt number | `HAPAX_ATTEMPT`, from 1 on |
| how often the message was replayed | `HAPAX_GENERATION` |
| the lease's number, which grows with every lease | `HAPAX_FENCE`: a larger one is newer |
| the lease itself | `HAPAX_LEASE`, for `hapax settle save`, `begin` and `extend` |
| how long the lease lasts | `HAPAX_LEASE_MS`, from its last extension on |
| tenant | `HAPAX_TENANT` |
| group and content type | `HAPAX_GROUP`, `HAPAX_CONTENT_TYPE`; empty where there is none |
| headers | `HAPAX_HEADER_NAME`, the name in capitals, other characters as `_`; all of them as \
JSON in `HAPAX_HEADERS` |
| recovery points | `HAPAX_POINT_NAME`, spelled the same way, where they are text; all of them as \
JSON in `HAPAX_POINTS`, each with `body` or `body_base64` |

Of headers, or points, whose names give the same variable (`x-y` and `x_y`) none is set: they are
in the JSON alone. Values with a zero byte, and values or JSON of more than 64 KiB, are left out,
since no command could be started with them; `hapax get` shows them.

| exit | means |
|---|---|
| 0 | done; what was written to the standard output is the result, if anything was. If that is \
more than `--max-result` or the queue takes: parked, where the command has begun and the queue \
parks; dead otherwise, since running it again would not help |
| 75 | not now: a failed attempt with the last words of the standard error, tried again after \
the queue's backoff. It counts as any other: with the default rules (10 attempts, waits between \
1 s and a bound that doubles) a message that is not ready within four to nine minutes is dead. \
For longer outages give the queue more `--max-attempts` or a longer `--backoff-min`, or redrive |
| 76 | in doubt: nobody knows whether the effect happened. Parked, where the command has begun \
(`hapax settle begin`) and the queue parks; failed otherwise |
| 129 to 192, or killed by a signal | the same: a shell exits with 128 and the number of the \
signal that ended its last command |
| else | failed, with the last words of the standard error; tried again as 75 is, so long as \
attempts are left. After `begin` it says that the effect did not happen |

The lease is extended while the command runs. When it is lost all the same (the broker was away
for too long, or an operator stepped in), the whole process group gets SIGTERM, and SIGKILL five
seconds later; nothing is settled, since somebody else may have the message. With `--timeout` the
same happens to a command that takes too long, and it is in doubt as with 76. Ctrl-C or SIGTERM
drains: nothing new is taken, running commands may finish, and what was not started is given back
uncounted. A second signal stops the commands, which are in doubt then.

A line is printed when the broker has confirmed what became of a message: `done`, `not now`,
`failed`, `dead`, `parked`, `lost` where the lease was over first, `unknown` where the broker was
not reached again. That the broker is away, and back, is said on the standard error.

The effect of a command that was killed, or whose machine died, may have happened: deliveries are
at least once. Use `HAPAX_KEY` as the idempotency key of whatever the command calls.
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

/// As one types it.
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

/// One paragraph, and nothing that ends a cell.
fn flat(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    if text.ends_with(['.', '…', '}']) || text.is_empty() { text } else { format!("{text}.") }
}

/// Compares a page of `docs/` with what is made of the code, or renews it where that is asked for.
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
