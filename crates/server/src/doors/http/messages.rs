//! Sends messages, one by one or in batches, and lists them.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::response::Response;
use hapax_core::{Answer, Browse, Content, KeyView, Place, QueueName, Recipe, SendMessage};
use hapax_wire::{self as wire, Code};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::Deserialize;

use super::body::{read_json, read_message};
use super::dispatch::RequestId;
use super::failure::Failure;
use super::head::{self, Head};
use super::input::{InQueue, Params, number};
use super::{key, output};
use crate::auth::Action;
use crate::doors::shape;
use crate::problem::Problem;
use crate::service::{BROWSE_DEFAULT, Permit, Service, is_no_such_queue, key_bytes};

pub(super) const BATCH_BYTES_MAX: usize = 8 * 1_024 * 1_024;
/// Results in the answers to one request, and bodies in one page.
pub(super) const ANSWER_BYTES_MAX: usize = 8 * 1_024 * 1_024;

const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// Send a message
///
/// The body of the request is the body of the message. Under one key it is accepted once: every
/// retry gets the first one's answer.
///
/// Headers named `hapax-header-NAME` are stored with the message under `name`.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/messages", operation_id = "sendMessage", tag = "sending",
    params(
        ("queue" = String, Path),
        ("Idempotency-Key" = Option<String>, Header,
         description = "`\"order-42\"` or `order-42`; may be missing in at-least-once queues only"),
        ("hapax-group" = Option<String>, Header),
        ("hapax-delay-ms" = Option<u64>, Header),
        ("hapax-ttl-ms" = Option<u64>, Header),
        ("hapax-fingerprint" = Option<String>, Header,
         description = "Your own fingerprint, instead of the digest of body and group"),
        ("hapax-issued-at" = Option<String>, Header,
         description = "When the operation was issued (RFC 3339), for keys without a date"),
        ("traceparent" = Option<String>, Header, description = "Stored with the message"),
        ("Prefer" = Option<String>, Header,
         description = "`wait=SECONDS`: answer when the message is done, dead or parked"),
    ),
    request_body(content = Vec<u8>, content_type = "*/*"),
    responses(
        (status = 201, description = "The key is new: `accepted`, or the outcome if the request \
                                      waited for it",
         body = wire::Answered,
         headers(("Preference-Applied" = String, description = "The wait that was applied"))),
        (status = 200, description = "The key is known: the state or outcome of its message",
         body = wire::Answered,
         headers(
             ("Idempotency-Replayed" = bool, description = "`true`"),
             ("Preference-Applied" = String, description = "The wait that was applied"),
         )),
        (status = 410, description = "`too_old`: issued before the queue's retention"),
        (status = 422, description = "`conflict`: the key was used for another operation; or \
                                      `undated_key`"),
        (status = 429, description = "`over_quota` or `rate_limited`"),
        (status = 507, description = "`store_full`"),
    ),
    extensions(("x-stored-headers" = json!("hapax-header-"))),
)]
pub(super) async fn send(
    State(service): State<Service>,
    Extension(request_id): Extension<RequestId>,
    at: InQueue,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let permit = at.may(&service, Action::Send)?;
    let head = Head::read(service.recipe(), &headers)?;
    let payload = read_message(&service, &permit, &headers, body).await?;
    let send = head.send(service.recipe(), permit.queue().clone(), &payload.bytes)?;
    let content = Arc::clone(&send.content);
    let admitted = payload.into_admitted();
    let mut answers = service.send(&permit, vec![send], usize::MAX).await?;
    drop(admitted);
    let (answer, _) = answers.pop().ok_or_else(Problem::unanswered)?;
    check(&answer, &at.queue, &headers)?;
    let is_new = matches!(answer, Answer::Accepted { .. });
    if is_new && request_id.is_given && content.has_key() {
        service.metrics().requested(permit.queue(), request_id.as_str(), content.key());
    }
    let wait = head::wait(&headers);
    let mut response = match wait_for(&service, &permit, &answer, &content, wait).await? {
        Some(view) => {
            let bytes = key_bytes(&view);
            let answer = shape::answer(0, answer).waited(shape::key(None, *view));
            let told = answered(&at.queue, content.key(), answer, false);
            output::sized(&service, permit.tenant(), status(is_new), &told, bytes).await?
        }
        None => {
            let bytes = answer_bytes(&answer);
            let told = answered(&at.queue, content.key(), shape::answer(0, answer), false);
            output::sized(&service, permit.tenant(), status(is_new), &told, bytes).await?
        }
    };
    mark(&mut response, is_new, wait);
    Ok(response)
}

