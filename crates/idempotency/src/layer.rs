//! The layer as tower sees it: which requests are protected, and what they must bring along.
//!
//! What is not protected goes to the inner service at once, and streams. What is, is read whole,
//! and then lives in a task of its own (`run.rs`): a client that hangs up ends the waiting, not
//! the work.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use std::time::SystemTime;

use bytes::Bytes;
use hapax_client::Queue;
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;
use tracing::Instrument;

use crate::body::ResponseBody;
use crate::builder::{Builder, Rules};
use crate::connection;
use crate::event::{Event, Outcome};
use crate::limits::{NAMED_PATH_MAX, TENANT_BYTES_MAX};
use crate::operation::Operation;
use crate::prefer;
use crate::problem::Problem;
use crate::route::{KeySource, Path, Route};
use crate::run::{self, Asked};
use crate::scope::{Scope, fingerprint};
use crate::upload::{self, Unread};

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Answer<R, E> = Result<Response<ResponseBody<R>>, E>;
type Answering<R, E> = Pin<Box<dyn Future<Output = Answer<R, E>> + Send>>;

/// Protects routes of a service: a [`Layer`] for any tower service, such as axum's `Router`.
/// Cheap to clone; clones are one layer.
///
/// Apply it where paths are whole: outside of what is nested.
#[derive(Clone, Debug)]
pub struct Idempotency(Arc<Rules>);

/// A service with protected routes.
#[derive(Clone, Debug)]
pub struct Guarded<S> {
    inner: S,
    rules: Arc<Rules>,
}

impl Idempotency {
    /// Keys are claimed in this queue, and responses stored there as results.
    pub fn builder(queue: Queue) -> Builder {
        Builder::new(queue)
    }

    pub(crate) fn of(rules: Rules) -> Self {
        Self(Arc::new(rules))
    }

    pub(crate) fn rules(&self) -> &Arc<Rules> {
        &self.0
    }

    /// How many operations are under way, with those whose clients have hung up.
    pub fn running(&self) -> usize {
        *self.0.running.borrow()
    }

    /// Waits until no operation is under way, for so long: before the process ends, after it has
    /// stopped to accept requests. Tells whether there is none.
    pub async fn drained(&self, timeout: Duration) -> bool {
        let mut running = self.0.running.subscribe();
        let drained = running.wait_for(|running| *running == 0);
        tokio::time::timeout(timeout, drained).await.is_ok()
    }
}

impl<S> Layer<S> for Idempotency {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { inner, rules: Arc::clone(&self.0) }
    }
}

impl<S, B, R> Service<Request<B>> for Guarded<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: Body<Data = Bytes> + From<Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: Body<Data = Bytes> + Send + Unpin + 'static,
    R::Error: std::fmt::Display,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = Answering<R, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that was found ready is the one to be called.
        let other = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, other);
        let rules = Arc::clone(&self.rules);
        if let Err(problem) = connection::check(&rules, request.headers()) {
            let refused = refuse(&rules, problem);
            return Box::pin(async { Ok(refused) });
        }
        let path = Path::of(request.uri().path());
        let is_it = |route: &&Route| route.matches(request.method(), &path);
        let Some(route) = rules.routes.iter().find(is_it).cloned() else {
            if let Some(problem) = lookalike(&rules, &request) {
                let refused = refuse(&rules, problem);
                return Box::pin(async { Ok(refused) });
            }
            return bypass(&rules, inner.call(request));
        };
        let key = match key_of(&route, request.headers()) {
            Ok(Key::Absent) => return bypass(&rules, inner.call(request)),
            Ok(Key::Given(key)) => Some(key),
            Ok(Key::InBody) => None,
            Err(problem) => {
                let refused = refuse(&rules, problem);
                return Box::pin(async { Ok(refused) });
            }
        };
        Box::pin(protect(rules, route, key, request, inner))
    }
}

/// Why a request must not pass unprotected, though it is for none of the routes: some services
/// would read it as one for a route.
fn lookalike<B>(rules: &Rules, request: &Request<B>) -> Option<Problem> {
    let (method, path) = (request.method(), Path::loosely(request.uri().path()));
    let route = rules.routes.iter().find(|route| route.may_match(method, &path))?;
    match key_of(route, request.headers()) {
        Ok(Key::Absent) => None, // It would not be protected in the usual spelling either.
        _ => Some(Problem::lookalike(route)),
    }
}

/// What the head of a request tells about its key.
enum Key {
    Given(String),
    /// It can only be told with the body.
    InBody,
    /// There is none, and there need not be one.
    Absent,
}

fn key_of(route: &Route, headers: &HeaderMap) -> Result<Key, Problem> {
    let KeySource::Header(name) = &route.key else { return Ok(Key::InBody) };
    match crate::key::read(headers, name)? {
        Some(key) => Ok(Key::Given(key)),
        None if route.is_required => Err(crate::key::missing(headers, name)),
        None => Ok(Key::Absent),
    }
}

fn bypass<R, E>(
    rules: &Arc<Rules>,
    answer: impl Future<Output = Result<Response<R>, E>> + Send + 'static,
) -> Answering<R, E>
where
    R: Send + 'static,
    E: Send + 'static,
{
    rules.tell(Event::Answered(Outcome::Bypassed));
    Box::pin(async move {
        let mut response = answer.await?.map(ResponseBody::passed);
        response.extensions_mut().insert(Outcome::Bypassed);
        Ok(response)
    })
}

