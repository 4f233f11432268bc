//! The outcomes of the machine. A refusal is an outcome like any other.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::command::{Allowance, Arrival, Blob, Emit, LeaseName, SendMessage};
use crate::config::{Config, InvalidConfig};
use crate::content::{Content, Invalid};
use crate::decision::QueueId;
use crate::ids::{Fence, MessageId, Seq, Time};
use crate::key::{Differs, Digest, Fingerprint};
use crate::recipe::Recipe;
use crate::record::{Event, KeyRecord};

/// The answer to one command.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Configured {
        version: u64,
        created: bool,
    },
    Queue(Box<QueueView>),
    Sent(Answer),
    Claimed(Answer),
    Received(Vec<Delivery>),
    Settled(Settled),
    Key(Box<KeyView>),
    Messages {
        messages: Vec<KeyView>,
        next: Option<Seq>,
    },
    Redrive(Box<RedriveView>),
    /// Done; there is nothing to report.
    Ok,
    Refused(Refusal),
}

impl Outcome {
    /// Estimated bytes of messages, results and errors that it holds.
    pub fn size(&self) -> usize {
        match self {
            Self::Sent(answer) | Self::Claimed(answer) => answer.size(),
            Self::Received(deliveries) => deliveries.iter().map(Delivery::size).sum(),
            Self::Settled(Settled::LeaseLost { result, .. }) => size_of_result(result.as_ref()),
            Self::Key(view) => view.size(),
            Self::Messages { messages, .. } => messages.iter().map(KeyView::size).sum(),
            Self::Settled(_)
            | Self::Configured { .. }
            | Self::Queue(_)
            | Self::Redrive(_)
            | Self::Ok
            | Self::Refused(_) => 0,
        }
    }

    /// Turns this outcome into a refusal of the same kind.
    pub(crate) fn refused(self, invalid: Invalid) -> Self {
        match self {
            Self::Sent(_) => Self::Sent(Answer::Invalid(invalid)),
            Self::Claimed(_) => Self::Claimed(Answer::Invalid(invalid)),
            Self::Settled(_) => Self::Settled(Settled::Invalid(invalid)),
            Self::Configured { .. }
            | Self::Queue(_)
            | Self::Received(_)
            | Self::Key(_)
            | Self::Messages { .. }
            | Self::Redrive(_)
            | Self::Ok
            | Self::Refused(_) => Self::Refused(Refusal::Invalid(invalid)),
        }
    }
}

// Two of them for each life are passed from thread to thread: what is large is rare, and in a box.
const _: () = assert!(size_of::<Outcome>() <= 64);

fn size_of_result(result: Option<&Blob>) -> usize {
    result.map_or(0, |result| result.body.len())
}

fn size_of_points(points: &BTreeMap<String, Bytes>) -> usize {
    points.iter().map(|(name, data)| name.len() + data.len()).sum()
}

/// Why a command other than a send, a claim or a settle was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    #[error(transparent)]
    Invalid(Invalid),
    #[error(transparent)]
    InvalidConfig(InvalidConfig),
    #[error("there is no such queue; create it first")]
    NoSuchQueue,
    #[error("no such key: it was never sent, or was forgotten")]
    NoSuchKey,
    /// The version that the queue has; 0 if it does not exist.
    #[error("{}", match .0 {
        0 => "there is no such queue, so it has no version to match",
        _ => "the queue was changed, or deleted and created again, in the meantime: read it again",
    })]
    VersionChanged(u64),
    #[error("the queue exists already")]
    QueueExists,
    #[error("the key was used for another operation")]
    Conflict(Vec<Differs>),
    #[error("there are {0} queues already, which is the maximum")]
    TooManyQueues(usize),
    #[error("{0} redrives are running, which is the maximum: wait for one, or cancel it")]
    TooManyRedrives(usize),
    #[error("this id was used for another redrive of the queue: choose a new one")]
    OtherRedrive,
    #[error("the disk is full: free some space; settles continue meanwhile")]
    StoreFull,
}

/// The answer to a send or a claim: exactly one of these, tested in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Invalid(Invalid),
    NoSuchQueue,
    Conflict {
        differs: Vec<Differs>,
        id: MessageId,
        accepted_at: Time,
    },
    Done(Box<Finished>),
    Dead {
        id: MessageId,
        accepted_at: Time,
        attempts: u32,
        error: Arc<str>,
        /// Discarded by an operator or purged: there is no message left to redrive.
        discarded: bool,
    },
    Parked {
        id: MessageId,
        accepted_at: Time,
        attempts: u32,
    },
    InFlight(InFlight),
    TooOld {
        dated: Time,
    },
    UndatedKey,
    OverQuota {
        quota: Quota,
        retry_after_ms: u64,
    },
    StoreFull,
    Accepted {
        id: MessageId,
        place: Place,
        at: Time,
    },
    /// A claim's `accepted`: the caller holds the key now.
    Fresh(Box<Fresh>),
}

