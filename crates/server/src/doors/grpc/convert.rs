//! Protobuf to commands, outcomes to protobuf. No rules.
//!
//! Ids, leases and bodies of one frame share one buffer, so that a frame costs few allocations
//! however many messages it has.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use hapax_core::{
    Answer, Blob, Content, Delivery, Differs, Emit, Event, Fingerprint, KeyView, MessageId, Place,
    QueueName, Send, Settled, Time, Verb, limits,
};
use hapax_wire::{Code, lean, proto};

use crate::problem::Problem;

/// A message on its way in. Hashed here, in the caller's task.
pub(super) fn message(queue: &QueueName, message: &lean::Message<'_>) -> Result<Send, Problem> {
    let mut builder = Content::builder(message.key)
        .content_type(some(message.content_type))
        .group(some(message.group));
    for (name, value) in &message.headers {
        builder = builder.header(name, value);
    }
    let mut send = Send::new(queue.clone(), builder.build(message.body)?);
    send.delay_ms = message.delay_ms;
    send.ttl_ms = message.ttl_ms;
    send.issued_at = message.issued_at_ms.map(Time);
    if let Some(fingerprint) = message.fingerprint {
        send.fingerprint = own_fingerprint(fingerprint)?;
    }
    Ok(send)
}

/// A message of the generated types, as it is read on the streams.
pub(super) fn view(message: &proto::Message) -> lean::Message<'_> {
    let headers = message.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    lean::Message {
        reference: message.r#ref,
        key: &message.key,
        body: &message.body,
        content_type: &message.content_type,
        group: &message.group,
        headers: headers.collect(),
        delay_ms: message.delay_ms,
        ttl_ms: message.ttl_ms,
        fingerprint: message.fingerprint.as_deref(),
        issued_at_ms: message.issued_at_ms,
    }
}

pub(super) fn own_fingerprint(fingerprint: &str) -> Result<Fingerprint, Problem> {
    let bytes = fingerprint.len();
    if !(1..=limits::FINGERPRINT_BYTES_MAX).contains(&bytes) {
        return Err(Problem::invalid(format!("a fingerprint has 1 to 255 bytes, not {bytes}")));
    }
    Ok(Fingerprint::own(fingerprint))
}

/// What a settle says. `None` where it says nothing.
pub(super) fn verb(
    settle: proto::settle::Verb,
    queue: impl Fn(&str) -> Result<QueueName, Problem>,
) -> Result<Verb, Problem> {
    use proto::settle::Verb as Said;
    Ok(match settle {
        Said::Done(done) => {
            let emits: Result<Vec<Emit>, Problem> =
                done.emits.iter().enumerate().map(|said| emit(said, &queue)).collect();
            Verb::Done { result: done.result.as_ref().map(blob_in).transpose()?, emits: emits? }
        }
        Said::Fail(fail) => {
            Verb::Fail { error: fail.error, delay_ms: fail.delay_ms, dead: fail.dead }
        }
        Said::Release(_) => Verb::Release,
        Said::Extend(extend) => Verb::Extend { lease_ms: extend.lease_ms },
        Said::Begin(_) => Verb::Begin,
        Said::Save(save) => Verb::Save { name: save.name, data: own(&save.body) },
        Said::Park(park) => {
            Verb::Park { error: park.error, delay_ms: park.delay_ms, dead: park.dead }
        }
    })
}

fn emit(
    (place, emit): (usize, &proto::Emit),
    queue: impl Fn(&str) -> Result<QueueName, Problem>,
) -> Result<Emit, Problem> {
    if emit.key.is_empty() && emit.name.is_empty() {
        let Problem { detail, .. } = Problem::unnamed_emit();
        return Err(Problem::invalid(format!("emits[{place}]: {detail}")));
    }
    let mut builder =
        Content::builder(&emit.key).content_type(some(&emit.content_type)).group(some(&emit.group));
    for (name, value) in &emit.headers {
        builder = builder.header(name, value);
    }
    Ok(Emit {
        queue: queue(&emit.queue)?,
        name: emit.name.clone(),
        content: builder.build(&emit.body)?,
        delay_ms: emit.delay_ms,
        ttl_ms: emit.ttl_ms,
        fingerprint: emit.fingerprint.as_deref().map(own_fingerprint).transpose()?,
    })
}

