//! The calls to the upstream service, and what a missing response means. If the connection could
//! not be opened, nothing was sent and the key is freed. After any later failure it is unknown
//! whether the upstream carried out the request: the operation is in doubt, and `--in-doubt`
//! decides what happens to its key.

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use hapax_idempotency::{Operation, Problem, Remember};
use hapax_server::listen::Peer;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};
use tower::Service;

use super::metrics::{Ended, Metrics};
use super::{InDoubt, Proxy, headers};

/// Most idle connections.
const IDLE_MAX: usize = 256;
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The address of the upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target(Authority);

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let uri: Uri = text.parse().map_err(|error| format!("{error}: write http://HOST:PORT"))?;
        if uri.scheme() != Some(&Scheme::HTTP) {
            let why = "only plain http to the upstream is supported, on the same machine or \
                       network: write http://HOST:PORT";
            return Err(why.to_owned());
        }
        if uri.path_and_query().is_some_and(|path| path != "/") {
            return Err(
                "the address has a path, but the path of a request is passed on unchanged: write \
                 http://HOST:PORT"
                    .to_owned(),
            );
        }
        let authority = uri.authority().ok_or_else(|| "it has no host".to_owned())?;
        if is_link_local(authority.host()) {
            let why = "it is a link-local address, where cloud machines serve their own secrets: \
                       it must not be exposed";
            return Err(why.to_owned());
        }
        match authority.as_str().contains('@') {
            true => Err("it has a user or password: leave them out, the client's credentials are \
                         passed on unchanged"
                .to_owned()),
            false => Ok(Self(authority.clone())),
        }
    }
}

fn is_link_local(host: &str) -> bool {
    match host.trim_matches(['[', ']']).parse() {
        Ok(IpAddr::V4(address)) => address.is_link_local(),
        Ok(IpAddr::V6(address)) => {
            address.is_unicast_link_local()
                || address.to_ipv4_mapped().is_some_and(|address| address.is_link_local())
        }
        Err(_) => false,
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.0)
    }
}

/// The upstream as a tower service. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Upstream(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    client: Client<HttpConnector, Body>,
    target: Target,
    timeout: Duration,
    in_doubt: InDoubt,
    metrics: Metrics,
}

/// Why there is no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Silence {
    /// Nothing was sent.
    Unreachable,
    /// It was sent, or a part of it.
    Broken,
    TimedOut,
}

impl Upstream {
    pub(super) fn new(proxy: &Proxy, metrics: Metrics) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(proxy.connect_timeout.min(proxy.upstream_timeout)));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(proxy.upstream_idle)
            .pool_max_idle_per_host(IDLE_MAX)
            .build(connector);
        Self(Arc::new(Inner {
            client,
            target: proxy.upstream.clone(),
            timeout: proxy.upstream_timeout,
            in_doubt: proxy.in_doubt,
            metrics,
        }))
    }

    async fn forward(self, mut request: Request<Body>) -> Response<Body> {
        let inner = &*self.0;
        let operation = request.extensions().get::<Operation>().cloned();
        if let Err(problem) = inner.readdress(&mut request) {
            return problem.into_response();
        }
        let start = Instant::now();
        let deadline = start + inner.timeout;
        let answered = timeout_at(deadline, inner.client.request(request)).await;
        let silence = match answered {
            Ok(Ok(response)) => {
                inner.metrics.upstream(Ended::Answered(response.status()), start.elapsed());
                return received(response, operation.is_some().then_some(deadline));
            }
            Ok(Err(error)) => {
                tracing::warn!(error = %why(&error), "the upstream did not answer");
                if error.is_connect() { Silence::Unreachable } else { Silence::Broken }
            }
            Err(_) => {
                tracing::warn!("the upstream did not answer in time");
                Silence::TimedOut
            }
        };
        inner.metrics.upstream(Ended::of(silence), start.elapsed());
        inner.silent(silence, operation.as_ref())
    }
}

