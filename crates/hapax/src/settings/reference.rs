//! The reference of all settings, docs/settings.md: made from the flags, the fields of a queue and
//! the rules, so that it stays true.

use clap::Arg;
use hapax_server::doors::config::{self, Dialect};
use hapax_server::lint::Rule;
use hapax_wire::{Field, QueueConfig};

use super::values::{LIMITS, allowed, arguments, flag, variable};

const COLUMNS: usize = 100;

const HEAD: &str = "\
# Settings

The settings of `hapax serve` and `hapax dev`. This page is made from the code; a test keeps it
current.

A value is taken from the first of these that has one:

1. a flag: `--memory-bytes 1GiB`,
2. a variable: `HAPAX_MEMORY_BYTES=1GiB`; an empty one counts as absent,
3. the settings file: `memory_bytes = \"1GiB\"`,
4. the default.

`hapax config show` prints every value and where it comes from. The file is the one that
`--config` or `HAPAX_CONFIG` names, else `hapax.toml` in the working directory, if it is there.
Relative paths are relative to the working directory, wherever they are written. `\"off\"` stands
for \"none\" where there may be none, so that a flag can take back what a file says.

Unknown names in the file are refused, also those of queues: a typo must not weaken a guarantee.
An unknown `HAPAX_…` variable gives a warning. Everything that is wrong in the file is reported at
once, with its line.

Beyond loopback the broker needs tokens and TLS. It refuses to start without them, unless
`allow_no_auth` and `allow_no_tls` say that it may: one is no substitute for the other.

```toml
listen = \"0.0.0.0:4747\"
data = \"/var/lib/hapax\"
tls_cert = \"/etc/hapax/cert.pem\"
tls_key = \"/etc/hapax/key.pem\"

[queues.orders]                # of the tenant default
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
limits of its own. A name has 1 to 80 of `A-Z a-z 0-9 . _ -`; one with a dot is quoted:
`[tenants.\"a.b\"]`.
";

const QUEUES: &str = "\
## Queues

`[queues.NAME]` declares a queue of the tenant `default`, `[tenants.NAME.queues.QUEUE]` one of
another tenant. They are created, or changed to what the file says, when the broker starts. Queues
that the file does not name are left alone. The fields are those of `PUT /v1/queues/{queue}`; all
are optional.
";

const LINT: &str = "\
## What `hapax lint` looks for

`hapax lint FILE` checks a settings file, or a queue's configuration in JSON as a request has it,
without a broker. It exits with 2 if there are errors, with 1 if there are warnings and `--strict`
is given, else with 0. Only the file counts: flags and variables of the machine where the broker
will run are not known.

A warning or note that is meant is allowed on its line, by its name:

```toml
[queues.metrics]
guarantee = \"at-most-once\" # lint: allow at-most-once
```

Errors cannot be allowed: the broker refuses them too, or they cannot do what they say.

| rule | is | what it finds |
|---|---|---|
";

/// The meaning of each of [`LIMITS`].
const LIMIT_DOCS: [&str; 4] = [
    "Messages sent per second, in all queues together.",
    "Messages alive at once, in all queues together, the dead included.",
    "Bytes of bodies alive at once, in all queues together.",
    "Queues at once.",
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
