//! Redrives many dead messages.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use hapax_core::{Redrive, RedriveView, Select, limits};
use hapax_wire::{self as wire, Code};
use http::{HeaderMap, StatusCode};
use tokio::time::{Instant, sleep};

use super::body::{parse, read_json};
use super::dispatch::generated;
use super::failure::Failure;
use super::head;
use super::input::{Caller, InQueue};
use super::output;
use crate::auth::{Action, Principal};
use crate::doors::shape;
use crate::problem::Problem;
use crate::service::{Permit, Service};

/// The largest body: the most keys, each of the greatest length.
pub(super) const REDRIVE_BYTES_MAX: usize = 1_024 * 1_024;
/// Most redrives are short: wait briefly, so that callers need not ask twice.
const AT_ONCE: Duration = Duration::from_millis(300);
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// Redrive dead messages
///
/// Name them by `keys`, by `filter`, or `all`. Under its `id`, a repeated redrive moves nothing
/// twice, and another one is refused. A large one continues after the answer: ask for its progress.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/redrive", operation_id = "redrive", tag = "keys",
    params(
        ("queue" = String, Path),
        ("Prefer" = Option<String>, Header, description = "`wait=SECONDS`: wait until the redrive \
                                                           is finished"),
    ),
    request_body = wire::Redrive,
    responses(
        (status = 200, description = "The progress of the redrive", body = wire::RedriveProgress),
        (status = 404, description = "`no_such_queue`; or `no_such_key`: the queue deduplicates \
                                      per group, and no group was given with the keys"),
        (status = 422, description = "`conflict`: the id was used for another redrive"),
        (status = 429, description = "`over_quota`: too many redrives are running"),
        (status = 507, description = "`store_full`"),
    ),
)]
pub(super) async fn post(
    State(service): State<Service>,
    at: InQueue,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let permit = at.may(&service, Action::Admin)?;
    let payload = read_json(&service, permit.tenant(), &headers, body, REDRIVE_BYTES_MAX).await?;
    let mut redrive: wire::Redrive = parse(&payload)?;
    let (id, dry_run, per_s) = (redrive.id.take(), redrive.dry_run, redrive.per_s);
    let has_group = redrive.group.is_some();
    let select = select(redrive)?;
    let mut view = start(&service, &permit, id.as_deref(), select, dry_run, per_s).await?;
    let until = Instant::now() + head::wait(&headers).max(AT_ONCE);
    while !view.done && Instant::now() < until {
        sleep(BETWEEN_LOOKS).await;
        view = service.redrive_progress(&permit, &view.id).await?;
    }
    service.check_found(&permit, has_group, &view).await?;
    Ok(output::small(StatusCode::OK, &shape::redrive(&view)))
}

/// Starts a redrive, under a generated id if none is given.
pub(super) async fn start(
    service: &Service,
    permit: &Permit,
    id: Option<&str>,
    select: Select,
    dry_run: bool,
    per_s: Option<u32>,
) -> Result<RedriveView, Problem> {
    let id: Arc<str> = match id {
        Some(id) => id.into(),
        None => generated().to_str().unwrap_or_default().into(),
    };
    let queue = permit.queue().clone();
    service.redrive(permit, Redrive { queue, id, select, dry_run, per_s }).await
}

fn select(redrive: wire::Redrive) -> Result<Select, Problem> {
    if redrive.group.is_some() && redrive.keys.is_none() {
        return Err(Problem::invalid(
            "group: it belongs to `keys`; with a filter, use `filter.group`",
        ));
    }
    match (redrive.keys, redrive.filter, redrive.all) {
        (Some(keys), None, false) if keys.beyond > 0 => {
            let count = keys.items.len() + keys.beyond;
            let max = limits::REDRIVE_KEYS_MAX;
            let detail = format!("keys: a redrive takes at most {max} keys, this one has {count}");
            Err(Problem::new(Code::TooLarge, detail))
        }
        (Some(keys), None, false) => shape::keys(&keys, redrive.group.as_deref()),
        (None, Some(filter), false) => Ok(shape::filter(filter)),
        (None, None, true) => Ok(Select::All),
        _ => Err(Problem::invalid("give exactly one of `keys`, `filter` and `\"all\": true`")),
    }
}

/// The progress of a redrive
#[utoipa::path(
    get, path = "/v1/queues/{queue}/redrive/{id}", operation_id = "getRedrive", tag = "keys",
    params(("queue" = String, Path), ("id" = String, Path)),
    responses(
        (status = 200, description = "Its progress", body = wire::RedriveProgress),
    ),
)]
pub(super) async fn get(
    State(service): State<Service>,
    Caller(caller): Caller,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Result<Response, Failure> {
    named(&service, &caller, path, false).await
}

/// Cancel a redrive
///
/// It stops where it is: what it moved stays moved. A finished one is not changed.
#[utoipa::path(
    delete, path = "/v1/queues/{queue}/redrive/{id}", operation_id = "cancelRedrive", tag = "keys",
    params(("queue" = String, Path), ("id" = String, Path)),
    responses(
        (status = 200, description = "The progress of the redrive", body = wire::RedriveProgress),
    ),
)]
pub(super) async fn cancel(
    State(service): State<Service>,
    Caller(caller): Caller,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Result<Response, Failure> {
    named(&service, &caller, path, true).await
}

/// The progress of the redrive in the path, after cancelling it if requested.
async fn named(
    service: &Service,
    caller: &Arc<Principal>,
    path: Result<Path<(String, String)>, PathRejection>,
    cancel: bool,
) -> Result<Response, Failure> {
    let Path((queue, id)) =
        path.map_err(|_| Failure::invalid("the path is not percent-encoded UTF-8"))?;
    let permit = service.authorise(caller, Action::Admin, &queue)?;
    let view = match cancel {
        true => service.cancel_redrive(&permit, &id).await?,
        false => service.redrive_progress(&permit, &id).await?,
    };
    Ok(output::small(StatusCode::OK, &shape::redrive(&view)))
}
