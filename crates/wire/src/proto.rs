//! The protobuf messages and the gRPC stubs, generated from `proto/hapax/v1/hapax.proto`.
//!
//! The generated file is kept in the repository, so that building Hapax needs neither protoc nor
//! the time to build a generator; a test makes it anew and compares. After a change of the
//! `.proto`, `HAPAX_BLESS=1 cargo test -p hapax-wire --test generated` writes it.

#[expect(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "generated code"
)]
#[rustfmt::skip]
#[path = "proto/hapax.v1.rs"]
mod generated;

pub use generated::*;

/// The descriptors of everything, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("proto/hapax.v1.bin");
