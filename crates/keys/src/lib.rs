//! Computations on idempotency keys that the broker and its clients share: derived keys, and the
//! dates in keys.
//!
//! Pure functions of their arguments: no clock, no randomness, no input or output.

mod date;
mod derive;

pub use date::{DATED_AHEAD_MS, date_ms, parse_uuid};
pub use derive::{Parent, derive, derive_first, digest};
