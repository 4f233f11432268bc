//! All types of the `.proto`: the hand-written ones of this crate, and the generated frames, small
//! requests and gRPC stubs.
//!
//! The generated file is kept in the repository, so that building Hapax needs neither protoc nor
//! the time to build a generator. A test generates it again and compares. After a change of the
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

/// The names of requests and replies: by them their members are counted.
macro_rules! named {
    ($($name:ident)+) => {$(
        impl prost::Name for $name {
            const NAME: &'static str = stringify!($name);
            const PACKAGE: &'static str = "hapax.v1";
        }
    )+};
}

named! {
    BackupProgress BackupRequest BrowseReply BrowseRequest ClaimReply ClaimRequest ClaimsFrame
    ClaimsReply Empty GetKeyRequest GetRedriveRequest Key KeyRequest ListQueuesReply
    ListQueuesRequest PurgeRequest PutQueueRequest Queue QueueRequest ReceiveReply ReceiveRequest
    RedriveProgress RedriveRequest ReplayRequest ResolveRequest SendFrame SendReply SetLogRequest
    SettleReply SettleRequest WorkFrame WorkReply
}
