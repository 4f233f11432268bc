//! Shows a key, and the operator commands on it.

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hapax_core::{Resolution, Select, limits};
use hapax_wire::{self as wire, Code};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;

use super::body::{parse, read, read_json};
use super::failure::Failure;
use super::head::Head;
use super::input::{InKey, Params, number};
use super::output;
use super::redrives::start;
use super::work::SETTLE_BYTES_MAX;
use crate::auth::Action;
use crate::doors::shape;
use crate::problem::Problem;
use crate::service::{Permit, Service, key_bytes};

#[derive(Debug, Deserialize)]
pub(super) struct LookParams {
    wait_ms: Option<String>,
}

/// Look at a key
///
/// Everything about it. With `wait_ms`, when its message is done, dead or parked, or the wait is
/// over.
#[utoipa::path(
    get, path = "/v1/queues/{queue}/keys/{key}", operation_id = "getKey", tag = "keys",
    params(
        ("queue" = String, Path),
        ("key" = String, Path, description = "The key, percent-encoded, or the id of a message \
                                              without a key"),
        ("group" = Option<String>, Query, description = "The key's group, in queues that \
                                                         deduplicate per group"),
        ("wait_ms" = Option<u64>, Query, description = "At most 60000"),
    ),
    responses(
        (status = 200, description = "The key", body = wire::Key),
    ),
)]
pub(super) async fn get(
    State(service): State<Service>,
    at: InKey,
    Params(LookParams { wait_ms }): Params<LookParams>,
) -> Result<Response, Failure> {
    let permit = at.may(&service, Action::Look)?;
    let wait_ms = number("wait_ms", wait_ms.as_deref())?.unwrap_or_default();
    let name = at.name(&service, &permit);
    let view = service.look(&permit, name, Duration::from_millis(wait_ms)).await?;
    let bytes = key_bytes(&view);
    let mut key = shape::key(Some(&at.key), view);
    if key.group.is_empty()
        && let Some(group) = at.group.as_deref()
        && service.is_per_group(&permit).await?
    {
        group.clone_into(&mut key.group); // It was found under it.
    }
    output::sized(&service, permit.tenant(), StatusCode::OK, &key, bytes).await
}

/// Forget a finished key
///
/// A send under it is a new one from then on.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/keys/{key}/forget", operation_id = "forgetKey", tag = "keys",
    params(("queue" = String, Path), ("key" = String, Path), ("group" = Option<String>, Query)),
    responses((status = 200, description = "Forgotten", body = wire::Changed)),
)]
pub(super) async fn forget(State(service): State<Service>, at: InKey) -> Result<Response, Failure> {
    let permit = at.may(&service, Action::Admin)?;
    service.forget(&permit, at.name(&service, &permit)).await?;
    let changed = wire::Changed { key: &at.key, state: None, generation: None };
    Ok(output::small(StatusCode::OK, &changed))
}

/// Run a finished key again
///
/// As the next generation. If the queue keeps bodies, nothing more is needed. Otherwise a finished
/// message's body is gone, so the request is the message again: body, `hapax-group`,
/// `hapax-fingerprint` and `hapax-header-NAME` as they were. `Idempotency-Key` may repeat the key.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/keys/{key}/replay", operation_id = "replayKey", tag = "keys",
    params(
        ("queue" = String, Path), ("key" = String, Path), ("group" = Option<String>, Query),
        ("Idempotency-Key" = Option<String>, Header),
        ("hapax-group" = Option<String>, Header),
        ("hapax-fingerprint" = Option<String>, Header),
    ),
    request_body(content = Vec<u8>, content_type = "*/*"),
    responses(
        (status = 200, description = "Ready again", body = wire::Changed),
        (status = 422, description = "`conflict`: the message differs from the first one"),
        (status = 507, description = "`store_full`"),
    ),
    extensions(("x-stored-headers" = json!("hapax-header-"))),
)]
pub(super) async fn replay(
    State(service): State<Service>,
    at: InKey,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let permit = at.may(&service, Action::Admin)?;
    let mut head = Head::read(service.recipe(), &headers)?;
    if !head.key.is_empty() && head.key != at.key {
        return Err(Failure::invalid("Idempotency-Key is not the key of the path"));
    }
    head.key = at.key.as_str().into();
    head.group = head.group.or(at.group.as_deref());
    let payload =
        read(&service, permit.tenant(), &headers, body, limits::BODY_BYTES_MAX as usize).await?;
    let content = head.content(&payload.bytes)?;
    let mut hasher = service.recipe().hasher();
    hasher.update(&payload.bytes);
    let fingerprint = head.fingerprint(&hasher);
    let name = service.key_name(&permit, &at.key, head.group);
    if payload.bytes.is_empty() {
        // No body: the queue may have kept the message.
        match service.replay(&permit, name.clone(), None).await {
            Err(problem) if problem == hapax_core::Invalid::BodyGone.into() => {}
            Err(problem) => return Err(problem.into()),
            Ok(()) => return changed(&service, &permit, &at).await,
        }
    }
    let replayed = service.replay(&permit, name, Some((content, fingerprint))).await;
    match replayed {
        Err(problem) if problem.code == Code::Conflict && payload.bytes.is_empty() => {
            // An empty request means that the caller did not know that a body is needed.
            Err(Problem::from(hapax_core::Invalid::BodyGone).into())
        }
        Err(problem) => Err(problem.into()),
        Ok(()) => changed(&service, &permit, &at).await,
    }
}

