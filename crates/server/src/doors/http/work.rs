//! Receiving and settling.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use hapax_core::{Content, Delivery, Emit, Fingerprint, Receive, Verb};
use hapax_wire::{Code, json};
use http::{HeaderMap, StatusCode};

use super::body::{parse, read_json};
use super::failure::Failure;
use super::input::InQueue;
use super::keys::to_blob;
use super::messages::{ANSWER_BYTES_MAX, with_headers};
use super::{head, key, output, shape};
use crate::auth::{Action, Principal};
use crate::problem::Problem;
use crate::service::{Opened, Permit, Service};

const RECEIVE_REQUEST_BYTES_MAX: usize = 64 * 1_024;
/// The largest result and the largest emits together, in base64.
pub(super) const SETTLE_BYTES_MAX: usize = 32 * 1_024 * 1_024;

/// Receive messages
///
/// Each under a lease, until its deadline. Waits for the first one; an empty list when the wait is
/// over.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/receive", tag = "working",
    params(("queue" = String, Path)),
    request_body = Option<json::Receive>,
    responses((status = 200, description = "Messages", body = json::Received)),
)]
pub(super) async fn receive(
    State(service): State<Service>,
    at: InQueue,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let permit = at.may(&service, Action::Work)?;
    let (receive, wait) = {
        let payload =
            read_json(&service, permit.tenant(), &headers, body, RECEIVE_REQUEST_BYTES_MAX).await?;
        let asked: json::Receive<'_> = parse(&payload)?;
        let receive = Receive {
            queue: permit.queue().clone(),
            max: asked.max,
            lease_ms: asked.lease_ms,
            worker: asked.worker.as_deref().unwrap_or_default().into(),
            receive_id: asked.receive_id.as_deref().map(Into::into),
            several_per_group: asked.several_per_group,
        };
        (receive, Duration::from_millis(asked.wait_ms))
    };
    let received = service.receive_list(&permit, receive, wait).await?;
    let bytes_about = received.messages().iter().map(delivery_bytes).sum();
    let messages = received.messages().iter().map(|it| {
        let lease = shape::lease(&service.seal(&permit, it));
        shape::delivery(&permit, received.keys_per_group(), lease, it)
    });
    let answer = json::Received { messages: messages.collect() };
    let response =
        output::sized(&service, permit.tenant(), StatusCode::OK, &answer, bytes_about).await?;
    drop(answer);
    received.keep();
    Ok(response)
}

fn delivery_bytes(it: &Delivery) -> usize {
    let points: usize = it.recovery_points.values().map(Bytes::len).sum();
    500 + shape::in_json(it.content.size() + points)
}

/// Settle leases
///
/// Each item for itself, answered in order. The same lease settled the same way again gets the same
/// answer.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/settle", tag = "working",
    params(("queue" = String, Path)),
    request_body = json::Settle,
    responses((status = 200, description = "An answer for each item", body = json::Settles)),
)]
pub(super) async fn settle(
    State(service): State<Service>,
    at: InQueue,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let permit = at.may(&service, Action::Work)?;
    let payload = read_json(&service, permit.tenant(), &headers, body, SETTLE_BYTES_MAX).await?;
    let (items, kept) = gather(&service, &permit, &at.caller, &payload.bytes)?;
    let admitted = payload.into_admitted();
    let settled = match items.is_empty() {
        true => Vec::new(),
        false => service.settle(&permit, items, ANSWER_BYTES_MAX).await?,
    };
    drop(admitted);
    let result_bytes: usize = settled.iter().map(|(it, _)| shape::result_bytes(it)).sum();
    let mut rest = settled.iter();
    let told = kept.iter().map(|kept| match kept {
        Ok(told) => match rest.next() {
            Some((it, omitted)) => shape::settled(told.is_fail, told.is_extend, it, *omitted),
            None => shape::unsettled(&Problem::unanswered()),
        },
        Err(problem) => shape::unsettled(problem),
    });
    let answers: Vec<json::Settled<'_>> = told.collect();
    let bytes_about = 200 * kept.len() + shape::in_json(result_bytes);
    let answers = json::Settles { answers };
    output::sized(&service, permit.tenant(), StatusCode::OK, &answers, bytes_about).await
}

/// What the answer to a settle tells, by what was asked.
struct Told {
    is_fail: bool,
    is_extend: bool,
}

type Kept = Result<Told, Problem>;

fn gather(
    service: &Service,
    permit: &Permit,
    caller: &Arc<Principal>,
    json: &[u8],
) -> Result<(Vec<Opened>, Vec<Kept>), Failure> {
    let settle = json::Settle::read(json).map_err(|error| Failure::invalid(error.to_string()))?;
    if settle.beyond > 0 {
        let count = settle.items.len() + settle.beyond;
        let detail = format!("there are {count} items, at most {} go together", json::SETTLE_MAX);
        return Err(Problem::new(Code::TooLarge, detail).into());
    }
    let mut opened = Vec::with_capacity(settle.items.len());
    let mut kept = Vec::with_capacity(settle.items.len());
    for item in settle.items {
        let verb = match &item {
            Ok(item) => verb(service, caller, item),
            Err(error) => Err(Problem::invalid(error.to_string())),
        };
        kept.push(match (verb, item) {
            (Ok(verb), Ok(item)) => {
                let told = Told {
                    is_fail: matches!(verb, Verb::Fail { .. } | Verb::Park { .. }),
                    is_extend: matches!(verb, Verb::Extend { .. }),
                };
                opened.push(service.open(permit, &shape::lease_bytes(&item.lease), verb));
                Ok(told)
            }
            (Err(problem), _) => Err(problem),
            (Ok(_), Err(error)) => Err(Problem::invalid(error.to_string())),
        });
    }
    Ok((opened, kept))
}

