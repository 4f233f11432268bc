//! What can happen to a message. Verbs: one file per command, with its decision and how the
//! decision is applied.
//!
//! `decide` reads the state and returns decisions; `apply` changes the state and decides nothing.
//! Time and randomness come from the stamp, and their results are in the decision.

pub(crate) mod claim;
pub(crate) mod configure;
pub(crate) mod discard;
pub(crate) mod expire;
pub(crate) mod forget;
pub(crate) mod purge;
pub(crate) mod receive;
pub(crate) mod redrive;
pub(crate) mod relay;
pub(crate) mod replay;
pub(crate) mod resolve;
pub(crate) mod send;
pub(crate) mod settle;
