//! The store on PostgreSQL, and what the nodes of one broker share there.
//!
//! A partition's batches are rows of `hapax.journal`, its runs pieces of 1 MiB in `hapax.chunk`,
//! its manifest a row of `hapax.manifest`; a directory on the local disk caches runs. Who owns a
//! partition is decided by one row of `hapax.partition`, which every append locks and checks. No
//! clock decides anything: see docs/decisions/0023-the-store-in-postgresql.md.
//!
//! What decides knows no connection: without the feature `connection` the crate has that part
//! alone, for the simulator, whose database is a model.
//!
//! Everything here blocks, or returns at once and wakes: connections live on a thread of this
//! crate's own. Call what blocks from a thread that may.
//!
//! Important types: [`Settings`] (the URL), [`Database`] (connections, checks, what is shared),
//! [`PostgresStore`] (one partition), [`Members`] (nodes), [`judge::Judge`] (who is gone).

pub mod appender;
mod cache;
pub mod call;
mod claim;
pub mod conformance;
#[cfg(feature = "connection")]
mod connection;
#[cfg(feature = "connection")]
mod database;
#[cfg(feature = "connection")]
mod drive;
mod error;
#[cfg(feature = "connection")]
pub mod import;
pub mod judge;
mod lane;
mod log;
mod members;
pub mod node;
mod ownership;
#[cfg(feature = "connection")]
mod patience;
#[cfg(feature = "connection")]
mod repeats;
#[cfg(feature = "connection")]
mod schema;
#[cfg(feature = "connection")]
mod settings;
#[cfg(feature = "connection")]
mod sql;
mod steps;
#[cfg(feature = "connection")]
mod store;
#[cfg(feature = "connection")]
mod tls;
mod volume;
mod witness;

pub use claim::{Claimed, Claiming, Ground};
#[cfg(feature = "connection")]
pub use database::{Create, Database, Secret, Shared};
pub use error::{BadUrl, Failure, Refused, Warning};
pub use lane::{Lane, OnAppend, Pass};
pub use log::PostgresLog;
#[cfg(feature = "connection")]
pub use members::Members;
pub use members::{Heartbeat, Node, NodeRow, NodeState, OwnerRow, Seen};
#[cfg(feature = "connection")]
pub use repeats::Repeats;
#[cfg(feature = "connection")]
pub use schema::FEATURE;
#[cfg(feature = "connection")]
pub use settings::Settings;
pub use steps::{Steps, Taken};
#[cfg(feature = "connection")]
pub use store::{Options, PostgresStore};
pub use uuid::Uuid;
pub use volume::PIECE_BYTES;
pub use witness::{Note, Witness, Witnesses};
