//! Exactly once, end to end: real processes, killed with no time for last words, and effects that
//! are counted elsewhere. Every protection has a test that does without it and sees the double
//! effect.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that fails should say where"
)]

#[macro_use]
extern crate hapax_testing;

mod gateway;
mod inbox;
mod outbox;
mod pipeline;
mod places;
mod process;
mod steps;

use std::path::Path;
use std::process::Command;

use hapax_testing::{Setup, program};

const HAPAX: &str = env!("CARGO_BIN_EXE_hapax");

/// A broker with its data, log and port file in this directory.
fn broker_in(directory: &Path) -> Setup {
    Setup::new(HAPAX, directory)
}

fn hapax(arguments: &[&str]) -> Command {
    let mut command = program(HAPAX);
    command.args(arguments);
    command
}
