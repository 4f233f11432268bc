//! Reads a settings file: TOML, in which unknown names are refused and every value has a line.
//!
//! All errors are collected, so that one run reports all of them.

use std::sync::Arc;

use hapax_core::{Config, QueueName};
use hapax_server::doors::config::{self, Dialect};
use hapax_server::lint::{Finding, Rule};
use hapax_server::options::{Limits, Queue, tenant_path};
use hapax_wire::nearest::closest;
use hapax_wire::{DEFAULT_TENANT, QueueConfig};
use serde::Deserialize;
use serde_json::Value;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::origin::Origin;
use super::values::{self, LIMITS, Written};
use super::{Located, Settings};
use crate::size;

/// Reads `text` into `settings` and returns what is wrong with it, by line. What flags and
/// variables have set stays.
pub(super) fn read(text: &str, name: &str, settings: &mut Settings) -> Vec<Located> {
    let mut reader = Reader { place: Place::new(text, name), settings, found: Vec::new() };
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let at = error.span().map_or(0, |span| span.start);
        let fix = "Use TOML syntax: name = value, strings in quotes, tables as [name]";
        reader.find(Rule::Syntax, at, "", error.message(), fix);
    }
    // What was parsed around a syntax error would only cause misleading errors.
    if reader.found.is_empty() {
        reader.top(table.get_ref());
    }
    let mut found = reader.found;
    found.sort_by_key(|found| found.origin.line());
    found
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
    found: Vec<Located>,
}

