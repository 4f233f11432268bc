//! The answers to sends and claims.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use crate::blob::{Blob, Points};
use crate::code::Code;
use crate::key::Key;
use crate::problem::{Differs, NO_PROBLEM, Problem};
use crate::state::State;
use crate::text::{Fence, Id, Lease, Timestamp};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum AnswerKind {
    Unspecified = 0,
    /// The key is new.
    Accepted = 1,
    /// The key's message is ready, delayed or leased.
    InFlight = 2,
    Done = 3,
    Dead = 4,
    Parked = 5,
    Error = 6,
    /// For a claim: the caller holds the key now.
    Fresh = 7,
}

impl AnswerKind {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::InFlight => "in_flight",
            Self::Done => "done",
            Self::Dead => "dead",
            Self::Parked => "parked",
            Self::Fresh => "fresh",
            Self::Error | Self::Unspecified => "error",
        }
    }
}

/// The answer to one send or claim.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Answer {
    #[prost(uint64, tag = "1")]
    pub r#ref: u64,
    #[prost(enumeration = "AnswerKind", tag = "2")]
    pub kind: i32,
    /// The id of the first message under the key.
    #[prost(bytes = "bytes", tag = "3")]
    pub id: Bytes,
    #[prost(enumeration = "State", tag = "4")]
    pub state: i32,
    #[prost(uint64, tag = "5")]
    pub accepted_at_ms: u64,
    /// Absent for an accepted message.
    #[prost(message, optional, tag = "6")]
    pub outcome: Option<Outcome>,
    #[prost(message, optional, tag = "7")]
    pub problem: Option<Problem>,
}

/// The state of a known key, as far as its answer includes it.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Outcome {
    #[prost(uint32, tag = "1")]
    pub attempts: u32,
    #[prost(message, optional, tag = "2")]
    pub result: Option<Blob>,
    #[prost(string, tag = "3")]
    pub error: String,
    #[prost(uint64, tag = "4")]
    pub finished_at_ms: u64,
    /// Absent if the key is remembered for ever.
    #[prost(uint64, optional, tag = "5")]
    pub remembered_until_ms: Option<u64>,
    /// The time at which the lease or the delay ends.
    #[prost(uint64, optional, tag = "6")]
    pub deadline_ms: Option<u64>,
}

impl Answer {
    /// A refusal as the answer to one message.
    pub fn refused(reference: u64, problem: Problem) -> Self {
        let kind = AnswerKind::Error.into();
        Self { r#ref: reference, kind, problem: Some(problem), ..Self::default() }
    }

    /// The answer after waiting, from the key as it is then: the end of the message, or the same
    /// kind of answer as before.
    pub fn waited(self, key: Key) -> Self {
        let kind = match key.state() {
            State::Done => AnswerKind::Done,
            State::Dead | State::Discarded => AnswerKind::Dead,
            State::Parked => AnswerKind::Parked,
            State::Ready | State::Delayed | State::Leased | State::Unspecified => self.kind(),
        };
        let outcome = Outcome {
            attempts: key.attempts,
            result: key.result,
            error: key.error,
            finished_at_ms: key.finished_at_ms.unwrap_or_default(),
            remembered_until_ms: key.remembered_until_ms,
            deadline_ms: key.deadline_ms,
        };
        Self {
            r#ref: self.r#ref,
            kind: kind.into(),
            id: key.id,
            state: key.state,
            accepted_at_ms: key.accepted_at_ms,
            outcome: Some(outcome),
            problem: None,
        }
    }
}

/// The answer to one send in JSON, with its queue and key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered<'a> {
    /// `None` for a refusal that does not name it.
    pub queue: Option<&'a str>,
    /// The id is the key of a message that came without one.
    pub key: Cow<'a, str>,
    pub answer: Answer,
    pub result_omitted: bool,
}

/// The answer to one send.
#[derive(Serialize, ToSchema)]
#[serde(tag = "answer", rename_all = "snake_case")]
enum Form<'a> {
    /// The key is new.
    Accepted {
        queue: &'a str,
        /// Generated if the message came without one.
        key: &'a str,
        id: Id,
        state: State,
        accepted_at: Timestamp,
    },
    /// The key's message is ready, delayed or leased.
    InFlight {
        queue: &'a str,
        key: &'a str,
        id: Id,
        state: State,
        attempts: u32,
        accepted_at: Timestamp,
        /// The time at which the lease or the delay ends.
        #[schema(required = true)]
        deadline: Option<Timestamp>,
    },
    Done {
        queue: &'a str,
        key: &'a str,
        id: Id,
        state: State,
        attempts: u32,
        accepted_at: Timestamp,
        /// `null` if the worker stored none.
        #[schema(required = true)]
        result: Option<&'a Blob>,
        /// The result was left out because the answer would be too large: get it with the key.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        #[schema(required = false)]
        result_omitted: bool,
        finished_at: Timestamp,
        /// `null` if the key is remembered for ever.
        #[schema(required = true)]
        remembered_until: Option<Timestamp>,
    },
    Dead {
        queue: &'a str,
        key: &'a str,
        id: Id,
        state: State,
        attempts: u32,
        accepted_at: Timestamp,
        /// The error of the last attempt.
        error: &'a str,
    },
    Parked {
        queue: &'a str,
        key: &'a str,
        id: Id,
        state: State,
        attempts: u32,
        accepted_at: Timestamp,
    },
    /// In a batch: this message was refused. The others are not affected.
    Error {
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(ignore)]
        queue: Option<&'a str>,
        /// `null` if the message has none.
        #[schema(required = true)]
        key: Option<&'a str>,
        /// One of the codes of `/errors`.
        #[schema(value_type = Code)]
        code: &'a str,
        detail: &'a str,
        retryable: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        retry_after_ms: Option<u64>,
        /// For a conflict: what differs.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<Vec<Differs>>, nullable = false)]
        differs: Option<&'a [String]>,
        /// For a conflict: the id of the first message, and when it was accepted.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        id: Option<Id>,
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        accepted_at: Option<Timestamp>,
    },
}

