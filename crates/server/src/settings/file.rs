//! Reads a settings file: TOML, in which unknown names are refused and every value has a line.
//!
//! Everything that is wrong is collected, so that one reading tells all of it.

use std::sync::Arc;

use hapax_core::{Config, QueueName};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::declared::{Queue, Said, Tenant};
use super::entry::{Entry, Plain};
use super::fields::{self, Dialect, FIELDS, FOREVER, FieldError};
use super::finding::{Finding, Rule};
use super::origin::Origin;
use super::values::{Limits, Values};
use super::{DEFAULT_TENANT, Settings};
use hapax_wire::nearest::closest;

/// The tables of a file, beside the settings themselves.
const TABLES: &[&str] = &["queues", "tenants"];

/// Reads `text` into `settings` and returns what is wrong with it.
pub(super) fn read(text: &str, name: &str, settings: &mut Settings) -> Vec<Finding> {
    let mut reader = Reader { place: Place::new(text, name), settings, findings: Vec::new() };
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let at = error.span().map_or(0, |span| span.start);
        let fix = "Write it as TOML does: name = value, texts in quotes, tables as [name]";
        reader.find(Rule::Syntax, at, String::new(), error.message().to_owned(), fix.to_owned());
    }
    // What was recovered around an error of syntax would only be found wrong for no reason.
    if reader.findings.is_empty() {
        reader.top(table.get_ref());
    }
    let mut findings = reader.findings;
    findings.sort_by_key(Finding::line);
    findings
}

/// Where a byte of the file is.
pub(super) struct Place {
    file: Arc<str>,
    /// Where lines begin.
    lines: Vec<usize>,
}

impl Place {
    pub(super) fn new(text: &str, name: &str) -> Self {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let lines = std::iter::once(0).chain(breaks.map(|(at, _)| at + 1)).collect();
        Self { file: name.into(), lines }
    }

    pub(super) fn at(&self, byte: usize) -> Origin {
        let line = self.lines.partition_point(|start| *start <= byte);
        self.line(line.max(1))
    }

    pub(super) fn line(&self, line: usize) -> Origin {
        Origin::File { file: Arc::clone(&self.file), line }
    }
}

struct Reader<'a> {
    place: Place,
    settings: &'a mut Settings,
    findings: Vec<Finding>,
}

type Key<'i> = Spanned<std::borrow::Cow<'i, str>>;

