//! Outcomes of the core as the shapes of the wire.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use hapax_core::{
    Answer, Blob, Content, Delivery, Differs, KeyView, MessageId, Place, RedriveView, Settled, Time,
};
use hapax_wire::{Code, json};

use crate::doors::config;
use crate::problem::{First, Problem};
use crate::service::{Permit, Queue};

pub(super) fn id(id: MessageId) -> json::Id {
    json::Id(id.0)
}

pub(super) fn time(time: Time) -> json::Timestamp {
    json::Timestamp(time.0)
}

/// `None` for what has no end.
pub(super) fn end(time: Time) -> Option<json::Timestamp> {
    (time != Time::NEVER).then_some(json::Timestamp(time.0))
}

pub(super) fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

pub(super) fn state(place: Place) -> json::State {
    match place {
        Place::Ready => json::State::Ready,
        Place::Delayed => json::State::Delayed,
        Place::Leased => json::State::Leased,
        Place::Parked => json::State::Parked,
        Place::Dead => json::State::Dead,
        Place::Done => json::State::Done,
        Place::Discarded => json::State::Discarded,
    }
}

pub(super) fn place(state: &str) -> Option<Place> {
    Place::ALL.into_iter().find(|place| place.as_str() == state)
}

pub(super) fn differs(first: &First) -> Vec<json::Differs> {
    let differs = first.differs.iter().map(|differs| match differs {
        Differs::Body => json::Differs::Body,
        Differs::Group => json::Differs::Group,
        Differs::Fingerprint => json::Differs::Fingerprint,
    });
    differs.collect()
}

pub(super) fn lease(bytes: &[u8]) -> json::Text<'static> {
    URL_SAFE_NO_PAD.encode(bytes).into()
}

/// The bytes of a lease; what cannot be one is none.
pub(super) fn lease_bytes(text: &str) -> Vec<u8> {
    URL_SAFE_NO_PAD.decode(text).unwrap_or_default()
}

pub(super) fn blob(blob: &Blob) -> json::Blob<'_> {
    json::Blob::new(&blob.body, blob.content_type.as_deref())
}

pub(super) fn points(points: &BTreeMap<String, Bytes>) -> json::Points<'_> {
    let points = points.iter();
    points.map(|(name, data)| (name.as_str().into(), json::Blob::new(data, None))).collect()
}

fn headers(content: &Content) -> json::Headers<'_> {
    json::Headers(content.headers().map(|(name, value)| (name.into(), value.into())).collect())
}

/// The key of a message, or its id where it came without one.
fn key_or_id(key: &str, message: MessageId) -> json::Text<'_> {
    match key {
        "" => message.to_string().into(),
        key => key.into(),
    }
}

/// What a send gets.
pub(super) fn answer<'a>(
    queue: &'a str,
    key: &'a str,
    answer: &'a Answer,
    result_omitted: bool,
) -> json::Answer<'a> {
    let queue = json::Text::from(queue);
    match answer {
        Answer::Accepted { id: message, place, at } => json::Answer::Accepted {
            queue,
            key: key_or_id(key, *message),
            id: id(*message),
            state: state(*place),
            accepted_at: time(*at),
        },
        Answer::InFlight(it) => json::Answer::InFlight {
            queue,
            key: key.into(),
            id: id(it.id),
            state: state(it.place),
            attempts: it.attempts,
            accepted_at: time(it.accepted_at),
            deadline: it.deadline.and_then(end),
        },
        Answer::Done(it) => json::Answer::Done {
            queue,
            key: key.into(),
            id: id(it.id),
            state: json::State::Done,
            attempts: it.attempts,
            accepted_at: time(it.accepted_at),
            result_omitted,
            result: it.result.as_ref().map(blob),
            finished_at: time(it.finished_at),
            remembered_until: end(it.remembered_until),
        },
        Answer::Dead { id: message, accepted_at, attempts, error, discarded } => {
            json::Answer::Dead {
                queue,
                key: key.into(),
                id: id(*message),
                state: if *discarded { json::State::Discarded } else { json::State::Dead },
                attempts: *attempts,
                accepted_at: time(*accepted_at),
                error: (&**error).into(),
            }
        }
        Answer::Parked { id: message, accepted_at, attempts } => json::Answer::Parked {
            queue,
            key: key.into(),
            id: id(*message),
            state: json::State::Parked,
            attempts: *attempts,
            accepted_at: time(*accepted_at),
        },
        refused => {
            let problem = Problem::of_answer(refused)
                .unwrap_or_else(|| Problem::new(Code::Internal, "an answer to something else"));
            refusal(Some(key), &problem)
        }
    }
}