pub(super) fn blob_in(blob: &proto::Blob) -> Result<Blob, Problem> {
    self::blob(&blob.body, &blob.content_type)
}

/// Bytes that came in, on their own: a part of a frame would keep the whole frame in memory.
pub(super) fn blob(body: &[u8], content_type: &str) -> Result<Blob, Problem> {
    if content_type.len() > limits::CONTENT_TYPE_BYTES_MAX {
        return Err(hapax_core::Invalid::ContentTypeLength(content_type.len()).into());
    }
    let content_type = some(content_type).map(Arc::from);
    Ok(Blob { content_type, body: Bytes::copy_from_slice(body) })
}

/// A small part of a frame would keep the whole frame in memory.
fn own(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

pub(super) fn some(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// An answer of a stream, encoded. Most of them say that a message was accepted.
pub(super) fn put_answer(frame: &mut Vec<u8>, number: u64, answer: Answer) {
    if let Answer::Accepted { id, place, at } = &answer {
        let kind = proto::AnswerKind::Accepted as u8;
        return lean::put_answer(frame, number, kind, &id.0, state(*place) as u8, at.0);
    }
    let answer = proto::Answer { r#ref: number, ..self::answer(answer) };
    lean::put_nested(frame, lean::ANSWER, &answer);
}

pub(super) fn answer(answer: Answer) -> proto::Answer {
    answer_to(answer, &mut BytesMut::new())
}

fn answer_to(answer: Answer, ids: &mut BytesMut) -> proto::Answer {
    use proto::AnswerKind as Kind;
    let known = |kind: Kind, id: MessageId, at: Time, ids: &mut BytesMut| proto::Answer {
        kind: kind.into(),
        id: id_bytes(id, ids),
        accepted_at_ms: at.0,
        ..proto::Answer::default()
    };
    match answer {
        Answer::Accepted { id, place, at } => {
            let state = state(place).into();
            proto::Answer { state, ..known(Kind::Accepted, id, at, ids) }
        }
        Answer::InFlight(flight) => proto::Answer {
            state: state(flight.place).into(),
            outcome: Some(proto::Outcome {
                attempts: flight.attempts,
                deadline_ms: flight.deadline.map(|at| at.0),
                ..proto::Outcome::default()
            }),
            ..known(Kind::InFlight, flight.id, flight.accepted_at, ids)
        },
        Answer::Done(done) => proto::Answer {
            state: proto::State::Done.into(),
            outcome: Some(proto::Outcome {
                attempts: done.attempts,
                result: done.result.map(blob_out),
                finished_at_ms: done.finished_at.0,
                remembered_until_ms: bounded(done.remembered_until),
                ..proto::Outcome::default()
            }),
            ..known(Kind::Done, done.id, done.accepted_at, ids)
        },
        Answer::Dead { id, accepted_at, attempts, error, discarded } => proto::Answer {
            state: if discarded { proto::State::Discarded } else { proto::State::Dead }.into(),
            outcome: Some(proto::Outcome {
                attempts,
                error: error.to_string(),
                ..proto::Outcome::default()
            }),
            ..known(Kind::Dead, id, accepted_at, ids)
        },
        Answer::Parked { id, accepted_at, attempts } => proto::Answer {
            state: proto::State::Parked.into(),
            outcome: Some(proto::Outcome { attempts, ..proto::Outcome::default() }),
            ..known(Kind::Parked, id, accepted_at, ids)
        },
        Answer::Fresh { id, .. } => proto::Answer {
            kind: Kind::Fresh.into(),
            id: id_bytes(id, ids),
            state: proto::State::Leased.into(),
            ..proto::Answer::default()
        },
        refused => match Problem::of_answer(&refused) {
            Some(problem) => error(&problem),
            None => error(&Problem::new(Code::Internal, "an answer without words")),
        },
    }
}

/// The answer of a message that was refused.
pub(super) fn error(problem: &Problem) -> proto::Answer {
    proto::Answer {
        kind: proto::AnswerKind::Error.into(),
        problem: Some(problem_out(problem)),
        ..proto::Answer::default()
    }
}

fn problem_out(problem: &Problem) -> proto::Problem {
    let first = problem.first.as_ref();
    proto::Problem {
        code: problem.code.as_str().to_owned(),
        detail: problem.detail.clone(),
        retryable: problem.code.is_retryable(),
        retry_after_ms: problem.retry_after_ms,
        differs: first.map(|first| differs(&first.differs)).unwrap_or_default(),
        id: first.map(|first| own(&Bytes::copy_from_slice(&first.id.0))).unwrap_or_default(),
        accepted_at_ms: first.map(|first| first.accepted_at.0).unwrap_or_default(),
    }
}

fn differs(parts: &[Differs]) -> Vec<String> {
    let names = parts.iter().map(|part| match part {
        Differs::Body => "body",
        Differs::Group => "group",
        Differs::Fingerprint => "fingerprint",
    });
    names.map(str::to_owned).collect()
}

/// Messages on their way to a worker.
pub(super) fn deliveries(
    messages: Vec<Delivery>,
    queue: &QueueName,
    keys_per_group: bool,
    seal: impl Fn(&Delivery) -> [u8; crate::lease::LEASE_BYTES],
    out: &mut Vec<proto::Delivery>,
) {
    let fixed = 16 + crate::lease::LEASE_BYTES;
    let bytes = messages.iter().map(|message| fixed + message.content.body().len()).sum();
    let mut buffer = BytesMut::with_capacity(bytes);
    for message in messages {
        let lease = seal(&message);
        let content = &message.content;
        let headers = content.headers().map(|(name, value)| (name.to_owned(), value.to_owned()));
        out.push(proto::Delivery {
            lease: put(&lease, &mut buffer),
            fence: message.lease.fence.0,
            id: put(&message.id.0, &mut buffer),
            body: put(content.body(), &mut buffer),
            key: message.key(),
            attempt: message.attempt,
            generation: message.generation,
            group: content.group().unwrap_or_default().to_owned(),
            content_type: content.content_type().unwrap_or_default().to_owned(),
            headers: headers.collect(),
            accepted_at_ms: message.accepted_at.0,
            deadline_ms: message.deadline.0,
            recovery_points: points(message.recovery_points),
            tenant: queue.tenant.to_string(),
            queue: queue.queue.to_string(),
            lease_ms: message.lease_ms,
            keys_per_group,
        });
    }
}

/// A message on its way to a worker, encoded.
pub(super) fn put_delivery(frame: &mut Vec<u8>, message: &Delivery, lease: &[u8]) {
    let content = &*message.content;
    let id = if content.has_key() { String::new() } else { message.id.to_string() };
    let points = message.recovery_points.iter();
    lean::put_delivery(
        frame,
        &lean::Delivery {
            lease,
            fence: message.lease.fence.0,
            key: if id.is_empty() { content.key() } else { &id },
            id: &message.id.0,
            attempt: message.attempt,
            generation: message.generation,
            group: content.group().unwrap_or_default(),
            body: content.body(),
            content_type: content.content_type().unwrap_or_default(),
            headers: content.headers().map(|(name, value)| (name, value.as_bytes())).collect(),
            accepted_at_ms: message.accepted_at.0,
            deadline_ms: message.deadline.0,
            recovery_points: points.map(|(name, data)| (name.as_str(), &data[..])).collect(),
        },
    );
}

pub(super) fn points(points: BTreeMap<String, Bytes>) -> HashMap<String, Bytes> {
    points.into_iter().collect()
}

/// The answer to a settle of a stream, encoded.
pub(super) fn put_settled(frame: &mut Vec<u8>, number: u64, answer: Settled) {
    if let Settled::Ok { place, deadline } = answer {
        let (kind, state) = (proto::SettleKind::Ok as u8, state(place) as u8);
        return lean::put_settled(frame, number, kind, state, deadline.map(|at| at.0));
    }
    lean::put_nested(frame, lean::SETTLED, &settled(number, answer));
}

pub(super) fn settled(number: u64, settled: Settled) -> proto::SettleAnswer {
    let answer = proto::SettleAnswer { r#ref: number, ..proto::SettleAnswer::default() };
    match settled {
        Settled::Ok { place, deadline } => proto::SettleAnswer {
            kind: proto::SettleKind::Ok.into(),
            state: state(place).into(),
            deadline_ms: deadline.map(|at| at.0),
            ..answer
        },
        Settled::LeaseLost { place, result } => proto::SettleAnswer {
            kind: proto::SettleKind::LeaseLost.into(),
            state: place.map_or(proto::State::Unspecified, state).into(),
            result: result.map(blob_out),
            ..answer
        },
        Settled::Invalid(invalid) => settle_error(number, &invalid.into()),
        Settled::NoSuchQueue { emit } => {
            let detail = format!("emit {emit} names a queue that does not exist");
            settle_error(number, &Problem::new(Code::NoSuchQueue, detail))
        }
        Settled::RelayFull => {
            let detail = "too many emits wait for their queues";
            settle_error(number, &Problem::new(Code::OverQuota, detail))
        }
    }
}

pub(super) fn settle_error(number: u64, problem: &Problem) -> proto::SettleAnswer {
    proto::SettleAnswer {
        r#ref: number,
        kind: proto::SettleKind::SettleError.into(),
        problem: Some(problem_out(problem)),
        ..proto::SettleAnswer::default()
    }
}

pub(super) fn key(view: KeyView) -> proto::Key {
    let record = view.record;
    let content = view.content.as_deref();
    let ended = matches!(view.place, Place::Done | Place::Discarded);
    let headers = content.into_iter().flat_map(|content| content.headers());
    proto::Key {
        key: view.key.as_deref().map_or_else(|| view.id.to_string(), str::to_owned),
        id: Bytes::copy_from_slice(&view.id.0),
        state: state(view.place).into(),
        attempts: record.attempts,
        generation: record.generation,
        group: content.and_then(Content::group).unwrap_or_default().to_owned(),
        accepted_at_ms: record.accepted_at.0,
        finished_at_ms: ended.then_some(record.finished_at.0),
        remembered_until_ms: bounded(record.expires_at).filter(|_| ended),
        deadline_ms: view.deadline.map(|at| at.0),
        duplicates: record.duplicates,
        result: record.result.map(blob_out),
        error: record.error.as_deref().unwrap_or_default().to_owned(),
        recovery_points: points(view.recovery_points),
        history: view.history.iter().map(event).collect(),
        message: content.map(|content| proto::Blob {
            body: Bytes::copy_from_slice(content.body()),
            content_type: content.content_type().unwrap_or_default().to_owned(),
        }),
        headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        worker: record.worker.to_string(),
    }
}

fn event(event: &Event) -> proto::Event {
    proto::Event {
        at_ms: event.at.0,
        event: event.what.as_str().to_owned(),
        worker: event.worker.to_string(),
        detail: event.detail.to_string(),
    }
}

fn blob_out(blob: Blob) -> proto::Blob {
    let content_type = blob.content_type.as_deref().unwrap_or_default().to_owned();
    proto::Blob { body: blob.body, content_type }
}

pub(super) fn state(place: Place) -> proto::State {
    match place {
        Place::Ready => proto::State::Ready,
        Place::Delayed => proto::State::Delayed,
        Place::Leased => proto::State::Leased,
        Place::Parked => proto::State::Parked,
        Place::Dead => proto::State::Dead,
        Place::Done => proto::State::Done,
        Place::Discarded => proto::State::Discarded,
    }
}

pub(super) fn place(state: proto::State) -> Option<Place> {
    Place::ALL.into_iter().find(|place| self::state(*place) == state)
}

/// What is remembered for ever has no end to tell.
fn bounded(time: Time) -> Option<u64> {
    (time != Time::NEVER).then_some(time.0)
}

fn id_bytes(id: MessageId, buffer: &mut BytesMut) -> Bytes {
    put(&id.0, buffer)
}

/// A part of a shared buffer.
fn put(bytes: &[u8], buffer: &mut BytesMut) -> Bytes {
    buffer.extend_from_slice(bytes);
    buffer.split().freeze()
}
