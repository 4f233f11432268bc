//! The HTTP API: `POST /orders`, behind the idempotency layer.
//!
//! The layer answers a repeated request with the first one's response. It cannot know whether a
//! process that died had committed: then the key is freed when its lease ends, the handler runs
//! again, and finds the row of the order.

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

use crate::Settings;
use crate::database::{Database, Placed};
use crate::services::Absorbed;

/// The key of a process that died is freed after this.
const LEASE: Duration = Duration::from_millis(1_500);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) number: u32,
    pub(crate) cents: u64,
}

struct Service {
    settings: Settings,
    database: Database,
}

pub(crate) async fn serve(listen: SocketAddr, settings: Settings) -> Result<()> {
    let broker = Client::connect(&settings.server)?;
    let idempotency =
        Idempotency::builder(broker.queue("http")).required("POST /orders").lease(LEASE).build()?;
    let database = Database::open(&settings.database).await?;
    let service = Arc::new(Service { settings, database });
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
    let placed = service.database.place(&service.settings.run, order).await;
    let placed = placed.map_err(|error| (StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
    if placed == Placed::Before {
        Absorbed::ByARow.tell(service.settings.services).await;
    }
    Ok((StatusCode::CREATED, Json(order)))
}
