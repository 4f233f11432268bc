//! The town around the service, which is never killed: the gateway, which charges once per key, and
//! those who count what was absorbed and point out whom to kill.

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

use crate::fate::{Fate, Mischief};

pub(crate) const CHARGES: &str = "/charges";

/// The five places where duplicates are born, by what absorbs them.
pub(crate) const PLACES: usize = 5;

/// A duplicate that was absorbed, as far as the processes of the service tell.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Absorbed {
    /// By a row that was written in the same transaction as the effect: place 5.
    ByARow,
}

impl Absorbed {
    /// Tells the town. A count that gets lost is a count too few, and no more than that.
    pub(crate) async fn tell(self, town: SocketAddr) {
        let Self::ByARow = self;
        let _ = crate::http::post(town, "/absorbed/5", &[], String::new()).await;
    }
}

/// A worker has committed, and not acknowledged yet: the moment in which the town may kill it.
pub(crate) async fn committed(town: SocketAddr, order: u32) {
    let process = std::process::id().to_string();
    let path = format!("/committed/{order}");
    let _ = crate::http::post(town, &path, &[("process", &process)], String::new()).await;
}

/// What the town knows.
#[derive(Debug, Default)]
pub(crate) struct Books {
    /// Charges by their keys: the order, and the receipt.
    charges: HashMap<String, (u32, String)>,
    pub(crate) calls: u64,
    /// Duplicates that were absorbed, by their place less one.
    pub(crate) absorbed: [u64; PLACES],
    /// What happens to an order happens once.
    happened: HashSet<(Mischief, u32)>,
}

impl Books {
    /// So many charges for each order that has any.
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

/// The town, shared by all who serve in it.
#[derive(Clone, Debug)]
pub(crate) struct Town {
    books: Arc<Mutex<Books>>,
    fate: Fate,
    /// Processes to be killed.
    kill: mpsc::UnboundedSender<u32>,
}

#[derive(Debug, Deserialize)]
struct Charge {
    order: u32,
    cents: u64,
}

impl Town {
    /// Opens it, and tells where it is, and whom to kill from time to time.
    pub(crate) async fn open(
        fate: Fate,
    ) -> Result<(Self, SocketAddr, mpsc::UnboundedReceiver<u32>)> {
        let (kill, victims) = mpsc::unbounded_channel();
        let town = Self { books: Arc::default(), fate, kill };
        let app = Router::new()
            .route(CHARGES, post(charge))
            .route("/committed/{order}", post(after_commit))
            .route("/absorbed/{place}", post(absorbed))
            .with_state(town.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move { axum::serve(listener, app).await });
        Ok((town, address, victims))
    }

    /// Sound after a panic: every change of the books is one call.
    pub(crate) fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this happens to the order, now and only now.
    fn strikes(&self, mischief: Mischief, order: u32) -> bool {
        self.fate.has(mischief, order) && self.books().happened.insert((mischief, order))
    }

    /// Kills a process that waits for an answer it will not hear.
    async fn kill(&self, headers: &HeaderMap) -> Response {
        let process = headers.get("process").and_then(|id| id.to_str().ok()?.parse().ok());
        if let Some(process) = process {
            let _ = self.kill.send(process);
            // Whoever asked is gone long before.
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        StatusCode::NO_CONTENT.into_response()
    }
}

/// Charges, once per key.
async fn charge(
    State(town): State<Town>,
    headers: HeaderMap,
    Json(charge): Json<Charge>,
) -> Response {
    let Some(key) = headers.get("idempotency-key").and_then(|key| key.to_str().ok()) else {
        return (StatusCode::BAD_REQUEST, "charges need an idempotency key").into_response();
    };
    let receipt = {
        let mut books = town.books();
        books.calls += 1;
        if books.charges.contains_key(key) {
            books.absorb(4, 1);
        }
        let number = books.charges.len() + 1;
        let fresh = || (charge.order, format!("receipt {number} over {} cents", charge.cents));
        books.charges.entry(key.to_owned()).or_insert_with(fresh).1.clone()
    };
    if town.strikes(Mischief::Slow, charge.order) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    if town.strikes(Mischief::GatewaySilent, charge.order) {
        let lost = std::io::Error::other("lost on the way");
        let nothing = futures_util::stream::iter([Err::<Bytes, _>(lost)]);
        return Body::from_stream(nothing).into_response();
    }
    if town.strikes(Mischief::KilledAfterCharge, charge.order) {
        return town.kill(&headers).await;
    }
    Json(json!({ "receipt": receipt })).into_response()
}

async fn after_commit(
    State(town): State<Town>,
    Path(order): Path<u32>,
    headers: HeaderMap,
) -> Response {
    if town.strikes(Mischief::KilledAfterCommit, order) {
        return town.kill(&headers).await;
    }
    StatusCode::NO_CONTENT.into_response()
}

async fn absorbed(State(town): State<Town>, Path(place): Path<usize>) -> StatusCode {
    if !(1..=PLACES).contains(&place) {
        return StatusCode::NOT_FOUND;
    }
    town.books().absorb(place, 1);
    StatusCode::NO_CONTENT
}
