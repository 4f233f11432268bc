//! `hapax config` and `hapax lint`: settings, looked at without a broker.

use std::io::Read;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use hapax_server::settings::{self, Finding, Profile, Severity};
use serde_json::{Value, json};

use super::serve::Flags;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::{Colour, Output, say};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print every setting, its value and where it comes from.
    #[command(after_help = "Examples:
  hapax config show
  hapax config show --config hapax.toml --listen 0.0.0.0:4747
  HAPAX_MEMORY_BYTES=1GiB hapax config show -o json")]
    Show(Box<Show>),
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// As `hapax dev` would have them.
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
    /// Warnings count too.
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn config(command: &Command) -> Result<Exit, Failure> {
    let Command::Show(show) = command;
    let profile = if show.dev { Profile::Dev } else { Profile::Serve };
    let loaded = show.flags.load(profile)?;
    for warning in &loaded.warnings {
        say(format_args!("warning: {warning}"));
    }
    let screen = show.output.screen();
    match screen.is_json() {
        true => screen.json(&loaded.settings.to_json())?,
        false => screen.bytes(loaded.settings.to_table().as_bytes())?,
    }
    Ok(Exit::Ok)
}

/// Exits with 2 for errors, with 1 for warnings where they count.
pub(crate) fn lint(lint: &Lint) -> Result<Exit, Failure> {
    let screen = lint.output.screen();
    let mut all: Vec<(String, Vec<Finding>)> = Vec::new();
    for path in &lint.files {
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
    let findings: Vec<Finding> = all.iter().flat_map(|(_, found)| found.clone()).collect();
    if screen.is_json() {
        let files: Vec<Value> =
            all.iter().map(|(name, found)| json!({ "file": name, "findings": found })).collect();
        screen.json(&files)?;
    } else {
        for finding in &findings {
            let colour = match finding.severity() {
                Severity::Error => Colour::Red,
                Severity::Warning => Colour::Yellow,
                Severity::Note => Colour::Dim,
            };
            screen.line(screen.paint(colour, finding))?;
        }
        if findings.is_empty() {
            screen.line("nothing to put right")?;
        }
    }
    Ok(match settings::exit_code(&findings, lint.strict) {
        0 => Exit::Ok,
        1 => Exit::Failure,
        _ => Exit::Usage,
    })
}
