//! `hapax log`: what a running broker logs, changed while it runs.

use clap::Args;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::{Screen, clean};
use crate::session::Connection;

#[derive(Debug, Args)]
pub(crate) struct Log {
    /// A level (off, error, warn, info, debug, trace), and others for parts of the broker.
    #[arg(value_name = "LEVEL")]
    filter: String,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(log: &Log) -> Result<Exit, Failure> {
    log.connection
        .open(async |session| {
            session.client.set_log(&log.filter).await?;
            let filter = clean(&log.filter);
            Screen::plain().line(format_args!("the broker logs {filter} until it is restarted"))?;
            Ok(Exit::Ok)
        })
        .await
}
