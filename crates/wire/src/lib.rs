//! The wire types of Hapax: requests, answers, error codes, keys.
//!
//! Each is one struct that is both a message of `proto/hapax/v1/hapax.proto` and a JSON document.
//! Its fields are declared in the order of the JSON and have the tags of the `.proto`, which is the
//! contract; `tests/generated.rs` compares the two. Where the two forms differ, the struct declares
//! how a field is written: a missing text is empty in protobuf and `null` in JSON, a time is
//! milliseconds or RFC 3339, an id is bytes or a UUID. A form that exists in JSON only, such as a
//! tagged answer, is made from the struct in the same file.
//!
//! This crate has types only: no rules of a queue, no sockets. Server and client both depend on it,
//! so it depends on neither.

mod answer;
mod blob;
mod code;
mod delivery;
pub mod json;
pub mod key;
pub mod lean;
mod message;
pub mod nearest;
mod page;
mod problem;
pub mod proto;
mod queue;
mod redrive;
pub mod settle;
mod state;
mod text;

pub use answer::{Answer, AnswerKind, Answered, Answers, ClaimReply, Claimed, Outcome};
pub use blob::Blob;
pub use code::Code;
pub use delivery::{Delivery, ReceiveReply, ReceiveRequest};
pub use key::{BrowseReply, Changed, Event, Key, Resolve};
pub use message::{BATCH_MAX, Batch, EMIT_MAX, Emit, Message};
pub use page::{ErrorPage, ErrorPages, Limits, Nothing};
pub use problem::{Differs, Document, Problem};
pub use queue::{
    DedupScope, Field, Guarantee, ListQueuesReply, OnDead, OnGroupDead, OnLost, Order,
    PurgeRequest, Queue, QueueConfig, QueueStats, UndatedKeys,
};
pub use redrive::{Redrive, RedriveFilter, RedriveProgress};
pub use settle::{SETTLE_MAX, Settle, SettleAnswer, SettleItem, SettleKind, SettleReply, Settles};
pub use state::State;
pub use text::{Fence, Id, Lease, Text, Timestamp};

/// The tenant of callers if the broker does not authenticate them.
pub const DEFAULT_TENANT: &str = "default";
