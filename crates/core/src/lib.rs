//! The rules of Hapax.
//!
//! One [`Machine`] holds the state of one partition. It takes a [`Command`], returns an
//! [`Outcome`], and describes the change as [`Decision`]s, which the caller makes durable before it
//! returns the outcome. Replaying decisions rebuilds the state without deciding again.
//!
//! The core uses no clock and no randomness (both come in a [`Stamp`]), no files, threads, networks
//! or logs. The rows that a decision may need are listed beforehand ([`Machine::needs`]) and passed
//! in ([`Machine::load_point`], [`Machine::load_row`]). What should happen outside is returned as
//! [`Effect`]s.

mod checkpoint;
mod codec;
mod command;
mod config;
mod content;
mod cut;
mod decision;
mod evict;
mod heads;
mod holding;
mod ids;
mod invariants;
mod key;
pub mod limits;
mod list;
mod load;
mod look;
mod machine;
mod message;
mod moves;
mod names;
mod outcome;
mod places;
mod queue;
mod queues;
mod receives;
mod recipe;
mod record;
mod row;
mod state;

pub use checkpoint::Snapshot;
pub use codec::BadBytes;
pub use command::{
    Allowance, Arrival, Blob, Browse, Claim, Command, Configure, DeadLetter, Emit, Expected,
    Follow, KeyName, LeaseName, Purge, QueueName, Receive, Redrive, Replay, Resolution, Resolve,
    Select, SendMessage, Settle, Verb,
};
pub use config::{
    Config, DedupScope, Guarantee, InvalidConfig, OnDead, OnGroupDead, OnLost, Order, UndatedKeys,
};
pub use content::{Builder, Content, Invalid};
pub use decision::{
    Accepted, ClaimLease, Configured, Decision, Leased, Next, QueueId, RedriveStarted,
};
pub use hapax_keys::{Parent, derive};
pub use holding::{Holding, Report};
pub use ids::{Fence, MessageId, Seq, Stamp, Time};
pub use key::{Differs, Digest, Fingerprint, date};
pub use limits::Bounds;
pub use load::{LOOK_AHEAD, Need, Range, RangeOf};
pub use machine::{Batch, Machine, Usage, read_batch};
pub use outcome::{
    Answer, Delivery, Effect, Finished, Fresh, InFlight, KeyView, Outcome, Place, QueueView, Quota,
    RedriveView, Refusal, Relay, Settled, Stats,
};
pub use places::keys::Records;
pub use recipe::{BodyHasher, Recipe, Secret};
pub use record::{End, Event, KeyRecord, What};
pub use row::{RowKey, RowSink};
