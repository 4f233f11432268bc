//! One protected request, from its claim to its answer.
//!
//! ```text
//!   claim ── fresh ──▶ begin ──▶ handler ──▶ keep ────▶ complete ──▶ the handler's response
//!     │                  │           │        release ─▶ release ──▶ the handler's response
//!     │                  │           │        in doubt ▶ park ─────▶ the handler's response
//!     │                  │           └ panic ───────────▶ park ─────▶ 500
//!     │                  └ lost ──▶ 409      away ──▶ release, 503
//!     ├ done ────────────▶ the stored response, marked
//!     ├ in flight ───────▶ 409        conflict ─▶ 422        parked ─▶ 409
//!     └ broker away ─────▶ 503, or the handler without a claim
//! ```
//!
//! A claim that was not begun is freed when its lease ends, also in a queue that parks, because
//! nothing was done under it. So a caller that disappears, or never gets the answer to its claim,
//! leaves nothing in doubt. A begun claim that ends without a response, for example by a panic, is
//! parked; a queue that does not park frees its key, and there `begin` is left out.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::SystemTime;

use bytes::Bytes;
use hapax_client::{Blob, Claim, Code, Error, Held, Settle};
use http::response::Parts;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::Body;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::body::{Gathered, ResponseBody, gather};
use crate::builder::{OnUnavailable, Rules};
use crate::event::{Event, Outcome};
use crate::key;
use crate::operation::Operation;
use crate::policy::{REPLAYED, Remember};
use crate::prefer::PREFERENCE_APPLIED;
use crate::problem::Problem;
use crate::settle::{Ended, Settling, settle_retry};
use crate::stored::{CONTENT_TYPE, Stored};

/// A protected request.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) key: String,
    pub(crate) claim_key: String,
    pub(crate) fingerprint: String,
    pub(crate) tenant: String,
    /// For the log.
    pub(crate) route: String,
    /// Method and path, for the operator who has to resolve it.
    pub(crate) request: String,
    pub(crate) wait: Option<std::time::Duration>,
}

type HttpResponse<R> = Response<ResponseBody<R>>;

/// Claims the key, calls the handler if it is fresh, and settles the claim.
pub(crate) async fn run<R, E, F>(
    rules: Arc<Rules>,
    asked: Asked,
    _room: OwnedSemaphorePermit,
    handler: impl FnOnce(Option<Operation>) -> F + Send,
) -> Result<HttpResponse<R>, E>
where
    F: Future<Output = Result<Response<R>, E>> + Send,
    R: Body<Data = Bytes> + Send + Unpin + 'static,
    R::Error: std::fmt::Display,
{
    let _running = Running::begin(&rules);
    let taken = match take(&rules, &asked).await {
        Taken::Fresh(held) if held.must_begin() => Box::pin(begin(&rules, held)).await,
        other => other,
    };
    match taken {
        // Boxed, so that a replay has no room for it: a future is moved several times as it begins.
        Taken::Fresh(held) => Box::pin(work(&rules, asked, held, handler)).await,
        Taken::Unprotected => {
            let response = handler(None).await?.map(ResponseBody::passed);
            Ok(tell(&rules, Outcome::Unprotected, response))
        }
        Taken::Ended(outcome, response) => {
            Ok(tell(&rules, outcome, applied(&asked, response.map(ResponseBody::from))))
        }
    }
}

/// Reports how a request was answered, to the observer and in the response's extensions.
pub(crate) fn tell<R>(
    rules: &Rules,
    outcome: Outcome,
    mut response: HttpResponse<R>,
) -> HttpResponse<R> {
    rules.tell(Event::Answered(outcome));
    response.extensions_mut().insert(outcome);
    response
}

/// The outcome of a claim.
enum Taken {
    Fresh(Held),
    Ended(Outcome, Response<Bytes>),
    Unprotected,
}

impl Taken {
    fn problem(outcome: Outcome, problem: Problem) -> Self {
        Self::Ended(outcome, problem.into_response())
    }
}

/// Claims the key, or returns the response instead. Waits for the broker at most for the timeout.
async fn take(rules: &Arc<Rules>, asked: &Asked) -> Taken {
    let mut taking = Box::pin(claim(rules, asked, asked.wait));
    let patience = rules.broker_timeout + asked.wait.unwrap_or_default();
    let Ok(claimed) = timeout(patience, &mut taking).await else {
        rules.tell(Event::BrokerFailed(Code::Unavailable));
        // The claim may have succeeded at the broker. Then it is released as soon as the answer
        // arrives, so that the next request need not wait for the end of its lease.
        let running = Running::begin(rules);
        tokio::spawn(async move {
            if let Ok(Claim::Fresh(held)) = taking.await {
                let _ = held.release().await;
            }
            drop(running);
        });
        return unavailable(rules);
    };
    match claimed {
        Ok(Claim::Fresh(held)) => Taken::Fresh(held),
        Ok(Claim::Done(answer)) => {
            let (outcome, response) = replay(answer.result().cloned());
            Taken::Ended(outcome, response)
        }
        Ok(Claim::InFlight(_)) => {
            Taken::problem(Outcome::InProgress, Problem::in_progress(rules.retry_after))
        }
        Ok(Claim::Parked(_) | Claim::Dead(_)) => {
            Taken::problem(Outcome::InDoubt, Problem::in_doubt(&asked.claim_key))
        }
        Err(error) => refused(rules, asked, &error),
    }
}