impl Answer {
    /// Whether the key was known, so that nothing new happened.
    pub fn is_replay(&self) -> bool {
        matches!(self, Self::Done(_) | Self::Dead { .. } | Self::Parked { .. } | Self::InFlight(_))
    }

    fn size(&self) -> usize {
        match self {
            Self::Done(finished) => size_of_result(finished.result.as_ref()),
            Self::Dead { error, .. } => error.len(),
            Self::Fresh(fresh) => size_of_points(&fresh.recovery_points),
            _ => 0,
        }
    }
}

/// The lease of a claim.
#[derive(Clone, Debug, PartialEq)]
pub struct Fresh {
    pub id: MessageId,
    pub lease: LeaseName,
    pub deadline: Time,
    /// How long the lease lasts, counted from the answer, so that clocks need not agree.
    pub lease_ms: u64,
    /// What an earlier claim of the key saved before it was released or lost.
    pub recovery_points: BTreeMap<String, Bytes>,
    /// Whether the queue parks a begun claim that is lost: where not, nothing depends on whether it
    /// was begun.
    pub parks: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    pub id: MessageId,
    pub accepted_at: Time,
    pub finished_at: Time,
    pub remembered_until: Time,
    pub attempts: u32,
    pub result: Option<Blob>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    pub id: MessageId,
    pub accepted_at: Time,
    pub place: Place,
    pub attempts: u32,
    /// When the lease ends or the delay is over.
    pub deadline: Option<Time>,
}

/// The quota that is used up, of the queue or of its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    Messages,
    Bytes,
    Rate,
    TenantMessages,
    TenantBytes,
    TenantRate,
}

/// Where a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Ready = 0,
    Delayed = 1,
    Leased = 2,
    Parked = 3,
    Dead = 4,
    Done = 5,
    Discarded = 6,
}

impl Place {
    pub const ALL: [Self; 7] = [
        Self::Ready,
        Self::Delayed,
        Self::Leased,
        Self::Parked,
        Self::Dead,
        Self::Done,
        Self::Discarded,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Delayed => "delayed",
            Self::Leased => "leased",
            Self::Parked => "parked",
            Self::Dead => "dead",
            Self::Done => "done",
            Self::Discarded => "discarded",
        }
    }
}

/// One message delivered under a lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    pub lease: LeaseName,
    pub id: MessageId,
    pub attempt: u32,
    pub generation: u32,
    pub content: Arc<Content>,
    pub accepted_at: Time,
    pub deadline: Time,
    /// How long the lease lasts, counted from the answer, so that clocks need not agree.
    pub lease_ms: u64,
    pub recovery_points: BTreeMap<String, Bytes>,
}

impl Delivery {
    fn size(&self) -> usize {
        self.content.size() + size_of_points(&self.recovery_points)
    }

    /// The key, or the id where the message came without one.
    pub fn key(&self) -> String {
        match self.content.key() {
            "" => self.id.to_string(),
            key => key.to_owned(),
        }
    }
}

/// The answer to a settle.
#[derive(Clone, Debug, PartialEq)]
pub enum Settled {
    Ok {
        /// Where the message is now.
        place: Place,
        /// The new deadline of an extended lease, or the due time of a failed message.
        deadline: Option<Time>,
    },
    /// Another lease is newer, or the message is not leased; with the result, if there is one.
    LeaseLost {
        place: Option<Place>,
        result: Option<Blob>,
    },
    Invalid(Invalid),
    /// An emit names a queue that does not exist.
    NoSuchQueue {
        emit: usize,
    },
    /// Too many emits wait for their queues. Retryable.
    RelayFull,
}

/// Everything about a key.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyView {
    pub key: Option<Arc<str>>,
    pub digest: Digest,
    pub place: Place,
    pub record: KeyRecord,
    pub id: MessageId,
    pub deadline: Option<Time>,
    pub content: Option<Arc<Content>>,
    pub recovery_points: BTreeMap<String, Bytes>,
    /// The newest 64 events, in order; those without incident are derived from the record.
    pub history: Vec<Event>,
}

