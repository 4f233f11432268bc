//! The simulator: runs the code that ships on a disk that fails, everything from one seed.
//!
//! ```text
//!   workload ──ops──▶ world: partition, journal, archive ──▶ SimDisk
//!       ▲                │                                     ▲
//!       └────answers─────┴──▶ checker              faults ─────┘
//! ```
//!
//! There is no concurrency, no clock and no source of randomness other than [`Random`], so a seed
//! that fails once fails every time. The disk is [`SimDisk`]; a store accesses it as a
//! [`SimVolume`]. One seed is one [`run`](run::run) of one partition on its disk, one [`broker`]
//! with several partitions and the engine's code between them, or one [`cluster`] of nodes on a
//! model of PostgreSQL.

pub mod broker;
pub mod checker;
pub mod cluster;
pub mod faults;
pub mod op;
pub mod planted;
mod random;
pub mod run;
pub mod scene;
pub mod volume;
pub mod workload;
pub mod world;

pub use random::Random;
pub use volume::{SimDisk, SimVolume};