/// A refusal in its place among answers.
pub(super) fn refusal<'a>(key: Option<&'a str>, problem: &Problem) -> json::Answer<'a> {
    let first = problem.first.as_ref();
    json::Answer::Error {
        key: key.filter(|key| !key.is_empty()).map(json::Text::from),
        code: problem.code.as_str().into(),
        detail: problem.detail.clone().into(),
        retryable: problem.code.is_retryable(),
        retry_after_ms: problem.retry_after_ms,
        differs: first.map(differs),
        id: first.map(|first| id(first.id)),
        accepted_at: first.map(|first| time(first.accepted_at)),
    }
}

/// What somebody who waited for a message gets to see of it. `first` is whoever sent it.
pub(super) fn waited<'a>(queue: &'a str, view: &'a KeyView, first: bool) -> json::Answer<'a> {
    let (record, message) = (&view.record, view.id);
    let (queue, attempts) = (json::Text::from(queue), record.attempts);
    let key = key_or_id(view.key.as_deref().unwrap_or_default(), message);
    let (id, accepted_at) = (id(message), time(record.accepted_at));
    match view.place {
        Place::Done => json::Answer::Done {
            queue,
            key,
            id,
            state: json::State::Done,
            attempts,
            accepted_at,
            result: record.result.as_ref().map(blob),
            result_omitted: false,
            finished_at: time(record.finished_at),
            remembered_until: end(record.expires_at),
        },
        Place::Dead | Place::Discarded => json::Answer::Dead {
            queue,
            key,
            id,
            state: state(view.place),
            attempts,
            accepted_at,
            error: record.error.as_deref().unwrap_or_default().into(),
        },
        Place::Parked => json::Answer::Parked {
            queue,
            key,
            id,
            state: json::State::Parked,
            attempts,
            accepted_at,
        },
        place if first => {
            json::Answer::Accepted { queue, key, id, state: state(place), accepted_at }
        }
        place => json::Answer::InFlight {
            queue,
            key,
            id,
            state: state(place),
            attempts,
            accepted_at,
            deadline: view.deadline.and_then(end),
        },
    }
}

pub(super) fn delivery<'a>(
    permit: &'a Permit,
    keys_per_group: bool,
    lease: json::Text<'a>,
    it: &'a Delivery,
) -> json::Delivery<'a> {
    let content = &*it.content;
    let (body, body_base64) = json::body_text(content.body());
    json::Delivery {
        lease,
        fence: json::Fence(it.lease.fence.0),
        tenant: (&*permit.queue().tenant).into(),
        queue: (&*permit.queue().queue).into(),
        key: key_or_id(content.key(), it.id),
        id: id(it.id),
        attempt: it.attempt,
        generation: it.generation,
        group: content.group().map(json::Text::from),
        body,
        body_base64,
        content_type: content.content_type().map(json::Text::from),
        headers: headers(content),
        accepted_at: time(it.accepted_at),
        lease_ms: it.lease_ms,
        deadline: time(it.deadline),
        recovery_points: points(&it.recovery_points),
        keys_per_group,
    }
}

/// The answer to a settle. What is said of the place depends on what was asked.
pub(super) fn settled<'a>(
    is_fail: bool,
    is_extend: bool,
    settled: &'a Settled,
    result_omitted: bool,
) -> json::Settled<'a> {
    match settled {
        Settled::Ok { place, deadline } => json::Settled::Ok {
            state: is_fail.then(|| state(*place)),
            deadline: deadline.filter(|_| is_fail || is_extend).and_then(end),
        },
        Settled::LeaseLost { place, result } => json::Settled::LeaseLost {
            state: place.map(state),
            result_omitted,
            result: result.as_ref().map(blob),
        },
        Settled::Invalid(invalid) => unsettled(&(*invalid).into()),
        Settled::NoSuchQueue { emit } => unsettled(&Problem::new(
            Code::NoSuchQueue,
            format!("emit[{emit}]: there is no such queue; create it first"),
        )),
        Settled::RelayFull => unsettled(&Problem::new(
            Code::OverQuota,
            "too many emitted messages wait for their queues; the message is still yours",
        )),
    }
}

