//! `hapax completions` and `hapax man`: shell completions and manual pages, generated from the
//! commands.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::Screen;

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell.
    shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The command to describe; by default `hapax` itself.
    #[arg(conflicts_with = "dir")]
    command: Vec<String>,
    /// Write the pages of all commands to this directory.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) fn completions(completions: &Completions, mut tree: Command) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut tree, "hapax", &mut script);
    Screen::plain().bytes(&script)?;
    Ok(Exit::Ok)
}

/// Whether the command gets a page; `hapax help COMMAND` does not.
fn without_help(command: Command) -> Command {
    command.disable_help_subcommand(true).mut_subcommands(without_help)
}

pub(crate) fn man(man: &Man, mut tree: Command) -> Result<Exit, Failure> {
    tree = without_help(tree);
    tree.build();
    if let Some(dir) = &man.dir {
        std::fs::create_dir_all(dir)
            .and_then(|()| clap_mangen::generate_to(tree, dir))
            .with_context(|| format!("{} cannot be written", dir.display()))?;
        return Ok(Exit::Ok);
    }
    let mut command = &tree;
    for name in &man.command {
        command = command.find_subcommand(name).ok_or_else(|| {
            let names = command.get_subcommands().map(Command::get_name);
            let near = hapax_wire::nearest::closest(name, names);
            let next = near.map(|near| format!("did you mean {near}?"));
            let next = next.unwrap_or_else(|| "hapax help lists the commands".to_owned());
            Failure::usage(format!("there is no command {name}")).next(next)
        })?;
    }
    let mut page = Vec::new();
    let title = ["hapax"].into_iter().chain(man.command.iter().map(String::as_str));
    let title = title.collect::<Vec<_>>().join("-");
    clap_mangen::Man::new(command.clone().name(title)).render(&mut page)?;
    Screen::plain().bytes(&page)?;
    Ok(Exit::Ok)
}