fn verb(
    service: &Service,
    caller: &Arc<Principal>,
    item: &json::SettleItem<'_>,
) -> Result<Verb, Problem> {
    refuse_other_fields(item)?;
    Ok(match &*item.verb {
        "done" => Verb::Done {
            result: item.result.as_ref().map(to_blob).transpose()?,
            emits: emits(service, caller, item)?,
        },
        "fail" => Verb::Fail {
            error: item.error.as_deref().unwrap_or_default().to_owned(),
            delay_ms: item.delay_ms,
            dead: item.dead.unwrap_or_default(),
        },
        "release" => Verb::Release,
        "park" => Verb::Park {
            error: item.error.as_deref().unwrap_or_default().to_owned(),
            delay_ms: item.delay_ms,
            dead: item.dead.unwrap_or_default(),
        },
        "extend" => Verb::Extend { lease_ms: item.lease_ms },
        "begin" => Verb::Begin,
        "save" => {
            let bytes = json::body_bytes(item.body.as_ref(), item.body_base64.as_ref())
                .map_err(|error| Problem::invalid(error.to_string()))?;
            Verb::Save {
                name: item.name.as_deref().unwrap_or_default().to_owned(),
                data: Bytes::copy_from_slice(&bytes),
            }
        }
        other => {
            let detail = format!(
                "do: {other:?} is none of done, fail, release, extend, begin, save and park"
            );
            return Err(Problem::invalid(detail));
        }
    })
}

/// A field of another verb would be ignored, though whoever set it counts on it.
fn refuse_other_fields(item: &json::SettleItem<'_>) -> Result<(), Problem> {
    let given = [
        ("result", item.result.is_some(), &["done"][..]),
        ("emit", item.emit.is_some(), &["done"]),
        ("error", item.error.is_some(), &["fail", "park"]),
        ("delay_ms", item.delay_ms.is_some(), &["fail", "park"]),
        ("dead", item.dead.is_some(), &["fail", "park"]),
        ("lease_ms", item.lease_ms.is_some(), &["extend"]),
        ("name", item.name.is_some(), &["save"]),
        ("body", item.body.is_some(), &["save"]),
        ("body_base64", item.body_base64.is_some(), &["save"]),
    ];
    let known = given.iter().any(|(_, _, verbs)| verbs.contains(&&*item.verb));
    let known = known || matches!(&*item.verb, "release" | "begin");
    let wrong = given.iter().find(|(_, is, verbs)| *is && !verbs.contains(&&*item.verb));
    match wrong.filter(|_| known) {
        Some((field, _, verbs)) => Err(Problem::invalid(format!(
            "{field} belongs to do: {:?}, not to {:?}",
            verbs.join(" or "),
            &*item.verb
        ))),
        None => Ok(()),
    }
}

fn emits(
    service: &Service,
    caller: &Arc<Principal>,
    item: &json::SettleItem<'_>,
) -> Result<Vec<Emit>, Problem> {
    let Some(emits) = &item.emit else { return Ok(Vec::new()) };
    if emits.beyond > 0 {
        let count = emits.items.len() + emits.beyond;
        let max = json::EMIT_MAX;
        return Err(Problem::invalid(format!(
            "emit: there are {count}, at most {max} go together"
        )));
    }
    let emits = emits.iter().enumerate().map(|(place, emit)| {
        to_emit(service, caller, emit).map_err(|problem| Problem {
            detail: format!("emit[{place}]: {}", problem.detail),
            ..problem
        })
    });
    emits.collect()
}

fn to_emit(
    service: &Service,
    caller: &Arc<Principal>,
    emit: &json::Emit<'_>,
) -> Result<Emit, Problem> {
    let queue = service.may_emit(caller, &emit.queue)?;
    match emit.key.as_deref() {
        Some(key) => key::check_field("key", key)?,
        None if emit.name.as_deref().unwrap_or_default().is_empty() => {
            return Err(Problem::unnamed_emit());
        }
        None => {}
    }
    let body = json::body_bytes(emit.body.as_ref(), emit.body_base64.as_ref())
        .map_err(|error| Problem::invalid(error.to_string()))?;
    let builder = Content::builder(emit.key.as_deref().unwrap_or_default())
        .content_type(emit.content_type.as_deref())
        .group(emit.group.as_deref());
    let content = with_headers(builder, emit.headers.as_ref())?.build(&body)?;
    let name = emit.name.as_deref().unwrap_or_default().to_owned();
    let fingerprint = emit.fingerprint.as_deref();
    head::check_fingerprint("fingerprint", fingerprint)?;
    Ok(Emit {
        delay_ms: emit.delay_ms,
        ttl_ms: emit.ttl_ms,
        fingerprint: fingerprint.map(Fingerprint::own),
        ..Emit::new(queue, &name, content)
    })
}