impl KeyView {
    fn size(&self) -> usize {
        let details = self.history.iter().map(|event| event.detail.len()).sum::<usize>();
        self.content.as_ref().map_or(0, |content| content.size())
            + size_of_result(self.record.result.as_ref())
            + size_of_points(&self.recovery_points)
            + details
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct QueueView {
    /// The queue's number in its partition, which no other queue ever has there.
    pub number: QueueId,
    pub config: Config,
    pub version: u64,
    pub created_at: Time,
    pub paused: bool,
    pub stats: Stats,
    pub oldest_ready_at: Option<Time>,
}

/// Counters of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub ready: u64,
    /// Ready messages that wait for another message of their group. See docs/guarantees.md.
    pub held: u64,
    pub delayed: u64,
    pub leased: u64,
    pub parked: u64,
    pub dead: u64,
    /// Finished keys that are still remembered.
    pub keys: u64,
    pub bytes: u64,
    pub sent_total: u64,
    pub duplicate_total: u64,
    pub done_total: u64,
    pub failed_total: u64,
    pub lease_lost_total: u64,
}

impl Stats {
    /// Messages that are alive in any place.
    pub fn messages(&self) -> u64 {
        self.ready + self.delayed + self.leased + self.parked + self.dead
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct RedriveView {
    pub id: Arc<str>,
    pub matched: u64,
    pub moved: u64,
    /// Dead messages or keys to look at when it began; unknown if 0.1 began it.
    pub total: Option<u64>,
    pub by_keys: bool,
    /// For a redrive by keys: keys without a dead message.
    pub missing: Vec<Arc<str>>,
    pub done: bool,
    /// Stopped by an operator; also `done`.
    pub cancelled: bool,
    pub dry_run: bool,
}

impl RedriveView {
    /// Adds what another partition reports of the same redrive. A key is missing if no partition
    /// has a dead message under it.
    pub fn merge(&mut self, other: &Self) {
        debug_assert!(self.id == other.id && self.by_keys == other.by_keys);
        self.matched += other.matched;
        self.moved += other.moved;
        self.done &= other.done;
        self.cancelled |= other.cancelled;
        self.missing.retain(|key| other.missing.contains(key));
        // All partitions were given the same keys.
        if !self.by_keys {
            self.total = self.total.zip(other.total).map(|(total, more)| total + more);
        }
    }
}

/// A side effect: the machine returns it, the server performs it.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Messages of this queue can be received.
    Wake(QueueId),
    /// The key is done, dead, parked or gone: answer the callers that wait for it.
    Ended { digest: Digest },
    /// Send this to its queue, then execute `Relayed`.
    Relay(Box<Relay>),
    /// The lease expired: notify its worker.
    Lost { queue: QueueId, digest: Digest, fence: Fence },
}

/// An emit on its way to its queue, with the key it goes under.
#[derive(Clone, Debug, PartialEq)]
pub struct Relay {
    pub id: u64,
    pub emit: Emit,
    /// Whether its parent was a message of the same queue.
    pub within: bool,
    /// When its parent was done: the date of its key, which carries none.
    pub issued_at: Time,
    pub attempts: u32,
    /// Why its queue refused it for good, if it did: it is sent as a dead letter.
    pub refused: Option<Arc<str>>,
}

impl Relay {
    /// The message to send to its queue, also for a dead letter.
    pub fn into_send(self, recipe: &Recipe) -> SendMessage {
        let fingerprint = self.fingerprint(recipe);
        let emit = self.emit;
        SendMessage {
            delay_ms: emit.delay_ms,
            ttl_ms: emit.ttl_ms,
            issued_at: Some(self.issued_at),
            allowance: if self.within { Allowance::Emitted } else { Allowance::Queue },
            ..SendMessage::with_fingerprint(recipe, emit.queue, emit.content, fingerprint)
        }
    }

    pub(crate) fn fingerprint(&self, recipe: &Recipe) -> Fingerprint {
        let content = &self.emit.content;
        let of_content = || recipe.fingerprint(content.body(), content.group());
        self.emit.fingerprint.unwrap_or_else(of_content)
    }
}

impl Arrival {
    /// Interprets the answer of its queue to an emit.
    pub fn of(answer: &Answer) -> Self {
        let refused = |why: String| Self::Refused(why.into());
        match answer {
            Answer::NoSuchQueue | Answer::OverQuota { .. } | Answer::StoreFull => Self::Later,
            Answer::Invalid(invalid) => refused(format!("its queue refused it: {invalid}")),
            Answer::Conflict { .. } => {
                refused("its queue refused it: another message has its key".to_owned())
            }
            Answer::TooOld { .. } => refused(
                "its queue refused it: it is older than the retention, so it may have been \
                 processed before"
                    .to_owned(),
            ),
            Answer::UndatedKey => refused("its queue refused it: its key has no date".to_owned()),
            Answer::Done(_)
            | Answer::Dead { .. }
            | Answer::Parked { .. }
            | Answer::InFlight(_)
            | Answer::Accepted { .. }
            | Answer::Fresh(_) => Self::Arrived,
        }
    }
}