impl Reader<'_> {
    fn find(&mut self, rule: Rule, at: usize, field: String, why: String, fix: String) {
        self.findings.push(Finding { rule, origin: self.place.at(at), field, why, fix });
    }

    fn top(&mut self, table: &DeTable<'_>) {
        for (key, value) in table.iter() {
            let name = key.get_ref().as_ref();
            let at = key.span().start;
            match (name, value.get_ref()) {
                ("queues", DeValue::Table(queues)) => self.queues(DEFAULT_TENANT, "", queues),
                ("tenants", DeValue::Table(tenants)) => self.tenants(tenants),
                ("queues" | "tenants", _) => {
                    let why = "it is a table".to_owned();
                    self.find(
                        Rule::Value,
                        at,
                        name.to_owned(),
                        why,
                        format!("Write [{name}.NAME]"),
                    );
                }
                ("config", _) => {
                    let why = "a settings file cannot name another one".to_owned();
                    let fix = "Use --config or HAPAX_CONFIG".to_owned();
                    self.find(Rule::UnknownField, at, name.to_owned(), why, fix);
                }
                _ => self.setting(key, value),
            }
        }
    }

    fn setting(&mut self, key: &Key<'_>, value: &Spanned<DeValue<'_>>) {
        let (name, at) = (key.get_ref().as_ref(), key.span().start);
        let Some(entry) = Values::TABLE.iter().find(|entry| entry.name == name) else {
            let names = Values::TABLE.iter().map(|entry| entry.name);
            return self.unknown("setting", name, at, "", names.chain(TABLES.iter().copied()));
        };
        match entry.assign(&mut self.settings.values, &plain(value.get_ref())) {
            Ok(()) => self.settings.tell(entry.name, self.place.at(at)),
            Err(why) => self.refused(name.to_owned(), at, why, (entry.allowed)()),
        }
    }

    fn tenants(&mut self, tenants: &DeTable<'_>) {
        for (key, value) in tenants.iter() {
            let (name, at) = (key.get_ref().as_ref(), key.span().start);
            let prefix = format!("tenants.{}", quoted(name));
            let DeValue::Table(table) = value.get_ref() else {
                let why = "a tenant is a table".to_owned();
                self.find(Rule::Value, at, prefix.clone(), why, format!("Write [{prefix}]"));
                continue;
            };
            if let Err(invalid) = QueueName::new(name, "any") {
                self.find(Rule::Value, at, prefix, invalid.to_string(), rename("tenant"));
                continue;
            }
            self.tenant(name, &prefix, at, table);
        }
    }

    fn tenant(&mut self, name: &str, prefix: &str, at: usize, table: &DeTable<'_>) {
        let mut tenant = Tenant {
            limits: Limits::default(),
            prefix: prefix.to_owned(),
            said: Vec::new(),
            origin: self.place.at(at),
        };
        for (key, value) in table.iter() {
            let (field, at) = (key.get_ref().as_ref(), key.span().start);
            match (field, value.get_ref()) {
                ("queues", DeValue::Table(queues)) => {
                    self.queues(name, &format!("{prefix}."), queues);
                    continue;
                }
                ("queues", _) => {
                    let (why, fix) = ("it is a table", format!("Write [{prefix}.queues.NAME]"));
                    self.find(Rule::Value, at, format!("{prefix}.queues"), why.to_owned(), fix);
                    continue;
                }
                _ => {}
            }
            let Some(entry) = Limits::TABLE.iter().find(|entry| entry.name == field) else {
                let names = Limits::TABLE.iter().map(|entry| entry.name).chain(["queues"]);
                self.unknown("limit of a tenant", field, at, prefix, names);
                continue;
            };
            match entry.assign(&mut tenant.limits, &plain(value.get_ref())) {
                Ok(()) => tenant.said.push(said(entry, &tenant.limits, self.place.at(at))),
                Err(why) => {
                    self.refused(format!("{prefix}.{field}"), at, why, (entry.allowed)());
                }
            }
        }
        self.settings.tenants.insert(name.to_owned(), tenant);
    }

    fn queues(&mut self, tenant: &str, prefix: &str, queues: &DeTable<'_>) {
        for (key, value) in queues.iter() {
            let (name, at) = (key.get_ref().as_ref(), key.span().start);
            let prefix = format!("{prefix}queues.{}", quoted(name));
            let DeValue::Table(table) = value.get_ref() else {
                let why = "a queue is a table".to_owned();
                self.find(Rule::Value, at, prefix.clone(), why, format!("Write [{prefix}]"));
                continue;
            };
            match QueueName::new(tenant, name) {
                Ok(name) => self.queue(name, prefix, at, table),
                Err(invalid) => {
                    self.find(Rule::Value, at, prefix, invalid.to_string(), rename("queue"));
                }
            }
        }
    }

    fn queue(&mut self, name: QueueName, prefix: String, at: usize, table: &DeTable<'_>) {
        if let Some(first) = self.settings.queues.iter().find(|queue| queue.name == name) {
            let why = format!("the queue is declared at {} already", first.origin.place());
            self.find(Rule::Value, at, prefix, why, "Keep one of the two".to_owned());
            return;
        }
        let mut values = Vec::new();
        for (key, value) in table.iter() {
            let (field, at) = (key.get_ref().as_ref(), key.span().start);
            if let DeValue::Table(_) = value.get_ref()
                && !FIELDS.iter().any(|entry| entry.name == field)
            {
                let meant = format!("{}.{field}", name.queue);
                let why = "there is no such field".to_owned();
                let fix = format!("A name with a dot is quoted: [queues.\"{meant}\"]");
                self.find(Rule::UnknownField, at, format!("{prefix}.{field}"), why, fix);
                continue;
            }
            values.push((field, plain(value.get_ref()), self.place.at(at)));
        }
        let fields = values.iter().map(|(field, value, _)| (*field, value.clone()));
        let (config, errors) = fields::config_and_errors(Dialect::Toml, fields);
        let mut queue = Queue { name, prefix, config, said: Vec::new(), origin: self.place.at(at) };
        let known = values.into_iter().filter_map(|(field, _, origin)| {
            let entry = FIELDS.iter().find(|entry| entry.name == field)?;
            (!errors.iter().any(|error| {
                matches!(error, FieldError::Value { field, .. }
                if *field == entry.name)
            }))
            .then(|| said(entry, &queue.config, origin))
        });
        queue.said = known.collect();
        let lines = |field: &str| {
            let key = table.iter().find(|(key, _)| key.get_ref() == field);
            key.map(|(key, _)| self.place.at(key.span().start))
        };
        let findings: Vec<Finding> = errors
            .into_iter()
            .map(|error| field_finding(error, &queue.prefix, &queue.origin, lines, Dialect::Toml))
            .collect();
        self.findings.extend(findings);
        self.settings.queues.push(queue);
    }

    fn unknown<'n>(
        &mut self,
        what: &str,
        name: &str,
        at: usize,
        prefix: &str,
        names: impl Iterator<Item = &'n str>,
    ) {
        let names: Vec<&str> = names.filter(|name| *name != "config").collect();
        let fix = match closest(name, names.iter().copied()) {
            Some(meant) => format!("Did you mean {meant}?"),
            None => format!("Allowed: {}", names.join(", ")),
        };
        let dot = if prefix.is_empty() { "" } else { "." };
        let field = format!("{prefix}{dot}{name}");
        self.find(Rule::UnknownField, at, field, format!("there is no such {what}"), fix);
    }

    fn refused(&mut self, field: String, at: usize, why: String, allowed: String) {
        self.find(Rule::Value, at, field, why, format!("Allowed: {allowed}"));
    }
}

