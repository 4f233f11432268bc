//! What a send or a claim is answered with.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::message::Blob;
use super::problem::Differs;
use super::text::{Fence, Id, State, Text, Timestamp};
use super::work::Points;

/// The answer to one send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer<'a> {
    /// The key is new.
    Accepted {
        #[serde(borrow)]
        #[schema(value_type = String)]
        queue: Text<'a>,
        /// Generated where the message came without one.
        #[serde(borrow)]
        #[schema(value_type = String)]
        key: Text<'a>,
        id: Id,
        state: State,
        accepted_at: Timestamp,
    },
    /// The key's message is ready, delayed or leased.
    InFlight {
        #[serde(borrow)]
        #[schema(value_type = String)]
        queue: Text<'a>,
        #[serde(borrow)]
        #[schema(value_type = String)]
        key: Text<'a>,
        id: Id,
        state: State,
        attempts: u32,
        accepted_at: Timestamp,
        /// When the lease ends or the delay is over.
        #[serde(default)]
        deadline: Option<Timestamp>,
    },
    Done {
        #[serde(borrow)]
        #[schema(value_type = String)]
        queue: Text<'a>,
        #[serde(borrow)]
        #[schema(value_type = String)]
        key: Text<'a>,
        id: Id,
        state: State,
        attempts: u32,
        accepted_at: Timestamp,
        /// `null` where the worker stored none.
        #[serde(borrow, default)]
        result: Option<Blob<'a>>,
        /// There is a result, but it would have made this answer too large: look at the key.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        result_omitted: bool,
        finished_at: Timestamp,
        /// `null` where the key is remembered for ever.
        #[serde(default)]
        remembered_until: Option<Timestamp>,
    },
    Dead {
        #[serde(borrow)]
        #[schema(value_type = String)]
        queue: Text<'a>,
        #[serde(borrow)]
        #[schema(value_type = String)]
        key: Text<'a>,
        id: Id,
        state: State,
        attempts: u32,
        accepted_at: Timestamp,
        /// Of the last attempt.
        #[serde(borrow)]
        #[schema(value_type = String)]
        error: Text<'a>,
    },
    Parked {
        #[serde(borrow)]
        #[schema(value_type = String)]
        queue: Text<'a>,
        #[serde(borrow)]
        #[schema(value_type = String)]
        key: Text<'a>,
        id: Id,
        state: State,
        attempts: u32,
        accepted_at: Timestamp,
    },
    /// In a batch: this message was refused. Its neighbours were not.
    Error {
        /// `null` where the message has none.
        #[serde(borrow, default)]
        #[schema(value_type = Option<String>)]
        key: Option<Text<'a>>,
        /// One of the codes of `/errors`.
        #[serde(borrow)]
        #[schema(value_type = String)]
        code: Text<'a>,
        #[serde(borrow)]
        #[schema(value_type = String)]
        detail: Text<'a>,
        retryable: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
        /// Of a conflict.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        differs: Option<Vec<Differs>>,
        /// Of a conflict: the first message's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<Id>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        accepted_at: Option<Timestamp>,
    },
}

/// The answers to a batch, in its order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Answers<'a> {
    #[serde(borrow)]
    pub answers: Vec<Answer<'a>>,
}

/// The answer to a claim that took the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "answer", rename = "fresh")]
pub struct Claimed<'a> {
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub queue: Text<'a>,
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub key: Text<'a>,
    pub id: Id,
    /// Settle under it.
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub lease: Text<'a>,
    pub fence: Fence,
    /// Whose key it is.
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub tenant: Text<'a>,
    /// How long the lease lasts from this answer on.
    pub lease_ms: u64,
    /// By the broker's clock.
    pub deadline: Timestamp,
    /// What an earlier claim of the key saved before it was released or lost.
    #[serde(borrow, default)]
    #[schema(value_type = std::collections::BTreeMap<String, Blob>)]
    pub recovery_points: Points<'a>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_first_what_it_is() {
        let accepted = Answer::Accepted {
            queue: "orders".into(),
            key: "order-42".into(),
            id: Id([0; 16]),
            state: State::Ready,
            accepted_at: Timestamp(0),
        };
        let json = serde_json::to_string(&accepted).unwrap();
        let expected = r#"{"answer":"accepted","queue":"orders","key":"order-42","#;
        assert!(json.starts_with(expected), "{json}");
        assert_eq!(serde_json::from_str::<Answer<'_>>(&json).unwrap(), accepted);
        let claimed = Claimed {
            queue: "orders".into(),
            key: "k".into(),
            id: Id([0; 16]),
            lease: "l".into(),
            fence: Fence(17),
            tenant: "default".into(),
            lease_ms: 30_000,
            deadline: Timestamp(0),
            recovery_points: Points::default(),
        };
        let json = serde_json::to_string(&claimed).unwrap();
        assert!(json.starts_with(r#"{"answer":"fresh","queue":"orders","#), "{json}");
    }
}
