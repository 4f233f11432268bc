//! What `-o json` prints. The fields are those of the HTTP door, so that a script can change from
//! one to the other; they are only ever added to.

use std::collections::{BTreeMap, HashMap};

use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD, Engine};
use hapax_wire::proto;
use hapax_wire::proto::{AnswerKind, SettleKind, State};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::moment::rfc3339;
use crate::screen::state_name;

/// Bytes beside other fields: `body` where they are text, else `body_base64`.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Body {
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
}

impl Body {
    pub(crate) fn of(bytes: &[u8], content_type: &str) -> Self {
        let content_type = present(content_type);
        match std::str::from_utf8(bytes) {
            Ok(text) => Self { body: Some(text.to_owned()), body_base64: None, content_type },
            Err(_) => {
                let text = BASE64_STANDARD.encode(bytes);
                Self { body: None, body_base64: Some(text), content_type }
            }
        }
    }

    fn blob(blob: &proto::Blob) -> Self {
        Self::of(&blob.body, &blob.content_type)
    }
}

/// A time in milliseconds that is written as RFC 3339.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At(pub(crate) u64);

impl Serialize for At {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&rfc3339(self.0))
    }
}

fn at(ms: u64) -> Option<At> {
    (ms > 0).then_some(At(ms))
}

#[derive(Debug, Serialize)]
pub(crate) struct Key {
    key: String,
    id: String,
    state: &'static str,
    attempts: u32,
    generation: u32,
    group: Option<String>,
    accepted_at: Option<At>,
    finished_at: Option<At>,
    remembered_until: Option<At>,
    deadline: Option<At>,
    duplicates: u64,
    worker: Option<String>,
    result: Option<Body>,
    error: Option<String>,
    recovery_points: BTreeMap<String, Body>,
    headers: BTreeMap<String, String>,
    message: Option<Body>,
    history: Vec<Event>,
}

