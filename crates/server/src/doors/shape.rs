//! Converts wire types to commands of the core, and its outcomes to wire types, for HTTP and gRPC
//! alike. It has no rules.

use std::sync::Arc;

use bytes::Bytes;
use hapax_core::{
    Answer, Blob, Content, Delivery, Emit, Event, Fingerprint, Invalid, KeyView, MessageId, Place,
    QueueName, Receive, Recipe, RedriveView, Select, SendMessage, Settled, Time, Verb, limits,
};
use hapax_wire as wire;
use hapax_wire::lean;
use hapax_wire::{AnswerKind, SettleKind, State};

use crate::doors::config;
use crate::problem::{First, Problem};
use crate::service::{Claimed, Permit, Queue};

// ---- What comes in

/// Converts a message. Hashed here, in the caller's task.
pub(super) fn send(
    recipe: &Recipe,
    queue: &QueueName,
    message: &lean::Message<'_>,
) -> Result<SendMessage, Problem> {
    let mut builder = Content::builder(given_key(message.key)?)
        .content_type(some(message.content_type))
        .group(message.group);
    for (name, value) in &message.headers {
        builder = builder.header(name, value);
    }
    let (queue, content) = (queue.clone(), builder.build(message.body)?);
    let mut send = match own_fingerprint(recipe, "fingerprint", message.fingerprint)? {
        Some(own) => SendMessage::with_fingerprint(recipe, queue, content, own),
        None => SendMessage::new(recipe, queue, content),
    };
    send.delay_ms = message.delay_ms;
    send.ttl_ms = message.ttl_ms;
    send.issued_at = message.issued_at_ms.map(Time);
    Ok(send)
}

/// Whether the text of a field can be a key.
pub(super) fn check_key(field: &str, key: Option<&str>) -> Result<(), Problem> {
    let checked = key.map_or(Ok(()), wire::key::check).map_err(Problem::from);
    checked.map_err(|problem| Problem { detail: format!("{field}: {}", problem.detail), ..problem })
}

/// The key of a message or an emit; empty if it has none. A given but empty key is refused: its
/// caller meant one, and every message without a key is a new operation.
fn given_key(key: Option<&str>) -> Result<&str, Problem> {
    match key {
        Some("") => check_key("key", key).map(|()| ""),
        key => Ok(key.unwrap_or_default()),
    }
}

/// The fingerprint that a caller gave in a field or header.
pub(super) fn own_fingerprint(
    recipe: &Recipe,
    field: &str,
    fingerprint: Option<&str>,
) -> Result<Option<Fingerprint>, Problem> {
    let bytes = 1..=limits::FINGERPRINT_BYTES_MAX;
    match fingerprint {
        Some(text) if !bytes.contains(&text.len()) => Err(Problem::invalid(format!(
            "{field}: a fingerprint has 1 to {} bytes, this one has {}",
            limits::FINGERPRINT_BYTES_MAX,
            text.len()
        ))),
        text => Ok(text.map(|text| recipe.own(text))),
    }
}

/// Converts a receive.
pub(super) fn receive(queue: &QueueName, asked: wire::ReceiveRequest) -> Receive {
    Receive {
        queue: queue.clone(),
        max: asked.max,
        lease_ms: asked.lease_ms,
        worker: asked.worker.into(),
        receive_id: asked.receive_id.map(Arc::from),
        several_per_group: asked.several_per_group,
    }
}

