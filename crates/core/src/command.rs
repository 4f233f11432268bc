//! The commands of the machine.

use std::sync::Arc;

use bytes::Bytes;

use crate::config::Config;
use crate::content::{Content, Invalid};
use crate::decision::QueueId;
use crate::ids::{Fence, Seq, Time};
use crate::key::{self, Digest, Fingerprint};
use crate::limits;
use crate::outcome::{Quota, Refusal};
use crate::recipe::Recipe;

/// One request to one partition.
#[derive(Clone, Debug)]
pub enum Command {
    Configure(Box<Configure>),
    /// Adopts what the leading partition decided about a queue.
    Follow(Box<Follow>),
    /// Drops the queue with its messages and keys.
    Delete(QueueName),
    Pause(QueueName),
    Resume(QueueName),
    Purge(Purge),
    Send(SendMessage),
    Claim(Box<Claim>),
    Receive(Receive),
    Settle(Settle),
    /// A tick: expires leases, and continues purges and redrives.
    Expire,
    Look(KeyName),
    Browse(Browse),
    Forget(KeyName),
    Replay(Replay),
    Discard(KeyName),
    Resolve(Resolve),
    Redrive(Redrive),
    /// The answer the redrive would get; starts nothing.
    CheckRedrive(Redrive),
    /// The progress of a redrive.
    RedriveProgress {
        queue: QueueName,
        id: Arc<str>,
    },
    /// Stops a redrive where it is; what it moved stays moved.
    CancelRedrive {
        queue: QueueName,
        id: Arc<str>,
    },
    /// The result of sending an emit to its queue: one for each time it was returned. A second
    /// refusal would be taken for that of its dead letter.
    Relayed {
        id: u64,
        arrival: Arrival,
    },
    /// Files an emit that its queue refused for good as a dead message of that queue.
    DeadLetter(Box<DeadLetter>),
    /// The queue's configuration and counters.
    Show(QueueName),
}

/// A queue's full name, hashed once, when the request arrives.
#[derive(Clone, Debug)]
pub struct QueueName(Arc<Name>);

/// The parts of a [`QueueName`], shared by its clones.
#[derive(Debug)]
pub struct Name {
    pub tenant: Box<str>,
    pub queue: Box<str>,
    digest: Digest,
    hash: u64,
    hashed: [u8; 32],
}

impl QueueName {
    /// Checks both names: 1 to 80 of `A-Z a-z 0-9 . _ -`.
    pub fn new(tenant: &str, queue: &str) -> Result<Self, Invalid> {
        for (name, max) in
            [(tenant, limits::TENANT_BYTES_MAX), (queue, limits::QUEUE_NAME_BYTES_MAX)]
        {
            let known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
            if !(1..=max).contains(&name.len()) || !name.bytes().all(known) {
                return Err(Invalid::Name);
            }
        }
        let hashed = key::hash_of_queue(tenant, queue);
        let digest = Digest(key::first_half(&hashed));
        let ([hash, _], hashed) = (digest.halves(), hashed.into());
        let (tenant, queue) = (tenant.into(), queue.into());
        Ok(Self(Arc::new(Name { tenant, queue, digest, hash, hashed })))
    }

    /// Digest of both names.
    pub fn digest(&self) -> Digest {
        self.0.digest
    }

    pub(crate) fn hash(&self) -> u64 {
        self.0.hash
    }

    /// BLAKE3 of both names, with which the queue's keys are hashed.
    pub(crate) fn hashed(&self) -> &[u8; 32] {
        &self.0.hashed
    }
}

impl std::ops::Deref for QueueName {
    type Target = Name;

    fn deref(&self) -> &Name {
        &self.0
    }
}

impl PartialEq for QueueName {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || self.hash == other.hash && self.queue == other.queue && self.tenant == other.tenant
    }
}

impl Eq for QueueName {}

impl std::hash::Hash for QueueName {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

/// A key of a queue.
#[derive(Clone, Debug)]
pub struct KeyName {
    pub queue: QueueName,
    pub key: Arc<str>,
    pub group: Option<Arc<str>>,
}

#[derive(Clone, Debug)]
pub struct Configure {
    pub queue: QueueName,
    pub config: Config,
    /// The change is refused if the queue is not as expected.
    pub if_version: Option<Expected>,
}

/// The precondition for changing a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    Absent,
    /// Any queue of this name.
    Present,
    /// The queue with this number, at this version. A queue that is deleted and created again has
    /// another number.
    Version {
        number: QueueId,
        version: u64,
    },
}

