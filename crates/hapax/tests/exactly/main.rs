//! Exactly once, end to end: real processes, killed with no time for last words, and effects that
//! are counted elsewhere. Every protection has a test that does without it and sees the double
//! effect.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that fails should say where"
)]

#[macro_use]
extern crate hapax_testing;

mod gateway;
mod inbox;
mod outbox;
mod pipeline;
mod places;
mod process;
mod steps;

the_program!();
