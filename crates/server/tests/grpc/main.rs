//! The gRPC door of a running broker, over a real connection.
#![expect(clippy::unwrap_used, reason = "a test stops at surprises")]

mod broker;
mod claims;
mod hostile;
mod send;
mod standby;
mod stopping;
mod tokens;
mod unary;
mod work;
