//! A receiver of webhooks: the program of `docs/guides/webhooks.md`.
//!
//! A provider delivers every event at least once, in no order, and gives up on receivers that
//! answer late. The key is (provider, event id), so that a repeated delivery gets the first
//! response. An event is applied only if its sequence is above the last one applied. The verdict
//! is saved as a recovery point, from which the next attempt continues after a crash.
//!
//! ```sh
//! hapax dev                                                  # in one terminal
//! cargo run -p hapax-idempotency --example webhooks          # in another
//! curl localhost:8080/webhooks/bank -H 'Content-Type: application/json' \
//!     -d '{"id":"evt_1","object":"invoice-7","sequence":1,"state":"paid"}'
//! ```

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Json, Router};
use clap::Parser;
use hapax_client::{Admin, Client, Code};
use hapax_idempotency::{Idempotency, Operation, Route};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

#[derive(Debug, Parser)]
struct Arguments {
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// The broker.
    #[arg(long, env = "HAPAX_SERVER", default_value = "http://127.0.0.1:4747")]
    server: String,
    /// Directory for the state of the objects.
    #[arg(long, default_value = "webhooks-data")]
    data: PathBuf,
    /// Abort after applying the next event, before the notification. Start again without this flag,
    /// and send the event again.
    #[arg(long)]
    crash: bool,
}

/// What a provider sends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Delivered {
    pub(crate) id: String,
    pub(crate) object: String,
    /// Grows with every change of the object.
    pub(crate) sequence: u64,
    pub(crate) state: String,
}

/// The state of an object after the newest event about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Known {
    pub(crate) sequence: u64,
    pub(crate) state: String,
    /// The id of the event that wrote it.
    pub(crate) event: String,
}

/// Whether an event was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Applied,
    /// The stored state is newer.
    Older,
}

/// The receiver's own state, and the service that it notifies of changes.
#[derive(Debug)]
pub(crate) struct Receiver {
    directory: PathBuf,
    /// Serialises changes. Several processes would need a database instead.
    changing: Mutex<()>,
    /// Stands for another service that takes keys: its notifications by key.
    pub(crate) notified: Mutex<BTreeMap<String, String>>,
    /// Acquired after an event was applied. A test closes it to simulate a crash there.
    pub(crate) after_applying: Semaphore,
    is_crashing: bool,
}

impl Receiver {
    pub(crate) fn new(directory: &Path) -> Result<Self> {
        std::fs::create_dir_all(directory)?;
        Ok(Self {
            directory: directory.to_owned(),
            changing: Mutex::default(),
            notified: Mutex::default(),
            after_applying: Semaphore::new(Semaphore::MAX_PERMITS),
            is_crashing: false,
        })
    }

    pub(crate) fn known(&self, provider: &str, object: &str) -> Option<Known> {
        let text = std::fs::read(self.file(provider, object)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Applies an event unless the stored state is newer. For the event that was applied last it
    /// returns `Applied` again: the process may have died before it saved the verdict.
    fn apply(&self, provider: &str, event: &Delivered) -> Result<Verdict> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        match self.known(provider, &event.object) {
            Some(known) if known.event == event.id => return Ok(Verdict::Applied),
            Some(known) if known.sequence >= event.sequence => return Ok(Verdict::Older),
            _ => {}
        }
        let Delivered { id, sequence, state, .. } = event.clone();
        let known = serde_json::to_vec(&Known { sequence, state, event: id })?;
        // Replaced atomically, so that readers never see half of it.
        let file = self.file(provider, &event.object);
        let temporary = file.with_extension("tmp");
        std::fs::write(&temporary, known)?;
        std::fs::rename(&temporary, file)?;
        Ok(Verdict::Applied)
    }

    fn notify(&self, key: String, event: &Delivered) {
        let news = format!("{} is {}", event.object, event.state);
        self.notified.lock().unwrap_or_else(PoisonError::into_inner).insert(key, news);
    }

    /// The file of an object; objects belong to a provider.
    fn file(&self, provider: &str, object: &str) -> PathBuf {
        let name: String = format!("{provider} {object}")
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' })
            .collect();
        self.directory.join(format!("{name}.json"))
    }
}

/// The key is the event's id, scoped by provider.
pub(crate) fn idempotency(broker: &Client) -> Result<Idempotency> {
    let route: Route = "POST /webhooks/{provider}".parse()?;
    let route = route.key_from(|_, body| {
        let event: Delivered = serde_json::from_slice(body).ok()?;
        Some(event.id)
    });
    let layer = Idempotency::builder(broker.queue("webhooks"))
        .route(route)
        .tenant(|request| request.uri.path().rsplit('/').next().map(str::to_owned))
        // Headers differ between deliveries of the same event.
        .fingerprint_headers([])
        // Providers retry soon: a process that died should not hold its key for long.
        .lease(Duration::from_secs(5))
        .worker("webhooks example")
        .build()?;
    Ok(layer)
}

/// A real receiver verifies the provider's signature first, in an outer layer: otherwise anybody
/// could use up a key.
pub(crate) fn app(receiver: Arc<Receiver>, idempotency: &Idempotency) -> Router {
    Router::new()
        .route("/webhooks/{provider}", post(receive))
        .with_state(receiver)
        .layer(idempotency.clone())
}

async fn receive(
    State(receiver): State<Arc<Receiver>>,
    Extension(operation): Extension<Operation>,
    Json(event): Json<Delivered>,
) -> Response {
    match handle(&receiver, &operation, &event).await {
        Ok(verdict) => Json(verdict).into_response(),
        // Not remembered: the provider retries, and the next attempt continues from the saved
        // recovery point.
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn handle(receiver: &Receiver, operation: &Operation, event: &Delivered) -> Result<Verdict> {
    let verdict = match operation.recovery_point("verdict") {
        Some(saved) => serde_json::from_slice(&saved)?,
        None => {
            let verdict = receiver.apply(operation.tenant(), event)?;
            operation.save("verdict", serde_json::to_vec(&verdict)?).await?;
            verdict
        }
    };
    if receiver.is_crashing {
        std::process::abort();
    }
    receiver.after_applying.acquire().await?.forget();
    if verdict == Verdict::Applied {
        // The same key for every attempt, so that it is one notification.
        receiver.notify(operation.derive("notify"), event);
    }
    Ok(verdict)
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let broker = Client::connect(&arguments.server)?;
    let admin = Admin::new(broker.clone());
    match admin.queue("webhooks").await {
        Err(error) if error.code() == Code::NoSuchQueue => {
            // More than twice the time for which the provider retries.
            let rules = r#"{"retention_ms":2592000000,"retry_horizon_ms":864000000}"#;
            admin.put_queue("webhooks", rules, None).await?;
        }
        queue => drop(queue.context("no broker: start one with hapax dev")?),
    }
    let mut receiver = Receiver::new(&arguments.data)?;
    receiver.is_crashing = arguments.crash;
    let listener = tokio::net::TcpListener::bind(arguments.listen).await?;
    print_address(&format!("http://{}", listener.local_addr()?));
    axum::serve(listener, app(Arc::new(receiver), &idempotency(&broker)?)).await?;
    Ok(())
}

#[expect(clippy::print_stdout, reason = "prints where it listens")]
fn print_address(url: &str) {
    let event = r#"{"id":"evt_1","object":"invoice-7","sequence":1,"state":"paid"}"#;
    println!("listening at {url}; try twice, then with other ids and sequences:\n");
    println!("  curl -i {url}/webhooks/bank -H 'Content-Type: application/json' -d '{event}'");
}