fn status(is_new: bool) -> StatusCode {
    if is_new { StatusCode::CREATED } else { StatusCode::OK }
}

/// Sets the headers for a replayed answer and for a wait.
pub(super) fn mark(response: &mut Response, is_new: bool, wait: Duration) {
    if !is_new {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    if !wait.is_zero()
        && let Ok(value) = HeaderValue::try_from(format!("wait={}", wait.as_secs()))
    {
        response.headers_mut().insert(PREFERENCE_APPLIED, value);
    }
}

/// The refusal in an answer, if it is one.
pub(super) fn check(answer: &Answer, queue: &str, headers: &HeaderMap) -> Result<(), Failure> {
    match Problem::of_answer(answer) {
        None => Ok(()),
        Some(problem) if problem.code == Code::NoSuchQueue => {
            Err(Problem::no_such_queue(queue).into())
        }
        Some(problem) if problem.code == Code::MissingKey => Err(key::missing(headers).into()),
        Some(problem) => Err(problem.into()),
    }
}

/// Waits for the end of an unfinished message; `None` if there is nothing to wait for.
async fn wait_for(
    service: &Service,
    permit: &Permit,
    answer: &Answer,
    content: &Content,
    wait: Duration,
) -> Result<Option<Box<KeyView>>, Failure> {
    let id = match answer {
        Answer::Accepted { id, .. } => *id,
        Answer::InFlight(in_flight) => in_flight.id,
        _ => return Ok(None),
    };
    if wait.is_zero() {
        return Ok(None);
    }
    let key = match content.key() {
        "" => service.key_name(permit, &id.to_string(), content.group()),
        key => service.key_name(permit, key, content.group()),
    };
    match service.look(permit, key, wait).await {
        Ok(view) => Ok(Some(Box::new(view))),
        // Purged, or forgotten during the wait.
        Err(problem) if problem.code == Code::NoSuchKey => Ok(None),
        Err(problem) => Err(problem.into()),
    }
}

/// Estimated bytes of an answer.
pub(super) fn answer_bytes(answer: &Answer) -> usize {
    let own = match answer {
        Answer::Done(finished) => finished.result.as_ref().map_or(0, |result| result.body.len()),
        Answer::Dead { error, .. } => error.len(),
        _ => 0,
    };
    400 + in_json(own)
}

/// Estimated size of bytes in JSON, with escapes or base64.
pub(super) fn in_json(bytes: usize) -> usize {
    bytes + bytes / 3
}

/// An answer with the queue and the key it is about. A message without a key is named by its id.
pub(super) fn answered<'a>(
    queue: &'a str,
    key: &'a str,
    answer: wire::Answer,
    result_omitted: bool,
) -> wire::Answered<'a> {
    let is_refused = answer.problem.is_some();
    let key = match key {
        "" if !is_refused => wire::Id::of(&answer.id).to_string().into(),
        key => key.into(),
    };
    wire::Answered { queue: (!is_refused).then_some(queue), key, answer, result_omitted }
}

/// Send a batch
///
/// At most 1000 messages and 8 MiB. Each is answered separately, in the order of the batch: a
/// duplicate or an error does not affect the others.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/batch", operation_id = "sendBatch", tag = "sending",
    params(("queue" = String, Path)),
    request_body = wire::Batch,
    responses(
        (status = 200, description = "An answer for each message", body = wire::Answers),
        (status = 413, description = "`too_large`: more than 1000 messages, or 8 MiB"),
    ),
)]
pub(super) async fn batch(
    State(service): State<Service>,
    at: InQueue,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let permit = at.may(&service, Action::Send)?;
    let payload = read_json(&service, permit.tenant(), &headers, body, BATCH_BYTES_MAX).await?;
    let (sends, kept) = gather(service.recipe(), permit.queue(), &payload.bytes)?;
    let admitted = payload.into_admitted();
    let answers = match sends.is_empty() {
        true => Vec::new(),
        false => service.send(&permit, sends, ANSWER_BYTES_MAX).await?,
    };
    drop(admitted);
    if is_no_such_queue(&answers) {
        return Err(Problem::no_such_queue(&at.queue).into());
    }
    let bytes_about: usize = answers.iter().map(|(answer, _)| answer_bytes(answer)).sum();
    let bytes_about = bytes_about.min(2 * ANSWER_BYTES_MAX);
    let mut rest = answers.into_iter();
    let told = kept.iter().map(|kept| match kept {
        Ok(content) => {
            let (answer, omitted) = match rest.next() {
                Some((answer, omitted)) => (shape::answer(0, answer), omitted),
                None => (shape::refused(0, &Problem::unanswered()), false),
            };
            answered(&at.queue, content.key(), answer, omitted)
        }
        Err((key, problem)) => {
            let key = key.as_deref().unwrap_or_default();
            answered(&at.queue, key, shape::refused(0, problem), false)
        }
    });
    let told = wire::Answers { answers: told.collect() };
    output::sized(&service, permit.tenant(), StatusCode::OK, &told, bytes_about + 300 * kept.len())
        .await
}

