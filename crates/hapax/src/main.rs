//! The one binary: the broker, and everything that people do with one from a terminal.

mod arguments;
mod commands;
mod content;
mod duration;
mod exit;
mod failure;
mod moment;
mod partition;
#[cfg(test)]
mod reference;
mod screen;
mod session;
mod shapes;
mod why;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::arguments::Arguments;
use crate::exit::Exit;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let Some(command) = Arguments::parse().command else {
        // Whoever closed the output does not want the help.
        let _ = Arguments::command().print_long_help();
        return Exit::Ok.into();
    };
    match commands::run(&command) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            if !failure.is_broken_pipe {
                screen::complain(&failure.what, failure.next.as_deref());
            }
            failure.exit.into()
        }
    }
}
