//! What Hapax says on the network: error codes, protobuf, JSON, keys.
//!
//! Shapes and their names only: no rule of a queue, no socket. Both ends build on it, so it knows
//! neither the machine of the broker nor the worker of the client.

mod code;
pub mod json;
pub mod key;
pub mod lean;
pub mod nearest;
pub mod proto;

pub use code::Code;
