//! `hapax log`: changes the log filter of a running broker.

use clap::Args;
use serde_json::json;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::{Output, clean};
use crate::session::Connection;

#[derive(Debug, Args)]
pub(crate) struct Log {
    /// The level (off, error, warn, info, debug, trace), and optionally TARGET=LEVEL for parts of
    /// the broker, separated by commas.
    #[arg(value_name = "LEVEL")]
    filter: String,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn run(log: &Log) -> Result<Exit, Failure> {
    log.connection
        .open(async |session| {
            session.client.set_log(&log.filter).await?;
            let screen = log.output.screen();
            match screen.is_json() {
                true => screen.json(&json!({ "answer": "ok", "log": log.filter }))?,
                false => {
                    let filter = clean(&log.filter);
                    screen.line(format_args!(
                        "the log filter is {filter} until the broker restarts"
                    ))?;
                }
            }
            Ok(Exit::Ok)
        })
        .await
}
