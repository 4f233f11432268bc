//! The port, against clients good and bad.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test stops at surprises")]

mod encrypted;
mod hostile;
mod plain;
mod port;
mod stopping;
