//! Idempotency keys for HTTP services: a tower layer on claims of Hapax.
//!
//! A client sends `Idempotency-Key` with a request that must not be carried out twice, and the same
//! key with every retry of it. The first request reaches the handler. The broker stores its
//! response, and every retry gets that response, byte for byte, with `Idempotency-Replayed: true`.
//! The layer keeps no state itself: any number of processes can share the keys, and a process that
//! dies loses none. `docs/guides/http-idempotency.md` describes the guarantees and their limits.
//!
//! | a request | gets |
//! |---|---|
//! | to an unlisted route, or without a key where it is optional | the handler, streamed |
//! | without a required key; with an invalid one | 400 |
//! | whose `Connection` names an end-to-end header | 400, on every route |
//! | the first with its key | the handler's response, once it is stored |
//! | a retry after the first has ended | the same response, marked |
//! | a retry while it is in progress | 409 `in_flight`; with `Prefer: wait` the response |
//! | a different one with the same key | 422 `conflict` |
//! | while the broker cannot be reached | 503 `unavailable`; or the handler, if configured |
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
pub use route::{BadRoute, NoKey, Route};
