//! The services around the payment service, in the one process that is never killed: the gateway,
//! which charges once per key, the counters of absorbed duplicates, and the choice of processes to
//! kill.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;

use crate::faults::{Fault, Faults};

pub(crate) const CHARGES: &str = "/charges";

/// The five sources of duplicates, by what absorbs them.
pub(crate) const PLACES: usize = 5;

/// A duplicate that was absorbed, as reported by the processes of the service.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Absorbed {
    /// By a row that was written in the same transaction as the effect: source 5.
    ByARow,
}

impl Absorbed {
    /// Reports it. A lost report only makes the count too low.
    pub(crate) async fn tell(self, services: SocketAddr) {
        let Self::ByARow = self;
        let _ = crate::http::post(services, "/absorbed/5", &[], String::new()).await;
    }
}

/// A worker has committed and not settled yet: the moment at which it may be killed.
pub(crate) async fn committed(services: SocketAddr, order: u32) {
    let process = std::process::id().to_string();
    let path = format!("/committed/{order}");
    let _ = crate::http::post(services, &path, &[("process", &process)], String::new()).await;
}

/// The state of the services.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Charges by their keys: the order, and the receipt.
    charges: HashMap<String, (u32, String)>,
    pub(crate) calls: u64,
    /// Duplicates that were absorbed, by the number of their source less one.
    pub(crate) absorbed: [u64; PLACES],
    /// Faults that have happened: each happens once per order.
    happened: HashSet<(Fault, u32)>,
}

impl Ledger {
    /// The number of charges of each order that has any.
    pub(crate) fn charges_by_order(&self) -> BTreeMap<u32, usize> {
        let mut counts = BTreeMap::new();
        for (order, _) in self.charges.values() {
            *counts.entry(*order).or_default() += 1;
        }
        counts
    }

    pub(crate) fn charges(&self) -> usize {
        self.charges.len()
    }

    pub(crate) fn absorb(&mut self, place: usize, count: u64) {
        if let Some(total) = self.absorbed.get_mut(place - 1) {
            *total += count;
        }
    }
}

/// The services, shared by their request handlers.
#[derive(Clone, Debug)]
pub(crate) struct FakeServices {
    ledger: Arc<Mutex<Ledger>>,
    faults: Faults,
    /// Processes to be killed.
    kill: mpsc::UnboundedSender<u32>,
}

#[derive(Debug, Deserialize)]
struct Charge {
    order: u32,
    cents: u64,
}

impl FakeServices {
    /// Starts them; returns their address, and the receiver of processes to kill.
    pub(crate) async fn open(
        faults: Faults,
    ) -> Result<(Self, SocketAddr, mpsc::UnboundedReceiver<u32>)> {
        let (kill, victims) = mpsc::unbounded_channel();
        let services = Self { ledger: Arc::default(), faults, kill };
        let app = Router::new()
            .route(CHARGES, post(charge))
            .route("/committed/{order}", post(after_commit))
            .route("/absorbed/{place}", post(absorbed))
            .with_state(services.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move { axum::serve(listener, app).await });
        Ok((services, address, victims))
    }

    /// Consistent after a panic: every change is one call.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the fault happens to the order now; true once.
    fn happens(&self, fault: Fault, order: u32) -> bool {
        self.faults.has(fault, order) && self.ledger().happened.insert((fault, order))
    }

    /// Kills a process that waits for an answer.
    async fn kill(&self, headers: &HeaderMap) -> Response {
        let process = headers.get("process").and_then(|id| id.to_str().ok()?.parse().ok());
        if let Some(process) = process {
            let _ = self.kill.send(process);
            // The caller is gone long before.
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        StatusCode::NO_CONTENT.into_response()
    }
}

/// Charges, once per key.
async fn charge(
    State(services): State<FakeServices>,
    headers: HeaderMap,
    Json(charge): Json<Charge>,
) -> Response {
    let Some(key) = headers.get("idempotency-key").and_then(|key| key.to_str().ok()) else {
        return (StatusCode::BAD_REQUEST, "charges need an idempotency key").into_response();
    };
    let receipt = {
        let mut ledger = services.ledger();
        ledger.calls += 1;
        if ledger.charges.contains_key(key) {
            ledger.absorb(4, 1);
        }
        let number = ledger.charges.len() + 1;
        let fresh = || (charge.order, format!("receipt {number} over {} cents", charge.cents));
        ledger.charges.entry(key.to_owned()).or_insert_with(fresh).1.clone()
    };
    if services.happens(Fault::Slow, charge.order) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    if services.happens(Fault::GatewaySilent, charge.order) {
        let lost = std::io::Error::other("lost on the way");
        let nothing = futures_util::stream::iter([Err::<Bytes, _>(lost)]);
        return Body::from_stream(nothing).into_response();
    }
    if services.happens(Fault::KilledAfterCharge, charge.order) {
        return services.kill(&headers).await;
    }
    Json(json!({ "receipt": receipt })).into_response()
}

async fn after_commit(
    State(services): State<FakeServices>,
    Path(order): Path<u32>,
    headers: HeaderMap,
) -> Response {
    if services.happens(Fault::KilledAfterCommit, order) {
        return services.kill(&headers).await;
    }
    StatusCode::NO_CONTENT.into_response()
}

async fn absorbed(State(services): State<FakeServices>, Path(place): Path<usize>) -> StatusCode {
    if !(1..=PLACES).contains(&place) {
        return StatusCode::NOT_FOUND;
    }
    services.ledger().absorb(place, 1);
    StatusCode::NO_CONTENT
}
