//! The reference of all settings, for docs/settings.md: made from the tables, so that it cannot
//! rot.

use hapax_core::Config;

use super::entry::Entry;
use super::fields::{self, Dialect, FIELDS};
use super::finding::{Rule, Severity};
use super::kind::Takes;
use super::values::{Limits, Values};

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
An unknown `HAPAX_…` variable is warned about. Everything that is wrong is told at once, with its
line.

Beyond loopback the broker wants tokens and TLS. It refuses to start without them, unless
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

/// The reference as Markdown.
pub fn reference() -> String {
    let mut text = HEAD.to_owned();
    let mut add = |part: &str| {
        text.push('\n');
        text.push_str(part);
    };
    add("## The broker\n");
    for entry in Values::TABLE {
        add(&setting(entry));
    }
    add(TENANTS);
    for entry in Limits::TABLE {
        add(&item(entry, (entry.allowed)(), &Limits::default()));
    }
    add(QUEUES);
    for entry in FIELDS {
        add(&item(entry, fields::allowed(entry, Dialect::Toml), &Config::default()));
    }
    add(LINT);
    for rule in Rule::ALL {
        let severity: Severity = rule.severity();
        text += &format!("| `{}` | {} | {} |\n", rule.name(), severity.as_str(), rule.doc());
    }
    text
}

fn setting(entry: &Entry<Values>) -> String {
    let placeholder = match entry.takes {
        Takes::Boolean => String::new(),
        _ => format!(" {}", entry.placeholder),
    };
    let facts = format!(
        "Default {}. Flag `{}{placeholder}`, variable `{}`. Allowed: {}.",
        entry.default_in_words("`"),
        entry.flag(),
        entry.variable(),
        (entry.allowed)()
    );
    format!("### `{}`\n\n{}\n{}", entry.name, wrap(&entry.doc(), ""), wrap(&facts, ""))
}

fn item<S>(entry: &Entry<S>, allowed: String, defaults: &S) -> String {
    let default = match (entry.json)(defaults) {
        serde_json::Value::Null => "none".to_owned(),
        value => format!("`{value}`"),
    };
    let text =
        format!("- **`{}`** {} Default {default}. Allowed: {allowed}.", entry.name, entry.doc());
    wrap(&text, "  ").trim_start().to_owned()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_settings_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/settings.md");
        let made = reference();
        if std::env::var_os("HAPAX_BLESS").is_some() {
            std::fs::write(path, &made).unwrap();
        }
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert!(kept == made, "docs/settings.md is not current: run this test with HAPAX_BLESS=1");
    }

    #[test]
    fn the_page_names_everything() {
        let page = reference();
        for name in Values::TABLE.iter().map(|entry| entry.name) {
            assert!(page.contains(&format!("### `{name}`")), "{name}");
        }
        for name in Limits::TABLE.iter().map(|entry| entry.name) {
            assert!(page.contains(&format!("- **`{name}`**")), "{name}");
        }
        for name in FIELDS.iter().map(|entry| entry.name) {
            assert!(page.contains(&format!("- **`{name}`**")), "{name}");
        }
    }

    #[test]
    fn the_file_on_the_page_is_right() {
        let example = HEAD.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
        let found = super::super::lint::lint_on(example, "example.toml", "");
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
}