/// What is wrong with a field of a queue, as a finding. `lines` knows where fields are; what is
/// refused for a field that nobody wrote is found where the other one is, or at the queue.
pub(super) fn field_finding(
    error: FieldError,
    prefix: &str,
    queue: &Origin,
    lines: impl Fn(&str) -> Option<Origin>,
    dialect: Dialect,
) -> Finding {
    let field = if prefix.is_empty() {
        error.field().to_owned()
    } else {
        format!("{prefix}.{}", error.field())
    };
    let origin = match error.field() {
        "retention_ms" => lines("retention_ms").or_else(|| lines("retry_horizon_ms")),
        "backoff_min_ms" => lines("backoff_min_ms").or_else(|| lines("backoff_max_ms")),
        other => lines(other),
    };
    let origin = origin.unwrap_or_else(|| queue.clone());
    let (rule, why, fix) = match error {
        FieldError::Unknown { meant, .. } => {
            let fix = match meant {
                Some(meant) => format!("Did you mean {meant}?"),
                None => format!("Allowed: {}", names(FIELDS)),
            };
            (Rule::UnknownField, "there is no such field".to_owned(), fix)
        }
        FieldError::Value { why, allowed, .. } => (Rule::Value, why, format!("Allowed: {allowed}")),
        FieldError::Refused(refused) => {
            let rule = match refused.field {
                "retention_ms" => Rule::Retention,
                _ => Rule::Combination,
            };
            let entry = FIELDS.iter().find(|entry| entry.name == refused.field);
            let allowed = entry.map_or_else(String::new, |entry| fields::allowed(entry, dialect));
            match refused.reason.split_once(". ") {
                Some((why, fix)) => (rule, why.to_owned(), fix.to_owned()),
                None => (rule, refused.reason, format!("Allowed: {allowed}")),
            }
        }
    };
    Finding { rule, origin, field, why, fix }
}

fn names(entries: &[Entry<Config>]) -> String {
    entries.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ")
}

fn said<S>(entry: &Entry<S>, of: &S, origin: Origin) -> Said {
    let (text, json) = ((entry.text)(of), (entry.json)(of));
    let text = if entry.name == "retention_ms" && json.is_null() { FOREVER.into() } else { text };
    Said { field: entry.name, text, json, origin }
}

/// The name as a header of TOML spells it.
fn quoted(name: &str) -> String {
    let bare = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if !name.is_empty() && name.bytes().all(bare) { name.to_owned() } else { format!("{name:?}") }
}

fn rename(what: &str) -> String {
    format!("Give the {what} another name")
}

