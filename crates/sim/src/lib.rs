//! The simulator: runs the code that ships on a disk that fails, everything from one seed.
//!
//! Nothing here has a thread, a clock or a source of chance other than [`Random`], so a seed that
//! fails once fails every time. The disk is [`SimDisk`]; what a store sees of it is [`SimVolume`].

mod random;
pub mod volume;

pub use random::Random;
pub use volume::{SimDisk, SimVolume};
