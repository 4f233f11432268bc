//! A service that charges cards, with idempotency keys: the program of
//! `docs/guides/http-idempotency.md`.
//!
//! ```sh
//! hapax dev                                                  # in one terminal
//! cargo run -p hapax-idempotency --example charges           # in another
//! curl -i localhost:8080/charges -H 'X-Account: ada' -H 'Idempotency-Key: order-42' -d 1700
//! curl -i localhost:8080/charges -H 'X-Account: ada' -H 'Idempotency-Key: order-42' -d 1700
//! ```

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use clap::Parser;
use hapax_client::{Admin, Client, Code};
use hapax_idempotency::{Idempotency, Operation};

#[derive(Debug, Parser)]
struct Arguments {
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// The broker.
    #[arg(long, env = "HAPAX_SERVER", default_value = "http://127.0.0.1:4747")]
    server: String,
}

/// Stands for the bank: it takes a key with every charge, and charges once per key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bank {
    charges: Arc<Mutex<Vec<(String, u64)>>>,
    calls: Arc<AtomicU64>,
}

impl Bank {
    /// The number of the charge under this key: the first call creates it, later ones return it.
    pub(crate) fn charge(&self, key: String, cents: u64) -> usize {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let mut charges = self.charges.lock().unwrap_or_else(PoisonError::into_inner);
        match charges.iter().position(|(known, _)| *known == key) {
            Some(place) => place,
            None => {
                charges.push((key, cents));
                charges.len() - 1
            }
        }
    }

    pub(crate) fn charged(&self) -> usize {
        self.charges.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// Which requests are protected, and whose keys they are.
pub(crate) fn idempotency(broker: &Client) -> Result<Idempotency> {
    let layer = Idempotency::builder(broker.queue("charges"))
        .required("POST /charges")
        // A real service authenticates first and takes the account from that.
        .tenant(|request| {
            let account = request.headers.get("x-account")?;
            Some(account.to_str().ok()?.to_owned())
        })
        .worker("charges example")
        .build()?;
    Ok(layer)
}

pub(crate) fn app(bank: Bank, idempotency: &Idempotency) -> Router {
    Router::new().route("/charges", post(charge)).with_state(bank).layer(idempotency.clone())
}

/// Runs once per key, unless this process dies in the middle: then once more, with the same key
/// for the bank.
async fn charge(
    State(bank): State<Bank>,
    Extension(operation): Extension<Operation>,
    body: String,
) -> Response {
    let Ok(cents) = body.trim().parse::<u64>() else {
        // Remembered too: the same request would fail the same way.
        return (StatusCode::UNPROCESSABLE_ENTITY, "an amount in cents, please\n").into_response();
    };
    let number = bank.charge(operation.derive("charge"), cents);
    let location = [(header::LOCATION, format!("/charges/{number}"))];
    (StatusCode::CREATED, location, format!("charged {cents} cents\n")).into_response()
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let broker = Client::connect(&arguments.server)?;
    let admin = Admin::new(broker.clone());
    match admin.queue("charges").await {
        Err(error) if error.code() == Code::NoSuchQueue => {
            admin.put_queue("charges", "{}", None).await?;
        }
        queue => drop(queue.context("no broker: start one with hapax dev")?),
    }
    let idempotency = idempotency(&broker)?;
    let (_, wrong) = idempotency.check_queue().await?;
    anyhow::ensure!(wrong.is_empty(), "the queue is not fit: {}", wrong.join("; "));

    let listener = tokio::net::TcpListener::bind(arguments.listen).await?;
    let url = format!("http://{}", listener.local_addr()?);
    tell(&format!(
        "listening at {url}; try twice:\n\n  \
         curl -i {url}/charges -H 'X-Account: ada' -H 'Idempotency-Key: order-42' -d 1700"
    ));
    let bank = Bank::default();
    let app = app(bank.clone(), &idempotency);
    axum::serve(listener, app)
        .with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) })
        .await?;
    // Clients that hung up have left operations behind: let them end.
    idempotency.drained(Duration::from_secs(20)).await;
    let calls = bank.calls.load(Ordering::Relaxed);
    tell(&format!("the bank was called {calls} times and charged {} times", bank.charged()));
    Ok(())
}

#[expect(clippy::print_stdout, reason = "a program speaks to people")]
fn tell(text: &str) {
    println!("{text}");
}