impl Answered<'_> {
    fn form(&self) -> Form<'_> {
        let Self { answer, key, .. } = self;
        let (queue, key) = (self.queue.unwrap_or_default(), &**key);
        let (id, state) = (Id::of(&answer.id), answer.state());
        let accepted_at = Timestamp(answer.accepted_at_ms);
        let outcome = answer.outcome.as_ref();
        let attempts = outcome.map(|outcome| outcome.attempts).unwrap_or_default();
        match answer.kind() {
            AnswerKind::Accepted | AnswerKind::Fresh => {
                Form::Accepted { queue, key, id, state, accepted_at }
            }
            AnswerKind::InFlight => {
                let deadline = outcome.and_then(|outcome| outcome.deadline_ms).map(Timestamp);
                Form::InFlight { queue, key, id, state, attempts, accepted_at, deadline }
            }
            AnswerKind::Done => Form::Done {
                queue,
                key,
                id,
                state,
                attempts,
                accepted_at,
                result: outcome.and_then(|outcome| outcome.result.as_ref()),
                result_omitted: self.result_omitted,
                finished_at: Timestamp(outcome.map(|it| it.finished_at_ms).unwrap_or_default()),
                remembered_until: outcome.and_then(|it| it.remembered_until_ms).map(Timestamp),
            },
            AnswerKind::Dead => {
                let error = outcome.map(|outcome| &*outcome.error).unwrap_or_default();
                Form::Dead { queue, key, id, state, attempts, accepted_at, error }
            }
            AnswerKind::Parked => Form::Parked { queue, key, id, state, attempts, accepted_at },
            AnswerKind::Error | AnswerKind::Unspecified => {
                let problem = answer.problem.as_ref().unwrap_or(&NO_PROBLEM);
                Form::Error {
                    queue: self.queue,
                    key: Some(key).filter(|key| !key.is_empty()),
                    code: &problem.code,
                    detail: &problem.detail,
                    retryable: problem.retryable,
                    retry_after_ms: problem.retry_after_ms,
                    differs: problem.differs(),
                    id: problem.id(),
                    accepted_at: problem.accepted_at(),
                }
            }
        }
    }
}

impl Serialize for Answered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.form().serialize(serializer)
    }
}

crate::text::schema_of!(Answered<'_> as "Answer", Form<'_>);

/// The answers to a batch, in the order of its messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = BatchAnswers)]
pub struct Answers<'a> {
    pub answers: Vec<Answered<'a>>,
}

/// The answer to a claim.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClaimReply {
    #[prost(message, optional, tag = "1")]
    pub answer: Option<Answer>,
    /// This and the following fields are set only if the answer is `Fresh`.
    #[prost(bytes = "bytes", tag = "2")]
    pub lease: Bytes,
    #[prost(uint64, tag = "3")]
    pub fence: u64,
    #[prost(uint64, tag = "4")]
    pub deadline_ms: u64,
    #[prost(btree_map = "string, bytes", tag = "5")]
    pub recovery_points: BTreeMap<String, Bytes>,
    #[prost(uint64, tag = "6")]
    pub lease_ms: u64,
    #[prost(string, tag = "7")]
    pub tenant: String,
    /// Whether the queue parks a begun claim that is lost.
    #[prost(bool, optional, tag = "8")]
    pub parks: Option<bool>,
}

/// The answer to a claim that took the key.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "answer", rename = "fresh")]
pub struct Claimed<'a> {
    queue: &'a str,
    key: &'a str,
    id: Id,
    /// The lease to settle with.
    #[schema(value_type = String)]
    lease: Lease<'a>,
    fence: Fence,
    /// The tenant of the key.
    tenant: &'a str,
    /// How long the lease lasts from this answer on.
    lease_ms: u64,
    /// The end of the lease, by the broker's clock.
    deadline: Timestamp,
    /// What an earlier claim of the key saved before it was released or lost.
    #[schema(value_type = BTreeMap<String, Blob>)]
    recovery_points: Points<'a>,
}

