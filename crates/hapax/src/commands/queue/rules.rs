//! A queue's configuration as flags, and in readable form. The fields are those of the wire types.

use clap::builder::{BoolValueParser, PossibleValuesParser, TypedValueParser, ValueParser};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use hapax_client::Error;
use hapax_core::{Config, limits};
use hapax_server::time::show_ms;
use hapax_wire::{Code, Field, QueueConfig};
use serde_json::{Map, Value};

use crate::duration::{milliseconds, parse, short};
use crate::failure::Failure;
use crate::size;

/// The fields that were given. Only these are sent; the broker has the defaults and the bounds.
#[derive(Debug, Default)]
pub(super) struct Rules(pub(super) Map<String, Value>);

impl FromArgMatches for Rules {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut rules = Self::default();
        rules.update_from_arg_matches(matches)?;
        Ok(rules)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for Field { name, .. } in QueueConfig::FIELDS {
            if let Some(value) = matches.get_one::<Value>(name) {
                self.0.insert((*name).to_owned(), value.clone());
            }
        }
        Ok(())
    }
}

impl Args for Rules {
    fn augment_args(command: Command) -> Command {
        command.args(QueueConfig::FIELDS.iter().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// The flag of a field. Durations and sizes have units of their own, so `lease_ms` is `--lease`.
fn argument(field: &'static Field) -> Arg {
    let (value_name, value) = value(field);
    let mut help = field.doc();
    for field in QueueConfig::FIELDS {
        help = help.replace(&format!("`{}`", field.name), &format!("--{}", flag(field)));
    }
    if let Some(word) = none(field) {
        let none = if field.name.ends_with("_ms") { "end" } else { "limit" };
        help += &format!(" `{word}` for no {none}.");
    }
    help += &range(field);
    help += &format!(" Default {}.", default(field));
    Arg::new(field.name)
        .long(flag(field))
        .value_name(value_name)
        .value_parser(value)
        .help(help)
        .help_heading("Rules")
}

/// The value that a queue is created with.
fn default(field: &Field) -> String {
    let defaults = serde_json::to_value(QueueConfig::default()).unwrap_or_default();
    written(field.name, defaults.get(field.name).unwrap_or(&Value::Null))
}

/// The smallest and the largest value of a number.
fn range(field: &Field) -> String {
    let bounds = Config::default().bounds();
    let shown = |number: u64| written(field.name, &number.into());
    match bounds.iter().find(|(name, ..)| *name == field.name) {
        Some((_, _, min, limits::COUNT_MAX)) => format!(" At least {}.", shown(*min)),
        Some((_, _, min, max)) => format!(" From {} to {}.", shown(*min), shown(*max)),
        None => String::new(),
    }
}

fn flag(field: &Field) -> String {
    field.name.strip_suffix("_ms").unwrap_or(field.name).replace('_', "-")
}

/// The word that stands for `null`.
fn none(field: &Field) -> Option<&'static str> {
    let word = if field.name == "retention_ms" { "forever" } else { "none" };
    field.nullable.then_some(word)
}

type Number = fn(&str) -> Result<u64, String>;

/// The value name and the parser of a field. Fields of words or booleans list their values.
fn value(field: &'static Field) -> (String, ValueParser) {
    if !field.words.is_empty() {
        let words = PossibleValuesParser::new(field.words).map(Value::from);
        return (field.name.to_uppercase(), words.into());
    }
    if field.is_bool {
        return ("BOOL".to_owned(), BoolValueParser::new().map(Value::from).into());
    }
    let (name, number): (&str, Number) = match field.name {
        name if name.ends_with("_ms") => ("DURATION", |text| parse(text).map(milliseconds)),
        name if name.ends_with("_bytes") => ("SIZE", size::parse),
        _ => ("COUNT", |text| text.parse().map_err(|_| "give a whole number".to_owned())),
    };
    let read = move |text: &str| match none(field) {
        Some(_) if ["none", "forever"].contains(&text) => Ok(Value::Null),
        _ => number(text).map(Value::from),
    };
    (name.to_owned(), read.into())
}

/// The flag of the field with this name, `--lease` for `lease_ms`.
pub(super) fn flag_of(name: &str) -> String {
    let field = QueueConfig::FIELDS.iter().find(|field| field.name == name);
    field.map_or_else(|| name.to_owned(), |field| format!("--{}", flag(field)))
}

/// The value of a field as its flag takes it, with its unit.
pub(super) fn written(name: &str, value: &Value) -> String {
    match value {
        Value::Null if name == "retention_ms" => "forever".to_owned(),
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_u64() {
            Some(ms) if name.ends_with("_ms") => show_ms(ms),
            Some(bytes) if name.ends_with("_bytes") => size::show(bytes),
            _ => number.to_string(),
        },
        other => other.to_string(),
    }
}

/// The broker's refusal of a configuration in the words of the command line: flags instead of
/// fields, and numbers with the unit of the refused field.
pub(super) fn refused(error: Error) -> Failure {
    let failure = Failure::from(error);
    match failure.code {
        // The error says what to do; the advice for the code is about files.
        Some(Code::InvalidConfig) => {
            Failure { what: in_flags(&failure.what), next: None, ..failure }
        }
        _ => failure,
    }
}

fn in_flags(what: &str) -> String {
    let is_letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let fields = || QueueConfig::FIELDS.iter();
    let mut refused: Option<&Field> = None;
    let mut text = String::new();
    let mut rest = what;
    while let Some(start) = rest.find(is_letter) {
        let (between, word) = rest.split_at(start);
        let (word, after) = word.split_at(word.find(|c| !is_letter(c)).unwrap_or(word.len()));
        text.push_str(between);
        rest = after;
        // `order` is a word too.
        let is_field = word.contains('_') || after.starts_with(": ") || after.starts_with(" = ");
        let field = fields().find(|field| field.name == word).filter(|_| is_field);
        // The field that is refused is the one before the first colon.
        refused = refused.or(field.filter(|_| after.starts_with(": ")));
        match (field, refused, word.parse::<u64>()) {
            (Some(_), Some(_), _) => text.push_str(&flag_of(word)),
            (None, Some(refused), Ok(number)) => {
                text.push_str(&written(refused.name, &number.into()));
                rest = rest.strip_prefix(" ms").unwrap_or(rest);
            }
            (None, Some(refused), _) if word == "null" => {
                text.push_str(none(refused).unwrap_or(word));
            }
            _ => text.push_str(word),
        }
    }
    text.push_str(rest);
    let kind = match refused {
        Some(field) if field.name.ends_with("_ms") => "a duration",
        Some(field) if field.name.ends_with("_bytes") => "a size",
        _ => return text,
    };
    text.replace("a whole number", kind)
}

/// The value of a field in readable form, with durations in a suitable unit.
pub(super) fn readable(name: &str, value: &Value) -> String {
    match value {
        Value::Null if name == "retention_ms" => "forever".to_owned(),
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_u64().filter(|_| name.ends_with("_ms")) {
            Some(ms) => format!("{number} ({})", short(ms)),
            None => number.to_string(),
        },
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_in_the_words_of_the_command_line() {
        for (given, expected) in [
            (
                "invalid_config: lease_ms: 1 is not between 100 and 43200000. Allowed: a whole \
                 number, from 100 to 43200000",
                "invalid_config: --lease: 1ms is not between 100ms and 12h. Allowed: a duration, \
                 from 100ms to 12h",
            ),
            (
                "invalid_config: retention_ms: 3600000 ms is less than twice the retry horizon of \
                 86400000 ms. Raise retention_ms to 172800000 or lower retry_horizon_ms",
                "invalid_config: --retention: 1h is less than twice the retry horizon of 1d. \
                 Raise --retention to 2d or lower --retry-horizon",
            ),
            (
                "max_bytes: 0 is not between 1 and 1073741824. Allowed: a whole number, or null",
                "--max-bytes: 0 is not between 1 and 1GiB. Allowed: a size, or none",
            ),
            (
                "max_messages: 0 is not between 1 and 1000. Allowed: a whole number, or null",
                "--max-messages: 0 is not between 1 and 1000. Allowed: a whole number, or none",
            ),
            ("order: keys and order depend on it", "--order: keys and order depend on it"),
            (
                "on_group_dead: \"park\" needs order = x",
                "--on-group-dead: \"park\" needs --order = x",
            ),
            ("the order of 5 things", "the order of 5 things"),
        ] {
            assert_eq!(in_flags(given), expected);
        }
    }

    #[test]
    fn a_value_is_written_as_its_flag_reads_it() {
        for field in QueueConfig::FIELDS.iter().filter(|field| field.nullable) {
            assert_eq!(Some(&*written(field.name, &Value::Null)), none(field));
        }
        assert_eq!(written("lease_ms", &90_000.into()), "90s");
        assert_eq!(written("max_body_bytes", &(1 << 20).into()), "1MiB");
        assert_eq!(written("max_attempts", &1_000.into()), "1000");
        assert_eq!(written("order", &"group".into()), "group");
        assert_eq!(flag_of("retry_horizon_ms"), "--retry-horizon");
    }
}
