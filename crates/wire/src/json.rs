//! Reads untrusted JSON.
//!
//! All requests are read strictly, by [`read`]: unknown fields, duplicate fields and arrays in
//! place of objects are refused.

mod read;
mod strict;

pub use read::{BadJson, List, Tolerant, read};
