//! `hapax version`: what `hapax --version` prints, and the same as JSON.

use clap::Args;
use serde_json::json;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::Output;

#[derive(Debug, Args)]
pub(crate) struct Version {
    #[command(flatten)]
    output: Output,
}

pub(crate) fn run(version: &Version) -> Result<Exit, Failure> {
    let screen = version.output.screen();
    let number = env!("CARGO_PKG_VERSION");
    match screen.is_json() {
        true => screen.json(&json!({ "version": number }))?,
        false => screen.line(format_args!("hapax {number}"))?,
    }
    Ok(Exit::Ok)
}
