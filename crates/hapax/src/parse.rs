//! The command line as it was typed, and what is said where it is misspelt.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, Error, FromArgMatches};
use hapax_server::settings;
use hapax_wire::nearest::closest;

use crate::arguments::Arguments;
use crate::screen::{asks_for_json, say};
use crate::session::VARIABLES;

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

/// The command line, read.
pub(crate) struct Parsed {
    pub(crate) arguments: Arguments,
    /// Whether `-o json` was given.
    pub(crate) is_json: bool,
}

/// Reads the command line, or ends the process with what is wrong with it.
pub(crate) fn parse() -> Parsed {
    let words: Vec<_> = std::env::args_os().collect();
    let parsed = Arguments::command().try_get_matches_from(&words).and_then(|matches| {
        let is_json = asks_for_json(&matches);
        let arguments = Arguments::from_arg_matches(&matches)?;
        Ok(Parsed { arguments, is_json })
    });
    parsed.unwrap_or_else(|error| {
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        explained(error, &words).exit()
    })
}

/// The error as it would be without variables, which nobody typed, and with the option that was
/// meant.
fn explained(error: Error, words: &[String]) -> Error {
    if !error.use_stderr() {
        return error;
    }
    let typed = without_variables(Arguments::command()).try_get_matches_from(words).err();
    let mut error = typed.filter(|typed| typed.kind() == error.kind()).unwrap_or(error);
    if let Some(meant) = meant(&error, words) {
        error.insert(ContextKind::SuggestedArg, ContextValue::String(meant));
        // Its own tip is about values that begin with dashes.
        error.remove(ContextKind::Suggested);
    }
    error
}

fn without_variables(command: Command) -> Command {
    let command = command.mut_args(|argument| argument.env(clap::builder::Resettable::Reset));
    command.mut_subcommands(without_variables)
}

/// The option of this command that a misspelt one is close to.
fn meant(error: &Error, words: &[String]) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument || error.get(ContextKind::SuggestedArg).is_some()
    {
        return None;
    }
    let Some(ContextValue::String(wrong)) = error.get(ContextKind::InvalidArg) else { return None };
    let wrong = wrong.strip_prefix("--")?;
    let tree = Arguments::command();
    let mut command = &tree;
    for word in words.iter().skip(1) {
        match command.find_subcommand(word) {
            Some(below) => command = below,
            None => break,
        }
    }
    let names: Vec<&str> =
        command.get_arguments().filter_map(|argument| argument.get_long()).collect();
    closest(wrong, names).map(|name| format!("--{name}"))
}

/// Says which `HAPAX_…` variables mean nothing: a misspelt one would be a setting that is not set.
pub(crate) fn warn_of_variables() {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let is_of_work = |name: &String| OF_WORK_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let names: Vec<String> = names.filter(|name| !is_of_work(name)).collect();
    let known: Vec<&str> = VARIABLES.iter().chain(OF_WORK).copied().collect();
    for warning in settings::unknown_variables(names.iter().map(String::as_str), &known) {
        say(format_args!("warning: {warning}"));
    }
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
        let told = wrong(&["hapax", "send", "orders", "x", "--kye", "a"]);
        assert!(told.contains("similar argument exists: '--key'"), "{told}");
        let told = wrong(&["hapax", "dead", "redrive", "orders", "--rat", "5"]);
        assert!(told.contains("'--rate'"), "{told}");
    }
}