#[derive(Debug, Serialize)]
struct Event {
    at: At,
    event: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

impl Key {
    pub(crate) fn of(key: &proto::Key) -> Self {
        let history = key.history.iter().map(|event| Event {
            at: At(event.at_ms),
            event: event.event.clone(),
            worker: present(&event.worker),
            detail: present(&event.detail),
        });
        Self {
            key: key.key.clone(),
            id: id(&key.id),
            state: state_name(key.state()),
            attempts: key.attempts,
            generation: key.generation,
            group: present(&key.group),
            accepted_at: at(key.accepted_at_ms),
            finished_at: key.finished_at_ms.map(At),
            remembered_until: key.remembered_until_ms.map(At),
            deadline: key.deadline_ms.map(At),
            duplicates: key.duplicates,
            worker: present(&key.worker),
            result: key.result.as_ref().map(Body::blob),
            error: present(&key.error),
            recovery_points: points(&key.recovery_points),
            headers: headers(&key.headers),
            message: key.message.as_ref().map(Body::blob),
            history: history.collect(),
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Delivery {
    lease: String,
    /// As digits: it outgrows the integers that programs read from JSON without loss.
    fence: String,
    tenant: String,
    queue: String,
    key: String,
    id: String,
    attempt: u32,
    generation: u32,
    group: Option<String>,
    #[serde(flatten)]
    body: Body,
    headers: BTreeMap<String, String>,
    accepted_at: At,
    lease_ms: u64,
    deadline: At,
    recovery_points: BTreeMap<String, Body>,
}

impl Delivery {
    pub(crate) fn of(delivery: &proto::Delivery) -> Self {
        Self {
            lease: lease(&delivery.lease),
            fence: delivery.fence.to_string(),
            tenant: delivery.tenant.clone(),
            queue: delivery.queue.clone(),
            key: delivery.key.clone(),
            id: id(&delivery.id),
            attempt: delivery.attempt,
            generation: delivery.generation,
            group: present(&delivery.group),
            body: Body::of(&delivery.body, &delivery.content_type),
            headers: headers(&delivery.headers),
            accepted_at: At(delivery.accepted_at_ms),
            lease_ms: delivery.lease_ms,
            deadline: At(delivery.deadline_ms),
            recovery_points: points(&delivery.recovery_points),
        }
    }
}

/// How far a redrive has come.
pub(crate) fn redrive(progress: &proto::RedriveProgress) -> Value {
    json!({
        "id": progress.id,
        "matched": progress.matched,
        "moved": progress.moved,
        "total": progress.total,
        "missing": progress.missing,
        "done": progress.done,
        "cancelled": progress.cancelled,
        "dry_run": progress.dry_run,
    })
}

/// A queue of a list, with the partitions whose part of its figures is missing or old.
pub(crate) fn listed_queue(queue: &proto::Queue, unanswered: &[u32]) -> Value {
    let mut shape = self::queue(queue);
    if let Some(shape) = shape.as_object_mut()
        && !unanswered.is_empty()
    {
        shape.insert("unanswered".to_owned(), json!(unanswered));
    }
    shape
}

/// A queue: its rules are what the broker wrote.
pub(crate) fn queue(queue: &proto::Queue) -> Value {
    let config: Value = serde_json::from_str(&queue.config_json).unwrap_or(Value::Null);
    let stats = queue.stats.unwrap_or_default();
    json!({
        "queue": queue.queue,
        "config": config,
        "stats": {
            "ready": stats.ready,
            "held": stats.held,
            "delayed": stats.delayed,
            "leased": stats.leased,
            "parked": stats.parked,
            "dead": stats.dead,
            "keys": stats.keys,
            "oldest_ready_age_ms": stats.oldest_ready_age_ms,
            "sent_total": stats.sent_total,
            "duplicate_total": stats.duplicate_total,
            "done_total": stats.done_total,
            "failed_total": stats.failed_total,
            "lease_lost_total": stats.lease_lost_total,
        },
        "paused": queue.paused,
        "created_at": rfc3339(queue.created_at_ms),
        "etag": queue.etag,
    })
}

/// What a send or a claim was answered with.
#[derive(Debug, Serialize)]
pub(crate) struct Answer {
    answer: &'static str,
    queue: String,
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted_at: Option<At>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finished_at: Option<At>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remembered_until: Option<At>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Body>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    differs: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retryable: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
}

impl Answer {
    pub(crate) fn of(queue: &str, key: &str, answer: &proto::Answer) -> Self {
        let outcome = answer.outcome.as_ref();
        let problem = answer.problem.as_ref();
        let first = problem.map_or(answer.id.as_ref(), |problem| problem.id.as_ref());
        let accepted = problem.map_or(answer.accepted_at_ms, |problem| problem.accepted_at_ms);
        Self {
            answer: answer_name(answer.kind()),
            queue: queue.to_owned(),
            key: key.to_owned(),
            id: (!first.is_empty()).then(|| id(first)),
            state: (answer.state() != State::Unspecified).then(|| state_name(answer.state())),
            attempts: outcome.map(|outcome| outcome.attempts),
            accepted_at: at(accepted),
            finished_at: outcome.and_then(|outcome| at(outcome.finished_at_ms)),
            remembered_until: outcome.and_then(|outcome| outcome.remembered_until_ms).map(At),
            result: outcome.and_then(|outcome| outcome.result.as_ref()).map(Body::blob),
            error: outcome.and_then(|outcome| present(&outcome.error)),
            code: problem.map(|problem| problem.code.clone()),
            detail: problem.map(|problem| problem.detail.clone()),
            differs: problem.map(|problem| problem.differs.clone()).unwrap_or_default(),
            retryable: problem.map(|problem| problem.retryable),
            retry_after_ms: problem.and_then(|problem| problem.retry_after_ms),
        }
    }
}

pub(crate) fn answer_name(kind: AnswerKind) -> &'static str {
    match kind {
        AnswerKind::Accepted => "accepted",
        AnswerKind::InFlight => "in_flight",
        AnswerKind::Done => "done",
        AnswerKind::Dead => "dead",
        AnswerKind::Parked => "parked",
        AnswerKind::Fresh => "fresh",
        AnswerKind::Error | AnswerKind::Unspecified => "error",
    }
}

/// What a settle was answered with.
pub(crate) fn settled(lease: &str, answer: &proto::SettleAnswer) -> Value {
    let name = match answer.kind() {
        SettleKind::Ok => "ok",
        SettleKind::LeaseLost => "lease_lost",
        SettleKind::SettleError | SettleKind::Unspecified => "error",
    };
    let mut value = json!({ "lease": lease, "answer": name });
    let mut add = |name: &str, field: Value| {
        if let Some(fields) = value.as_object_mut() {
            fields.insert(name.to_owned(), field);
        }
    };
    if answer.state() != State::Unspecified {
        add("state", state_name(answer.state()).into());
    }
    if let Some(deadline) = answer.deadline_ms {
        add("deadline", rfc3339(deadline).into());
    }
    if let Some(result) = &answer.result {
        add("result", json!(Body::blob(result)));
    }
    if let Some(problem) = &answer.problem {
        add("code", problem.code.clone().into());
        add("detail", problem.detail.clone().into());
    }
    value
}

/// A message's id as it is written everywhere.
pub(crate) fn id(bytes: &[u8]) -> String {
    uuid::Uuid::from_slice(bytes).map(|uuid| uuid.to_string()).unwrap_or_default()
}

/// A lease as one word, to be copied from one command to the next.
pub(crate) fn lease(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// The lease that was written as a word.
pub(crate) fn parse_lease(text: &str) -> Result<bytes::Bytes, String> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(text.trim().trim_end_matches('='));
    bytes.map(Into::into).map_err(|_| "not a lease: copy it from `hapax receive`".to_owned())
}

fn points(points: &HashMap<String, bytes::Bytes>) -> BTreeMap<String, Body> {
    points.iter().map(|(name, bytes)| (name.clone(), Body::of(bytes, ""))).collect()
}

fn headers(headers: &HashMap<String, String>) -> BTreeMap<String, String> {
    headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn present(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_text_are_base64() {
        let text = json!(Body::of(b"paid", "text/plain"));
        assert_eq!(text, json!({ "body": "paid", "content_type": "text/plain" }));
        assert_eq!(json!(Body::of(&[0xff], "")), json!({ "body_base64": "/w==" }));
    }

    #[test]
    fn a_lease_reads_back() {
        let bytes: Vec<u8> = (0..42).collect();
        assert_eq!(parse_lease(&lease(&bytes)), Ok(bytes.into()));
        assert!(parse_lease("not a lease!").is_err());
    }

    #[test]
    fn a_conflict_tells_about_the_first_message() {
        let problem = proto::Problem {
            code: "conflict".to_owned(),
            detail: "the key was used for another operation".to_owned(),
            differs: vec!["body".to_owned()],
            id: vec![1; 16].into(),
            accepted_at_ms: 1_700_000_000_000,
            ..proto::Problem::default()
        };
        let answer = proto::Answer {
            kind: AnswerKind::Error.into(),
            problem: Some(problem),
            ..proto::Answer::default()
        };
        let value = json!(Answer::of("orders", "order-42", &answer));
        assert_eq!(
            value,
            json!({
                "answer": "error",
                "queue": "orders",
                "key": "order-42",
                "id": "01010101-0101-0101-0101-010101010101",
                "accepted_at": "2023-11-14T22:13:20.000Z",
                "code": "conflict",
                "detail": "the key was used for another operation",
                "differs": ["body"],
                "retryable": false,
            })
        );
    }
}
