//! Decisions: the records of the journal.
//!
//! A decision describes a change in absolute terms: the message, its due time, its fence, its new
//! place. Applying it needs no rules and no randomness, so replaying a journal of an older release
//! never changes what was already answered. The time is written once per batch.
//!
//! The tags are on disk and never reused. The bytes are documented in docs/disk-format.md.

mod decode;
mod encode;

use std::sync::Arc;

use bytes::Bytes;

use crate::command::{Blob, Emit, QueueName};
use crate::config::Config;
use crate::content::Content;
use crate::ids::{Fence, Seq, Time};
use crate::key::{Digest, Fingerprint};

/// A queue's number within its partition.
pub type QueueId = u32;

/// One change of state.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    Configured(Box<Configured>),
    Paused {
        queue: QueueId,
        paused: bool,
    },
    PurgeStarted {
        queue: QueueId,
        below: Seq,
        keys: bool,
        delete: bool,
    },
    /// These messages were purged. `finished` if none is left to purge.
    Purged {
        queue: QueueId,
        digests: Vec<Digest>,
        finished: bool,
    },
    Accepted(Box<Accepted>),
    Leased(Box<Leased>),
    Done {
        digest: Digest,
        fence: Fence,
        result: Option<Blob>,
        emits: Vec<Emit>,
    },
    /// The holder failed.
    Failed {
        digest: Digest,
        fence: Fence,
        error: Arc<str>,
        next: Next,
    },
    /// The lease ran out.
    Lost {
        digest: Digest,
        fence: Fence,
        next: Next,
    },
    Released {
        digest: Digest,
        fence: Fence,
        next: Next,
    },
    /// The holder is in doubt: parked, or failed if the message was not begun.
    Parked {
        digest: Digest,
        fence: Fence,
        error: Arc<str>,
        next: Next,
    },
    Extended {
        digest: Digest,
        fence: Fence,
        deadline: Time,
    },
    Begun {
        digest: Digest,
        fence: Fence,
    },
    Saved {
        digest: Digest,
        fence: Fence,
        name: Arc<str>,
        data: Bytes,
    },
    /// Its time to live was exceeded.
    Died {
        digest: Digest,
        error: Arc<str>,
    },
    RedriveStarted(Box<RedriveStarted>),
    /// One step of a redrive.
    Redriven {
        queue: QueueId,
        job: Digest,
        digests: Vec<Digest>,
        matched: u64,
        cursor: Seq,
        done: bool,
    },
    RedriveCancelled {
        queue: QueueId,
        job: Digest,
    },
    Discarded {
        digest: Digest,
    },
    Forgotten {
        digest: Digest,
        queue: QueueId,
    },
    Rerun {
        digest: Digest,
    },
    Replayed {
        digest: Digest,
        queue: QueueId,
        content: Arc<Content>,
        fingerprint: Fingerprint,
    },
    /// An operator resolved a parked message: it is done with a result, or retried.
    Resolved {
        digest: Digest,
        done: bool,
        result: Option<Blob>,
        next: Next,
    },
    Relayed {
        id: u64,
    },
    RelayRetried {
        id: u64,
        attempts: u32,
        next_at: Time,
    },
    /// Its queue refused the emit for good: it becomes a dead letter there, under another key if
    /// its own is taken.
    RelayRefused {
        id: u64,
        error: Arc<str>,
        key: Option<Arc<str>>,
    },
    /// Counts a duplicate. Never journaled: the count may miss some after a crash, and no rule
    /// depends on it.
    Counted {
        digest: Digest,
        queue: QueueId,
    },
}

/// Where a message goes when it leaves a lease without being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Ready,
    Delayed(Time),
    Dead,
    Parked,
    /// A claim: the key is free again.
    Freed,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Configured {
    pub queue: QueueId,
    pub name: QueueName,
    pub config: Config,
    pub version: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Accepted {
    pub seq: Seq,
    pub queue: QueueId,
    pub digest: Digest,
    pub fingerprint: Fingerprint,
    pub content: Arc<Content>,
    pub due: Option<Time>,
    pub ttl_at: Time,
    /// A claim is leased from the start.
    pub claim: Option<ClaimLease>,
    /// The date of its operation, if it is in the future: the key's retention starts there.
    pub dated_ahead: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimLease {
    pub fence: Fence,
    pub deadline: Time,
    pub worker: Arc<str>,
    /// Only in journals of 0.1; since then a claim begins with an explicit `begin`.
    pub begun: bool,
    /// The digest of the claim's id, if it has one.
    pub id: Option<Digest>,
}

/// One receive. The messages get fences from `fence` on, each `step` above the previous one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leased {
    pub queue: QueueId,
    pub fence: Fence,
    pub deadline: Time,
    pub worker: Arc<str>,
    pub receive: Option<Digest>,
    /// The messages are done when they are delivered.
    pub finish: bool,
    pub digests: Vec<Digest>,
    /// The number of partitions; one in journals of 0.1.
    pub step: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedriveStarted {
    pub queue: QueueId,
    pub job: Digest,
    pub id: Arc<str>,
    pub error_contains: Option<Arc<str>>,
    /// The group of the messages, or of the keys.
    pub group: Option<Arc<str>>,
    pub dead_before: Time,
    pub dead_after: Option<Time>,
    pub dry_run: bool,
    pub per_s: Option<u32>,
    /// The redrive names keys.
    pub by_keys: bool,
    /// See [`RedriveView`](crate::RedriveView).
    pub total: Option<u64>,
    /// Keys that have no dead message, followed by those not looked at yet.
    pub missing: Vec<Arc<str>>,
    /// The digest of the request; unknown for redrives that began before it was stored.
    pub asked: Option<Digest>,
}

impl Decision {
    /// Whether it is journaled.
    pub fn is_durable(&self) -> bool {
        !matches!(self, Self::Counted { .. })
    }

    /// The messages that must be in memory before it can be applied.
    pub(crate) fn digests(&self) -> &[Digest] {
        match self {
            Self::Purged { digests, .. } | Self::Redriven { digests, .. } => digests,
            Self::Leased(leased) => &leased.digests,
            Self::Done { digest, .. }
            | Self::Failed { digest, .. }
            | Self::Lost { digest, .. }
            | Self::Released { digest, .. }
            | Self::Parked { digest, .. }
            | Self::Extended { digest, .. }
            | Self::Begun { digest, .. }
            | Self::Saved { digest, .. }
            | Self::Died { digest, .. }
            | Self::Discarded { digest }
            | Self::Forgotten { digest, .. }
            | Self::Rerun { digest }
            | Self::Replayed { digest, .. }
            | Self::Resolved { digest, .. } => std::slice::from_ref(digest),
            Self::Accepted(accepted) => std::slice::from_ref(&accepted.digest),
            Self::Configured(_)
            | Self::Paused { .. }
            | Self::PurgeStarted { .. }
            | Self::RedriveStarted(_)
            | Self::RedriveCancelled { .. }
            | Self::Relayed { .. }
            | Self::RelayRetried { .. }
            | Self::RelayRefused { .. }
            | Self::Counted { .. } => &[],
        }
    }
}

pub(crate) mod bytes_of {
    //! The parts of decisions that rows share.
    pub(crate) use super::decode::{
        decode_config, decode_content, decode_digest, decode_emit, decode_emit_more, decode_end,
        decode_fingerprint, decode_missing, decode_name, decode_optional_u32, decode_parts,
    };
    pub(crate) use super::encode::{
        encode_config, encode_content, encode_emit, encode_emit_more, encode_end,
        encode_fingerprint, encode_missing, encode_name, encode_parts,
    };
}
