//! Settles and their answers.

use bytes::Bytes;
use serde::{Deserialize, Serialize, Serializer};
use utoipa::ToSchema;

use crate::blob::{Blob, body_if_given};
use crate::code::Code;
use crate::json::List;
use crate::message::{EMIT_MAX, Emit};
use crate::problem::{NO_PROBLEM, Problem};
use crate::state::State;
use crate::text::{Lease, Timestamp};

/// The most settles in one request.
pub const SETTLE_MAX: usize = 1_000;

/// The fields of a settle besides its lease, with the verbs that each belongs to.
pub const FIELDS: [(&str, &[&str]); 8] = [
    ("result", &["done"]),
    ("emit", &["done"]),
    ("error", &["fail", "park"]),
    ("delay_ms", &["fail", "park"]),
    ("dead", &["fail", "park"]),
    ("lease_ms", &["extend"]),
    ("name", &["save"]),
    ("body", &["save"]),
];

/// The settle of one lease.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Settle {
    /// Chosen by the caller and returned with the answer.
    #[prost(uint64, tag = "1")]
    pub r#ref: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub lease: Bytes,
    #[prost(oneof = "Verb", tags = "3, 4, 5, 6, 7, 8, 9")]
    pub verb: Option<Verb>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Verb {
    #[prost(message, tag = "3")]
    Done(Done),
    #[prost(message, tag = "4")]
    Fail(Fail),
    #[prost(message, tag = "5")]
    Release(Release),
    #[prost(message, tag = "6")]
    Extend(Extend),
    #[prost(message, tag = "7")]
    Begin(Begin),
    #[prost(message, tag = "8")]
    Save(Save),
    #[prost(message, tag = "9")]
    Park(Park),
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Done {
    #[prost(message, optional, tag = "1")]
    pub result: Option<Blob>,
    #[prost(message, repeated, tag = "2")]
    pub emits: Vec<Emit>,
}

#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Fail {
    #[prost(string, tag = "1")]
    pub error: String,
    #[prost(uint64, optional, tag = "2")]
    pub delay_ms: Option<u64>,
    /// Make no further attempt: the message becomes dead.
    #[prost(bool, tag = "3")]
    pub dead: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Release {}

#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Extend {
    #[prost(uint64, optional, tag = "1")]
    pub lease_ms: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Begin {}

#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Save {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub body: Bytes,
}

/// Reports that the effect is in doubt: it may have happened.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Park {
    #[prost(string, tag = "1")]
    pub error: String,
    #[prost(uint64, optional, tag = "2")]
    pub delay_ms: Option<u64>,
    #[prost(bool, tag = "3")]
    pub dead: bool,
}

/// A list of settles.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = Settle)]
pub struct Settles {
    #[schema(value_type = Vec<SettleItem>)]
    pub items: List<SettleItem, SETTLE_MAX>,
}

/// One settle. `do` determines which other fields are allowed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, ToSchema)]
pub struct SettleItem {
    pub lease: String,
    /// `done`, `fail`, `release`, `extend`, `begin`, `save` or `park`.
    #[serde(rename = "do")]
    pub verb: String,
    /// For `done`: the result, which every later send under the key gets.
    #[serde(default)]
    pub result: Option<Blob>,
    /// For `done`: follow-up messages, sent exactly once.
    #[serde(default)]
    #[schema(value_type = Option<Vec<Emit>>)]
    pub emit: Option<List<Emit, EMIT_MAX>>,
    /// For `fail` and `park`: the error.
    #[serde(default)]
    pub error: Option<String>,
    /// For `fail` and `park`: the delay, instead of the queue's backoff.
    #[serde(default)]
    pub delay_ms: Option<u64>,
    /// For `fail`, and a `park` that does not park: no further attempt.
    #[serde(default)]
    pub dead: Option<bool>,
    /// For `extend`: the length from now on; by default that of the queue.
    #[serde(default)]
    pub lease_ms: Option<u64>,
    /// For `save`.
    #[serde(default)]
    pub name: Option<String>,
    /// For `save`.
    #[serde(default, alias = "body_base64", deserialize_with = "body_if_given")]
    #[schema(value_type = Option<String>)]
    pub body: Option<Bytes>,
}

/// Why an item is not a valid settle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSettle {
    #[error("do: {0:?} is not one of done, fail, release, extend, begin, save and park")]
    Verb(String),
    #[error("{field} belongs to do: {verbs}, not to {verb:?}")]
    Field { field: &'static str, verbs: String, verb: String },
    #[error("emit: {0} messages are given, at most {EMIT_MAX} are allowed")]
    Emits(usize),
}

