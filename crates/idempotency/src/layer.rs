//! The tower layer: which requests are protected, and what they must contain.
//!
//! Unprotected requests are streamed to the inner service. Protected requests are read completely
//! and then run (`run.rs`), so that a client that disconnects does not cancel the work: it goes on
//! in a separate task then.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::time::SystemTime;

use bytes::Bytes;
use hapax_client::Queue;
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use tokio::runtime::Handle;
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
use crate::route::{KeySource, NoKey, Path, Route};
use crate::run::{self, Asked, Panicked};
use crate::scope::{Scope, fingerprint};
use crate::upload::{self, Unread};

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Answer<R, E> = Result<Response<ResponseBody<R>>, E>;
type Answering<R, E> = Pin<Box<dyn Future<Output = Answer<R, E>> + Send>>;

/// Protects routes of a service: a [`Layer`] for any tower service, such as axum's `Router`.
/// Cheap to clone; clones are one layer.
///
/// Apply it outside of nested routers, where paths are complete.
#[derive(Clone, Debug)]
pub struct Idempotency(Arc<Rules>);

/// A service with protected routes.
#[derive(Clone, Debug)]
pub struct Guarded<S> {
    inner: S,
    rules: Arc<Rules>,
}

impl Idempotency {
    /// Starts the settings of a layer that claims keys in this queue and stores responses there as
    /// results.
    pub fn builder(queue: Queue) -> Builder {
        Builder::new(queue)
    }

    pub(crate) fn of(rules: Rules) -> Self {
        Self(Arc::new(rules))
    }

    pub(crate) fn rules(&self) -> &Arc<Rules> {
        &self.0
    }

    /// The number of operations in progress, including those whose clients have disconnected.
    pub fn running(&self) -> usize {
        *self.0.running.borrow()
    }

    /// Waits until no operation is in progress, at most for `timeout`, and returns whether that is
    /// so. Call it before the process ends, after it has stopped accepting requests.
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
        // `call` must use the instance that was polled ready.
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

/// The refusal of a request that matches no route, but that some services would read as one for a
/// protected route.
fn lookalike<B>(rules: &Rules, request: &Request<B>) -> Option<Problem> {
    let (method, path) = (request.method(), Path::loosely(request.uri().path()));
    let route = rules.routes.iter().find(|route| route.may_match(method, &path))?;
    match key_of(route, request.headers()) {
        Ok(Key::Absent) => None, // It would not be protected in the usual spelling either.
        _ => Some(Problem::lookalike(route)),
    }
}

/// The key in the head of a request.
enum Key {
    Given(String),
    /// The key is in the body.
    InBody,
    /// There is none, and none is required.
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

/// Reads the request completely and runs it to its end, even if the client disconnects.
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
    // Only now, so that slow uploads do not take the place of complete requests.
    let Ok(room) = Arc::clone(&rules.room).try_acquire_owned() else {
        return Ok(overloaded(&rules, "too many requests with keys are in progress"));
    };
    let handler = move |operation: Option<Operation>| {
        if let Some(operation) = operation {
            parts.extensions.insert(operation);
        }
        inner.call(Request::from_parts(parts, B::from(body)))
    };
    let running = run::run(Arc::clone(&rules), asked, room, handler).in_current_span();
    match Kept::new(run::caught(running)).await {
        Ok(answer) => answer,
        Err(Panicked) => {
            Ok(refuse(&rules, Problem::internal("the handler of this request failed")))
        }
    }
}

/// A future that runs in the task of whoever waits for it, and goes on in a task of its own if
/// nobody waits any more. A task from the beginning would cost two switches for every request.
struct Kept<F: Future<Output: Send> + Send + 'static> {
    /// Absent once it has ended.
    future: Option<Pin<Box<F>>>,
    runtime: Handle,
}

impl<F: Future<Output: Send> + Send + 'static> Kept<F> {
    fn new(future: F) -> Self {
        Self { future: Some(Box::pin(future)), runtime: Handle::current() }
    }
}

impl<F: Future<Output: Send> + Send + 'static> Future for Kept<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Some(future) = &mut self.future else { return Poll::Pending };
        let output = ready!(future.as_mut().poll(context));
        self.future = None;
        Poll::Ready(output)
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for Kept<F> {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            self.runtime.spawn(future);
        }
    }
}

fn tenant_of(rules: &Rules, parts: &Parts) -> Result<String, Problem> {
    let Some(tenant) = &rules.tenant else { return Ok(String::new()) };
    let tenant = tenant(parts).ok_or_else(Problem::no_tenant)?;
    // An empty name identifies nobody: all such callers would share their responses.
    match (1..=TENANT_BYTES_MAX).contains(&tenant.len()) {
        true => Ok(tenant),
        false => Err(Problem::no_tenant()),
    }
}

/// The claim to make; `None` if there is no key and none is required.
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
            Ok(key) => key,
            Err(NoKey::Missing(detail)) if route.is_required => {
                return Err(Problem::missing_key(detail));
            }
            Err(NoKey::Missing(_)) => return Ok(None),
            Err(NoKey::Malformed(detail)) => return Err(Problem::malformed_key(detail)),
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

/// Method and path, for operators: the claim key is only a hash.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;
    use tokio::sync::oneshot;

    /// Something that has begun and waits, and how to let it go on and see its end.
    fn begun() -> (impl Future<Output = ()> + Send, oneshot::Sender<()>, oneshot::Receiver<()>) {
        let ((go, going), (end, ended)) = (oneshot::channel(), oneshot::channel());
        let mut kept = Box::pin(Kept::new(async move {
            let _ = going.await;
            let _ = end.send(());
        }));
        let poll = kept.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll.is_pending());
        (kept, go, ended)
    }

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_goes_on() {
        let (kept, go, ended) = begun();
        drop(kept);
        go.send(()).unwrap();
        ended.await.unwrap();
        // Also if the thread that drops it belongs to no runtime.
        let (kept, go, ended) = begun();
        std::thread::scope(|scope| scope.spawn(move || drop(kept)).join().unwrap());
        go.send(()).unwrap();
        ended.await.unwrap();
    }

    #[tokio::test]
    async fn what_is_waited_for_ends_once() {
        let (kept, go, mut ended) = begun();
        go.send(()).unwrap();
        kept.await;
        ended.try_recv().unwrap();
    }
}
