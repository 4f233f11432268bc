//! The rules, by their numbers. A test is named for the rule it shows.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test: what fails here fails it"
)]

mod support;

mod rules {
    mod away;
    mod bad_input;
    mod bounds;
    mod bytes;
    mod claims;
    mod groups;
    mod history;
    mod keys;
    mod leases;
    mod liveness;
    mod lookalikes;
    mod memory;
    mod operators;
    mod precedence;
    mod redrives;
    mod script;
    mod settles;
    mod speak;
    mod steps;
    mod time;
    mod words;
}