impl Inner {
    /// Turns a request to the proxy into a request to the upstream.
    fn readdress(&self, request: &mut Request<Body>) -> Result<(), Problem> {
        let bad = |detail: &str| {
            let title = "The request cannot be passed on";
            Problem::new("invalid", StatusCode::BAD_REQUEST, title, detail)
        };
        if request.method() == Method::CONNECT {
            return Err(bad("this proxy does not support CONNECT"));
        }
        let host = request.uri().authority().map(ToString::to_string);
        let path = request.uri().path_and_query().cloned();
        let uri = Uri::builder()
            .scheme(Scheme::HTTP)
            .authority(self.target.0.clone())
            .path_and_query(path.unwrap_or_else(|| PathAndQuery::from_static("/")))
            .build();
        *request.uri_mut() = uri.map_err(|_| bad("it has no path"))?;
        *request.version_mut() = Version::HTTP_11;
        let peer = request.extensions().get::<Peer>().map(|peer| peer.address);
        headers::strip(request.headers_mut());
        headers::forward(request.headers_mut(), host.as_deref(), peer);
        Ok(())
    }

    /// The response to the client, which also reports the outcome to the layer.
    fn silent(&self, silence: Silence, operation: Option<&Operation>) -> Response<Body> {
        let (code, status, title, detail) = match silence {
            Silence::Unreachable => (
                "upstream_unreachable",
                StatusCode::BAD_GATEWAY,
                "The upstream service cannot be reached",
                "nothing was sent to it: it has not carried out the request",
            ),
            Silence::Broken => (
                "upstream_failed",
                StatusCode::BAD_GATEWAY,
                "The upstream service closed the connection before its response was complete",
                "it may or may not have carried out the request",
            ),
            Silence::TimedOut => (
                "upstream_timeout",
                StatusCode::GATEWAY_TIMEOUT,
                "The upstream service did not answer in time",
                "it may or may not have carried out the request",
            ),
        };
        let mut problem = Problem::new(code, status, title, detail);
        let remember = match (silence, self.in_doubt) {
            (Silence::Unreachable, _) | (_, InDoubt::Retry) => Remember::Release,
            (_, InDoubt::Park) => Remember::InDoubt,
        };
        match operation {
            Some(operation) if remember == Remember::InDoubt => {
                problem = problem.with("claim_key", operation.claim_key());
            }
            _ => problem = problem.retry_after(RETRY_AFTER),
        }
        let mut response: Response<Body> = problem.into_response();
        response.extensions_mut().insert(remember);
        response
    }
}

impl Service<Request<Body>> for Upstream {
    type Response = Response<Body>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let forward = self.clone().forward(request);
        Box::pin(async { Ok(forward.await) })
    }
}

/// Turns the upstream's response into the client's. A response to be stored must end within the
/// timeout; others may stream without limit.
fn received(response: Response<Incoming>, deadline: Option<Instant>) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    headers::strip(&mut parts.headers);
    parts.version = Version::HTTP_11;
    let body = match deadline {
        Some(deadline) => Body::new(Timed { body, until: Box::pin(sleep_until(deadline)) }),
        None => Body::new(body),
    };
    Response::from_parts(parts, body)
}

/// A body that must end before a deadline.
struct Timed {
    body: Incoming,
    until: Pin<Box<Sleep>>,
}

impl http_body::Body for Timed {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        match self.until.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Some(Err("the response did not end in time".into()))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The innermost cause of an error, which is the most specific.
fn why(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    last.to_string()
}

impl Ended {
    fn of(silence: Silence) -> Self {
        match silence {
            Silence::Unreachable => Self::Unreachable,
            Silence::Broken => Self::Broken,
            Silence::TimedOut => Self::TimedOut,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_a_host_and_nothing_more() {
        let target: Target = "http://127.0.0.1:8080".parse().unwrap();
        assert_eq!(target.to_string(), "http://127.0.0.1:8080");
        assert!("http://shop:8080/".parse::<Target>().is_ok());
        for (text, why) in [
            ("https://shop", "plain http"),
            ("shop:8080", "plain http"),
            ("http://shop/api", "unchanged"),
            ("http://me:secret@shop", "user or password"),
            ("http://", "HOST:PORT"),
            ("http://169.254.169.254", "link-local"),
            ("http://[fe80::1]:80", "link-local"),
            ("http://[::ffff:169.254.169.254]", "link-local"),
        ] {
            let error = text.parse::<Target>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
