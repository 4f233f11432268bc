//! Exactly once, end to end: real processes, killed with no time for last words, and effects that
//! are counted elsewhere. Every protection has a test that does without it and sees the double
//! effect.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that fails should say where"
)]

#[macro_use]
#[path = "../faults/on_one_and_on_four.rs"]
mod on_one_and_on_four;

#[path = "../faults/broker.rs"]
#[expect(dead_code, reason = "the fault tests need more of it")]
mod broker;
#[path = "../../../transactions/tests/databases/cluster.rs"]
#[expect(dead_code, reason = "the tests of the library need more of it")]
mod cluster;
mod gateway;
#[path = "../faults/http.rs"]
#[expect(dead_code, reason = "the fault tests need more of it")]
mod http;
mod inbox;
mod outbox;
mod pipeline;
mod places;
mod process;
mod steps;
