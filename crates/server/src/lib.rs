//! The broker: its APIs, authorisation, and a writer thread for each partition.
//!
//! ```text
//!   doors      bytes → Command, Outcome → bytes; no rules          doors/
//!   service    who may do what, counted and bounded; one for all   service.rs, auth.rs
//!   engine     which partition; a writer thread for each           engine/
//! ```

pub mod auth;
mod broker;
pub mod cluster;
pub mod doors;
pub mod engine;
pub mod lease;
pub mod lint;
pub mod listen;
pub mod log;
pub mod metrics;
pub mod options;
pub mod problem;
pub mod service;
mod stamp;
pub mod tenants;
pub mod time;
mod whole;

pub use broker::{Broker, Error, check_files};
pub use cluster::Node;
pub use options::Options;