impl Expected {
    /// Compares with the number and version of the existing queue.
    pub fn check(self, known: Option<(QueueId, u64)>) -> Result<(), Refusal> {
        match (self, known) {
            (Self::Absent, None) | (Self::Present, Some(_)) => Ok(()),
            (Self::Absent, Some(_)) => Err(Refusal::QueueExists),
            (Self::Version { number, version }, Some(known)) if known == (number, version) => {
                Ok(())
            }
            (Self::Present | Self::Version { .. }, known) => {
                Err(Refusal::VersionChanged(known.map_or(0, |(_, version)| version)))
            }
        }
    }
}

/// A queue as the leading partition decided it.
#[derive(Clone, Debug)]
pub struct Follow {
    pub queue: QueueName,
    pub config: Config,
    /// The version to adopt. Refused if a newer one is known.
    pub version: u64,
}

#[derive(Clone, Debug)]
pub struct Purge {
    pub queue: QueueName,
    /// Forgets every key of the queue too.
    pub keys: bool,
}

/// A message to accept. Hashing is done here, in the caller's thread.
#[derive(Clone, Debug)]
pub struct SendMessage {
    pub queue: QueueName,
    pub digest: Digest,
    pub fingerprint: Fingerprint,
    pub content: Arc<Content>,
    pub delay_ms: Option<u64>,
    pub ttl_ms: Option<u64>,
    /// When the operation was issued, for keys that carry no date.
    pub issued_at: Option<Time>,
    pub allowance: Allowance,
}

/// Which quotas apply to a new message. A known key is answered regardless.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allowance {
    /// The quotas of its queue.
    #[default]
    Queue,
    /// The rate of its queue, but not `max_messages` and `max_bytes`: it was emitted by a message
    /// of the same queue, which could not be drained otherwise once it is full of such messages.
    Emitted,
    /// Its tenant has used up a quota: nothing new is accepted.
    UsedUp { quota: Quota, retry_after_ms: u64 },
}

impl SendMessage {
    /// `recipe` is the recipe of the data that receives the message.
    pub fn new(recipe: &Recipe, queue: QueueName, content: Arc<Content>) -> Self {
        let fingerprint = recipe.fingerprint(content.body(), content.group());
        Self::with_fingerprint(recipe, queue, content, fingerprint)
    }

    /// Like `new`, with the fingerprint that the caller gave.
    pub fn with_fingerprint(
        recipe: &Recipe,
        queue: QueueName,
        content: Arc<Content>,
        fingerprint: Fingerprint,
    ) -> Self {
        let digest = digest_of(recipe, &queue, &content);
        Self {
            queue,
            digest,
            fingerprint,
            content,
            delay_ms: None,
            ttl_ms: None,
            issued_at: None,
            allowance: Allowance::Queue,
        }
    }
}

/// The digest of its key in the queue. A message without a key gets a digest with its id.
fn digest_of(recipe: &Recipe, queue: &QueueName, content: &Content) -> Digest {
    match content.has_key() {
        true => recipe.key(queue, None, content.key_bytes()),
        false => Digest([0; 16]),
    }
}

/// Takes a key for a caller that does the work itself.
#[derive(Clone, Debug)]
pub struct Claim {
    pub queue: QueueName,
    pub digest: Digest,
    pub fingerprint: Fingerprint,
    /// Has no body: nothing is delivered.
    pub content: Arc<Content>,
    pub lease_ms: Option<u64>,
    pub worker: Arc<str>,
    pub issued_at: Option<Time>,
    /// A claim repeated under the same id while it is held gets the same lease again. Callers that
    /// share an id share the lease.
    pub claim_id: Option<Arc<str>>,
    pub allowance: Allowance,
}