/// About how many bytes the result takes that the answer to a settle carries.
pub(super) fn result_bytes(settled: &Settled) -> usize {
    match settled {
        Settled::LeaseLost { result: Some(result), .. } => result.body.len(),
        _ => 0,
    }
}

/// A refusal in its place among the answers to settles.
pub(super) fn unsettled(problem: &Problem) -> json::Settled<'static> {
    json::Settled::Error {
        code: problem.code.as_str().into(),
        detail: problem.detail.clone().into(),
        retryable: problem.code.is_retryable(),
        retry_after_ms: problem.retry_after_ms,
    }
}

pub(super) fn key<'a>(asked: Option<&'a str>, view: &'a KeyView) -> json::Key<'a> {
    let record = &view.record;
    let has_ended = matches!(view.place, Place::Done | Place::Discarded);
    let content = view.content.as_deref();
    let (body, body_base64) = content.map_or((None, None), |it| json::body_text(it.body()));
    let text = |text: &'a str| (!text.is_empty()).then(|| json::Text::from(text));
    let history = view.history.iter().map(|event| json::Event {
        at: time(event.at),
        event: event.what.as_str().into(),
        worker: text(&event.worker),
        detail: text(&event.detail),
    });
    json::Key {
        key: key_or_id(view.key.as_deref().or(asked).unwrap_or_default(), view.id),
        id: id(view.id),
        state: state(view.place),
        attempts: record.attempts,
        generation: record.generation,
        group: content.and_then(Content::group).map(json::Text::from),
        accepted_at: time(record.accepted_at),
        finished_at: has_ended.then(|| time(record.finished_at)),
        remembered_until: end(record.expires_at),
        deadline: view.deadline.and_then(end),
        worker: text(&record.worker),
        duplicates: record.duplicates,
        result: record.result.as_ref().map(blob),
        error: record.error.as_deref().map(json::Text::from),
        recovery_points: points(&view.recovery_points),
        history: history.collect(),
        body,
        body_base64,
        content_type: content.and_then(Content::content_type).map(json::Text::from),
        headers: content.map(headers),
    }
}

/// About how many bytes become of so many in JSON: some more, for escapes and base64.
pub(super) fn in_json(bytes: usize) -> usize {
    bytes + bytes / 3
}

pub(super) fn queue<'a>(queue: &'a Queue, etag: &'a str) -> json::Queue<'a> {
    let stats = queue.view.stats;
    json::Queue {
        queue: json::Text(Cow::Borrowed(&queue.name.queue)),
        config: config::show(&queue.view.config),
        stats: json::Stats {
            ready: stats.ready,
            held: stats.held,
            delayed: stats.delayed,
            leased: stats.leased,
            parked: stats.parked,
            dead: stats.dead,
            keys: stats.keys,
            oldest_ready_age_ms: queue.view.oldest_ready_at.map(|at| now().since(at)),
            sent_total: stats.sent_total,
            duplicate_total: stats.duplicate_total,
            done_total: stats.done_total,
            failed_total: stats.failed_total,
            lease_lost_total: stats.lease_lost_total,
        },
        paused: queue.view.paused,
        created_at: time(queue.view.created_at),
        etag: etag.into(),
    }
}

pub(super) fn redrive(view: &RedriveView) -> json::RedriveProgress<'_> {
    json::RedriveProgress {
        id: (&*view.id).into(),
        matched: view.matched,
        moved: view.moved,
        total: view.total,
        missing: view.missing.iter().map(|key| (&**key).into()).collect(),
        done: view.done,
        cancelled: view.cancelled,
        dry_run: view.dry_run,
    }
}
