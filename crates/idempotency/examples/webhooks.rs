//! A receiver of webhooks: the program of `docs/guides/webhooks.md`.
//!
//! A provider delivers every event at least once, in no order, and gives up on those who answer
//! late. The key is (provider, event id), so that a repeated delivery gets the first answer. What
//! an event says is only applied if its sequence is above that of what was applied before. And
//! what was applied is a recovery point: a receiver that dies after it goes on from there.
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
    /// Where the state of the objects is kept.
    #[arg(long, default_value = "webhooks-data")]
    data: PathBuf,
    /// End at once after applying the next event, before anybody is told of it. Start again
    /// without it, and let the provider deliver again.
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

/// What is known of an object: the newest of what was said about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Known {
    pub(crate) sequence: u64,
    pub(crate) state: String,
    /// Of the event that said so.
    pub(crate) event: String,
}

/// Whether an event told something new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Applied,
    /// Something newer was known already.
    Older,
}

/// The receiver's own state, and whom it tells about changes.
#[derive(Debug)]
pub(crate) struct Receiver {
    directory: PathBuf,
    /// One change at a time; several processes would need a database here.
    changing: Mutex<()>,
    /// Stands for another service that takes keys: who was told what.
    pub(crate) told: Mutex<BTreeMap<String, String>>,
    /// Let through after an event was applied; closed, to see what a crash there does.
    pub(crate) after_applying: Semaphore,
    is_crashing: bool,
}

impl Receiver {
    pub(crate) fn new(directory: &Path) -> Result<Self> {
        std::fs::create_dir_all(directory)?;
        Ok(Self {
            directory: directory.to_owned(),
            changing: Mutex::default(),
            told: Mutex::default(),
            after_applying: Semaphore::new(Semaphore::MAX_PERMITS),
            is_crashing: false,
        })
    }

    pub(crate) fn known(&self, provider: &str, object: &str) -> Option<Known> {
        let text = std::fs::read(self.file(provider, object)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Applies an event, unless something newer is known. Asked again about the one that was
    /// applied last, it says so: the process may have died before it could save that.
    fn apply(&self, provider: &str, event: &Delivered) -> Result<Verdict> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        match self.known(provider, &event.object) {
            Some(known) if known.event == event.id => return Ok(Verdict::Applied),
            Some(known) if known.sequence >= event.sequence => return Ok(Verdict::Older),
            _ => {}
        }
        let Delivered { id, sequence, state, .. } = event.clone();
        let known = serde_json::to_vec(&Known { sequence, state, event: id })?;
        // Whoever reads it meanwhile sees the old or the new, never half of it.
        let file = self.file(provider, &event.object);
        let temporary = file.with_extension("tmp");
        std::fs::write(&temporary, known)?;
        std::fs::rename(&temporary, file)?;
        Ok(Verdict::Applied)
    }

    fn tell(&self, key: String, event: &Delivered) {
        let news = format!("{} is {}", event.object, event.state);
        self.told.lock().unwrap_or_else(PoisonError::into_inner).insert(key, news);
    }

    /// Every provider has objects of its own.
    fn file(&self, provider: &str, object: &str) -> PathBuf {
        let name: String = format!("{provider} {object}")
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' })
            .collect();
        self.directory.join(format!("{name}.json"))
    }
}

/// The key is the event's id, and every provider has keys of its own.
pub(crate) fn idempotency(broker: &Client) -> Result<Idempotency> {
    let route: Route = "POST /webhooks/{provider}".parse()?;
    let route = route.key_from(|_, body| {
        let event: Delivered = serde_json::from_slice(body).ok()?;
        Some(event.id)
    });
    let layer = Idempotency::builder(broker.queue("webhooks"))
        .route(route)
        .tenant(|request| request.uri.path().rsplit('/').next().map(str::to_owned))
        // Deliveries differ in their headers; what counts is the event.
        .fingerprint_headers([])
        // A provider comes again soon: a key should not stay taken for long by a process that died.
        .lease(Duration::from_secs(5))
        .worker("webhooks example")
        .build()?;
    Ok(layer)
}

/// A real receiver checks the provider's signature first, in a layer outside of this one: what
/// anybody can send must not take a key.
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
        // Not remembered: the provider delivers again, and the next try goes on from what was
        // saved.
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
        // The same key for every try, so that it is told once.
        receiver.tell(operation.derive("tell"), event);
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
            // As long as the provider may deliver again, twice.
            let rules = r#"{"retention_ms":2592000000,"retry_horizon_ms":864000000}"#;
            admin.put_queue("webhooks", rules, None).await?;
        }
        queue => drop(queue.context("no broker: start one with hapax dev")?),
    }
    let mut receiver = Receiver::new(&arguments.data)?;
    receiver.is_crashing = arguments.crash;
    let listener = tokio::net::TcpListener::bind(arguments.listen).await?;
    tell(&format!("http://{}", listener.local_addr()?));
    axum::serve(listener, app(Arc::new(receiver), &idempotency(&broker)?)).await?;
    Ok(())
}

#[expect(clippy::print_stdout, reason = "a program says where it listens")]
fn tell(url: &str) {
    let event = r#"{"id":"evt_1","object":"invoice-7","sequence":1,"state":"paid"}"#;
    println!("listening at {url}; try twice, then with other ids and sequences:\n");
    println!("  curl -i {url}/webhooks/bank -H 'Content-Type: application/json' -d '{event}'");
}
