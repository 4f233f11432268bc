//! Creates, changes, shows, pauses and purges queues.

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hapax_core::Expected;
use hapax_wire as wire;
use http::header::{ETAG, IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::body::{parse, read_json};
use super::failure::Failure;
use super::input::{Caller, InQueue};
use super::output;
use crate::auth::Action;
use crate::doors::{config, shape};
use crate::service::{Change, Permit, Queue, Queues, Service, if_match};

/// The largest body of a configuration.
pub(super) const CONFIG_BYTES_MAX: usize = 64 * 1_024;

/// Create or change a queue
///
/// The body is the whole configuration: missing fields have their defaults. An empty body means all
/// defaults.
#[utoipa::path(
    put, path = "/v1/queues/{queue}", operation_id = "putQueue", tag = "queues",
    params(
        ("queue" = String, Path),
        ("If-Match" = Option<String>, Header, description = "Refused unless the etag matches"),
        ("If-None-Match" = Option<String>, Header, description = "`*`: only create"),
    ),
    request_body = wire::QueueConfig,
    responses(
        (status = 201, description = "Created", body = wire::Queue,
         headers(("ETag" = String, description = "For `If-Match`"))),
        (status = 200, description = "Changed", body = wire::Queue,
         headers(("ETag" = String, description = "For `If-Match`"))),
        (status = 412, description = "`invalid_config`: the queue has another etag, or exists"),
        (status = 422, description = "`invalid_config`: refused, with the field"),
        (status = 429, description = "`over_quota`: the tenant has as many queues as it may"),
    ),
)]
pub(super) async fn put(
    State(service): State<Service>,
    at: InQueue,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let permit = at.may(&service, Action::Create)?;
    let payload = read_json(&service, permit.tenant(), &headers, body, CONFIG_BYTES_MAX).await?;
    let config = config::read(&payload.bytes)?;
    let (queue, is_new) = service.configure(&permit, config, precondition(&headers)?).await?;
    Ok(show(if is_new { StatusCode::CREATED } else { StatusCode::OK }, &queue))
}

/// What the queue must be for the change to be made.
fn precondition(headers: &HeaderMap) -> Result<Option<Expected>, Failure> {
    match (text(headers, &IF_MATCH)?, text(headers, &IF_NONE_MATCH)?) {
        (None, None) => Ok(None),
        (None, Some("*")) => Ok(Some(Expected::Absent)),
        (Some(etag), None) => Ok(Some(if_match(etag)?)),
        (_, Some(_)) => Err(Failure::invalid("If-None-Match must be `*` here, without If-Match")),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Failure> {
    let mut values = headers.get_all(name).iter();
    match (values.next().map(HeaderValue::to_str), values.next()) {
        (None, _) => Ok(None),
        (Some(Ok(text)), None) if !text.contains(',') => Ok(Some(text.trim())),
        _ => Err(Failure::invalid(format!("{name} must be one etag here, not a list"))),
    }
}

/// Show a queue
#[utoipa::path(
    get, path = "/v1/queues/{queue}", operation_id = "getQueue", tag = "queues",
    params(("queue" = String, Path)),
    responses(
        (status = 200, description = "The queue", body = wire::Queue,
         headers(("ETag" = String, description = "For `If-Match`"))),
    ),
)]
pub(super) async fn get(State(service): State<Service>, at: InQueue) -> Result<Response, Failure> {
    let permit = at.may(&service, Action::Look)?;
    Ok(show(StatusCode::OK, &service.show(&permit).await?))
}

/// List the queues
///
/// A partition that does not answer within a second is named in `unanswered`; its part of the
/// counts is then outdated or missing.
#[utoipa::path(
    get, path = "/v1/queues", operation_id = "listQueues", tag = "queues",
    responses(
        (status = 200, description = "Queues that the token may see", body = wire::ListQueuesReply),
    ),
)]
pub(super) async fn list(
    State(service): State<Service>,
    Caller(caller): Caller,
) -> Result<Response, Failure> {
    let Queues { queues, unanswered } = service.list(&caller).await?;
    let list =
        wire::ListQueuesReply { queues: queues.iter().map(shape::queue).collect(), unanswered };
    output::sized(&service, caller.tenant(), StatusCode::OK, &list, queues.len() * 1_100).await
}

/// Delete a queue with its messages and keys
#[utoipa::path(
    delete, path = "/v1/queues/{queue}", operation_id = "deleteQueue", tag = "queues",
    params(
        ("queue" = String, Path),
        ("If-Match" = Option<String>, Header, description = "Refused unless the etag matches"),
    ),
    responses(
        (status = 204, description = "Gone"),
        (status = 412, description = "`invalid_config`: the queue has another etag"),
    ),
)]
pub(super) async fn delete(
    State(service): State<Service>,
    at: InQueue,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let permit = at.may(&service, Action::Admin)?;
    let expected = text(&headers, &IF_MATCH)?.map(if_match).transpose()?;
    service.delete(&permit, expected).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Pause a queue
///
/// Nothing is delivered; sends and settles continue.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/pause", operation_id = "pauseQueue", tag = "queues",
    params(("queue" = String, Path)),
    responses(
        (status = 200, description = "Paused", body = wire::Queue,
         headers(("ETag" = String, description = "For `If-Match`"))),
    ),
)]
pub(super) async fn pause(
    State(service): State<Service>,
    at: InQueue,
) -> Result<Response, Failure> {
    let permit = at.may(&service, Action::Admin)?;
    change(&service, &permit, Change::Pause).await
}

/// Resume a paused queue
#[utoipa::path(
    post, path = "/v1/queues/{queue}/resume", operation_id = "resumeQueue", tag = "queues",
    params(("queue" = String, Path)),
    responses(
        (status = 200, description = "Resumed", body = wire::Queue,
         headers(("ETag" = String, description = "For `If-Match`"))),
    ),
)]
pub(super) async fn resume(
    State(service): State<Service>,
    at: InQueue,
) -> Result<Response, Failure> {
    let permit = at.may(&service, Action::Admin)?;
    change(&service, &permit, Change::Resume).await
}

/// Remove all waiting messages
///
/// Their keys stay remembered, unless `keys` is true. Leased messages stay with their workers.
/// Large queues are emptied in steps, so the counters may take a moment.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/purge", operation_id = "purgeQueue", tag = "queues",
    params(("queue" = String, Path)),
    request_body = wire::PurgeRequest,
    responses(
        (status = 200, description = "The purge has started; purged messages are not delivered \
                                      any more", body = wire::Queue,
         headers(("ETag" = String, description = "For `If-Match`"))),
    ),
)]
pub(super) async fn purge(
    State(service): State<Service>,
    at: InQueue,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let permit = at.may(&service, Action::Admin)?;
    let payload = read_json(&service, permit.tenant(), &headers, body, CONFIG_BYTES_MAX).await?;
    let wire::PurgeRequest { keys, .. } = parse(&payload)?;
    change(&service, &permit, Change::Purge { keys }).await
}

async fn change(service: &Service, permit: &Permit, change: Change) -> Result<Response, Failure> {
    service.change(permit, change).await?;
    Ok(show(StatusCode::OK, &service.show(permit).await?))
}

fn show(status: StatusCode, queue: &Queue) -> Response {
    let shown = shape::queue(queue);
    let mut response = output::small(status, &shown);
    if let Ok(value) = HeaderValue::try_from(shown.etag) {
        response.headers_mut().insert(ETAG, value);
    }
    response
}