impl Reader<'_> {
    fn find(&mut self, rule: Rule, at: usize, field: &str, why: &str, fix: &str) {
        let (field, why, fix) = (field.to_owned(), why.to_owned(), fix.to_owned());
        let finding = Finding { rule, field, why, fix };
        self.found.push(Located { origin: self.place.at(at), finding });
    }

    fn unknown(&mut self, what: &str, at: usize, path: &str, name: &str, names: &[&str]) {
        let fix = match closest(name, names.iter().copied()) {
            Some(meant) => format!("Did you mean {meant}?"),
            None => format!("Allowed: {}", names.join(", ")),
        };
        self.find(Rule::UnknownField, at, path, &format!("there is no such {what}"), &fix);
    }

    fn top(&mut self, table: &DeTable<'_>) {
        for (key, value) in table.iter() {
            let (name, at) = (key.get_ref().as_ref(), key.span().start);
            match (name, value.get_ref()) {
                ("queues", DeValue::Table(queues)) => self.queues(DEFAULT_TENANT, queues),
                ("tenants", DeValue::Table(tenants)) => self.tenants(tenants),
                ("queues" | "tenants", _) => {
                    self.find(Rule::Value, at, name, "it is a table", &write(name, ".NAME"));
                }
                ("config", _) => {
                    let why = "a settings file cannot name another one";
                    self.find(Rule::UnknownField, at, name, why, "Use --config or HAPAX_CONFIG");
                }
                _ => self.setting(name, at, value),
            }
        }
    }

    fn setting(&mut self, name: &str, at: usize, value: &Written<'_>) {
        let names = values::names();
        if !names.iter().any(|known| known == name) {
            let names = names.iter().map(String::as_str).filter(|name| *name != "config");
            let names: Vec<&str> = names.chain(["queues", "tenants"]).collect();
            return self.unknown("setting", at, name, name, &names);
        }
        let mut values = self.settings.values.clone();
        let refused = values.set(name, value).err().or_else(|| {
            values.refused().into_iter().find(|(refused, _)| *refused == name).map(|(_, why)| why)
        });
        if let Some(why) = refused {
            let meant = values::meant(name, value);
            let fix = format!("{meant}Allowed: {}", values::allowed(name));
            return self.find(Rule::Value, at, name, &why, &fix);
        }
        if !self.settings.origins.contains_key(name) {
            self.settings.values = values;
            self.settings.origins.insert(name.to_owned(), self.place.at(at));
        }
    }

    fn tenants(&mut self, tenants: &DeTable<'_>) {
        for (key, value) in tenants.iter() {
            let (name, at) = (key.get_ref().as_ref(), key.span().start);
            let path = tenant_path(name);
            match (value.get_ref(), QueueName::new(name, "any")) {
                (DeValue::Table(table), Ok(_)) => {
                    self.settings.origins.insert(path, self.place.at(at));
                    self.tenant(name, table);
                }
                (DeValue::Table(_), Err(invalid)) => {
                    let fix = "Choose a valid tenant name";
                    self.find(Rule::Value, at, &path, &invalid.to_string(), fix);
                }
                _ => self.find(Rule::Value, at, &path, "a tenant is a table", &write(&path, "")),
            }
        }
    }

    fn tenant(&mut self, tenant: &str, table: &DeTable<'_>) {
        let mut limits = Limits::default();
        for (key, value) in table.iter() {
            let (name, at) = (key.get_ref().as_ref(), key.span().start);
            let path = format!("{}.{name}", tenant_path(tenant));
            match (name, value.get_ref()) {
                ("queues", DeValue::Table(queues)) => self.queues(tenant, queues),
                ("queues", _) => {
                    self.find(Rule::Value, at, &path, "it is a table", &write(&path, ".NAME"));
                }
                _ if !LIMITS.contains(&name) => {
                    let names = [&LIMITS[..], &["queues"]].concat();
                    self.unknown("limit of a tenant", at, &path, name, &names);
                }
                _ => match values::set_limit(&mut limits, name, value) {
                    Ok(()) => drop(self.settings.origins.insert(path, self.place.at(at))),
                    Err(why) => {
                        let fix = format!("Allowed: {}", values::allowed(name));
                        self.find(Rule::Value, at, &path, &why, &fix);
                    }
                },
            }
        }
        self.settings.tenants.insert(tenant.to_owned(), limits);
    }

    fn queues(&mut self, tenant: &str, queues: &DeTable<'_>) {
        for (key, value) in queues.iter() {
            let (name, at) = (key.get_ref().as_ref(), key.span().start);
            match (QueueName::new(tenant, name), value.get_ref()) {
                (Ok(name), DeValue::Table(table)) => self.queue(name, at, table),
                (Ok(name), _) => {
                    let path = Queue { name, config: Config::default() }.path();
                    self.find(Rule::Value, at, &path, "a queue is a table", &write(&path, ""));
                }
                (Err(invalid), _) => {
                    let path = format!("queues.{name:?}");
                    let fix = "Choose a valid queue name";
                    self.find(Rule::Value, at, &path, &invalid.to_string(), fix);
                }
            }
        }
    }

    fn queue(&mut self, name: QueueName, at: usize, table: &DeTable<'_>) {
        let mut queue = Queue { name, config: Config::default() };
        let path = queue.path();
        if let Some(first) = self.settings.origins.get(&path) {
            let why = format!("the queue is already declared at {}", first.place());
            return self.find(Rule::Value, at, &path, &why, "Keep one of the two");
        }
        self.settings.origins.insert(path.clone(), self.place.at(at));
        let mut fields = Vec::new();
        for (key, value) in table.iter() {
            let field = key.get_ref().as_ref();
            let (at, path) = (key.span().start, format!("{path}.{field}"));
            if value.get_ref().is_table()
                && !QueueConfig::FIELDS.iter().any(|known| known.name == field)
            {
                let meant = format!("{}.{field}", queue.name.queue);
                let fix = format!("A name with a dot is quoted: [queues.\"{meant}\"]");
                self.find(Rule::UnknownField, at, &path, "there is no such field", &fix);
                continue;
            }
            self.settings.origins.insert(path, self.place.at(at));
            fields.push((field.to_owned(), sized(field, json(value))));
        }
        let (config, wrong) = config::from_fields(Dialect::Toml, fields);
        queue.config = config;
        for finding in wrong {
            let field = format!("{path}.{}", finding.field);
            let origin = self.settings.place(&field);
            self.found.push(Located { origin, finding: Finding { field, ..finding } });
        }
        self.settings.queues.push(queue);
    }
}

fn write(path: &str, name: &str) -> String {
    format!("Write [{path}{name}]")
}

/// Converts a size with a unit to bytes, as every other size of the file has units. Anything else
/// is unchanged, and refused because it is not a number.
fn sized(field: &str, value: Value) -> Value {
    let bytes = value.as_str().filter(|_| field.ends_with("_bytes"));
    bytes.and_then(|text| size::parse(text).ok()).map_or(value, Value::from)
}

