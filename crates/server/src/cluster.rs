//! Several nodes on one database, one of which serves.
//!
//! A [`Node`] has its port open from the start. It registers itself in the database, beats, and
//! watches who serves. When nobody does it claims all partitions, opens the engine on them and
//! exchanges its doors; when another node replaced it, it goes back. What it decides is in
//! [`hapax_postgres::node`], which reads no clock and does no I/O; this module and [`open`] carry
//! it out.

mod beats;
mod clock;
pub mod import;
mod node;
mod open;
mod operate;
mod progress;
mod reason;

pub use clock::SharedClock;
pub use node::Node;
pub use operate::{Status, accept_loss, ends, status, tokens};
