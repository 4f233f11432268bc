//! Claims: keys held by callers that do the work themselves.

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hapax_core::{Answer, Claim, limits};
use hapax_wire as wire;
use http::{HeaderMap, StatusCode};

use super::body::hash;
use super::failure::Failure;
use super::head::{self, Head};
use super::input::InQueue;
use super::messages::{answer_bytes, answered, check, mark};
use super::output;
use crate::auth::Action;
use crate::doors::shape;
use crate::problem::Problem;
use crate::service::Service;
use crate::time::now;

/// The bounds of `Retry-After` for a held key: its holder may finish before the lease ends.
const RETRY_MS: (u64, u64) = (1_000, 10_000);

/// Claim a key
///
/// For callers that do the work themselves. The body is fingerprinted, unless `hapax-fingerprint`
/// is given, and not stored. Settle the lease as any other: `done` completes, `release` frees the
/// key.
///
/// Headers named `hapax-header-NAME` are stored under `name` while the claim is held.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/claims", operation_id = "claim", tag = "claims",
    params(
        ("queue" = String, Path),
        ("Idempotency-Key" = String, Header),
        ("hapax-lease-ms" = Option<u64>, Header),
        ("hapax-fingerprint" = Option<String>, Header),
        ("hapax-group" = Option<String>, Header),
        ("hapax-issued-at" = Option<String>, Header,
         description = "When the operation was issued (RFC 3339), for keys without a date"),
        ("hapax-worker" = Option<String>, Header, description = "Recorded in the key's history"),
        ("hapax-claim-id" = Option<String>, Header,
         description = "A claim that is repeated with the same id while it is held gets the same \
                        lease"),
        ("Prefer" = Option<String>, Header,
         description = "`wait=SECONDS`: wait for the caller that holds the key"),
    ),
    request_body(content = Vec<u8>, content_type = "*/*"),
    responses(
        (status = 201, description = "The claim is granted", body = wire::Claimed,
         headers(("Preference-Applied" = String, description = "The wait that was applied"))),
        (status = 200, description = "The key is known: the outcome of its message",
         body = wire::Answered,
         headers(
             ("Idempotency-Replayed" = bool, description = "`true`"),
             ("Preference-Applied" = String, description = "The wait that was applied"),
         )),
        (status = 409, description = "`in_flight`: another caller holds the key"),
        (status = 410, description = "`too_old`: issued before the queue's retention"),
        (status = 422, description = "`conflict`: the key was used for another operation; or \
                                      `undated_key`"),
        (status = 429, description = "`over_quota` or `rate_limited`"),
        (status = 507, description = "`store_full`"),
    ),
    extensions(("x-stored-headers" = json!("hapax-header-"))),
)]
pub(super) async fn post(
    State(service): State<Service>,
    at: InQueue,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let permit = at.may(&service, Action::Claim)?;
    let recipe = service.recipe();
    let head = Head::read(recipe, &headers)?;
    let hashed = hash(recipe, &headers, body, limits::BODY_BYTES_MAX as usize).await?;
    let fingerprint = head.fingerprint(&hashed);
    let mut claim = Claim::new(recipe, permit.queue().clone(), head.content(&[])?, fingerprint);
    claim.lease_ms = head.lease_ms;
    claim.worker = head.worker.unwrap_or_default().into();
    claim.issued_at = head.issued_at;
    claim.claim_id = head.claim_id.map(Into::into);
    let wait = head::wait(&headers);
    let claimed = service.claim(&permit, claim, wait).await?;
    let mut response = match &claimed.answer {
        Answer::Fresh(_) => {
            if claimed.lease.is_none() {
                return Err(Problem::unanswered().into());
            }
            let reply = shape::claimed(0, &permit, claimed);
            let fresh = wire::Claimed::new(&at.queue, &head.key, &reply);
            output::sized(&service, permit.tenant(), StatusCode::CREATED, &fresh, 128 * 1_024)
                .await?
        }
        Answer::InFlight(in_flight) => {
            let left = in_flight.deadline.map_or(0, |deadline| deadline.since(now()));
            return Err(Failure::in_flight(*in_flight, left.clamp(RETRY_MS.0, RETRY_MS.1)));
        }
        answer => {
            check(answer, &at.queue, &headers)?;
            let bytes = answer_bytes(answer);
            let answer = shape::answer(0, claimed.answer);
            let told = answered(&at.queue, &head.key, answer, false);
            output::sized(&service, permit.tenant(), StatusCode::OK, &told, bytes).await?
        }
    };
    let is_new = response.status() == StatusCode::CREATED;
    mark(&mut response, is_new, wait);
    Ok(response)
}
