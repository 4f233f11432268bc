//! Idempotency keys for HTTP services: a tower layer on claims of Hapax.
//!
//! A client sends `Idempotency-Key` with a request that must not be carried out twice, and the
//! same key with every retry of it. The first request reaches the handler; its response is stored
//! by the broker, and every later one gets it, byte for byte, with `Idempotency-Replayed: true`.
//! The layer knows HTTP and claims; it stores nothing itself, so that any number of processes
//! share one memory, and one that dies takes nothing with it. What is promised, and where that
//! ends, is in `docs/guides/http-idempotency.md`.
//!
//! | a request | gets |
//! |---|---|
//! | to no listed route, or without a key where it is optional | the handler, as it streams |
//! | without a key where it is required; with a malformed one | 400 |
//! | whose `Connection` names a header that tells who asks, or what | 400, on every route |
//! | the first of its key | the handler's response, once it is stored |
//! | again, when that has ended | the same response, marked |
//! | again, while it is in progress | 409 `in_flight`; with `Prefer: wait` the response |
//! | another one under the same key | 422 `conflict` |
//! | while the broker is away | 503 `unavailable`, or the handler where that was chosen |
//!
//! ```no_run
//! use axum::{Router, routing::post};
//! use hapax_client::Client;
//! use hapax_idempotency::Idempotency;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let broker = Client::connect("http://127.0.0.1:4747")?;
//! let idempotency = Idempotency::builder(broker.queue("http"))
//!     .required("POST /charges")
//!     .optional("PUT,PATCH /orders/{order}")
//!     .build()?;
//! let app: Router = Router::new()
//!     .route("/charges", post(|| async { "charged" }))
//!     .layer(idempotency);
//! # Ok(())
//! # }
//! ```

mod body;
mod builder;
mod check;
mod connection;
mod event;
mod key;
mod layer;
mod limits;
mod operation;
mod policy;
mod prefer;
mod problem;
mod route;
mod run;
mod scope;
mod settle;
mod stored;
mod upload;

pub use body::ResponseBody;
pub use builder::{BuildError, Builder, CREDENTIALS, OnUnavailable};
pub use connection::{is_end_to_end, named as named_by_connection};
pub use event::{Event, Outcome, Settlement};
pub use layer::{Guarded, Idempotency};
pub use operation::Operation;
pub use policy::{Headers, Policy, Remember};
pub use problem::Problem;
pub use route::{BadRoute, Route};
