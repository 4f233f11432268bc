//! `hapax config` and `hapax lint`: show and check settings without a broker.

use std::io::Read;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use hapax_server::lint::Severity;
use serde_json::{Value, json};

use super::serve::{load, mistaken};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::parse::warn_of_variables;
use crate::screen::{Colour, Output, Table, count};
use crate::settings::{self, Flags, Located, Profile, is_database};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print every setting, its value and where it comes from. Exits with 2 if a broker would
    /// refuse to start with them.
    #[command(after_help = "Examples:
  hapax config show
  hapax config show --config hapax.toml --listen 0.0.0.0:4747
  HAPAX_MEMORY_BYTES=1GiB hapax config show -o json")]
    Show(Box<Show>),
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// Show the settings of `hapax dev`.
    #[arg(long)]
    dev: bool,
    #[command(flatten)]
    flags: Flags,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Lint {
    /// Settings in TOML, or a queue's configuration in JSON; `-` for the standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Exit with 1 if there are warnings.
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn config(command: &Command) -> Result<Exit, Failure> {
    let Command::Show(show) = command;
    let profile = if show.dev { Profile::Dev } else { Profile::Serve };
    let next = "hapax lint FILE checks a file";
    let settings = load(&show.flags, profile).map_err(|failure| failure.next(next))?;
    warn_of_variables();
    let screen = show.output.screen();
    let shown = settings.show();
    if screen.is_json() {
        screen.json(&shown)?;
    } else {
        let mut table = Table::new(&["NAME", "VALUE", "ORIGIN"]);
        for line in shown {
            table.row([line.name.into(), line.text.into(), line.origin.into()]);
        }
        table.print(screen)?;
    }
    // A broker would not start with them.
    settings.check().map_err(|mistakes| mistaken(&mistakes))?;
    hapax_server::check_files(&settings.options())
        .map_err(|error| Failure::usage(error.to_string()))?;
    Ok(Exit::Ok)
}

/// Checks the files. Exits with 2 for errors, and with `--strict` with 1 for warnings.
pub(crate) fn lint(lint: &Lint) -> Result<Exit, Failure> {
    let screen = lint.output.screen();
    let mut all: Vec<(String, Vec<Located>)> = Vec::new();
    for path in &lint.files {
        if is_database(path) {
            let what = "a FILE is the address of a database: hapax lint checks settings files";
            return Err(Failure::usage(what));
        }
        let name = path.display().to_string();
        let text = match name.as_str() {
            "-" => {
                let mut text = String::new();
                std::io::stdin().lock().read_to_string(&mut text)?;
                text
            }
            _ => std::fs::read_to_string(path)
                .map_err(|error| Failure::usage(format!("{name} cannot be read: {error}")))?,
        };
        all.push((name.clone(), settings::lint(&text, &name)));
    }
    let found: Vec<&Located> = all.iter().flat_map(|(_, found)| found).collect();
    if screen.is_json() {
        let files: Vec<Value> =
            all.iter().map(|(name, found)| json!({ "file": name, "findings": found })).collect();
        screen.json(&files)?;
    } else {
        for found in &found {
            let colour = match found.finding.severity() {
                Severity::Error => Colour::Red,
                Severity::Warning => Colour::Yellow,
                Severity::Note => Colour::Dim,
            };
            screen.line(screen.paint(colour, found))?;
        }
        if found.is_empty() {
            screen.line("no findings")?;
        }
    }
    let severities = || found.iter().map(|found| found.finding.severity());
    let exit = exit(severities(), lint.strict);
    if exit == Exit::Ok {
        return Ok(exit);
    }
    let of = |severity| severities().filter(|it| *it == severity).count() as u64;
    let (errors, warnings) = (of(Severity::Error), of(Severity::Warning));
    let what = format!("{}, {}", count(errors, "error"), count(warnings, "warning"));
    Err(Failure::new(exit, what))
}

fn exit(severities: impl Iterator<Item = Severity>, strict: bool) -> Exit {
    match severities.max() {
        Some(Severity::Error) => Exit::Usage,
        Some(Severity::Warning) if strict => Exit::Failure,
        _ => Exit::Ok,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_for_errors_and_strictly_for_warnings() {
        use Severity::{Error, Note, Warning};
        let code = |severities: &[Severity], strict| exit(severities.iter().copied(), strict) as u8;
        assert_eq!(code(&[], true), 0);
        assert_eq!(code(&[Note], true), 0);
        assert_eq!(code(&[Note, Warning], false), 0);
        assert_eq!(code(&[Note, Warning], true), 1);
        assert_eq!(code(&[Error, Warning], false), 2);
    }
}