/// Reports `begin` to the broker: from here on a lost lease leaves the operation in doubt, if the
/// queue parks. If the broker does not answer in time, nothing is done and the key is released.
async fn begin(rules: &Arc<Rules>, held: Held) -> Taken {
    let begun = timeout(rules.broker_timeout, held.begin()).await;
    match begun {
        Ok(Ok(())) => return Taken::Fresh(held),
        Ok(Err(error)) if error.code() == Code::LeaseLost => {
            return Taken::problem(Outcome::InProgress, Problem::in_progress(rules.retry_after));
        }
        Ok(Err(error)) => {
            rules.tell(Event::BrokerFailed(error.code()));
            tracing::warn!(%error, "a key was claimed, and its request was not started");
        }
        Err(_) => rules.tell(Event::BrokerFailed(Code::Unavailable)),
    }
    // The broker may have recorded the begin. The lease is extended while the release is retried.
    let running = Running::begin(rules);
    tokio::spawn(async move {
        // If this fails, retries get `in_flight` until the lease ends.
        let _ = settle_retry().run(|| held.settle(Settle::Release)).await;
        drop(running);
    });
    unavailable(rules)
}

/// One claim of the key, as this request makes it.
pub(crate) fn claim(
    rules: &Rules,
    asked: &Asked,
    wait: Option<std::time::Duration>,
) -> impl Future<Output = Result<Claim, Error>> + Send + 'static {
    let mut request = rules
        .queue
        .claim(&asked.claim_key)
        .fingerprint(&asked.fingerprint)
        // If this process dies, this shows an operator what is in doubt.
        .header("request", &asked.request)
        .lease(rules.lease)
        .wait(wait.unwrap_or_default())
        .worker(&rules.worker);
    if let Some(date) = key::date(&asked.key, SystemTime::now()) {
        request = request.issued_at(date);
    }
    request.take()
}

/// The response to the client for a refusal of the broker.
fn refused(rules: &Rules, asked: &Asked, error: &Error) -> Taken {
    match error.code() {
        Code::Conflict => Taken::problem(Outcome::Conflict, Problem::conflict()),
        Code::TooOld => Taken::problem(Outcome::Refused, Problem::too_old()),
        Code::UndatedKey => Taken::problem(Outcome::Refused, Problem::undated_key()),
        code if error.is_retryable() => {
            rules.tell(Event::BrokerFailed(code));
            tracing::warn!(%error, route = asked.route, "a key could not be claimed");
            unavailable(rules)
        }
        code => {
            rules.tell(Event::BrokerFailed(code));
            let queue = rules.queue.name();
            tracing::error!(%error, queue, route = asked.route, "the broker refuses claims");
            let detail = "the service cannot store its response; nothing was done";
            Taken::problem(Outcome::Misconfigured, Problem::internal(detail))
        }
    }
}

fn unavailable(rules: &Rules) -> Taken {
    match rules.on_unavailable {
        OnUnavailable::Open => Taken::Unprotected,
        OnUnavailable::Close => {
            let detail = "nothing was done, because the response could not be stored; retry with \
                          the same key";
            let problem = Problem::unavailable(detail, rules.retry_after);
            Taken::problem(Outcome::Unavailable, problem)
        }
    }
}

/// The stored response, or a problem if it was not stored.
pub(crate) fn replay(result: Option<Blob>) -> (Outcome, Response<Bytes>) {
    let result = result.unwrap_or_default();
    let is_ours = result.content_type == CONTENT_TYPE;
    let mut response = if is_ours {
        match Stored::decode(result.body) {
            Ok(stored) => {
                let status = stored.status;
                let response = stored.into_response();
                response.unwrap_or_else(|| Problem::not_kept(status).into_response())
            }
            Err(error) => {
                tracing::error!(%error, "a stored response cannot be read");
                let detail = "the request was carried out before, but its response cannot be read";
                Problem::internal(detail).into_response()
            }
        }
    } else {
        resolved(result)
    };
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    (Outcome::Replayed, response)
}

/// The response of a key that an operator resolved: a body and its content type.
fn resolved(result: Blob) -> Response<Bytes> {
    let mut response = Response::new(result.body);
    if !result.content_type.is_empty()
        && let Ok(content_type) = HeaderValue::try_from(result.content_type)
    {
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    }
    if response.body().is_empty() {
        *response.status_mut() = StatusCode::NO_CONTENT;
    }
    response
}

/// Adds `Preference-Applied` if a wait was requested.
fn applied<R>(asked: &Asked, mut response: HttpResponse<R>) -> HttpResponse<R> {
    if let Some(wait) = asked.wait
        && let Ok(value) = HeaderValue::from_str(&format!("wait={}", wait.as_secs()))
    {
        response.headers_mut().insert(PREFERENCE_APPLIED, value);
    }
    response
}

