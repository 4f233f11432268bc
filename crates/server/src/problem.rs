//! The refusals of requests, worded once for HTTP and gRPC.

use hapax_core::{Answer, Differs, Invalid, MessageId, Quota, Refusal, Settled, Time};
use hapax_wire::Code;

use crate::engine::Stopped;

/// A refusal of a request.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}: {detail}", code.as_str())]
pub struct Problem {
    pub code: Code,
    /// What is wrong with this request in particular.
    pub detail: String,
    /// For retryable errors: the time after which to retry.
    pub retry_after_ms: Option<u64>,
    /// For a conflict: the first message under the key.
    pub first: Option<First>,
    /// Whether a change was made for another version of its queue.
    pub is_stale: bool,
}

/// The message that a key belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct First {
    pub differs: Vec<Differs>,
    pub id: MessageId,
    pub accepted_at: Time,
}

impl Problem {
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let retry_after_ms = code.is_retryable().then_some(1_000);
        Self { code, detail: detail.into(), retry_after_ms, first: None, is_stale: false }
    }

    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(Code::Invalid, detail)
    }

    /// The request got no answer, which is a fault of the broker. It is unknown whether it was
    /// done; a retry under the same key is safe.
    pub fn unanswered() -> Self {
        Self::new(Code::Internal, "the broker gave no answer")
    }

    /// A queue that is absent, or that the caller may not see: both look the same.
    pub fn no_such_queue(queue: &str) -> Self {
        let detail = format!("there is no queue {queue:?}: check its name, or create it");
        Self::new(Code::NoSuchQueue, detail)
    }

    /// A redrive, replay or resolve of a message that is in another state: perhaps by the same
    /// request, whose answer was lost.
    pub fn perhaps_done(state: &'static str) -> Self {
        let state = Invalid::State(state);
        Self::invalid(format!(
            "{state}. If this repeats a request whose answer was lost, the first one may have done \
             it"
        ))
    }

    /// An emit whose key can neither be taken nor derived.
    pub fn unnamed_emit() -> Self {
        Self::invalid("name: an emit without a key needs a name, from which its key is derived")
    }

    /// The refusal in an answer to a send or a claim; `None` if it is not one.
    pub fn of_answer(answer: &Answer) -> Option<Self> {
        Some(match answer {
            Answer::Invalid(invalid) => (*invalid).into(),
            Answer::NoSuchQueue => {
                Self::new(Code::NoSuchQueue, "there is no such queue; create it first")
            }
            Answer::Conflict { differs, id, accepted_at } => Self {
                first: Some(First { differs: differs.clone(), id: *id, accepted_at: *accepted_at }),
                ..Self::new(Code::Conflict, "the key was used for another operation")
            },
            Answer::TooOld { dated } => {
                let detail = format!(
                    "the operation was issued at {}, before the queue's retention, so it may have \
                     been done already",
                    crate::time::rfc3339(*dated)
                );
                Self::new(Code::TooOld, detail)
            }
            Answer::UndatedKey => Self::new(
                Code::UndatedKey,
                "the queue accepts only UUIDv7 or ULID keys, or sends with issued_at",
            ),
            Answer::OverQuota { quota, retry_after_ms } => {
                let (code, detail) = match quota {
                    Quota::Messages => (Code::OverQuota, "the queue has reached its max_messages"),
                    Quota::Bytes => (Code::OverQuota, "the queue has reached its max_bytes"),
                    Quota::Rate => (Code::RateLimited, "the queue's sends_per_s is exceeded"),
                    Quota::TenantMessages => {
                        (Code::OverQuota, "the tenant has reached its max_messages")
                    }
                    Quota::TenantBytes => (Code::OverQuota, "the tenant has reached its max_bytes"),
                    Quota::TenantRate => {
                        (Code::RateLimited, "the tenant's sends_per_s is exceeded")
                    }
                };
                Self { retry_after_ms: Some(*retry_after_ms), ..Self::new(code, detail) }
            }
            Answer::StoreFull => Self::new(Code::StoreFull, "the disk of the broker is full"),
            Answer::Done(_)
            | Answer::Dead { .. }
            | Answer::Parked { .. }
            | Answer::InFlight(_)
            | Answer::Accepted { .. }
            | Answer::Fresh(_) => return None,
        })
    }

    /// The refusal in the answer to a settle; `None` if it is not one.
    pub fn of_settled(settled: &Settled) -> Option<Self> {
        Some(match settled {
            Settled::Invalid(invalid) => (*invalid).into(),
            Settled::NoSuchQueue { emit } => {
                let detail = format!("emit[{emit}]: there is no such queue; create it first");
                Self::new(Code::NoSuchQueue, detail)
            }
            Settled::RelayFull => Self::new(
                Code::OverQuota,
                "too many emitted messages wait for their queues; you still hold the message, \
                 settle it again later",
            ),
            Settled::Ok { .. } | Settled::LeaseLost { .. } => return None,
        })
    }
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Self {
        let code = match invalid {
            Invalid::MissingKey => Code::MissingKey,
            Invalid::KeyLength(_) | Invalid::KeyCharacter(_) => Code::MalformedKey,
            Invalid::BodyTooLarge { .. } | Invalid::TooLarge { .. } => Code::TooLarge,
            _ => Code::Invalid,
        };
        Self::new(code, invalid.to_string())
    }
}

/// It is unknown whether the command was carried out; a retry is safe.
impl From<Stopped> for Problem {
    fn from(stopped: Stopped) -> Self {
        Self::new(Code::Unavailable, stopped.to_string())
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let code = match &refusal {
            Refusal::Invalid(invalid) => return (*invalid).into(),
            Refusal::InvalidConfig(_) | Refusal::VersionChanged(_) | Refusal::QueueExists => {
                Code::InvalidConfig
            }
            Refusal::NoSuchQueue => Code::NoSuchQueue,
            Refusal::NoSuchKey => Code::NoSuchKey,
            Refusal::Conflict(_) | Refusal::OtherRedrive => Code::Conflict,
            Refusal::TooManyQueues(_) | Refusal::TooManyRedrives(_) => Code::OverQuota,
            Refusal::StoreFull => Code::StoreFull,
        };
        let is_stale = matches!(refusal, Refusal::VersionChanged(_) | Refusal::QueueExists);
        Self { is_stale, ..Self::new(code, refusal.to_string()) }
    }
}
