//! The simulator: runs the code that ships on a disk that fails, everything from one seed.
//!
//! ```text
//!   workload ──ops──▶ world: partition, journal, archive ──▶ SimDisk
//!       ▲                │                                     ▲
//!       └────answers─────┴──▶ checker              faults ─────┘
//! ```
//!
//! Nothing here has a thread, a clock or a source of chance other than [`Random`], so a seed that
//! fails once fails every time. The disk is [`SimDisk`]; what a store sees of it is [`SimVolume`].
//! One seed is one [`run`](run::run): one partition on its disk. The partitions of a whole broker,
//! with what the engine does between them, are a [`broker`].

pub mod broker;
pub mod checker;
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
