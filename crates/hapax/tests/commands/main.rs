//! The binary as a newcomer uses it, as an operator uses it, and as a fault uses it.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that fails should say where"
)]

#[macro_use]
#[path = "../faults/on_one_and_on_four.rs"]
mod on_one_and_on_four;

mod benches;
mod broker;
mod dead;
mod doors;
mod help;
mod json;
mod keys;
mod local;
mod queues;
mod sends;
mod serves;
mod tokens;
mod works;
