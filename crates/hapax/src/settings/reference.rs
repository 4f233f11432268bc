//! The reference of all settings, docs/settings.md, generated from the flags, the fields of a queue
//! and the rules.

use clap::Arg;
use hapax_server::doors::config::{self, Dialect};
use hapax_server::lint::Rule;
use hapax_wire::{Field, QueueConfig};

use super::values::{LIMITS, allowed, arguments, flag, variable};

const COLUMNS: usize = 100;

const HEAD: &str = "\
# Settings

The settings of `hapax serve` and `hapax dev`. This page is generated from the code.
Run the tests of `hapax` with `HAPAX_BLESS=1` to update it.

A value is taken from the first of these that has one:

1. a flag: `--memory-bytes 1GiB`,
2. a variable: `HAPAX_MEMORY_BYTES=1GiB`; an empty one counts as absent,
3. the settings file: `memory_bytes = \"1GiB\"`,
4. the default.

`hapax config show` prints every value and where it comes from, and exits with 2 if a broker would
refuse to start with them. The file is the one that `--config` or `HAPAX_CONFIG` names, otherwise
`hapax.toml` in the working directory, if it exists.
Relative paths are relative to the working directory, also in the file. `\"off\"` turns an optional
setting off, so that a flag can override the file.

Unknown names in the file are refused, also in the configuration of queues: a typo must not weaken
a guarantee. An unknown `HAPAX_…` variable gives a warning. All errors of the file are reported
together, with their lines.

Beyond loopback the broker needs tokens and TLS. It refuses to start without them, unless
`allow_no_auth` and `allow_no_tls` are set. Neither of the two replaces the other.

```toml
listen = \"0.0.0.0:4747\"
data = \"/var/lib/hapax\"
tls_cert = \"/etc/hapax/cert.pem\"
tls_key = \"/etc/hapax/key.pem\"

[queues.orders]                # a queue of the tenant default
retention_ms = 2592000000      # 30 days
retry_horizon_ms = 604800000   # 7 days

[tenants.shop]
sends_per_s = 5000
max_bytes = \"10GiB\"

[tenants.shop.queues.\"mail.out\"]
max_attempts = 20
```
";

const TENANTS: &str = "\
## Tenants

`[tenants.NAME]` limits what one tenant may use. A tenant that the file does not name has no
limits of its own. A name has 1 to 80 characters of `A-Z a-z 0-9 . _ -`; one with a dot is quoted:
`[tenants.\"a.b\"]`.
";

const QUEUES: &str = "\
## Queues

`[queues.NAME]` declares a queue of the tenant `default`, `[tenants.NAME.queues.QUEUE]` one of
another tenant. When the broker starts, they are created or changed to match the file. Queues that
the file does not name are not changed. The fields are those of `PUT /v1/queues/{queue}`; all
are optional. In JSON, `null` means no limit, and for `retention_ms` forever. TOML has no `null`:
leave the field out, and write `retention_ms = \"forever\"`. Sizes in the file may have a unit:
`max_bytes = \"1GiB\"`.
";

const LINT: &str = "\
## What `hapax lint` looks for

`hapax lint FILE` checks a settings file, or a queue's configuration in the JSON form of the HTTP
API, without a broker. It exits with 2 if there are errors, with 1 if there are warnings and
`--strict` is given, otherwise with 0. Only the file is checked: the flags and variables of the
machine where the broker will run are not known.

To accept a warning or note, name it in a comment on its line:

```toml
[queues.metrics]
guarantee = \"at-most-once\" # lint: allow at-most-once
```

Errors cannot be accepted: the broker refuses them too, or the setting cannot work.

| rule | level | what it finds |
|---|---|---|
";

/// The meaning of each of [`LIMITS`].
const LIMIT_DOCS: [&str; 4] = [
    "Messages sent per second, in all queues together.",
    "Unfinished messages, in all queues together, including dead ones.",
    "Bytes of the bodies of unfinished messages, in all queues together.",
    "Number of queues.",
];

