//! What the HTTP door says and takes, as JSON.
//!
//! Shapes and their names only: what a field means is decided elsewhere. Texts borrow from the
//! request or from the message they describe ([`Text`]), so that a batch costs no copies; the
//! OpenAPI document is made from the same types.
//!
//! Requests are read strictly, all of them by [`read`]: a field that is unknown or there twice, and
//! an array in place of an object, are refused.

mod answer;
mod key;
mod message;
mod page;
mod problem;
mod queue;
mod read;
mod strict;
mod text;
mod work;

pub use answer::{Answer, Answers, Claimed};
pub use key::{Changed, Event, Key, Keys, Redrive, RedriveFilter, RedriveProgress, Resolve};
pub use message::{BATCH_MAX, BadBody, Batch, Blob, Headers, Message, body_bytes, body_text};
pub use page::{ErrorPage, ErrorPages, Limits};
pub use problem::{Differs, Problem};
pub use queue::{
    DedupScope, Field, Guarantee, Nothing, OnDead, OnGroupDead, OnLost, Order, Purge, Queue,
    QueueConfig, Queues, Stats, UndatedKeys,
};
pub use read::{BadJson, List, Tolerant, read};
pub use text::{Fence, Id, State, Text, Timestamp};
pub use work::{
    Delivery, EMIT_MAX, Emit, Points, Receive, Received, SETTLE_MAX, Settle, SettleItem, Settled,
    Settles,
};
