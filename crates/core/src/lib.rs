//! The rules of Hapax.
//!
//! One [`Machine`] holds the state of one partition. It is asked by [`Command`], answers by
//! [`Outcome`], and says what changed as [`Decision`]s, which the caller makes durable before the
//! outcome leaves the house. Replaying decisions rebuilds the state; rules run once.
//!
//! The core refuses to know: the clock (time comes in a [`Stamp`]), randomness (likewise), files,
//! threads, networks, logs. What a decision may need from the rows is asked for beforehand
//! ([`Machine::needs`]) and handed in ([`Machine::load`]); what should happen outside comes out as
//! [`Effect`]s.

mod checkpoint;
mod codec;
mod command;
mod config;
mod content;
mod decision;
mod evict;
mod holding;
mod ids;
mod invariants;
mod key;
pub mod limits;
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
mod record;
mod row;
mod state;

pub use checkpoint::Snapshot;
pub use codec::BadBytes;
pub use command::{
    Allowance, Arrival, Blob, Browse, Claim, Command, Configure, DeadLetter, Emit, Expected,
    Follow, KeyName, LeaseName, Purge, QueueName, Receive, Redrive, Replay, Resolution, Resolve,
    Select, Send, Settle, Verb,
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
pub use load::{Need, RangeOf};
pub use machine::{Batch, Machine, Usage, read_batch};
pub use outcome::{
    Answer, Delivery, Effect, Finished, InFlight, KeyView, Outcome, Place, QueueView, Quota,
    RedriveView, Refusal, Relay, Settled, Stats,
};
pub use record::{End, Event, KeyRecord, What};
pub use row::{RowKey, RowSink};
