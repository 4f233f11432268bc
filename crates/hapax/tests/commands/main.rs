//! The binary as a newcomer uses it, as an operator uses it, and as a fault uses it.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that fails should say where"
)]

#[macro_use]
extern crate hapax_testing;

mod benches;
mod broker;
mod dead;
mod doors;
mod help;
mod json;
mod keys;
mod local;
mod places;
mod queues;
mod sends;
mod serves;
mod tokens;
mod works;
