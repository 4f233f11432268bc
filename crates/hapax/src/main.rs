//! The one binary. Until there is a broker to start, it shows what the heart can do: orders that
//! are sent twice, delivered, settled, and killed on the way, with nothing lost or doubled.

mod check;
mod copy;
mod demo;
mod partition;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A durable message queue in which every message carries an idempotency key.
#[derive(Debug, Parser)]
#[command(name = "hapax", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Send, deliver and settle orders while being killed; then show that nothing was lost or
    /// doubled. What runs when no command is given.
    Demo(demo::Arguments),
    /// Verify a data directory from end to end and print what was found. Changes nothing.
    Check {
        /// The directory, which no process may have open.
        directory: PathBuf,
    },
    /// Copy a data directory to an empty one, verified.
    Backup {
        /// The directory to copy.
        directory: PathBuf,
        /// Where to: a directory that does not exist yet, or is empty.
        target: PathBuf,
    },
    /// Copy a backup to where it will be used, verified.
    Restore {
        /// The backup. It stays as it is.
        backup: PathBuf,
        /// Where to: a directory that does not exist yet, or is empty.
        directory: PathBuf,
    },
    /// The process that `demo` kills.
    #[command(hide = true)]
    Victim(demo::Victim),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command.unwrap_or(Command::Demo(demo::Arguments::default())) {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Victim(arguments) => demo::victim::run(&arguments),
        Command::Check { directory } => check::run(&directory),
        Command::Backup { directory, target } => copy::backup(&directory, &target),
        Command::Restore { backup, directory } => copy::restore(&backup, &directory),
    }
}
