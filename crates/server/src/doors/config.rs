//! Parses a queue's configuration from JSON, for HTTP and gRPC alike.

use std::fmt;

use hapax_core::{Config, InvalidConfig};
use hapax_wire::nearest::closest;
use hapax_wire::{self as wire, Code, Field, QueueConfig, json};
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::lint::{Finding, Rule};
use crate::problem::Problem;

/// Far more than the number of fields.
const FIELDS_MAX: usize = 100;
/// In a settings file, which has no `null`: a `retention_ms` without an end.
pub const FOREVER: &str = "forever";

/// The form in which fields are written: `"forever"` is for TOML, which has no `null`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Json,
    Toml,
}

/// Reads a configuration. Missing fields have their defaults; unknown fields are refused, because a
/// typo must not weaken a guarantee. An empty body means all defaults.
pub fn read(json: &[u8]) -> Result<Config, Problem> {
    if json.trim_ascii().is_empty() {
        return Ok(Config::default());
    }
    let fields: Fields<'_> =
        json::read(json).map_err(|error| Problem::invalid(error.to_string()))?;
    let fields = fields.0.into_iter().map(|(name, value)| (name.to_string(), value));
    let (config, wrong) = from_fields(Dialect::Json, fields);
    match wrong.first() {
        None => Ok(config),
        Some(wrong) => {
            let detail = format!("{}: {}", wrong.field, wrong.advice());
            Err(Problem::new(Code::InvalidConfig, detail))
        }
    }
}

/// A configuration as it is shown, in JSON.
pub fn json(config: &Config) -> String {
    // A document of texts and numbers can be written.
    serde_json::to_string(&show(config)).unwrap_or_default()
}

/// The names of the fields in which two configurations differ.
pub fn differing(one: &Config, other: &Config) -> Vec<&'static str> {
    let shown = |config| serde_json::to_value(show(config)).unwrap_or_default();
    let (one, other) = (shown(one), shown(other));
    let names = QueueConfig::FIELDS.iter().map(|field| field.name);
    names.filter(|name| one.get(name) != other.get(name)).collect()
}

/// The configuration with these fields, and all errors in them. An invalid field counts as missing.
pub fn from_fields(
    dialect: Dialect,
    fields: impl IntoIterator<Item = (String, Value)>,
) -> (Config, Vec<Finding>) {
    let mut wrong = Vec::new();
    let mut right = serde_json::Map::new();
    for (name, value) in fields {
        // Each on its own, because serde stops at the first error.
        match check(dialect, &name, &value) {
            Ok(value) => drop(right.insert(name, value)),
            Err(finding) => wrong.push(finding),
        }
    }
    let config = take(&right);
    let mut rest = config.clone();
    // The core reports one error at a time: check the rest without that field.
    while let Err(refused) = rest.check() {
        // Without its value a field may contradict another one; that is already reported.
        let is_known = wrong.iter().any(|known| known.field == refused.field);
        let is_written = right.remove(refused.field).is_some();
        if !is_known {
            wrong.push(refusal(refused, dialect));
        }
        if !is_written {
            break;
        }
        rest = take(&right);
    }
    (config, wrong)
}

fn check(dialect: Dialect, name: &str, value: &Value) -> Result<Value, Finding> {
    let finding = |rule, why: String, fix| Finding { rule, field: name.to_owned(), why, fix };
    let Some(field) = QueueConfig::FIELDS.iter().find(|field| field.name == name) else {
        let names = QueueConfig::FIELDS.iter().map(|field| field.name);
        let fix = match closest(name, names.clone()) {
            Some(meant) => format!("Did you mean {meant}?"),
            None => format!("Allowed: {}", names.collect::<Vec<_>>().join(", ")),
        };
        return Err(finding(Rule::UnknownField, "there is no such field".to_owned(), fix));
    };
    let is_forever = name == "retention_ms" && value == FOREVER;
    if is_forever && dialect == Dialect::Toml {
        return Ok(Value::Null);
    }
    let one = serde_json::Map::from_iter([(name.to_owned(), value.clone())]);
    let why = match QueueConfig::deserialize(Value::Object(one)) {
        Ok(one) => match out_of_bounds(&of_wire(&one), name) {
            None => return Ok(value.clone()),
            Some(why) => why,
        },
        Err(_) if is_forever => "write null instead of \"forever\" in JSON".to_owned(),
        Err(_) if is_huge(value) => "the number is too large".to_owned(),
        Err(error) => cause(&error.to_string()).to_owned(),
    };
    let meant = value.as_str().and_then(|text| closest(text, field.words.iter().copied()));
    let meant = meant.map_or_else(String::new, |word| format!("Did you mean \"{word}\"? "));
    Err(finding(Rule::Value, why, format!("{meant}Allowed: {}", allowed(field, dialect))))
}

