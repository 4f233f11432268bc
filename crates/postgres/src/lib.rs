//! The store on PostgreSQL, and what the nodes of one broker share there.
//!
//! A partition's batches are rows of `hapax.journal`, its runs pieces of 1 MiB in `hapax.chunk`,
//! its manifest a row of `hapax.manifest`; a directory on the local disk caches runs. Who owns a
//! partition is decided by one row of `hapax.partition`, which every append locks and checks. No
//! clock decides anything: see docs/decisions/0023-the-store-in-postgresql.md.
//!
//! Everything here blocks, or returns at once and wakes: connections live on a thread of this
//! crate's own. Call what blocks from a thread that may.
//!
//! Important types: [`Settings`] (the URL), [`Database`] (connections, checks, what is shared),
//! [`PostgresStore`] (one partition), [`Members`] (nodes), [`judge::Judge`] (who is gone).

pub mod appender;
mod cache;
pub mod call;
pub mod conformance;
mod connection;
mod database;
mod error;
pub mod judge;
mod lane;
mod log;
mod members;
mod schema;
mod settings;
mod sql;
mod store;
mod tls;
mod volume;
mod witness;

pub use database::{Create, Database, Secret, Shared};
pub use error::{BadUrl, Failure, Refused};
pub use lane::Lane;
pub use log::PostgresLog;
pub use members::{Heartbeat, Members, Node, NodeRow, NodeState, OwnerRow, Seen};
pub use schema::FEATURE;
pub use settings::Settings;
pub use store::{Options, PostgresStore};
pub use uuid::Uuid;