/// The reference as Markdown.
fn reference() -> String {
    let settings = arguments().iter().map(setting).collect::<Vec<_>>().join("\n");
    let limits = LIMITS.iter().zip(LIMIT_DOCS).map(|(name, doc)| {
        item(&format!("**`{name}`** {doc} Default none. Allowed: {}.", allowed(name)))
    });
    let limits = limits.collect::<Vec<_>>().join("\n");
    let fields = QueueConfig::FIELDS.iter().map(field).collect::<Vec<_>>().join("\n");
    let rules = Rule::ALL.iter().map(|rule| {
        format!("| `{}` | {} | {} |\n", rule.name(), rule.severity().as_str(), rule.doc())
    });
    let rules: String = rules.collect();
    let settings = format!("## The broker\n\n{settings}");
    format!("{HEAD}\n{settings}\n{TENANTS}\n{limits}\n{QUEUES}\n{fields}\n{LINT}{rules}")
}

fn setting(argument: &Arg) -> String {
    let name = argument.get_id().as_str();
    let help = argument.get_long_help().or(argument.get_help()).unwrap().to_string();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let value = argument.get_value_names().unwrap().join(" ");
    let value = if value == "true|false" { String::new() } else { format!(" {value}") };
    let default = match argument.get_default_values() {
        [] => "`hapax.toml`, if it exists".to_owned(),
        [default, ..] => format!("`{}`", default.to_string_lossy()),
    };
    let facts = format!(
        "Default {default}. Flag `{}{value}`, variable `{}`. Allowed: {}.",
        flag(name),
        variable(name),
        allowed(name)
    );
    let full_stop = if help.ends_with('.') { "" } else { "." };
    let help = wrap(&format!("{help}{full_stop}"), "");
    format!("### `{name}`\n\n{help}\n{}", wrap(&facts, ""))
}

fn field(field: &Field) -> String {
    let default = serde_json::json!(QueueConfig::default())[field.name].to_string();
    let default = if default == "null" { "none".to_owned() } else { format!("`{default}`") };
    let (name, doc, allowed) = (field.name, field.doc(), config::allowed(field, Dialect::Toml));
    item(&format!("**`{name}`** {doc} Default {default}. Allowed: {allowed}."))
}

fn item(text: &str) -> String {
    wrap(&format!("- {text}"), "  ")
}

/// Breaks lines between words; all but the first begin with the indent.
fn wrap(text: &str, indent: &str) -> String {
    let mut lines = String::new();
    let mut line = String::new();
    for word in text.split(' ') {
        let columns = line.chars().count() + 1 + word.chars().count();
        if columns > COLUMNS && !line.trim().is_empty() {
            lines += &format!("{line}\n");
            line = format!("{indent}{word}");
        } else if line.is_empty() {
            line = word.to_owned();
        } else {
            line += &format!(" {word}");
        }
    }
    lines + &line + "\n"
}

#[test]
fn the_page_of_settings_is_current() {
    crate::reference::check_page("settings.md", &reference());
}

#[test]
fn the_page_names_everything() {
    let page = reference();
    for name in super::values::names() {
        assert!(page.contains(&format!("### `{name}`")), "{name}");
    }
    let fields = QueueConfig::FIELDS.iter().map(|field| field.name);
    for name in LIMITS.into_iter().chain(fields) {
        assert!(page.contains(&format!("- **`{name}`**")), "{name}");
    }
}

#[test]
fn the_file_on_the_page_is_right() {
    let example = HEAD.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let found = super::lint::lint_on(example, "example.toml", "");
    assert_eq!(found, [], "{found:#?}");
}

#[test]
fn lines_break_between_words() {
    let long = "word ".repeat(60);
    let wrapped = wrap(long.trim(), "  ");
    assert!(wrapped.lines().count() == 4, "{wrapped}");
    assert!(wrapped.lines().all(|line| line.chars().count() <= COLUMNS));
    assert!(wrapped.lines().skip(1).all(|line| line.starts_with("  word")));
}