/// Calls the handler under a claim, and settles it.
async fn work<R, E, F>(
    rules: &Arc<Rules>,
    asked: Asked,
    held: Held,
    handler: impl FnOnce(Option<Operation>) -> F + Send,
) -> Result<HttpResponse<R>, E>
where
    F: Future<Output = Result<Response<R>, E>> + Send,
    R: Body<Data = Bytes> + Send + Unpin + 'static,
    R::Error: std::fmt::Display,
{
    let held = Arc::new(held);
    let (key, tenant) = (asked.key.clone(), asked.tenant.clone());
    let operation = Operation::new(key, asked.claim_key.clone(), tenant, &held);
    let max = rules.response_bytes_max;
    let handled = async {
        let (parts, body) = handler(Some(operation)).await?.into_parts();
        // A response that is not stored is streamed.
        Ok(match rules.policy.choose(&parts) {
            Remember::Keep => (parts, Remember::Keep, gather(body, max).await),
            other => (parts, other, Gathered::TooLarge(ResponseBody::passed(body))),
        })
    };
    let handled = caught(handled).await;
    let settling = Settling { rules, asked: &asked, held };
    let (parts, remember, body) = match handled {
        Ok(Ok(handled)) => handled,
        // It may have been cancelled in the middle, for example by an inner timeout.
        Ok(Err(error)) => {
            settling.park("the service failed without a response").await;
            rules.tell(Event::Answered(Outcome::Fresh));
            return Err(error);
        }
        Err(Panicked) => {
            settling.park("its handler panicked").await;
            let problem = Problem::internal("the handler of this request failed");
            return Ok(tell(rules, Outcome::Fresh, problem.into_response()));
        }
    };
    Ok(match (remember, body) {
        (Remember::Release, body) => {
            settling.release().await;
            tell(rules, Outcome::Fresh, whole(parts, body))
        }
        (Remember::InDoubt, body) => {
            let status = parts.status.as_u16();
            let why = format!("its handler answered {status} without knowing the outcome");
            settling.park(&why).await;
            tell(rules, Outcome::Fresh, whole(parts, body))
        }
        (Remember::Keep, Gathered::Broken(error)) => {
            settling.park(&format!("its response was interrupted: {error}")).await;
            let problem = Problem::broken_response(&asked.claim_key);
            tell(rules, Outcome::InDoubt, problem.into_response())
        }
        (Remember::Keep, body) => keep(settling, parts, body).await,
    })
}

pub(crate) struct Panicked;

/// Catches a panic of the handler, so that its claim can still be settled.
pub(crate) async fn caught<F: Future>(future: F) -> Result<F::Output, Panicked> {
    let mut future = pin!(future);
    poll_fn(move |context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(poll) => poll.map(Ok),
        Err(_) => Poll::Ready(Err(Panicked)),
    })
    .await
}

/// Stores the response, and then returns it.
async fn keep<R>(settling: Settling<'_>, parts: Parts, body: Gathered<R>) -> HttpResponse<R> {
    let rules = Arc::clone(settling.rules);
    let stored = Stored {
        status: parts.status,
        headers: rules.headers.choose(&parts.headers),
        body: match &body {
            Gathered::Whole(bytes) => Some(bytes.clone()),
            _ => None,
        },
    };
    let retry_after = rules.retry_after;
    match settling.complete(stored).await {
        Ended::Stored => tell(&rules, Outcome::Fresh, whole(parts, body)),
        Ended::Replaced(result) => {
            let (_, response) = replay(Some(result));
            tell(&rules, Outcome::LeaseLost, response.map(ResponseBody::from))
        }
        Ended::Superseded => {
            tell(&rules, Outcome::LeaseLost, Problem::lease_lost(retry_after).into_response())
        }
        Ended::Unknown if rules.on_unavailable == OnUnavailable::Open => {
            tell(&rules, Outcome::Unprotected, whole(parts, body))
        }
        Ended::Unknown => {
            let detail = "the request was carried out, but its response is not stored yet: retry \
                          with the same key to get it";
            let problem = Problem::unavailable(detail, retry_after);
            tell(&rules, Outcome::Unavailable, problem.into_response())
        }
        Ended::Refused => {
            let detail = "the request was carried out, but its response cannot be stored";
            tell(&rules, Outcome::Misconfigured, Problem::internal(detail).into_response())
        }
    }
}

fn whole<R>(parts: Parts, body: Gathered<R>) -> HttpResponse<R> {
    let body = match body {
        Gathered::Whole(bytes) => bytes.into(),
        Gathered::TooLarge(body) => body,
        Gathered::Broken(_) => Bytes::new().into(),
    };
    Response::from_parts(parts, body)
}

/// Counts an operation as long as it is in progress.
pub(crate) struct Running(Arc<Rules>);

impl Running {
    pub(crate) fn begin(rules: &Arc<Rules>) -> Self {
        rules.running.send_if_modified(|running| {
            *running += 1;
            false // Only the end of the last one is waited for.
        });
        Self(Arc::clone(rules))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.send_if_modified(|running| {
            *running -= 1;
            *running == 0
        });
    }
}
