//! The errors of the client, and whether a retry may help.

use std::time::{Duration, SystemTime};

use hapax_wire::{Code, Id, Problem};
use tonic::metadata::MetadataMap;

use crate::answer::at;

/// Metadata of a status: one of the codes of `/errors`.
const CODE: &str = "hapax-code";
const RETRY_AFTER: &str = "hapax-retry-after-ms";

/// Why a call did not succeed.
///
/// Under one key a retry is always safe, whatever the error; [`Error::is_retryable`] tells whether
/// it may help. [`Queue::send`](crate::Queue::send) has retried already when it returns one.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The broker said no.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// The broker cannot be reached, or the connection broke. What was under way may have been
    /// carried out or not.
    #[error("cannot reach the broker at {endpoint}: {why}")]
    Unreachable { endpoint: String, why: String },
    /// There was no answer in time. The request may or may not have been carried out.
    #[error("no answer within {} ms; a retry under the same key is safe", .0.as_millis())]
    TimedOut(Duration),
    /// The client was given something it cannot use.
    #[error("{0}")]
    Invalid(String),
    /// A message that was sent without a key has no answer. It may have been accepted or not: sent
    /// again under the key that it was given, it is accepted once.
    #[error("{error}; the message got the generated key {key}: send it again under this key")]
    Unanswered { key: String, error: Box<Error> },
}

/// What the broker says when it says no.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    pub code: Code,
    /// What is wrong with this request in particular.
    pub detail: String,
    /// The time after which to retry.
    pub retry_after: Option<Duration>,
    /// For a conflict: the first message under the key.
    pub first: Option<First>,
}

/// The message that a key belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct First {
    /// The differences of the second message: `body`, `content_type`, `group` or `fingerprint`.
    pub differs: Vec<String>,
    pub id: Id,
    pub accepted_at: SystemTime,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.detail)?;
        match &self.first {
            Some(first) if !first.differs.is_empty() => {
                write!(f, " ({} differs)", first.differs.join(", "))
            }
            _ => Ok(()),
        }
    }
}

impl Error {
    /// The code of the broker's list. What went wrong on the way there is `unavailable`.
    pub fn code(&self) -> Code {
        match self {
            Self::Refused(refusal) => refusal.code,
            Self::Unreachable { .. } | Self::TimedOut(_) => Code::Unavailable,
            Self::Invalid(_) => Code::Invalid,
            Self::Unanswered { error, .. } => error.code(),
        }
    }

    /// Whether the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        self.code().is_retryable()
    }

    /// The time after which the broker asked to retry.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused(refusal) => refusal.retry_after,
            Self::Unanswered { error, .. } => error.retry_after(),
            Self::Unreachable { .. } | Self::TimedOut(_) | Self::Invalid(_) => None,
        }
    }

    /// The key that a message without one was given, where it is not known what became of it.
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Unanswered { key, .. } => Some(key),
            _ => None,
        }
    }

    /// The same, with the key that the message was given.
    pub(crate) fn under(self, key: &str) -> Self {
        Self::Unanswered { key: key.to_owned(), error: Box::new(self) }
    }

    /// What does not fit a frame is not sent.
    pub(crate) fn too_large(bytes: usize, most: usize) -> Self {
        Self::Refused(Box::new(Refusal {
            code: Code::TooLarge,
            detail: format!(
                "the message has about {bytes} bytes with its headers, the broker accepts at most \
                 {most}; it was not sent"
            ),
            retry_after: None,
            first: None,
        }))
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::Invalid(detail.into())
    }

    /// The other side speaks another protocol.
    pub(crate) fn malformed(malformed: hapax_wire::lean::Malformed) -> Self {
        Self::invalid(format!("the broker's answer is malformed: {malformed}"))
    }

    pub(crate) fn lease_lost() -> Self {
        Self::Refused(Box::new(Refusal {
            code: Code::LeaseLost,
            detail: "another worker has the message now, or it is finished".to_owned(),
            retry_after: None,
            first: None,
        }))
    }

    /// The error of a whole call. One without a code of ours did not come from the broker.
    pub(crate) fn of_status(status: &tonic::Status, endpoint: &str) -> Self {
        let metadata = status.metadata();
        let code = text(metadata, CODE).and_then(Code::parse).or_else(|| foreign(status.code()));
        let Some(code) = code else {
            return Self::Unreachable { endpoint: endpoint.to_owned(), why: reason(status) };
        };
        let after = text(metadata, RETRY_AFTER).and_then(|text| text.parse().ok());
        let detail = match other_server(status.message()) {
            Some(why) => format!("no broker answers at {endpoint}: {why}"),
            None => status.message().to_owned(),
        };
        Self::Refused(Box::new(Refusal {
            code,
            detail,
            retry_after: after.map(Duration::from_millis),
            first: None,
        }))
    }

    pub(crate) fn of_problem(problem: Problem) -> Self {
        let code = match Code::parse(&problem.code) {
            Some(code) => code,
            // A newer broker: all that counts is whether to try again.
            None if problem.retryable => Code::Unavailable,
            None => Code::Invalid,
        };
        let first = problem.id().map(|id| First {
            differs: problem.differs,
            id,
            accepted_at: at(problem.accepted_at_ms),
        });
        Self::Refused(Box::new(Refusal {
            code,
            detail: problem.detail,
            retry_after: problem.retry_after_ms.map(Duration::from_millis),
            first,
        }))
    }
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Self {
        Self::invalid(format!("JSON: {error}"))
    }
}

