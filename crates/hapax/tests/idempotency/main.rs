//! The layer of `hapax-idempotency` before an axum service, on a running broker.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test stops at surprises")]

#[macro_use]
extern crate hapax_testing;

mod answers;
mod away;
mod begins;
mod examples;
mod once;
mod scopes;
mod shop;
mod sizes;
