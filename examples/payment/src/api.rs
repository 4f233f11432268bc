//! The HTTP API: `POST /orders`, behind the idempotency layer.
//!
//! The layer answers a request that comes again under its key with the first one's response. What
//! it cannot know is whether a process that died had committed: then the key is free again when its
//! lease is over, the handler runs once more, and the row of the order tells it so.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use hapax_client::Client;
use hapax_idempotency::Idempotency;
use http::StatusCode;
use serde::{Deserialize, Serialize};

use crate::Surroundings;
use crate::database::{Database, Placed};
use crate::town::Absorbed;

/// An operation whose process died is free again after this.
const LEASE: Duration = Duration::from_millis(1_500);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) number: u32,
    pub(crate) cents: u64,
}

struct Service {
    surroundings: Surroundings,
    database: Database,
}

pub(crate) async fn serve(listen: SocketAddr, surroundings: Surroundings) -> Result<()> {
    let broker = Client::connect(&surroundings.server)?;
    let idempotency =
        Idempotency::builder(broker.queue("http")).required("POST /orders").lease(LEASE).build()?;
    let database = Database::open(&surroundings.database).await?;
    let service = Arc::new(Service { surroundings, database });
    let app = Router::new()
        .route("/orders", post(place))
        .route("/health", get(|| async { "well" }))
        .layer(idempotency)
        .with_state(service);
    let listener = tokio::net::TcpListener::bind(listen).await?;
    Ok(axum::serve(listener, app).await?)
}

async fn place(
    State(service): State<Arc<Service>>,
    Json(order): Json<Order>,
) -> Result<(StatusCode, Json<Order>), (StatusCode, String)> {
    // 503 is not remembered: the next request under the key is a first one.
    let placed = service.database.place(&service.surroundings.run, order).await;
    let placed = placed.map_err(|error| (StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
    if placed == Placed::Before {
        Absorbed::ByARow.tell(service.surroundings.town).await;
    }
    Ok((StatusCode::CREATED, Json(order)))
}
