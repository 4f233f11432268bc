//! The HTTP door, called through its router: every endpoint, every code, and what strangers send.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test stops at surprises")]

mod http {
    mod access;
    mod batches;
    mod broker;
    mod claims;
    mod described;
    mod documents;
    mod errors;
    mod fairness;
    mod hostile;
    mod keys;
    mod operators;
    mod queues;
    mod recipes;
    mod sending;
    mod strict;
    mod takes;
    mod waiting;
    mod walk;
    mod working;
}