/// The error of serde without the expected Rust types: the allowed values are listed separately.
pub fn cause(error: &str) -> &str {
    error.rsplit_once(", expected ").map_or(error, |(cause, _)| cause)
}

fn out_of_bounds(config: &Config, name: &str) -> Option<String> {
    let (_, value, min, max) = config.bounds().into_iter().find(|(field, ..)| *field == name)?;
    let value = value.filter(|value| !(min..=max).contains(value))?;
    if max == hapax_core::limits::COUNT_MAX {
        return Some(format!("{value} is too {}", if value < min { "small" } else { "large" }));
    }
    Some(format!("{value} is not between {min} and {max}"))
}

/// Whether it is a whole number too large for an integer, which serde reads as a fraction.
fn is_huge(value: &Value) -> bool {
    let is_integer = value.is_i64() || value.is_u64();
    !is_integer && value.as_f64().is_some_and(|number| number.abs() >= u64::MAX as f64)
}

/// What the core refuses although each field is within its bounds.
fn refusal(InvalidConfig { field, reason }: InvalidConfig, dialect: Dialect) -> Finding {
    let rule = if field == "retention_ms" { Rule::Retention } else { Rule::Combination };
    let (why, fix) = match reason.split_once(". ") {
        Some((why, fix)) => (why.to_owned(), fix.to_owned()),
        None => {
            let known = QueueConfig::FIELDS.iter().find(|known| known.name == field);
            let allowed = known.map(|field| allowed(field, dialect)).unwrap_or_default();
            (reason, format!("Allowed: {allowed}"))
        }
    };
    Finding { rule, field: field.to_owned(), why, fix }
}

/// The allowed values, to follow "Allowed:".
pub fn allowed(field: &Field, dialect: Dialect) -> String {
    let bounds = Config::default().bounds();
    let bounds = bounds.iter().find(|(name, ..)| *name == field.name);
    let allowed = match bounds {
        Some((_, _, min, hapax_core::limits::COUNT_MAX)) => {
            format!("a whole number, at least {min}")
        }
        Some((_, _, min, max)) => format!("a whole number, from {min} to {max}"),
        None if field.is_bool => "true or false".to_owned(),
        None => format!("\"{}\"", field.words.join("\" or \"")),
    };
    match dialect {
        Dialect::Json if field.nullable => format!("{allowed}, or null"),
        Dialect::Toml if field.name == "retention_ms" => format!("{allowed}, or \"{FOREVER}\""),
        Dialect::Toml if field.name.ends_with("_bytes") => {
            format!("{allowed}, or a size such as \"1MiB\"")
        }
        _ => allowed,
    }
}

/// Converts choices between the core and the wire, and the fields that both spell alike.
macro_rules! shapes {
    (choices { $($kind:ident { $($choice:ident)+ })+ } chosen { $($chosen:ident)+ }
     plain { $($plain:ident)+ }) => {
        /// Choices of the core, as the wire spells them, and the other way round.
        trait Same<T> {
            fn same(self) -> T;
        }

        $(
            impl Same<wire::$kind> for hapax_core::$kind {
                fn same(self) -> wire::$kind {
                    match self { $(Self::$choice => wire::$kind::$choice,)+ }
                }
            }

            impl Same<hapax_core::$kind> for wire::$kind {
                fn same(self) -> hapax_core::$kind {
                    match self { $(Self::$choice => hapax_core::$kind::$choice,)+ }
                }
            }
        )+

        /// A configuration as it is shown.
        pub fn show(config: &Config) -> QueueConfig {
            QueueConfig { $($chosen: config.$chosen.same(),)+ $($plain: config.$plain,)+ }
        }

        /// A configuration as it was sent.
        fn of_wire(config: &QueueConfig) -> Config {
            Config { $($chosen: config.$chosen.same(),)+ $($plain: config.$plain,)+ }
        }
    };
}

