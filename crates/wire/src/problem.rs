//! Errors; over HTTP as problem documents of RFC 9457.

use bytes::Bytes;
use serde::Serialize;
use utoipa::ToSchema;

use crate::code::Code;
use crate::state::State;
use crate::text::{Id, Timestamp};

/// Why one message, one settle or a whole request was refused.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Problem {
    /// One of the codes of `/errors`, such as `conflict`.
    #[prost(string, tag = "1")]
    pub code: String,
    #[prost(string, tag = "2")]
    pub detail: String,
    #[prost(bool, tag = "3")]
    pub retryable: bool,
    #[prost(uint64, optional, tag = "4")]
    pub retry_after_ms: Option<u64>,
    /// For a conflict: what differs (body, group, fingerprint).
    #[prost(string, repeated, tag = "5")]
    pub differs: Vec<String>,
    /// For a conflict: the id of the first message, and when it was accepted.
    #[prost(bytes = "bytes", tag = "6")]
    pub id: Bytes,
    #[prost(uint64, tag = "7")]
    pub accepted_at_ms: u64,
}

/// Used in place of a problem that is missing.
pub(crate) static NO_PROBLEM: Problem = Problem {
    code: String::new(),
    detail: String::new(),
    retryable: false,
    retry_after_ms: None,
    differs: Vec::new(),
    id: Bytes::new(),
    accepted_at_ms: 0,
};

impl Problem {
    /// For a conflict: the id of the first message.
    pub fn id(&self) -> Option<Id> {
        (!self.id.is_empty()).then(|| Id::of(&self.id))
    }

    pub(crate) fn accepted_at(&self) -> Option<Timestamp> {
        (!self.id.is_empty()).then_some(Timestamp(self.accepted_at_ms))
    }

    pub(crate) fn differs(&self) -> Option<&[String]> {
        (!self.id.is_empty()).then_some(&*self.differs)
    }
}

/// A part of a message in which a second send differs from the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum Differs {
    Body,
    Group,
    /// At least one of the two fingerprints was given by the caller, and they differ.
    Fingerprint,
}

impl Differs {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Body => "body",
            Self::Group => "group",
            Self::Fingerprint => "fingerprint",
        }
    }
}

/// A problem document, `application/problem+json`.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct Document<'a> {
    /// The page that explains the code.
    #[serde(rename = "type")]
    #[schema(example = "/errors/conflict")]
    pub kind: String,
    pub title: &'a str,
    pub status: u16,
    /// What is wrong with this request in particular.
    pub detail: &'a str,
    /// One of the codes of `/errors`, for programs.
    #[schema(value_type = Code)]
    pub code: &'a str,
    /// Whether the same request may succeed later. Under one key a retry is always safe.
    pub retryable: bool,
    pub request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub retry_after_ms: Option<u64>,
    /// For a conflict: what differs between the two sends.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Differs>>, nullable = false)]
    pub differs: Option<&'a [String]>,
    /// For a conflict or a key in flight: the id of the first message, and when it was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub id: Option<Id>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub accepted_at: Option<Timestamp>,
    /// For a key in flight: its state, attempts and deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub state: Option<State>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub deadline: Option<Timestamp>,
    /// From a node that does not serve, which did nothing: the address of the node that serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "http://10.0.0.7:4747")]
    pub serving: Option<&'a str>,
}

impl<'a> Document<'a> {
    /// The document of a refused request.
    pub fn new(code: Code, status: u16, problem: &'a Problem, request_id: &'a str) -> Self {
        Self {
            kind: format!("/errors/{}", problem.code),
            title: code.title(),
            status,
            detail: &problem.detail,
            code: &problem.code,
            retryable: problem.retryable,
            request_id,
            retry_after_ms: problem.retry_after_ms,
            differs: problem.differs(),
            id: problem.id(),
            accepted_at: problem.accepted_at(),
            state: None,
            attempts: None,
            deadline: None,
            serving: None,
        }
    }
}
