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
//! A claim that was not begun is freed when its lease is over, also in a queue that parks: nothing
//! was done under it. So the key of a caller that went away, or of one who never heard the answer
//! to its claim, is in nobody's doubt. What was begun is parked where it ends without a word of
//! its own, as a panic is; a queue that does not park frees its key.

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

/// What a request asks for.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) key: String,
    pub(crate) claim_key: String,
    pub(crate) fingerprint: String,
    pub(crate) tenant: String,
    /// For the log.
    pub(crate) route: String,
    /// Method and path, for whoever has to resolve it.
    pub(crate) request: String,
    pub(crate) wait: Option<std::time::Duration>,
}

type HttpResponse<R> = Response<ResponseBody<R>>;

/// Claims the key, calls the handler if it is fresh, and tells the broker what came of it.
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
        Taken::Fresh(held) => begin(&rules, held).await,
        other => other,
    };
    match taken {
        Taken::Fresh(held) => work(&rules, asked, held, handler).await,
        Taken::Unprotected => {
            let response = handler(None).await?.map(ResponseBody::passed);
            Ok(tell(&rules, Outcome::Unprotected, response))
        }
        Taken::Ended(outcome, response) => {
            Ok(tell(&rules, outcome, applied(&asked, response.map(ResponseBody::from))))
        }
    }
}

/// Says how a request was answered, to the observer and to whoever wraps the layer.
pub(crate) fn tell<R>(
    rules: &Rules,
    outcome: Outcome,
    mut response: HttpResponse<R>,
) -> HttpResponse<R> {
    rules.tell(Event::Answered(outcome));
    response.extensions_mut().insert(outcome);
    response
}

/// What a claim came to.
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

/// Takes the key, or tells what to answer instead. Waits for the broker no longer than it may.
async fn take(rules: &Arc<Rules>, asked: &Asked) -> Taken {
    let mut taking = Box::pin(claim(rules, asked, asked.wait));
    let patience = rules.broker_timeout + asked.wait.unwrap_or_default();
    let Ok(claimed) = timeout(patience, &mut taking).await else {
        rules.tell(Event::BrokerFailed(Code::Unavailable));
        // The broker may have given the key all the same: then it is given back, as soon as that
        // can be told. Otherwise the next request would have to wait until its lease is over.
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

/// Says that the handler starts: from here on a lost lease leaves the operation in doubt, where the
/// queue parks. Where that cannot be said in time nothing is done, and the key is given back.
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
    // It may have been heard all the same. While this is tried the lease is extended.
    let running = Running::begin(rules);
    tokio::spawn(async move {
        // Whoever comes next is told that it is in progress, until the lease ends.
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
        // Where this process dies nobody else can say what is in doubt.
        .header("request", &asked.request)
        .lease(rules.lease)
        .wait(wait.unwrap_or_default())
        .worker(&rules.worker);
    if let Some(date) = key::date(&asked.key, SystemTime::now()) {
        request = request.issued_at(date);
    }
    request.take()
}

/// What a refusal of the broker means to the client.
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

/// The response that was stored, or what to say of one that was not.
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

/// What somebody said when they resolved the key by hand: a body, and what it is.
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

/// Says that the wait was granted, where one was asked for.
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
        // What is not kept need not be read here, and streams.
        Ok(match rules.policy.choose(&parts) {
            Remember::Keep => (parts, Remember::Keep, gather(body, max).await),
            other => (parts, other, Gathered::TooLarge(ResponseBody::passed(body))),
        })
    };
    let handled = caught(handled).await;
    let settling = Settling { rules, asked: &asked, held };
    let (parts, remember, body) = match handled {
        Ok(Ok(handled)) => handled,
        // It may have been dropped in the middle, as by a timeout within.
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

struct Panicked;

/// A handler that panics must not take its claim with it.
async fn caught<F: Future>(future: F) -> Result<F::Output, Panicked> {
    let mut future = pin!(future);
    poll_fn(move |context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(poll) => poll.map(Ok),
        Err(_) => Poll::Ready(Err(Panicked)),
    })
    .await
}

/// Stores the response, and answers with it when it is stored.
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

/// Counts an operation as long as it is under way.
pub(crate) struct Running(Arc<Rules>);

impl Running {
    pub(crate) fn begin(rules: &Arc<Rules>) -> Self {
        rules.running.send_modify(|running| *running += 1);
        Self(Arc::clone(rules))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.send_modify(|running| *running -= 1);
    }
}
