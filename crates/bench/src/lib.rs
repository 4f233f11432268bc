//! The shared parts of the benchmarks: messages that can be verified, a ledger of their outcomes,
//! the load over the network, CPU time, the disk by itself, server processes, and text.
//!
//! Three programs use them. `hapax bench` (crates/hapax) measures a broker over the network,
//! `hapax-bench` one partition without a broker, `hapax-compare` a broker beside Redis and
//! PostgreSQL. The last two are binaries of this package, each behind a feature.

pub mod cpu;
pub mod disk;
pub mod interrupt;
pub mod ledger;
pub mod messages;
pub mod report;
pub mod server;
pub mod wire;

pub use ledger::Ledger;
pub use messages::Messages;
