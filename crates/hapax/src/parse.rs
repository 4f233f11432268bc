//! Parses the command line and improves clap's error messages.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, CommandFactory, Error, FromArgMatches};
use hapax_wire::nearest::closest;

use crate::arguments::Arguments;
use crate::screen::{asks_for_json, say};
use crate::session::VARIABLES;
use crate::settings;

/// Set by `hapax work` for its commands, which may call `hapax` themselves.
const OF_WORK: &[&str] = &[
    "HAPAX_ATTEMPT",
    "HAPAX_CONTENT_TYPE",
    "HAPAX_FENCE",
    "HAPAX_GENERATION",
    "HAPAX_GROUP",
    "HAPAX_HEADERS",
    "HAPAX_ID",
    "HAPAX_KEY",
    "HAPAX_LEASE",
    "HAPAX_LEASE_MS",
    "HAPAX_POINTS",
    "HAPAX_QUEUE",
    "HAPAX_TENANT",
];
const OF_WORK_PREFIXES: [&str; 2] = ["HAPAX_HEADER_", "HAPAX_POINT_"];

/// The parsed command line.
pub(crate) struct Parsed {
    pub(crate) arguments: Arguments,
    /// Whether `-o json` was given.
    pub(crate) is_json: bool,
}

/// Parses the command line, or exits with an error message.
pub(crate) fn parse() -> Parsed {
    let words: Vec<_> = std::env::args_os().collect();
    let command = without_variables(Arguments::command(), &is_empty);
    let parsed = command.try_get_matches_from(&words).and_then(|matches| {
        let is_json = asks_for_json(&matches);
        let arguments = Arguments::from_arg_matches(&matches)?;
        Ok(Parsed { arguments, is_json })
    });
    parsed.unwrap_or_else(|error| {
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        explained(error, &words).exit()
    })
}

/// Rewrites the error: leaves out options that came from variables, and suggests the option that
/// was probably meant.
fn explained(error: Error, words: &[String]) -> Error {
    if !error.use_stderr() {
        return error;
    }
    let typed = without_variables(Arguments::command(), &|_| true).try_get_matches_from(words);
    let of_variable = if typed.is_ok() { variable(&error, words) } else { None };
    let typed = typed.err().filter(|typed| typed.kind() == error.kind());
    let mut error = typed.unwrap_or(error);
    if let Some(variable) = of_variable {
        error.insert(ContextKind::InvalidArg, ContextValue::String(variable));
    }
    if let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg)
        && error.kind() == ErrorKind::MissingRequiredArgument
    {
        let named = missing.iter().map(|missing| match missing.starts_with("--store ") {
            true => format!("{missing} (or HAPAX_STORE)"),
            false => missing.clone(),
        });
        let named = named.collect();
        error.insert(ContextKind::InvalidArg, ContextValue::Strings(named));
    }
    if let Some(negative) = negative(&error, words) {
        let what = format!("'{negative}' is negative: durations, sizes and counts are not");
        return Arguments::command().error(ErrorKind::InvalidValue, what);
    }
    if let Some(meant) = meant(&error, words) {
        error.insert(ContextKind::SuggestedArg, ContextValue::String(meant));
        // Its own tip is about values that begin with dashes.
        error.remove(ContextKind::Suggested);
    }
    error
}

/// Whether the variable of an argument is empty, which counts as absent.
fn is_empty(argument: &Arg) -> bool {
    let value = argument.get_env().and_then(std::env::var_os);
    value.is_some_and(|value| value.is_empty())
}

fn without_variables(command: Command, without: &dyn Fn(&Arg) -> bool) -> Command {
    let command = command.mut_args(|argument| match without(&argument) {
        true => argument.env(clap::builder::Resettable::Reset),
        false => argument,
    });
    command.mut_subcommands(|below| without_variables(below, without))
}

/// The variable from which an invalid value comes, if it was not typed.
fn variable(error: &Error, words: &[String]) -> Option<String> {
    let Some(ContextValue::String(wrong)) = error.get(ContextKind::InvalidArg) else { return None };
    let long = wrong.strip_prefix("--")?.split([' ', '=', '[']).next()?;
    let tree = Arguments::command();
    let argument = called(&tree, words).get_arguments().find(|arg| arg.get_long() == Some(long))?;
    Some(argument.get_env()?.to_string_lossy().into_owned())
}

