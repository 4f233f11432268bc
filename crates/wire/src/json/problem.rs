//! Why a request was refused, as RFC 9457 has it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::text::{Id, State, Text, Timestamp};

/// A part of a message in which a second send differs from the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Differs {
    Body,
    Group,
    /// One of the two was given by the caller, and they are not the same.
    Fingerprint,
}

/// A problem document, `application/problem+json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem<'a> {
    /// The page that explains the code.
    #[serde(rename = "type", borrow)]
    #[schema(value_type = String, example = "/errors/conflict")]
    pub kind: Text<'a>,
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub title: Text<'a>,
    pub status: u16,
    /// What is wrong with this request in particular.
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub detail: Text<'a>,
    /// One of the codes of `/errors`, for programs.
    #[serde(borrow)]
    #[schema(value_type = String, example = "conflict")]
    pub code: Text<'a>,
    /// Whether the same request may succeed later. Under one key a retry is always safe.
    pub retryable: bool,
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub request_id: Text<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Of a conflict: in what the two sends differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub differs: Option<Vec<Differs>>,
    /// Of a conflict, or of a key in flight: the first message's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Id>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted_at: Option<Timestamp>,
    /// Of a key in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
}