/// What is kept of a message of a batch until it is answered; of a refused one, its key.
type Kept = Result<Arc<Content>, (Option<String>, Problem)>;

fn gather(
    recipe: &Recipe,
    queue: &QueueName,
    json: &[u8],
) -> Result<(Vec<SendMessage>, Vec<Kept>), Failure> {
    let batch = wire::Batch::read(json).map_err(|error| Failure::invalid(error.to_string()))?;
    if batch.beyond > 0 {
        let count = batch.items.len() + batch.beyond;
        let detail =
            format!("the batch has {count} messages, at most {} are allowed", wire::BATCH_MAX);
        return Err(Problem::new(Code::TooLarge, detail).into());
    }
    let mut sends = Vec::with_capacity(batch.items.len());
    let mut kept = Vec::with_capacity(batch.items.len());
    for item in batch.items {
        let (key, sent) = match &item {
            Ok(message) => (message.key.as_deref(), shape::send(recipe, queue, &message.into())),
            Err(error) => (error.key(), Err(Problem::invalid(error.to_string()))),
        };
        kept.push(match sent {
            Ok(send) => {
                let content = Arc::clone(&send.content);
                sends.push(send);
                Ok(content)
            }
            Err(problem) => Err((key.map(str::to_owned), problem)),
        });
    }
    Ok((sends, kept))
}

#[derive(Debug, Deserialize)]
pub(super) struct BrowseParams {
    state: Option<String>,
    limit: Option<String>,
    cursor: Option<String>,
}

/// Browse messages without leasing them
///
/// Oldest first. Follow `next` until it is `null`; a page may hold fewer messages than requested.
#[utoipa::path(
    get, path = "/v1/queues/{queue}/messages", operation_id = "browseMessages", tag = "keys",
    params(
        ("queue" = String, Path),
        ("state" = Option<String>, Query, description = "By default `ready`"),
        ("limit" = Option<u32>, Query, description = "By default 100"),
        ("cursor" = Option<String>, Query, description = "`next` of the previous page"),
    ),
    responses(
        (status = 200, description = "A page", body = wire::BrowseReply),
        (status = 413, description = "`too_large`: the cursor of the next page is too long"),
    ),
)]
pub(super) async fn browse(
    State(service): State<Service>,
    at: InQueue,
    Params(params): Params<BrowseParams>,
) -> Result<Response, Failure> {
    let permit = at.may(&service, Action::Browse)?;
    let limit = number("limit", params.limit.as_deref())?;
    let browse = Browse {
        queue: permit.queue().clone(),
        place: browsed_place(params.state.as_deref())?,
        cursor: None,
        limit: limit.map_or(BROWSE_DEFAULT, |limit| usize::try_from(limit).unwrap_or(usize::MAX)),
    };
    let cursor = params.cursor.as_deref().map(|text| service.cursor(text)).transpose()?;
    let page = service.browse(&permit, browse, cursor).await?;
    let bytes = page.messages.iter().map(key_bytes).sum();
    let list = wire::BrowseReply {
        messages: page.messages.into_iter().map(|view| shape::key(None, view)).collect(),
        next: page.next.map(|next| next.to_string()).unwrap_or_default(),
    };
    output::sized(&service, permit.tenant(), StatusCode::OK, &list, bytes).await
}

fn browsed_place(state: Option<&str>) -> Result<Place, Failure> {
    let Some(state) = state else { return Ok(Place::Ready) };
    match wire::State::parse(state).and_then(shape::place) {
        Some(Place::Done | Place::Discarded) => Err(Failure::invalid(
            "state: finished messages cannot be listed; get them by their keys",
        )),
        Some(place) => Ok(place),
        None => Err(Failure::invalid("state must be ready, delayed, leased, parked or dead")),
    }
}
