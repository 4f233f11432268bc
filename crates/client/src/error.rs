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
/// Under one key a retry is always safe, whatever the error; [`Error::is_retryable`] says whether
/// it may help. [`Queue::send`](crate::Queue::send) has already retried when it returns one.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The broker refused the request.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// The broker cannot be reached, or the connection broke. Requests in flight may or may not
    /// have been carried out.
    #[error("cannot reach the broker at {endpoint}: {why}")]
    Unreachable { endpoint: String, why: String },
    /// There was no answer in time. The request may or may not have been carried out.
    #[error("no answer within {} ms; a retry under the same key is safe", .0.as_millis())]
    TimedOut(Duration),
    /// An argument is not valid.
    #[error("{0}")]
    Invalid(String),
    /// A message that was sent without a key has no answer. It may or may not have been accepted.
    /// Sent again under the generated key, it is accepted once.
    #[error("{error}; the message got the generated key {key}: send it again under this key")]
    Unanswered { key: String, error: Box<Error> },
}

/// The broker's reason for a refusal.
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
    /// The differences of the second message: `body`, `group` or `fingerprint` (and `content_type`
    /// with a broker of release 0.1).
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
    /// The error code, one of the broker's list. Errors of the connection are `unavailable`.
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

    /// The generated key of a message without one, if it is unknown whether it was accepted.
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Unanswered { key, .. } => Some(key),
            _ => None,
        }
    }

    /// The same error with the generated key of the message.
    pub(crate) fn under(self, key: &str) -> Self {
        Self::Unanswered { key: key.to_owned(), error: Box::new(self) }
    }

    /// The error of a message that does not fit into a frame and is not sent.
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

    /// The error of a reply that is not valid protobuf of this protocol.
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

    /// The error of a whole call. A status without our code did not come from the broker.
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
            // A newer broker's code: only whether to retry matters.
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

/// The meaning of a status without our code. `None` if the connection is the cause.
fn foreign(code: tonic::Code) -> Option<Code> {
    match code {
        tonic::Code::InvalidArgument => Some(Code::Invalid),
        tonic::Code::OutOfRange => Some(Code::TooLarge),
        tonic::Code::PermissionDenied => Some(Code::Forbidden),
        tonic::Code::Unauthenticated => Some(Code::Unauthorized),
        // The server lacks the method, or is not a broker.
        tonic::Code::Unimplemented => Some(Code::Invalid),
        _ => None,
    }
}

/// Explains errors of tonic and h2 that mean that another kind of server answered. A test checks
/// that their texts are still the same.
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

/// The innermost cause, which is the most specific: "connection refused" instead of "transport
/// error".
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