fn text<'a>(metadata: &'a MetadataMap, name: &str) -> Option<&'a str> {
    metadata.get(name)?.to_str().ok()
}

/// What a status without a code of ours means. `None` where the way to the broker is to blame.
fn foreign(code: tonic::Code) -> Option<Code> {
    match code {
        tonic::Code::InvalidArgument => Some(Code::Invalid),
        tonic::Code::OutOfRange => Some(Code::TooLarge),
        tonic::Code::PermissionDenied => Some(Code::Forbidden),
        tonic::Code::Unauthenticated => Some(Code::Unauthorized),
        // A method that the other side does not have, or that is no broker at all.
        tonic::Code::Unimplemented => Some(Code::Invalid),
        _ => None,
    }
}

/// What the words of the transport mean where something else than a broker answered. They are
/// those of tonic and h2: a test holds on to them.
fn other_server(words: &str) -> Option<String> {
    if let Some((_, status)) = words.split_once("grpc-status header missing, mapped from HTTP ") {
        return Some(format!(
            "the server is not a Hapax broker, or a proxy does not support gRPC \
                             ({status})"
        ));
    }
    let is_other = ["frame with invalid size", "invalid compression flag"];
    let is_other = is_other.iter().any(|it| words.contains(it));
    is_other.then(|| format!("the server does not speak gRPC ({words})"))
}

/// The innermost cause says the most: "connection refused" instead of "transport error".
fn reason(status: &tonic::Status) -> String {
    let mut cause = std::error::Error::source(status);
    let mut last = status.message().to_owned();
    while let Some(error) = cause {
        last = error.to_string();
        cause = error.source();
    }
    match other_server(&last) {
        Some(why) => why,
        None if last.is_empty() => format!("{:?}", status.code()),
        None => last,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_the_broker_keeps_its_code_and_its_wait() {
        let mut status = tonic::Status::resource_exhausted("more than sends_per_s");
        status.metadata_mut().insert(CODE, "rate_limited".parse().unwrap());
        status.metadata_mut().insert(RETRY_AFTER, "250".parse().unwrap());
        let error = Error::of_status(&status, "http://here");
        assert_eq!(error.code(), Code::RateLimited);
        assert!(error.is_retryable());
        assert_eq!(error.retry_after(), Some(Duration::from_millis(250)));
        assert_eq!(error.to_string(), "rate_limited: more than sends_per_s");
    }

    #[test]
    fn a_broken_connection_names_the_endpoint_and_may_be_tried_again() {
        let status = tonic::Status::unavailable("connection refused");
        let error = Error::of_status(&status, "http://here");
        assert!(error.is_retryable());
        assert!(error.to_string().contains("http://here"), "{error}");
        assert!(!Error::of_status(&tonic::Status::unimplemented("?"), "").is_retryable());
    }

    #[test]
    fn a_conflict_says_what_differs() {
        let problem = Problem {
            code: "conflict".to_owned(),
            detail: "the key was used for another operation".to_owned(),
            differs: vec!["body".to_owned(), "group".to_owned()],
            id: vec![1; 16].into(),
            ..Default::default()
        };
        let told = Error::of_problem(problem).to_string();
        assert_eq!(told, "conflict: the key was used for another operation (body, group differs)");
    }

    #[test]
    fn a_code_of_a_newer_broker_is_retried_if_it_says_so() {
        let problem = |retryable| Problem {
            code: "from_the_future".to_owned(),
            retryable,
            ..Default::default()
        };
        assert!(Error::of_problem(problem(true)).is_retryable());
        assert!(!Error::of_problem(problem(false)).is_retryable());
    }
}