impl Claim {
    /// `recipe` is the recipe of the data that receives the claim.
    pub fn new(
        recipe: &Recipe,
        queue: QueueName,
        content: Arc<Content>,
        fingerprint: Fingerprint,
    ) -> Self {
        let digest = digest_of(recipe, &queue, &content);
        Self {
            queue,
            digest,
            fingerprint,
            content,
            lease_ms: None,
            worker: "".into(),
            issued_at: None,
            claim_id: None,
            allowance: Allowance::Queue,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Receive {
    pub queue: QueueName,
    pub max: u32,
    pub lease_ms: Option<u64>,
    pub worker: Arc<str>,
    /// Retried within five minutes, it returns the same messages and leases.
    pub receive_id: Option<Arc<str>>,
    /// Take several messages of one group, in order.
    pub several_per_group: bool,
}

/// Names one lease: `receive` and `claim` return it, and every settle names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseName {
    pub digest: Digest,
    pub seq: Seq,
    pub fence: Fence,
}

#[derive(Clone, Debug)]
pub struct Settle {
    pub lease: LeaseName,
    pub verb: Verb,
}

/// What to do under a lease.
#[derive(Clone, Debug)]
pub enum Verb {
    Done {
        result: Option<Blob>,
        emits: Vec<Emit>,
    },
    Fail {
        error: String,
        delay_ms: Option<u64>,
        dead: bool,
    },
    Release,
    /// In doubt: parks a begun message of a queue with `on_lost = "park"`; anywhere else a `Fail`
    /// with the same fields.
    Park {
        error: String,
        delay_ms: Option<u64>,
        dead: bool,
    },
    Extend {
        lease_ms: Option<u64>,
    },
    Begin,
    Save {
        name: String,
        data: Bytes,
    },
}

/// Bytes with their type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    pub content_type: Option<Arc<str>>,
    pub body: Bytes,
}

impl Blob {
    /// Checks the bounds that do not depend on a queue.
    pub(crate) fn check(&self) -> Result<(), Invalid> {
        let bytes = self.content_type.as_ref().map_or(0, |text| text.len());
        let is_long = bytes > limits::CONTENT_TYPE_BYTES_MAX;
        if is_long { Err(Invalid::ContentTypeLength(bytes)) } else { Ok(()) }
    }
}

/// A follow-up message. Its key is derived from the parent's unless given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emit {
    pub queue: QueueName,
    pub name: String,
    /// Without a key in it, the key is derived from the parent and `name`.
    pub content: Arc<Content>,
    pub delay_ms: Option<u64>,
    pub ttl_ms: Option<u64>,
    /// The caller's own fingerprint, instead of the digest of body and group.
    pub fingerprint: Option<Fingerprint>,
}

impl Emit {
    pub fn new(queue: QueueName, name: &str, content: Arc<Content>) -> Self {
        let name = name.to_owned();
        Self { queue, name, content, delay_ms: None, ttl_ms: None, fingerprint: None }
    }
}

/// The result of sending an emit to its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Its queue has it under its key.
    Arrived,
    /// Its queue does not exist or is full; to be retried.
    Later,
    /// Its queue refused it for good, for this reason.
    Refused(Arc<str>),
}

/// An emit that its queue refused for good.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    pub send: SendMessage,
    /// Why it was refused.
    pub error: Arc<str>,
}

#[derive(Clone, Debug)]
pub struct Browse {
    pub queue: QueueName,
    pub place: crate::outcome::Place,
    /// Where the last page ended.
    pub cursor: Option<Seq>,
    pub limit: usize,
}

#[derive(Clone, Debug)]
pub struct Replay {
    pub key: KeyName,
    /// The message, unless the queue keeps bodies: a finished message's body is gone, so the
    /// operator supplies it, and it must be the same.
    pub content: Option<(Arc<Content>, Fingerprint)>,
}

#[derive(Clone, Debug)]
pub struct Resolve {
    pub key: KeyName,
    pub resolution: Resolution,
}

#[derive(Clone, Debug)]
pub enum Resolution {
    Done(Option<Blob>),
    Retry,
}

#[derive(Clone, Debug)]
pub struct Redrive {
    pub queue: QueueName,
    pub id: Arc<str>,
    pub select: Select,
    pub dry_run: bool,
    pub per_s: Option<u32>,
}

/// Which dead messages to put back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Select {
    Keys {
        keys: Vec<Arc<str>>,
        /// The group that the keys belong to, in a queue that deduplicates per group.
        group: Option<Arc<str>>,
    },
    /// At least one condition; all given ones must hold.
    Filter {
        error_contains: Option<String>,
        group: Option<String>,
        dead_before: Option<Time>,
        dead_after: Option<Time>,
    },
    All,
}