/// Redrive a dead message
#[utoipa::path(
    post, path = "/v1/queues/{queue}/keys/{key}/redrive", operation_id = "redriveKey", tag = "keys",
    params(("queue" = String, Path), ("key" = String, Path), ("group" = Option<String>, Query)),
    responses(
        (status = 200, description = "Ready again", body = wire::Changed),
        (status = 400, description = "`invalid`: it is not dead"),
        (status = 429, description = "`over_quota`: too many redrives are running"),
        (status = 507, description = "`store_full`"),
    ),
)]
pub(super) async fn redrive(
    State(service): State<Service>,
    at: InKey,
) -> Result<Response, Failure> {
    let permit = at.may(&service, Action::Admin)?;
    let name = at.name(&service, &permit);
    let select = Select::Keys { keys: vec![name.key], group: name.group };
    let view = start(&service, &permit, None, select, false, None).await?;
    if view.moved == 0 {
        let view = service.look(&permit, at.name(&service, &permit), Duration::ZERO).await?;
        return Err(Problem::perhaps_done(view.place.as_str()).into());
    }
    changed(&service, &permit, &at).await
}

/// Discard a message that is dead, parked or waiting
///
/// Its key stays remembered.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/keys/{key}/discard", operation_id = "discardKey", tag = "keys",
    params(("queue" = String, Path), ("key" = String, Path), ("group" = Option<String>, Query)),
    responses((status = 200, description = "Given up", body = wire::Changed)),
)]
pub(super) async fn discard(
    State(service): State<Service>,
    at: InKey,
) -> Result<Response, Failure> {
    let permit = at.may(&service, Action::Admin)?;
    service.discard(&permit, at.name(&service, &permit)).await?;
    changed(&service, &permit, &at).await
}

/// Resolve a parked message
///
/// `{"do":"done","result":{…}}` or `{"do":"retry"}`.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/keys/{key}/resolve", operation_id = "resolveKey", tag = "keys",
    params(("queue" = String, Path), ("key" = String, Path), ("group" = Option<String>, Query)),
    request_body = wire::Resolve,
    responses((status = 200, description = "Resolved", body = wire::Changed)),
)]
pub(super) async fn resolve(
    State(service): State<Service>,
    at: InKey,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let permit = at.may(&service, Action::Admin)?;
    let payload = read_json(&service, permit.tenant(), &headers, body, SETTLE_BYTES_MAX).await?;
    let resolve: wire::Resolve = parse(&payload)?;
    let resolution = match resolve.verb.as_str() {
        "done" => Resolution::Done(resolve.result.as_ref().map(shape::blob_in).transpose()?),
        "retry" if resolve.result.is_some() => {
            return Err(Failure::invalid("result belongs to do: \"done\", not to \"retry\""));
        }
        "retry" => Resolution::Retry,
        other => {
            return Err(Failure::invalid(format!("do: {other:?} is neither done nor retry")));
        }
    };
    service.resolve(&permit, at.name(&service, &permit), resolution).await?;
    changed(&service, &permit, &at).await
}

/// The state of the message after a change.
async fn changed(service: &Service, permit: &Permit, at: &InKey) -> Result<Response, Failure> {
    let looked = service.look(permit, at.name(service, permit), Duration::ZERO).await;
    let (state, generation) = match &looked {
        Ok(view) => (Some(shape::state(view.place)), Some(view.record.generation)),
        // A redriven claim is freed: nothing is left of it.
        Err(problem) if problem.code == Code::NoSuchKey => (None, None),
        Err(problem) => return Err(problem.clone().into()),
    };
    let changed = wire::Changed { key: &at.key, state, generation };
    Ok(output::small(StatusCode::OK, &changed))
}