/// The word that was taken for an option although it is a negative number, with its unit.
fn negative<'a>(error: &Error, words: &'a [String]) -> Option<&'a String> {
    let Some(ContextValue::String(wrong)) = error.get(ContextKind::InvalidArg) else { return None };
    let is_number = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    if error.kind() != ErrorKind::UnknownArgument || !wrong.strip_prefix('-').is_some_and(is_number)
    {
        return None;
    }
    words.iter().find(|word| word.starts_with(wrong.as_str()))
}

/// The option of this command that is closest to a misspelt one.
fn meant(error: &Error, words: &[String]) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument || error.get(ContextKind::SuggestedArg).is_some()
    {
        return None;
    }
    let Some(ContextValue::String(wrong)) = error.get(ContextKind::InvalidArg) else { return None };
    let wrong = wrong.strip_prefix("--")?;
    let tree = Arguments::command();
    let arguments = called(&tree, words).get_arguments();
    let names: Vec<&str> = arguments.filter_map(|argument| argument.get_long()).collect();
    closest(wrong, names).map(|name| format!("--{name}"))
}

/// The command that was called.
fn called<'a>(tree: &'a Command, words: &[String]) -> &'a Command {
    let mut command = tree;
    for word in words.iter().skip(1) {
        match command.find_subcommand(word) {
            Some(below) => command = below,
            None => break,
        }
    }
    command
}

/// Warns of `HAPAX_…` variables that have no effect, which are usually misspelt.
pub(crate) fn warn_of_variables() {
    for warning in unknown_variables() {
        say(format_args!("warning: {warning}"));
    }
}

/// A warning for each `HAPAX_…` variable of this process that has no effect.
pub(crate) fn unknown_variables() -> Vec<String> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    unknown_among(names.collect())
}

fn unknown_among(mut names: Vec<String>) -> Vec<String> {
    let is_of_work = |name: &str| OF_WORK_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let settings: Vec<String> = settings::variables().collect();
    let known = VARIABLES.iter().chain(OF_WORK).copied();
    let known: Vec<&str> = settings.iter().map(String::as_str).chain(known).collect();
    names.retain(|name| {
        name.starts_with("HAPAX_") && !is_of_work(name) && !known.contains(&name.as_str())
    });
    names.sort();
    let warn = |name: &String| {
        let meant = closest(name, known.iter().copied());
        let hint = meant.map_or_else(String::new, |meant| format!(": did you mean {meant}?"));
        format!("the variable {name} is not a setting and has no effect{hint}")
    };
    names.iter().map(warn).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(words: &[&str]) -> String {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let error = Arguments::command().try_get_matches_from(&words).unwrap_err();
        explained(error, &words).to_string()
    }

    #[test]
    fn a_misspelt_option_names_the_one_that_was_meant() {
        let error = wrong(&["hapax", "send", "orders", "x", "--kye", "a"]);
        assert!(error.contains("similar argument exists: '--key'"), "{error}");
        let error = wrong(&["hapax", "dead", "redrive", "orders", "--rat", "5"]);
        assert!(error.contains("'--rate'"), "{error}");
    }

    #[test]
    fn a_negative_number_is_not_an_unknown_option() {
        let told = wrong(&["hapax", "queue", "create", "orders", "--lease", "-5s"]);
        assert!(told.contains("'-5s' is negative") && !told.contains("tip:"), "{told}");
    }

    #[test]
    fn an_unknown_variable_is_warned_about() {
        let names = ["HAPAX_LISTN", "HAPAX_COLOUR", "HAPAX_TOKEN", "HAPAX_HEADER_X", "PATH"];
        let warnings = unknown_among(names.map(str::to_owned).to_vec());
        let [colour, listen] = warnings.as_slice() else { panic!("{warnings:?}") };
        assert!(colour.contains("HAPAX_COLOUR is not a setting and has no effect"), "{colour}");
        assert!(listen.ends_with("did you mean HAPAX_LISTEN?"), "{listen}");
    }
}
