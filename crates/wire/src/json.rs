//! Reading JSON from strangers.
//!
//! Requests are read strictly, all of them by [`read`]: a field that is unknown or there twice, and
//! an array in place of an object, are refused.

mod read;
mod strict;

pub use read::{BadJson, List, Tolerant, read};