impl<'a> Claimed<'a> {
    pub fn new(queue: &'a str, key: &'a str, reply: &'a ClaimReply) -> Self {
        Self {
            queue,
            key,
            id: Id::of(reply.answer.as_ref().map(|answer| &*answer.id).unwrap_or_default()),
            lease: Lease(&reply.lease),
            fence: Fence(reply.fence),
            tenant: &reply.tenant,
            lease_ms: reply.lease_ms,
            deadline: Timestamp(reply.deadline_ms),
            recovery_points: Points(&reply.recovery_points),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(answer: Answer) -> String {
        let key = Cow::Borrowed("order-42");
        let told = Answered { queue: Some("orders"), key, answer, result_omitted: false };
        serde_json::to_string(&told).unwrap()
    }

    fn answer(kind: AnswerKind, state: State) -> Answer {
        Answer {
            kind: kind.into(),
            state: state.into(),
            id: vec![0; 16].into(),
            ..Answer::default()
        }
    }

    #[test]
    fn an_answer_says_first_what_it_is_and_then_what_belongs_to_that() {
        let head = |answer: &str| format!(r#"{{"answer":"{answer}","queue":"orders","#);
        let start = r#""key":"order-42","id":"00000000-0000-0000-0000-000000000000","#;
        let epoch = r#""1970-01-01T00:00:00.000Z""#;
        let at = format!(r#""accepted_at":{epoch}"#);
        let end = format!(r#""finished_at":{epoch},"remembered_until":null"#);
        assert_eq!(
            json(answer(AnswerKind::Accepted, State::Ready)),
            format!(r#"{}{start}"state":"ready",{at}}}"#, head("accepted"))
        );
        assert_eq!(
            json(answer(AnswerKind::InFlight, State::Leased)),
            format!(
                r#"{}{start}"state":"leased","attempts":0,{at},"deadline":null}}"#,
                head("in_flight")
            )
        );
        assert_eq!(
            json(answer(AnswerKind::Done, State::Done)),
            format!(
                r#"{}{start}"state":"done","attempts":0,{at},"result":null,{end}}}"#,
                head("done")
            )
        );
        assert_eq!(
            json(answer(AnswerKind::Dead, State::Discarded)),
            format!(r#"{}{start}"state":"discarded","attempts":0,{at},"error":""}}"#, head("dead"))
        );
        assert_eq!(
            json(answer(AnswerKind::Parked, State::Parked)),
            format!(r#"{}{start}"state":"parked","attempts":0,{at}}}"#, head("parked"))
        );
    }

    #[test]
    fn a_conflict_tells_about_the_first_message() {
        let problem = Problem {
            code: "conflict".to_owned(),
            detail: "the key was used for another operation".to_owned(),
            differs: vec!["body".to_owned()],
            id: vec![1; 16].into(),
            accepted_at_ms: 1_700_000_000_000,
            ..Problem::default()
        };
        let refused = Answer::refused(0, problem);
        let expected = concat!(
            r#"{"answer":"error","queue":"orders","key":"order-42","code":"conflict","#,
            r#""detail":"the key was used for another operation","retryable":false,"#,
            r#""differs":["body"],"id":"01010101-0101-0101-0101-010101010101","#,
            r#""accepted_at":"2023-11-14T22:13:20.000Z"}"#
        );
        assert_eq!(json(refused.clone()), expected);
        let keyless =
            Answered { queue: None, key: "".into(), answer: refused, result_omitted: false };
        let json = serde_json::to_string(&keyless).unwrap();
        assert!(json.starts_with(r#"{"answer":"error","key":null,"code":"conflict""#), "{json}");
    }

    #[test]
    fn a_claim_says_first_that_it_is_fresh() {
        let reply = ClaimReply {
            answer: Some(answer(AnswerKind::Fresh, State::Leased)),
            lease: b"\xff\xfe"[..].into(),
            fence: 17,
            ..ClaimReply::default()
        };
        let json = serde_json::to_string(&Claimed::new("orders", "k", &reply)).unwrap();
        let expected = concat!(
            r#"{"answer":"fresh","queue":"orders","key":"k","#,
            r#""id":"00000000-0000-0000-0000-000000000000","lease":"__4","fence":"17","#,
            r#""tenant":"","#
        );
        assert!(json.starts_with(expected), "{json}");
    }

    #[test]
    fn whoever_waits_is_told_the_end_and_a_discarded_message_is_dead() {
        let sent = || answer(AnswerKind::Accepted, State::Ready);
        let looked = |state: State| {
            let key = Key { state: state.into(), attempts: 3, ..Key::default() };
            let answer = sent().waited(key);
            (answer.kind(), answer.state(), answer.outcome.unwrap().attempts)
        };
        assert_eq!(looked(State::Done), (AnswerKind::Done, State::Done, 3));
        assert_eq!(looked(State::Dead), (AnswerKind::Dead, State::Dead, 3));
        assert_eq!(looked(State::Discarded), (AnswerKind::Dead, State::Discarded, 3));
        assert_eq!(looked(State::Parked), (AnswerKind::Parked, State::Parked, 3));
        assert_eq!(looked(State::Leased), (AnswerKind::Accepted, State::Leased, 3));
    }
}