shapes! {
    choices {
        Guarantee { ExactlyOnce AtLeastOnce AtMostOnce }
        Order { None Group }
        DedupScope { Queue Group }
        UndatedKeys { Accept Refuse }
        OnDead { Pin Rerun Release }
        OnGroupDead { Continue Park }
        OnLost { Redeliver Park }
    }
    chosen { guarantee order dedup_scope undated_keys on_dead on_group_dead on_lost }
    plain {
        retention_ms retry_horizon_ms lease_ms max_attempts backoff_min_ms backoff_max_ms delay_ms
        ttl_ms keep_bodies max_body_bytes max_messages max_bytes sends_per_s
    }
}

/// Reads fields of which each was read before.
#[expect(clippy::expect_used, reason = "a field that reads alone reads among others")]
fn take(fields: &serde_json::Map<String, Value>) -> Config {
    let config = QueueConfig::deserialize(fields).expect("fields that were checked");
    of_wire(&config)
}

/// The fields of an object, each once, in their order.
struct Fields<'a>(Vec<(wire::Text<'a>, Value)>);

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with the fields of a queue's configuration")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields: Vec<(wire::Text<'de>, Value)> = Vec::new();
                while let Some((name, value)) = map.next_entry::<wire::Text<'de>, Value>()? {
                    if fields.iter().any(|(known, _)| *known == name) {
                        return Err(A::Error::custom(format!("{} is given twice", &*name)));
                    }
                    if fields.len() >= FIELDS_MAX {
                        return Err(A::Error::custom("there are too many fields"));
                    }
                    fields.push((name, value));
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_core::{DedupScope, Guarantee, OnDead, OnGroupDead, OnLost, Order, UndatedKeys};

    #[test]
    fn what_is_shown_reads_back() {
        assert_eq!(show(&Config::default()), wire::QueueConfig::default());
        let config = Config {
            guarantee: Guarantee::AtLeastOnce,
            order: Order::Group,
            dedup_scope: DedupScope::Group,
            retention_ms: None,
            undated_keys: UndatedKeys::Refuse,
            max_attempts: 3,
            ttl_ms: Some(77),
            on_dead: OnDead::Release,
            on_group_dead: OnGroupDead::Park,
            on_lost: OnLost::Park,
            max_messages: Some(5),
            sends_per_s: Some(9),
            keep_bodies: true,
            ..Config::default()
        };
        let shown = serde_json::to_vec(&show(&config)).unwrap();
        assert_eq!(read(&shown), Ok(config));
        assert_eq!(read(b" "), Ok(Config::default()));
    }

    #[test]
    fn what_is_wrong_is_refused_with_its_field() {
        let refused = |json: &str| read(json.as_bytes()).unwrap_err();
        let typo = refused(r#"{"retention":5}"#);
        assert_eq!(typo.code, Code::InvalidConfig);
        assert!(typo.detail.contains("Did you mean retention_ms?"), "{typo}");
        let value = refused(r#"{"lease_ms":null}"#);
        assert_eq!(value.code, Code::InvalidConfig);
        assert!(value.detail.starts_with("lease_ms"), "{value}");
        for json in ["[]", "5", "{", r#"{"lease_ms":500,"lease_ms":600}"#, "\u{0}"] {
            assert_eq!(refused(json).code, Code::Invalid, "{json}");
        }
    }

    fn fields(dialect: Dialect, fields: &[(&str, Value)]) -> (Config, Vec<Finding>) {
        let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        from_fields(dialect, fields)
    }

    #[track_caller]
    fn refuses(dialect: Dialect, field: &str, value: impl Into<Value>, expected: &str) {
        let (config, wrong) = fields(dialect, &[(field, value.into())]);
        assert_eq!(config, Config::default());
        let [wrong] = wrong.as_slice() else { panic!("{wrong:?}") };
        let told = format!("{}: {}", wrong.field, wrong.advice());
        assert!(told.contains(expected), "{told}");
    }

    #[test]
    fn every_field_has_the_default_and_the_bounds_of_the_core() {
        let shown = serde_json::to_value(show(&Config::default())).unwrap();
        assert_eq!(shown.as_object().unwrap().len(), QueueConfig::FIELDS.len());
        for field in QueueConfig::FIELDS {
            let value = shown.get(field.name).unwrap_or_else(|| panic!("{}", field.name));
            let is_number = value.is_number() || field.nullable;
            let bounds = Config::default().bounds();
            assert_eq!(bounds.iter().any(|(name, ..)| *name == field.name), is_number);
            assert_eq!(value.is_string(), !field.words.is_empty(), "{}", field.name);
            assert!(field.doc().ends_with('.') && !field.doc().contains("  "), "{}", field.doc());
        }
    }

    #[test]
    fn forever_is_for_people_and_null_for_programs() {
        let retention = |dialect, value: Value| {
            let (config, wrong) = fields(dialect, &[("retention_ms", value)]);
            wrong.is_empty().then_some(config.retention_ms)
        };
        assert_eq!(retention(Dialect::Toml, FOREVER.into()), Some(None));
        assert_eq!(retention(Dialect::Json, Value::Null), Some(None));
        refuses(Dialect::Json, "retention_ms", FOREVER, "write null instead");
    }

    #[test]
    fn a_typo_is_refused_and_what_is_meant_is_said() {
        refuses(Dialect::Toml, "leese_ms", 5, "no such field. Did you mean lease_ms?");
        refuses(Dialect::Toml, "colour", 5, "no such field. Allowed: guarantee, order, ");
        refuses(
            Dialect::Toml,
            "on_dead",
            "relase",
            "Did you mean \"release\"? Allowed: \"pin\" or ",
        );
    }

    #[test]
    fn a_value_out_of_bounds_is_refused_with_what_is_allowed() {
        let why = "lease_ms: 1 is not between 100 and 43200000. \
                   Allowed: a whole number, from 100 to 43200000";
        refuses(Dialect::Toml, "lease_ms", 1, why);
        let why = "0 is too small. Allowed: a whole number, at least 1, or null";
        refuses(Dialect::Json, "max_messages", 0, why);
        refuses(Dialect::Json, "lease_ms", 1e30, "the number is too large");
        refuses(Dialect::Json, "lease_ms", 1.5, "floating point `1.5`");
        refuses(Dialect::Json, "lease_ms", 3.0, "floating point `3.0`. Allowed: a whole number");
        refuses(Dialect::Json, "lease_ms", "5", "invalid type: string \"5\". Allowed: a whole");
        refuses(Dialect::Json, "lease_ms", "5, expected x", "string \"5, expected x\". Allowed:");
        refuses(Dialect::Json, "lease_ms", Value::Null, "invalid type: null");
        refuses(Dialect::Json, "keep_bodies", 1, "Allowed: true or false");
    }

    #[test]
    fn everything_that_is_wrong_is_said_at_once() {
        let (config, wrong) = fields(
            Dialect::Toml,
            &[
                ("lease", 5.into()),
                ("max_attempts", 0.into()),
                ("retention_ms", 3_600_000.into()),
                ("on_group_dead", "park".into()),
            ],
        );
        let names: Vec<&str> = wrong.iter().map(|finding| finding.field.as_str()).collect();
        assert_eq!(names, ["lease", "max_attempts", "retention_ms", "on_group_dead"]);
        assert_eq!(config.max_attempts, Config::default().max_attempts);
        assert_eq!(config.on_group_dead, OnGroupDead::Park);
    }

    #[test]
    fn the_fields_in_which_configurations_differ_are_named() {
        let one = Config::default();
        let other = Config { lease_ms: 5_000, retention_ms: None, ..Config::default() };
        assert_eq!(differing(&one, &other), ["retention_ms", "lease_ms"]);
        assert!(differing(&one, &one.clone()).is_empty());
    }

    #[test]
    fn fields_that_do_not_go_together_are_refused_once_with_what_to_do() {
        let backoff = [("backoff_min_ms", 9_000.into()), ("backoff_max_ms", 500.into())];
        let (_, wrong) = fields(Dialect::Json, &backoff);
        let [wrong] = wrong.as_slice() else { panic!("{wrong:?}") };
        let why = "9000 is above backoff_max_ms, which is 500. Lower it, or raise backoff_max_ms";
        assert_eq!(wrong.advice().to_string(), why);
    }

    #[test]
    fn a_horizon_beyond_the_default_retention_ends_too() {
        let month = 30_u64 * 86_400_000;
        let (_, wrong) = fields(Dialect::Toml, &[("retry_horizon_ms", month.into())]);
        assert_eq!(wrong.len(), 1);
        assert_eq!((wrong[0].rule, &*wrong[0].field), (Rule::Retention, "retention_ms"));
    }
}