impl TryFrom<SettleItem> for Settle {
    type Error = BadSettle;

    fn try_from(item: SettleItem) -> Result<Self, BadSettle> {
        item.check()?;
        let (error, delay_ms) = (item.error.unwrap_or_default(), item.delay_ms);
        let dead = item.dead.unwrap_or_default();
        let verb = match item.verb.as_str() {
            "done" => {
                let emits = item.emit.unwrap_or_default();
                if emits.beyond > 0 {
                    return Err(BadSettle::Emits(emits.len() + emits.beyond));
                }
                Verb::Done(Done { result: item.result, emits: emits.items })
            }
            "fail" => Verb::Fail(Fail { error, delay_ms, dead }),
            "park" => Verb::Park(Park { error, delay_ms, dead }),
            "release" => Verb::Release(Release {}),
            "extend" => Verb::Extend(Extend { lease_ms: item.lease_ms }),
            "begin" => Verb::Begin(Begin {}),
            "save" => Verb::Save(Save {
                name: item.name.unwrap_or_default(),
                body: item.body.unwrap_or_default(),
            }),
            _ => return Err(BadSettle::Verb(item.verb)),
        };
        Ok(Self { r#ref: 0, lease: Lease::read(&item.lease), verb: Some(verb) })
    }
}

impl SettleItem {
    /// Refuses a field that belongs to another verb, instead of ignoring it.
    fn check(&self) -> Result<(), BadSettle> {
        let given = [
            self.result.is_some(),
            self.emit.is_some(),
            self.error.is_some(),
            self.delay_ms.is_some(),
            self.dead.is_some(),
            self.lease_ms.is_some(),
            self.name.is_some(),
            self.body.is_some(),
        ];
        let verb = self.verb.as_str();
        let all = ["done", "fail", "release", "extend", "begin", "save", "park"];
        let mut fields = FIELDS.into_iter().zip(given).filter(|(_, is_given)| *is_given);
        match fields.find(|((_, verbs), _)| !verbs.contains(&verb) && all.contains(&verb)) {
            Some(((field, verbs), _)) => {
                Err(BadSettle::Field { field, verbs: or(verbs), verb: self.verb.clone() })
            }
            None => Ok(()),
        }
    }
}

/// `"fail" or "park"`
fn or(verbs: &[&str]) -> String {
    verbs.iter().map(|verb| format!("{verb:?}")).collect::<Vec<_>>().join(" or ")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum SettleKind {
    Unspecified = 0,
    Ok = 1,
    LeaseLost = 2,
    SettleError = 3,
}

/// The answer to one settle.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct SettleAnswer {
    #[prost(uint64, tag = "1")]
    pub r#ref: u64,
    #[prost(enumeration = "SettleKind", tag = "2")]
    pub kind: i32,
    /// The state of the message after the settle.
    #[prost(enumeration = "State", tag = "3")]
    pub state: i32,
    /// The new deadline of an extended lease, the due time of a failed one.
    #[prost(uint64, optional, tag = "4")]
    pub deadline_ms: Option<u64>,
    /// For a lost lease: the result of the winner, if there is one.
    #[prost(message, optional, tag = "5")]
    pub result: Option<Blob>,
    #[prost(message, optional, tag = "6")]
    pub problem: Option<Problem>,
    /// For a lost lease: the result was left out because it did not fit beside the others.
    #[prost(bool, tag = "7")]
    pub result_omitted: bool,
}

impl SettleAnswer {
    /// A refusal as the answer to one settle.
    pub fn refused(reference: u64, problem: Problem) -> Self {
        let kind = SettleKind::SettleError.into();
        Self { r#ref: reference, kind, problem: Some(problem), ..Self::default() }
    }
}

/// The answer to one settle.
#[derive(Serialize, ToSchema)]
#[serde(tag = "answer", rename_all = "snake_case")]
enum Form<'a> {
    Ok {
        /// For `fail`: the state of the message after the settle.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        state: Option<State>,
        /// The new deadline of an extended lease, the due time of a failed one.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        deadline: Option<Timestamp>,
    },
    /// Another lease is newer, or the message is finished. Nothing was changed.
    LeaseLost {
        /// `null` if the message is no longer known.
        #[schema(required = true)]
        state: Option<State>,
        /// The winner's result, if there is one.
        #[schema(required = true)]
        result: Option<&'a Blob>,
        /// The result was left out because the answer would be too large: get it with the key.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        #[schema(required = false)]
        result_omitted: bool,
    },
    /// This settle was refused and the lease is unchanged. The other settles are not affected.
    Error {
        /// One of the codes of `/errors`.
        #[schema(value_type = Code)]
        code: &'a str,
        detail: &'a str,
        retryable: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        retry_after_ms: Option<u64>,
    },
}

impl Serialize for SettleAnswer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let state = Some(self.state()).filter(|state| *state != State::Unspecified);
        let form = match self.kind() {
            SettleKind::Ok => Form::Ok { state, deadline: self.deadline_ms.map(Timestamp) },
            SettleKind::LeaseLost => Form::LeaseLost {
                state,
                result: self.result.as_ref(),
                result_omitted: self.result_omitted,
            },
            SettleKind::SettleError | SettleKind::Unspecified => {
                let problem = self.problem.as_ref().unwrap_or(&NO_PROBLEM);
                Form::Error {
                    code: &problem.code,
                    detail: &problem.detail,
                    retryable: problem.retryable,
                    retry_after_ms: problem.retry_after_ms,
                }
            }
        };
        form.serialize(serializer)
    }
}

