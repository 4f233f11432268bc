//! What Hapax says on the network: shapes, error codes, keys.
//!
//! A shape is one struct, which is a message of `proto/hapax/v1/hapax.proto` and a document of JSON
//! at once. Its fields are declared in the order of JSON and carry the tags of the `.proto`, which
//! is the contract; `tests/generated.rs` holds the one against the other. Where the two forms
//! differ, the shape says how it is written: protobuf leaves a text empty where JSON has `null`, a
//! time is milliseconds there and RFC 3339 here, an id its bytes or a UUID. What has a form in JSON
//! alone, as a tagged answer, is made from the shape in the same file.
//!
//! Shapes and their names only: no rule of a queue, no socket. Both ends build on it, so it knows
//! neither the machine of the broker nor the worker of the client.

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

/// The tenant of callers where the broker does not authenticate them.
pub const DEFAULT_TENANT: &str = "default";
