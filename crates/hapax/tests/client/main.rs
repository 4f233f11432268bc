//! The Rust client against a running broker, over connections that break.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test stops at surprises")]

#[macro_use]
extern crate hapax_testing;

mod at_most_once;
mod broken;
mod claims;
mod leases;
mod secure;
mod sends;
mod steps;
mod workers;