crate::text::schema_of!(SettleAnswer as "Settled", Form<'_>);

/// The answers to settles, in the same order.
#[derive(Clone, PartialEq, prost::Message, Serialize, ToSchema)]
#[schema(as = Settles)]
pub struct SettleReply {
    #[prost(message, repeated, tag = "1")]
    pub answers: Vec<SettleAnswer>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::read;

    fn settle(json: &str) -> Result<Settle, BadSettle> {
        read::<SettleItem>(json.as_bytes()).unwrap().try_into()
    }

    #[test]
    fn an_item_becomes_the_settle_that_it_says() {
        let save = settle(r#"{"lease":"AQI","do":"save","name":"n","body_base64":"/w"}"#).unwrap();
        let verb = Verb::Save(Save { name: "n".to_owned(), body: b"\xff"[..].into() });
        assert_eq!(save, Settle { r#ref: 0, lease: b"\x01\x02"[..].into(), verb: Some(verb) });
        let fail = settle(r#"{"lease":"AQI","do":"fail","error":"e","dead":true}"#).unwrap();
        let expected = Fail { error: "e".to_owned(), delay_ms: None, dead: true };
        assert_eq!(fail.verb, Some(Verb::Fail(expected)));
        assert_eq!(settle(r#"{"lease":"not one","do":"begin"}"#).unwrap().lease, "");
    }

    #[test]
    fn a_field_of_another_verb_is_refused_by_its_name() {
        let said = |json: &str| settle(json).unwrap_err().to_string();
        let other = said(r#"{"lease":"l","do":"done","error":"x"}"#);
        assert_eq!(other, r#"error belongs to do: "fail" or "park", not to "done""#);
        let verb = said(r#"{"lease":"l","do":"finish","error":"x"}"#);
        assert!(verb.starts_with(r#"do: "finish" is not one of done, fail"#), "{verb}");
        let emit = r#"{"queue":"q"},"#.repeat(99);
        let many = said(&format!(r#"{{"lease":"l","do":"done","emit":[{emit}{{"queue":"q"}}]}}"#));
        assert_eq!(many, "emit: 100 messages are given, at most 64 are allowed");
    }

    #[test]
    fn an_answer_says_first_what_it_is() {
        let json = |answer: SettleAnswer| serde_json::to_string(&answer).unwrap();
        let ok = SettleAnswer { kind: SettleKind::Ok.into(), ..SettleAnswer::default() };
        assert_eq!(json(ok.clone()), r#"{"answer":"ok"}"#);
        let failed = SettleAnswer { state: State::Dead.into(), deadline_ms: Some(0), ..ok };
        let expected = r#"{"answer":"ok","state":"dead","deadline":"1970-01-01T00:00:00.000Z"}"#;
        assert_eq!(json(failed), expected);
        let lost = SettleAnswer { kind: SettleKind::LeaseLost.into(), ..SettleAnswer::default() };
        assert_eq!(json(lost), r#"{"answer":"lease_lost","state":null,"result":null}"#);
        let problem = Problem { code: "invalid".to_owned(), ..Problem::default() };
        let refused = json(SettleAnswer::refused(7, problem));
        let expected = r#"{"answer":"error","code":"invalid","detail":"","retryable":false}"#;
        assert_eq!(refused, expected);
    }
}
