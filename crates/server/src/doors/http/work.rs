//! Receives and settles messages.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use hapax_core::{Delivery, Settled, Verb};
use hapax_wire::json::BadJson;
use hapax_wire::{self as wire, Code};
use http::{HeaderMap, StatusCode};

use super::body::{parse, read_json};
use super::failure::Failure;
use super::input::InQueue;
use super::messages::{ANSWER_BYTES_MAX, in_json};
use super::output;
use crate::auth::{Action, Principal};
use crate::doors::shape;
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
    post, path = "/v1/queues/{queue}/receive", operation_id = "receive", tag = "working",
    params(("queue" = String, Path)),
    request_body = wire::ReceiveRequest,
    responses((status = 200, description = "Messages", body = wire::ReceiveReply)),
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
        let asked: wire::ReceiveRequest = parse(&payload)?;
        let wait = Duration::from_millis(asked.wait_ms);
        (shape::receive(permit.queue(), asked), wait)
    };
    let received = service.receive_list(&permit, receive, wait).await?;
    let bytes_about = received.messages().iter().map(delivery_bytes).sum();
    let messages = received.messages().iter().map(|it| {
        let lease = service.seal(&permit, it);
        shape::delivery(&permit, received.keys_per_group(), &lease, it)
    });
    let answer = wire::ReceiveReply { messages: messages.collect() };
    let response =
        output::sized(&service, permit.tenant(), StatusCode::OK, &answer, bytes_about).await?;
    drop(answer);
    received.keep();
    Ok(response)
}

fn delivery_bytes(it: &Delivery) -> usize {
    let points: usize = it.recovery_points.values().map(Bytes::len).sum();
    500 + in_json(it.content.size() + points)
}

/// Settle leases
///
/// Each item is answered separately, in order. The same lease settled the same way again gets the
/// same answer.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/settle", operation_id = "settle", tag = "working",
    params(("queue" = String, Path)),
    request_body = wire::Settles,
    responses((status = 200, description = "An answer for each item", body = wire::SettleReply)),
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
    let result_bytes: usize = settled.iter().map(|(it, _)| result_bytes(it)).sum();
    let mut rest = settled.into_iter();
    let bytes_about = 200 * kept.len() + in_json(result_bytes);
    let answers = kept.into_iter().map(|kept| match kept {
        Ok(asked) => match rest.next() {
            Some((it, omitted)) => asked.tell(shape::settled(0, it, omitted)),
            None => shape::unsettled(0, &Problem::unanswered()),
        },
        Err(problem) => shape::unsettled(0, &problem),
    });
    let answers = wire::SettleReply { answers: answers.collect() };
    output::sized(&service, permit.tenant(), StatusCode::OK, &answers, bytes_about).await
}

/// Estimated bytes of the result in the answer to a settle.
fn result_bytes(settled: &Settled) -> usize {
    match settled {
        Settled::LeaseLost { result: Some(result), .. } => result.body.len(),
        _ => 0,
    }
}

/// Which fields the answer to a settle has, by its verb.
struct Asked {
    is_fail: bool,
    is_extend: bool,
}

impl Asked {
    fn of(verb: &Verb) -> Self {
        Self {
            is_fail: matches!(verb, Verb::Fail { .. } | Verb::Park { .. }),
            is_extend: matches!(verb, Verb::Extend { .. }),
        }
    }

    /// `fail` gets the state, and `fail` and `extend` get a time.
    fn tell(&self, mut answer: wire::SettleAnswer) -> wire::SettleAnswer {
        if answer.kind() == wire::SettleKind::Ok {
            if !self.is_fail {
                answer.state = wire::State::Unspecified.into();
            }
            answer.deadline_ms = answer.deadline_ms.filter(|_| self.is_fail || self.is_extend);
        }
        answer
    }
}

type Kept = Result<Asked, Problem>;

fn gather(
    service: &Service,
    permit: &Permit,
    caller: &Arc<Principal>,
    json: &[u8],
) -> Result<(Vec<Opened>, Vec<Kept>), Failure> {
    let settle = wire::Settles::read(json).map_err(|error| Failure::invalid(error.to_string()))?;
    if settle.beyond > 0 {
        let count = settle.items.len() + settle.beyond;
        let detail = format!("there are {count} items, at most {} are allowed", wire::SETTLE_MAX);
        return Err(Problem::new(Code::TooLarge, detail).into());
    }
    let mut opened = Vec::with_capacity(settle.items.len());
    let mut kept = Vec::with_capacity(settle.items.len());
    for item in settle.items {
        kept.push(match read(service, caller, item) {
            Ok((lease, verb)) => {
                let asked = Asked::of(&verb);
                opened.push(service.open(permit, &lease, verb));
                Ok(asked)
            }
            Err(problem) => Err(problem),
        });
    }
    Ok((opened, kept))
}

fn read(
    service: &Service,
    caller: &Arc<Principal>,
    item: Result<wire::SettleItem, BadJson>,
) -> Result<(Bytes, Verb), Problem> {
    let item = item.map_err(|error| Problem::invalid(error.to_string()))?;
    let settle =
        wire::Settle::try_from(item).map_err(|error| Problem::invalid(error.to_string()))?;
    let verb = shape::verb(service.recipe(), settle.verb, |queue| service.may_emit(caller, queue))?;
    Ok((settle.lease, verb))
}
