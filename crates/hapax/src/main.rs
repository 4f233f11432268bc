//! The `hapax` binary: the broker and its command-line client.

mod advice;
mod arguments;
mod commands;
mod content;
mod counts;
mod diagnosis;
mod duration;
mod exit;
mod failure;
mod moment;
mod parse;
mod partition;
#[cfg(test)]
mod reference;
mod screen;
mod session;
mod settings;
mod size;
mod why;

use std::process::ExitCode;

use clap::CommandFactory;

use crate::arguments::Arguments;
use crate::exit::Exit;
use crate::failure::Failure;

fn main() -> ExitCode {
    hapax_allocator::keep_freed_memory();
    let parsed = parse::parse();
    let Some(command) = parsed.arguments.command else {
        // A closed output is not an error.
        let _ = Arguments::command().print_long_help();
        return Exit::Ok.into();
    };
    if !command.reads_settings() {
        parse::warn_of_variables();
    }
    match commands::run(&command) {
        Ok(exit) => {
            // What was found is on the standard output.
            if exit != Exit::Ok && parsed.is_json {
                screen::say(Failure::new(exit, exit.meaning()).to_json());
            }
            exit.into()
        }
        Err(failure) => {
            if !failure.is_broken_pipe {
                match parsed.is_json {
                    true => screen::say(failure.to_json()),
                    false => screen::complain(&failure.what, failure.next.as_deref()),
                }
            }
            failure.exit.into()
        }
    }
}