fn plain(value: &DeValue<'_>) -> Plain {
    match value {
        DeValue::String(text) => Plain::Text(text.to_string()),
        DeValue::Boolean(truth) => Plain::Boolean(*truth),
        DeValue::Integer(number) => match i128::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Plain::Integer(number),
            Err(_) => Plain::Other("a number beyond all bounds"),
        },
        DeValue::Float(_) => Plain::Other("a number that is not whole"),
        DeValue::Datetime(_) => Plain::Other("a date"),
        DeValue::Array(_) => Plain::Other("a list"),
        DeValue::Table(_) => Plain::Other("a table"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Bytes;

    #[track_caller]
    fn settings(text: &str) -> Settings {
        let mut settings = Settings::default();
        assert_eq!(read(text, "hapax.toml", &mut settings), []);
        settings
    }

    #[track_caller]
    fn refuses(text: &str, expected: &[&str]) {
        let findings = read(text, "hapax.toml", &mut Settings::default());
        let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert_eq!(lines.len(), expected.len(), "{lines:#?}");
        for (line, expected) in lines.iter().zip(expected) {
            assert!(line.starts_with("hapax.toml:") && line.contains(expected), "{line}");
        }
    }

    #[test]
    fn queues_and_tenants_are_declared() {
        let settings = settings(
            "[queues.orders]\nlease_ms = 60_000\n[tenants.shop]\nsends_per_s = 5\n\
             max_bytes = \"1GiB\"\n[tenants.shop.queues.\"a.b\"]\norder = \"group\"\n",
        );
        let names: Vec<(&str, &str)> =
            settings.queues.iter().map(|queue| (&*queue.name.tenant, &*queue.name.queue)).collect();
        assert_eq!(names, [("default", "orders"), ("shop", "a.b")]);
        assert_eq!(settings.queues[0].config, Config { lease_ms: 60_000, ..Config::default() });
        let expected =
            Limits { sends_per_s: Some(5), max_bytes: Some(Bytes(1 << 30)), ..Limits::default() };
        assert_eq!(settings.limits("shop"), expected);
        assert_eq!(settings.limits("somebody"), Limits::default());
    }

    #[test]
    fn a_typo_is_refused_wherever_it_is() {
        refuses("lisen = \"a\"", &["Did you mean listen?"]);
        refuses("[queue.orders]", &["Did you mean queues?"]);
        refuses("[queues.a]\nretention = 5", &["queues.a.retention: there is no such field"]);
        refuses("[tenants.a]\nsend_per_s = 5", &["Did you mean sends_per_s?"]);
        refuses("[tenants.a]\ncolour = 5", &["Allowed: sends_per_s, max_messages, max_bytes"]);
        refuses("[tenants.a.queues.b]\nleese_ms = 5", &["tenants.a.queues.b.leese_ms"]);
        refuses("config = \"other.toml\"", &["--config or HAPAX_CONFIG"]);
    }

    #[test]
    fn a_name_with_a_dot_wants_quotes() {
        refuses("[queues.orders.eu]\nlease_ms = 5000", &["[queues.\"orders.eu\"]"]);
        assert_eq!(settings("[queues.\"orders.eu\"]\nlease_ms = 5000").queues.len(), 1);
    }

    #[test]
    fn what_is_no_table_and_no_name_is_refused() {
        refuses("queues = 5", &["Write [queues.NAME]"]);
        refuses("[queues]\norders = 5", &["Write [queues.orders]"]);
        refuses("[tenants]\nshop = 5", &["Write [tenants.shop]"]);
        refuses("[tenants.shop]\nqueues = 5", &["Write [tenants.shop.queues.NAME]"]);
        refuses("[queues.\"a b\"]", &["a name has 1 to 80 of"]);
        refuses("[tenants.\"\"]", &["a name has 1 to 80 of"]);
        refuses(
            "[queues.a]\n[tenants.default.queues.a]",
            &["the queue is declared at hapax.toml:1 already"],
        );
    }

    #[test]
    fn values_of_another_type_are_refused() {
        refuses("listen = [1]", &["it is a list"]);
        refuses("partitions = 1.5", &["it is a number that is not whole"]);
        refuses("partitions = \"4\"", &["leave the quotes out"]);
        refuses("partitions = 99999", &["99999 is not within 1 to 4096"]);
        refuses("data = 2020-01-01", &["it is a date"]);
        refuses("[queues.a]\nlease_ms = 99999999999999999999999999", &["not within"]);
        refuses("[listen]", &["it is a table"]);
    }

    #[test]
    fn all_mistakes_come_in_the_order_of_their_lines() {
        refuses(
            "zz = 1\n[tenants.a]\nx = 1\n[queues.a]\nlease_ms = 1\nretention_ms = 5\naa = 2\n",
            &[
                ":1: error: zz",
                ":3: error: tenants.a.x",
                ":5: error: queues.a.lease_ms",
                ":6: error: queues.a.retention_ms",
                ":7: error: queues.a.aa",
            ],
        );
    }

    #[test]
    fn lines_are_counted_from_one() {
        let place = Place::new("a\nbc\n\nd", "f");
        let line = |byte| place.at(byte).line();
        let lines: Vec<_> = (0..8).map(line).collect();
        let expected = [1, 1, 2, 2, 2, 3, 4, 4].map(Some);
        assert_eq!(lines, expected);
    }
}
