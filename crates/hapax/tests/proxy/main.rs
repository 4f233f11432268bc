//! `hapax proxy`, the real binary, between clients and a service that counts.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test stops at surprises")]

#[macro_use]
extern crate hapax_testing;

mod crashes;
mod doubt;
mod process;
mod protects;
mod starts;
mod stops;
mod through;
mod upstream;