/// Converts the verb of a settle.
pub(super) fn verb(
    recipe: &Recipe,
    verb: Option<wire::settle::Verb>,
    queue: impl Fn(&str) -> Result<QueueName, Problem>,
) -> Result<Verb, Problem> {
    use wire::settle::Verb as Said;
    let Some(verb) = verb else {
        return Err(Problem::invalid(
            "the settle has no verb: give done, fail, release, extend, \
                                     begin, save or park",
        ));
    };
    Ok(match verb {
        Said::Done(done) => {
            let emits = done.emits.iter().enumerate();
            let emits = emits.map(|(place, it)| emit(recipe, it, &queue).map_err(of_emit(place)));
            let emits = emits.collect::<Result<_, Problem>>()?;
            Verb::Done { result: done.result.as_ref().map(blob_in).transpose()?, emits }
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

/// Names the emit that a problem is about.
pub(super) fn of_emit(place: usize) -> impl FnOnce(Problem) -> Problem {
    move |problem| Problem { detail: format!("emit[{place}]: {}", problem.detail), ..problem }
}

fn emit(
    recipe: &Recipe,
    emit: &wire::Emit,
    queue: impl Fn(&str) -> Result<QueueName, Problem>,
) -> Result<Emit, Problem> {
    let queue = queue(&emit.queue)?;
    let key = given_key(emit.key.as_deref())?;
    if key.is_empty() && emit.name.is_empty() {
        return Err(Problem::unnamed_emit());
    }
    let mut builder =
        Content::builder(key).content_type(some(&emit.content_type)).group(emit.group.as_deref());
    for (name, value) in &emit.headers {
        builder = builder.header(name, value);
    }
    Ok(Emit {
        delay_ms: emit.delay_ms,
        ttl_ms: emit.ttl_ms,
        fingerprint: own_fingerprint(recipe, "fingerprint", emit.fingerprint.as_deref())?,
        ..Emit::new(queue, &emit.name, builder.build(&emit.body)?)
    })
}

pub(super) fn blob_in(blob: &wire::Blob) -> Result<Blob, Problem> {
    self::blob(&blob.body, &blob.content_type)
}

/// Copies bytes of a request: a slice would keep the whole request in memory.
pub(super) fn blob(body: &[u8], content_type: &str) -> Result<Blob, Problem> {
    if content_type.len() > limits::CONTENT_TYPE_BYTES_MAX {
        return Err(Invalid::ContentTypeLength(content_type.len()).into());
    }
    let content_type = some(content_type).map(Arc::from);
    Ok(Blob { content_type, body: Bytes::copy_from_slice(body) })
}

fn own(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

/// A redrive of these keys of a group.
pub(super) fn keys(keys: &[String], group: Option<&str>) -> Result<Select, Problem> {
    for (place, key) in keys.iter().enumerate() {
        check_key(&format!("keys[{place}]"), Some(key))?;
    }
    let keys = keys.iter().map(|key| Arc::from(key.as_str())).collect();
    Ok(Select::Keys { keys, group: group.map(Arc::from) })
}

/// A redrive of what matches.
pub(super) fn filter(filter: wire::RedriveFilter) -> Select {
    Select::Filter {
        error_contains: filter.error_contains,
        group: filter.group,
        dead_before: filter.dead_before_ms.map(Time),
        dead_after: filter.dead_after_ms.map(Time),
    }
}

/// A text that is empty in protobuf if there is none.
pub(super) fn some(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

pub(super) fn place(state: State) -> Option<Place> {
    Place::ALL.into_iter().find(|place| self::state(*place) == state)
}

// ---- What goes out

pub(super) fn state(place: Place) -> State {
    match place {
        Place::Ready => State::Ready,
        Place::Delayed => State::Delayed,
        Place::Leased => State::Leased,
        Place::Parked => State::Parked,
        Place::Dead => State::Dead,
        Place::Done => State::Done,
        Place::Discarded => State::Discarded,
    }
}

pub(super) fn problem(problem: &Problem) -> wire::Problem {
    let first = problem.first.as_ref();
    let differs = |first: &First| first.differs.iter().map(|it| differs(*it).to_owned()).collect();
    wire::Problem {
        code: problem.code.as_str().to_owned(),
        detail: problem.detail.clone(),
        retryable: problem.code.is_retryable(),
        retry_after_ms: problem.retry_after_ms,
        differs: first.map(differs).unwrap_or_default(),
        id: first.map(|first| id(first.id)).unwrap_or_default(),
        accepted_at_ms: first.map(|first| first.accepted_at.0).unwrap_or_default(),
    }
}

fn differs(part: hapax_core::Differs) -> &'static str {
    use hapax_core::Differs as Part;
    match part {
        Part::Body => wire::Differs::Body,
        Part::Group => wire::Differs::Group,
        Part::Fingerprint => wire::Differs::Fingerprint,
    }
    .as_str()
}

/// A refusal in its place among answers.
pub(super) fn refused(reference: u64, problem: &Problem) -> wire::Answer {
    wire::Answer::refused(reference, self::problem(problem))
}

/// What a send or a claim gets.
pub(super) fn answer(reference: u64, answer: Answer) -> wire::Answer {
    let known = |kind: AnswerKind, id: MessageId, accepted_at: Time| wire::Answer {
        r#ref: reference,
        kind: kind.into(),
        id: self::id(id),
        accepted_at_ms: accepted_at.0,
        ..wire::Answer::default()
    };
    match answer {
        Answer::Accepted { id, place, at } => {
            let state = state(place).into();
            wire::Answer { state, ..known(AnswerKind::Accepted, id, at) }
        }
        Answer::InFlight(flight) => wire::Answer {
            state: state(flight.place).into(),
            outcome: Some(wire::Outcome {
                attempts: flight.attempts,
                deadline_ms: flight.deadline.and_then(bounded),
                ..wire::Outcome::default()
            }),
            ..known(AnswerKind::InFlight, flight.id, flight.accepted_at)
        },
        Answer::Done(done) => wire::Answer {
            state: State::Done.into(),
            outcome: Some(wire::Outcome {
                attempts: done.attempts,
                result: done.result.map(blob_out),
                finished_at_ms: done.finished_at.0,
                remembered_until_ms: bounded(done.remembered_until),
                ..wire::Outcome::default()
            }),
            ..known(AnswerKind::Done, done.id, done.accepted_at)
        },
        Answer::Dead { id, accepted_at, attempts, error, discarded } => wire::Answer {
            state: if discarded { State::Discarded } else { State::Dead }.into(),
            outcome: Some(wire::Outcome {
                attempts,
                error: error.to_string(),
                ..wire::Outcome::default()
            }),
            ..known(AnswerKind::Dead, id, accepted_at)
        },
        Answer::Parked { id, accepted_at, attempts } => wire::Answer {
            state: State::Parked.into(),
            outcome: Some(wire::Outcome { attempts, ..wire::Outcome::default() }),
            ..known(AnswerKind::Parked, id, accepted_at)
        },
        Answer::Fresh(fresh) => {
            let state = State::Leased.into();
            wire::Answer { state, ..known(AnswerKind::Fresh, fresh.id, Time(0)) }
        }
        refusal => match Problem::of_answer(&refusal) {
            Some(problem) => refused(reference, &problem),
            None => unreachable!("every answer is one of these, or a refusal"),
        },
    }
}

/// What a claim gets.
pub(super) fn claimed(reference: u64, permit: &Permit, claimed: Claimed) -> wire::ClaimReply {
    let mut reply = wire::ClaimReply::default();
    if let (Answer::Fresh(fresh), Some(sealed)) = (&claimed.answer, claimed.lease) {
        reply.lease = Bytes::copy_from_slice(&sealed);
        reply.tenant = permit.queue().tenant.to_string();
        reply.fence = fresh.lease.fence.0;
        reply.deadline_ms = fresh.deadline.0;
        reply.lease_ms = fresh.lease_ms;
        reply.recovery_points = fresh.recovery_points.clone();
        reply.parks = Some(fresh.parks);
    }
    reply.answer = Some(answer(reference, claimed.answer));
    reply
}

/// A message on its way to a worker.
pub(super) fn delivery(
    permit: &Permit,
    keys_per_group: bool,
    lease: &[u8],
    it: &Delivery,
) -> wire::Delivery {
    let content = &it.content;
    wire::Delivery {
        lease: Bytes::copy_from_slice(lease),
        fence: it.lease.fence.0,
        tenant: permit.queue().tenant.to_string(),
        queue: permit.queue().queue.to_string(),
        key: it.key(),
        id: id(it.id),
        attempt: it.attempt,
        generation: it.generation,
        group: content.group().unwrap_or_default().to_owned(),
        body: body(content),
        content_type: content.content_type().unwrap_or_default().to_owned(),
        headers: headers(content),
        accepted_at_ms: it.accepted_at.0,
        lease_ms: it.lease_ms,
        deadline_ms: it.deadline.0,
        recovery_points: it.recovery_points.clone(),
        keys_per_group,
    }
}

/// What a settle gets.
pub(super) fn settled(
    reference: u64,
    settled: Settled,
    result_omitted: bool,
) -> wire::SettleAnswer {
    let answer = wire::SettleAnswer { r#ref: reference, ..wire::SettleAnswer::default() };
    match settled {
        Settled::Ok { place, deadline } => wire::SettleAnswer {
            kind: SettleKind::Ok.into(),
            state: state(place).into(),
            deadline_ms: deadline.and_then(bounded),
            ..answer
        },
        Settled::LeaseLost { place, result } => wire::SettleAnswer {
            kind: SettleKind::LeaseLost.into(),
            state: place.map_or(State::Unspecified, state).into(),
            result: result.map(blob_out),
            result_omitted,
            ..answer
        },
        refusal => match Problem::of_settled(&refusal) {
            Some(problem) => unsettled(reference, &problem),
            None => unreachable!("every answer is one of these, or a refusal"),
        },
    }
}

/// A refusal in its place among the answers to settles.
pub(super) fn unsettled(reference: u64, problem: &Problem) -> wire::SettleAnswer {
    wire::SettleAnswer::refused(reference, self::problem(problem))
}

/// Everything about a key. `asked` is the name that it was looked up by.
pub(super) fn key(asked: Option<&str>, view: KeyView) -> wire::Key {
    let record = view.record;
    let content = view.content.as_ref();
    let has_ended = matches!(view.place, Place::Done | Place::Discarded);
    let name = view.key.as_deref().or(asked).and_then(some);
    wire::Key {
        key: name.map_or_else(|| view.id.to_string(), str::to_owned),
        id: id(view.id),
        state: state(view.place).into(),
        attempts: record.attempts,
        generation: record.generation,
        group: content.and_then(|it| it.group()).unwrap_or_default().to_owned(),
        accepted_at_ms: record.accepted_at.0,
        finished_at_ms: has_ended.then_some(record.finished_at.0),
        remembered_until_ms: bounded(record.expires_at).filter(|_| has_ended),
        deadline_ms: view.deadline.and_then(bounded),
        worker: record.worker.to_string(),
        duplicates: record.duplicates,
        result: record.result.map(blob_out),
        error: record.error.as_deref().unwrap_or_default().to_owned(),
        recovery_points: view.recovery_points,
        history: view.history.iter().map(event).collect(),
        message: content.map(|it| wire::Blob {
            body: body(it),
            content_type: it.content_type().unwrap_or_default().to_owned(),
        }),
        headers: content.map(|it| headers(it)).unwrap_or_default(),
    }
}

fn event(event: &Event) -> wire::Event {
    wire::Event {
        at_ms: event.at.0,
        event: event.what.as_str().to_owned(),
        worker: event.worker.to_string(),
        detail: event.detail.to_string(),
    }
}

pub(super) fn queue(queue: &Queue) -> wire::Queue {
    let (view, stats) = (&queue.view, &queue.view.stats);
    wire::Queue {
        queue: queue.name.queue.to_string(),
        config_json: config::json(&view.config),
        stats: Some(wire::QueueStats {
            ready: stats.ready,
            held: stats.held,
            delayed: stats.delayed,
            leased: stats.leased,
            parked: stats.parked,
            dead: stats.dead,
            keys: stats.keys,
            oldest_ready_age_ms: queue.oldest_ready_age_ms(),
            sent_total: stats.sent_total,
            duplicate_total: stats.duplicate_total,
            done_total: stats.done_total,
            failed_total: stats.failed_total,
            lease_lost_total: stats.lease_lost_total,
        }),
        paused: view.paused,
        created_at_ms: view.created_at.0,
        etag: queue.etag(),
        created: false,
    }
}

pub(super) fn redrive(view: &RedriveView) -> wire::RedriveProgress {
    wire::RedriveProgress {
        id: view.id.to_string(),
        matched: view.matched,
        moved: view.moved,
        total: view.total,
        missing: view.missing.iter().map(|key| key.to_string()).collect(),
        done: view.done,
        cancelled: view.cancelled,
        dry_run: view.dry_run,
    }
}

fn id(id: MessageId) -> Bytes {
    Bytes::copy_from_slice(&id.0)
}

fn blob_out(blob: Blob) -> wire::Blob {
    let content_type = blob.content_type.as_deref().unwrap_or_default().to_owned();
    wire::Blob { body: blob.body, content_type }
}

/// The body of a message, which stays where it is.
fn body(content: &Arc<Content>) -> Bytes {
    struct Body(Arc<Content>);
    impl AsRef<[u8]> for Body {
        fn as_ref(&self) -> &[u8] {
            self.0.body()
        }
    }
    Bytes::from_owner(Body(Arc::clone(content)))
}

fn headers(content: &Content) -> std::collections::BTreeMap<String, String> {
    content.headers().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// A time; `None` for never.
fn bounded(time: Time) -> Option<u64> {
    (time != Time::NEVER).then_some(time.0)
}
