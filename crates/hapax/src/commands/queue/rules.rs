//! A queue's configuration as flags, and in readable form. The fields are those of the wire types.

use clap::builder::{BoolValueParser, PossibleValuesParser, TypedValueParser, ValueParser};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use hapax_wire::{Field, QueueConfig};
use serde_json::{Map, Value};

use crate::duration::{milliseconds, parse, short};
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
    Arg::new(field.name)
        .long(flag(field))
        .value_name(value_name)
        .value_parser(value)
        .help(help)
        .help_heading("Rules")
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