/// The value as JSON. What JSON cannot express stays a text, which numeric fields refuse.
fn json(value: &Written<'_>) -> Value {
    let read = Value::deserialize(ValueDeserializer::from(value.clone()));
    match (value.get_ref(), read) {
        (DeValue::Float(float), _) => match float.as_str().parse::<f64>() {
            Ok(number) if number.is_finite() => number.into(),
            _ => float.as_str().into(),
        },
        (_, Ok(value)) => value,
        (DeValue::Integer(number), Err(_)) => number.as_str().into(),
        (_, Err(error)) => error.message().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Flags;

    #[track_caller]
    fn settings(text: &str) -> Settings {
        let mut settings = Settings::new(&Flags::defaults());
        assert_eq!(read(text, "hapax.toml", &mut settings), []);
        settings
    }

    #[track_caller]
    fn refuses(text: &str, expected: &[&str]) {
        let findings = read(text, "hapax.toml", &mut Settings::new(&Flags::defaults()));
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
            Limits { sends_per_s: Some(5), max_bytes: Some(1 << 30), ..Limits::default() };
        assert_eq!(settings.tenants.get("shop"), Some(&expected));
        assert_eq!(settings.tenants.get("somebody"), None);
    }

    #[test]
    fn sizes_of_a_queue_have_units_too() {
        let sizes = settings("[queues.a]\nmax_bytes = \"1GiB\"\nmax_body_bytes = \"64KiB\"\n");
        let config = &sizes.queues[0].config;
        assert_eq!((config.max_bytes, config.max_body_bytes), (Some(1 << 30), 64 << 10));
        let unclear = "or a size such as \"1MiB\"";
        refuses("[queues.a]\nmax_bytes = \"1G\"", &[unclear]);
        refuses("[queues.a]\nmax_messages = \"1GiB\"", &["queues.a.max_messages: invalid type"]);
    }

    #[test]
    fn a_fraction_is_not_a_whole_number() {
        refuses(
            "[queues.a]\nlease_ms = 30000.0",
            &["queues.a.lease_ms: invalid type: floating point `30000.0`. Allowed: a whole number"],
        );
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
        refuses("[queues.\"a b\"]", &["a name must have 1 to 80"]);
        refuses("[tenants.\"\"]", &["a name must have 1 to 80"]);
        refuses(
            "[queues.a]\n[tenants.default.queues.a]",
            &["the queue is already declared at hapax.toml:1"],
        );
    }

    #[test]
    fn values_of_another_type_are_refused() {
        refuses("listen = [1]", &["listen: invalid type: sequence"]);
        refuses("listen = 4747", &["listen: invalid type: integer `4747`"]);
        refuses("partitions = 1.5", &["partitions: invalid type: floating point `1.5`"]);
        refuses("partitions = \"4\"", &["invalid type: string \"4\". Allowed: a whole number"]);
        refuses("partitions = -1", &["partitions: invalid value: integer `-1`"]);
        refuses("partitions = 99999", &["partitions: invalid value: integer `99999`"]);
        refuses("partitions = 5000", &["5000 is not between 1 and 4096"]);
        refuses("allow_no_tls = \"true\"", &["invalid type: string \"true\""]);
        refuses("log = true", &["log: invalid type: boolean"]);
        refuses("data = 2020-01-01", &["data: invalid type: map"]);
        refuses("data = \"\"", &["data: it is empty"]);
        refuses("memory_bytes = -1", &["memory_bytes: a size is not negative"]);
        refuses("memory_bytes = 1.5", &["invalid type: floating point `1.5`. Allowed: a size"]);
        refuses("[queues.a]\nlease_ms = 99999999999999999999999999", &["queues.a.lease_ms: "]);
        refuses("[queues.a]\nttl_ms = nan", &["queues.a.ttl_ms: "]);
        refuses("[queues.a]\nttl_ms = 2020-01-01", &["queues.a.ttl_ms: "]);
        refuses("[tenants.a]\nmax_queues = 0", &["tenants.a.max_queues: 0 is not between 1 and"]);
        refuses("[tenants.a]\nmax_bytes = nan", &["tenants.a.max_bytes: "]);
        refuses("memory_bytes = \"5M\"", &["did you mean 5MiB? Allowed: a size"]);
        let meant =
            "unknown variant `token`. Did you mean \"tokens\"? Allowed: \"off\" or \"tokens\"";
        refuses("auth = \"token\"", &[meant]);
        refuses("log_format = \"jsn\"", &["Did you mean \"json\"? Allowed: "]);
        refuses("[listen]", &["listen: invalid type: map"]);
        let sizes = "memory_bytes = 1073741824\nrequest_bytes = \"128MiB\"\nallow_no_auth = true";
        let read = settings(sizes).values;
        assert_eq!((read.memory_bytes.0, read.request_bytes.0), (1 << 30, 128 << 20));
        assert!(read.allow_no_auth && !read.allow_no_tls);
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
