//! Everything that the `.proto` names: the shapes of this crate, and beside them the frames, the
//! small requests and the gRPC stubs, which are generated.
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

pub use crate::settle::{self, Begin, Done, Extend, Fail, Park, Release, Save};
pub use crate::{
    Answer, AnswerKind, Blob, BrowseReply, ClaimReply, Delivery, Emit, Event, Key, ListQueuesReply,
    Message, Outcome, Problem, PurgeRequest, Queue, QueueStats, ReceiveReply, ReceiveRequest,
    RedriveFilter, RedriveProgress, Settle, SettleAnswer, SettleKind, SettleReply, State,
};
pub use generated::*;

/// The descriptors of everything, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("proto/hapax.v1.bin");
