//! A payment service in which every order is charged once, whatever is killed meanwhile.
//!
//! ```text
//!  customers ──▶ api ──▶ database ──▶ relay ──▶ broker ──▶ worker ──▶ gateway
//!                 │      orders and              │           │  ▲       charges under keys
//!                 └──────── outbox               └─ orders ──┘  └─ database: inbox, payments
//! ```
//!
//! Broker, api, relay and workers are processes of this same program; customers, gateway and the
//! injected faults are in the first one. The protections are few lines: the layer in `api.rs`, its
//! row and its send in `database.rs`, the step and the inbox in `worker.rs`.
#![expect(clippy::print_stdout, reason = "a program speaks by printing")]

mod api;
#[path = "../../pipeline/src/children.rs"]
mod children;
mod customers;
mod database;
mod faults;
mod http;
mod run;
mod screen;
mod services;
mod wire;
mod worker;

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use hapax_client::Client;
use hapax_server::Broker;
use hapax_server::options::{Auth, Options};
use hapax_transactions::Relay;

/// Takes orders, charges them, and counts; with --chaos while processes are killed, replies are
/// lost and requests are repeated. At the end every order was charged exactly once.
#[derive(Debug, Parser)]
#[command(name = "hapax-example-payment", version)]
struct Arguments {
    /// Kill processes, lose replies, delay, and send twice.
    #[arg(long)]
    chaos: bool,
    /// Number of orders.
    #[arg(long, value_name = "COUNT", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    orders: u32,
    /// The seed of the faults.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// A PostgreSQL for orders, inbox and outbox, as postgres://user@host/database; without it a
    /// SQLite file that is removed afterwards. Missing tables are created.
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// Number of concurrent customers.
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1_000))]
    customers: u16,
    #[command(subcommand)]
    part: Option<Part>,
}

/// The role of a process of this program.
#[derive(Debug, Subcommand)]
enum Part {
    #[command(hide = true)]
    Broker { listen: SocketAddr, data: PathBuf },
    #[command(hide = true)]
    Api {
        listen: SocketAddr,
        #[command(flatten)]
        settings: Settings,
    },
    #[command(hide = true)]
    Relay {
        #[command(flatten)]
        settings: Settings,
    },
    #[command(hide = true)]
    Worker {
        #[command(flatten)]
        settings: Settings,
    },
}

/// The addresses of the other processes.
#[derive(Clone, Debug, Args)]
struct Settings {
    /// The name of the run: several may share a database.
    run: String,
    /// The broker.
    server: String,
    database: String,
    /// The first process: the gateway, the counters, and the killer.
    services: SocketAddr,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Runtime::new()?;
    match arguments.part {
        None => runtime.block_on(run::run(&arguments)),
        Some(part) => {
            children::end_with_parent()?;
            runtime.block_on(play(part))
        }
    }
}

async fn play(part: Part) -> Result<()> {
    match part {
        Part::Broker { listen, data } => {
            let options = Options { listen, data, auth: Auth::Off, ..Options::default() };
            Ok(Broker::start(&options, None).await?.run(std::future::pending()).await?)
        }
        Part::Api { listen, settings } => api::serve(listen, settings).await,
        Part::Relay { settings: it } => relay(&it.server, &it.database).await,
        Part::Worker { settings } => worker::work(settings).await,
    }
}

/// Sends the messages of the outbox to the broker.
async fn relay(server: &str, database: &str) -> Result<()> {
    Ok(Relay::new(Client::connect(server)?, database)?.run().await?)
}
