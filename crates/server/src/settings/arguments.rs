//! The flags, made from the table of settings.

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::entry::Entry;
use super::kind::Takes;
use super::values::Values;

const HEADING: &str = "Settings (flag > variable > file > default)";

/// Adds a flag for every setting. They have no defaults and no variables as clap knows them: those
/// are read by [`Settings::load`](super::Settings::load), which tells them apart.
pub fn arguments(command: Command) -> Command {
    command.args(Values::TABLE.iter().map(argument))
}

/// What the command line says of a setting.
pub(super) fn given<'a>(matches: &'a ArgMatches, name: &str) -> Option<&'a str> {
    // A command may have only some of the flags.
    matches.try_get_one::<String>(name).ok().flatten().map(String::as_str)
}

fn argument(entry: &'static Entry<Values>) -> Arg {
    let default = entry.default_in_words("");
    let facts = format!("[default: {default}] [env: {}]", entry.variable());
    let short = entry.doc().split_once(". ").map_or(entry.doc(), |(first, _)| format!("{first}."));
    let argument = Arg::new(entry.name)
        .long(entry.flag().trim_start_matches('-').to_owned())
        .value_name(entry.placeholder)
        .action(ArgAction::Set)
        .help(format!("{short} [default: {default}]"))
        .long_help(format!("{}\n{facts}", entry.doc()))
        .help_heading(HEADING);
    match entry.takes {
        // `--allow-no-tls` alone is enough; `--allow-no-tls=false` takes back what a file says.
        Takes::Boolean => {
            argument.num_args(0..=1).require_equals(true).default_missing_value("true")
        }
        _ => argument,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Command {
        arguments(Command::new("serve"))
    }

    #[test]
    fn every_setting_is_a_flag() {
        command().debug_assert();
        let help = command().render_long_help().to_string();
        for entry in Values::TABLE {
            assert!(help.contains(&entry.flag()), "{}", entry.name);
            assert!(help.contains(&entry.variable()), "{}", entry.name);
        }
        assert!(help.contains("[default: 127.0.0.1:4747] [env: HAPAX_LISTEN]"), "{help}");
    }

    #[test]
    fn a_switch_needs_no_value_and_may_have_one() {
        let given_by = |arguments: &[&str]| {
            let all = ["serve"].iter().chain(arguments);
            let matches = command().try_get_matches_from(all).unwrap();
            given(&matches, "allow_no_tls").map(str::to_owned)
        };
        assert_eq!(given_by(&[]), None);
        assert_eq!(given_by(&["--allow-no-tls"]), Some("true".to_owned()));
        assert_eq!(given_by(&["--allow-no-tls=false"]), Some("false".to_owned()));
        assert_eq!(given_by(&["--listen", "1.2.3.4:5", "--allow-no-tls"]), Some("true".to_owned()));
    }

    #[test]
    fn a_command_with_other_flags_gives_none() {
        let matches = Command::new("other").try_get_matches_from(["other"]).unwrap();
        assert_eq!(given(&matches, "listen"), None);
    }
}
