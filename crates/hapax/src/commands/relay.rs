//! `hapax relay`: moves messages from the outbox of a database to the broker, until it is stopped.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use clap::Args;
use hapax_server::log;
use hapax_transactions::relay::Metrics;
use hapax_transactions::{Error, Relay as Mover};
use tokio::net::TcpListener;

use crate::commands::serve::{Signals, stop_signal};
use crate::counts;
use crate::duration;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::say;
use crate::session::Connection;

pub(crate) const HELP: &str = "The rows of the table hapax_outbox (see: hapax sql outbox) are \
sent under their keys, in order within each group, and deleted when the broker has confirmed \
them. After a crash nothing has a second effect: a row that is sent again is a duplicate to the \
broker. A row that is refused is tried again and then parked in the table with its error. Several \
relays may run for one database: one works, the others stand by.

Examples:
  hapax relay --database postgres://shop@127.0.0.1/shop
  hapax relay --database sqlite://data/shop.db --metrics 127.0.0.1:9101
  HAPAX_DATABASE=postgres://shop@127.0.0.1/shop hapax relay --results hapax_results";

/// How long a stop may take. Stopping earlier loses nothing.
const STOP: Duration = Duration::from_secs(12);

#[derive(Clone, Args)]
pub(crate) struct Relay {
    /// The database with the outbox: postgres://USER:PASSWORD@HOST/NAME or sqlite://PATH. If it has
    /// a password, prefer the variable.
    #[arg(long, env = "HAPAX_DATABASE", value_name = "URL", hide_env_values = true)]
    database: String,
    /// A PEM file with the CA certificate that signed PostgreSQL's. It turns encryption on.
    #[arg(long, env = "HAPAX_DATABASE_CA", value_name = "FILE")]
    database_ca: Option<PathBuf>,
    /// Park a row after this many refusals.
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = counts::any::<u32>)]
    tries: u32,
    /// How often to poll for new rows if the database sends no notification.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "1s")]
    poll: Duration,
    /// Write the outcome of every message to this table (see: hapax sql results).
    #[arg(long, value_name = "TABLE")]
    results: Option<String>,
    /// The address on which to serve /metrics for Prometheus. Port 0 picks a free port.
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    /// The log level: error, warn, info, debug or trace.
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,
    #[command(flatten)]
    connection: Connection,
}

/// The address of a database may hold its password: nothing that prints a command may print it.
impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay").field("connection", &self.connection).finish_non_exhaustive()
    }
}

pub(crate) async fn run(relay: &Relay) -> Result<Exit, Failure> {
    let filter = relay.log.parse().map_err(anyhow::Error::from)?;
    let _log = log::start(log::Format::Text, &filter, None);
    let client = relay.connection.client()?;
    let mut mover =
        Mover::new(client, &relay.database).map_err(wrong)?.tries(relay.tries).poll(relay.poll);
    if let Some(path) = &relay.database_ca {
        let pem = std::fs::read(path).map_err(|error| {
            Failure::usage(format!("{} cannot be read: {error}", path.display()))
        })?;
        mover = mover.database_ca(&pem).map_err(wrong)?;
    }
    if let Some(table) = &relay.results {
        mover = mover.results(table).map_err(wrong)?;
    }
    if let Some(address) = relay.metrics {
        serve(address, mover.metrics()).await?;
    }
    let signals = Signals::listen()?;
    mover.run_until(stop_signal(signals, STOP)).await.map_err(explained)?;
    Ok(Exit::Ok)
}

fn wrong(error: Error) -> Failure {
    Failure::usage(error.to_string())
}

fn explained(error: Error) -> Failure {
    match error {
        Error::Broker(error) => error.into(),
        Error::Invalid(what) => Failure::usage(what),
        error => Failure::new(Exit::Failure, error.to_string())
            .next("check --database, and whether the database runs there"),
    }
}

async fn serve(address: SocketAddr, metrics: Arc<Metrics>) -> Result<(), Failure> {
    let listener = TcpListener::bind(address).await.map_err(|error| {
        Failure::usage(format!("metrics cannot be served at {address}: {error}"))
    })?;
    say(format_args!("metrics at http://{}/metrics", listener.local_addr()?));
    let page = move || {
        let text = metrics.text();
        async move { ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text) }
    };
    let doors =
        Router::new().route("/metrics", get(page)).route("/livez", get(|| async { "ok\n" }));
    tokio::spawn(async move { axum::serve(listener, doors).await });
    Ok(())
}