fn overloaded<R>(rules: &Rules, why: &str) -> Response<ResponseBody<R>> {
    let problem = Problem::unavailable(&format!("{why}; nothing was done"), rules.retry_after);
    run::tell(rules, Outcome::Overloaded, problem.into_response())
}

/// Reads the request whole, and hands it over to a task of its own.
async fn protect<S, B, R>(
    rules: Arc<Rules>,
    route: Route,
    key: Option<String>,
    request: Request<B>,
    mut inner: S,
) -> Answer<R, S::Error>
where
    S: Service<Request<B>, Response = Response<R>> + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: Body<Data = Bytes> + From<Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: Body<Data = Bytes> + Send + Unpin + 'static,
    R::Error: std::fmt::Display,
{
    let (mut parts, body) = request.into_parts();
    let tenant = match tenant_of(&rules, &parts) {
        Ok(tenant) => tenant,
        Err(problem) => return Ok(refuse(&rules, problem)),
    };
    let body = match upload::read(&rules, &parts.headers, body).await {
        Ok(body) => body,
        Err(Unread::Refused(problem)) => return Ok(refuse(&rules, problem)),
        Err(Unread::NoRoom) => {
            return Ok(overloaded(&rules, "too many requests with keys are being received"));
        }
    };
    let asked = match ask(&rules, &route, key, tenant, &parts, &body) {
        Ok(Some(asked)) => asked,
        Ok(None) => {
            return bypass(&rules, inner.call(Request::from_parts(parts, B::from(body)))).await;
        }
        Err(problem) => return Ok(refuse(&rules, problem)),
    };
    // Not before: who sends slowly takes no place of those who have sent.
    let Ok(room) = Arc::clone(&rules.room).try_acquire_owned() else {
        return Ok(overloaded(&rules, "too many requests with keys are in progress"));
    };
    let handler = move |operation: Option<Operation>| {
        if let Some(operation) = operation {
            parts.extensions.insert(operation);
        }
        inner.call(Request::from_parts(parts, B::from(body)))
    };
    let task = run::run(Arc::clone(&rules), asked, room, handler).in_current_span();
    match tokio::spawn(task).await {
        Ok(answer) => answer,
        Err(ended) if ended.is_panic() => {
            Ok(refuse(&rules, Problem::internal("the handler of this request failed")))
        }
        // The runtime is about to end, and whoever waits with it.
        Err(_) => {
            let detail = "the service is stopping; retry with the same key";
            Ok(refuse(&rules, Problem::unavailable(detail, rules.retry_after)))
        }
    }
}

fn tenant_of(rules: &Rules, parts: &Parts) -> Result<String, Problem> {
    let Some(tenant) = &rules.tenant else { return Ok(String::new()) };
    let tenant = tenant(parts).ok_or_else(Problem::no_tenant)?;
    match tenant.len() > TENANT_BYTES_MAX {
        true => Err(Problem::no_tenant()),
        false => Ok(tenant),
    }
}

/// What is to be claimed; `None` where there is no key and need not be one.
fn ask(
    rules: &Rules,
    route: &Route,
    key: Option<String>,
    tenant: String,
    parts: &Parts,
    body: &Bytes,
) -> Result<Option<Asked>, Problem> {
    let key = match (key, &route.key) {
        (Some(key), _) => key,
        (None, KeySource::Function(key_from)) => match key_from(parts, body) {
            Some(key) => key,
            None if route.is_required => {
                let detail = "this request contains no key";
                return Err(Problem::missing_key(detail));
            }
            None => return Ok(None),
        },
        (None, KeySource::Header(_)) => return Ok(None),
    };
    crate::key::check(&key, SystemTime::now())?;
    let scope = Scope {
        namespace: &rules.namespace,
        tenant: &tenant,
        method: &parts.method,
        route: route.path(),
    };
    Ok(Some(Asked {
        claim_key: scope.claim_key(&key),
        fingerprint: fingerprint(parts, &rules.fingerprint_headers, body),
        wait: prefer::wait(&parts.headers).map(|wait| wait.min(rules.wait_max)),
        route: route.to_string(),
        request: named(parts),
        tenant,
        key,
    }))
}

/// A request as an operator reads it beside the claim key, which is a hash.
fn named(parts: &Parts) -> String {
    let path = parts.uri.path();
    match path.char_indices().nth(NAMED_PATH_MAX) {
        Some((end, _)) => format!("{} {}…", parts.method, path.get(..end).unwrap_or_default()),
        None => format!("{} {path}", parts.method),
    }
}

/// Answers without a handler and without a claim.
fn refuse<R>(rules: &Rules, problem: Problem) -> Response<ResponseBody<R>> {
    let outcome = match problem.code() {
        "missing_key" => Outcome::MissingKey,
        "malformed_key" => Outcome::MalformedKey,
        "unavailable" if problem.status() == StatusCode::SERVICE_UNAVAILABLE => {
            Outcome::Unavailable
        }
        _ => Outcome::Refused,
    };
    run::tell(rules, outcome, problem.into_response())
}
