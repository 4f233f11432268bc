//! Wraps every request: a request id, a span, and an answer even if the handler panics.

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use hapax_wire::{self as wire, Code};
use http::header::{HOST, ORIGIN};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Version};
use tracing::Instrument;

use super::failure::{Failure, keep_allow};
use super::{Route, access, takes};
use crate::auth::Auth;
use crate::doors::unread::{Unread, is_refused_call};
use crate::listen::Peer;
use crate::log::request_span;
use crate::problem::Problem;
use crate::service::Service;

pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const REQUEST_ID_BYTES_MAX: usize = 128;

/// The id of a request; among the extensions of every request.
#[derive(Clone, Debug)]
pub(super) struct RequestId {
    pub(super) text: HeaderValue,
    /// Whether the caller chose it.
    pub(super) is_given: bool,
}

impl RequestId {
    /// The caller's own if it is valid.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let sane = |value: &&HeaderValue| {
            let bytes = value.as_bytes();
            let known = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(byte);
            (1..=REQUEST_ID_BYTES_MAX).contains(&bytes.len()) && bytes.iter().all(known)
        };
        match headers.get(&REQUEST_ID).filter(sane) {
            Some(text) => Self { text: text.clone(), is_given: true },
            None => Self { text: generated(), is_given: false },
        }
    }

    pub(super) fn as_str(&self) -> &str {
        self.text.to_str().unwrap_or_default()
    }
}

pub(super) async fn dispatch(
    State(service): State<Service>,
    mut request: Request,
    next: Next,
) -> Response {
    let id = RequestId::of(request.headers());
    let span = span(&request, &id);
    let unread = Unread::of(&mut request);
    if let Err(failure) = check(&service, &mut request).await {
        let mut response = finish(failure.into_response(), &id, &span);
        discard(unread, &mut response).await;
        return response;
    }
    let (mut response, is_refused) = answer(request, next, &id, &span).await;
    if is_refused {
        discard(unread, &mut response).await;
    }
    response
}

/// Refuses requests that no handler should see.
async fn check(service: &Service, request: &mut Request) -> Result<(), Failure> {
    check_host(service.wants_tokens(), request)?;
    check_origin(request.method(), request.headers())?;
    let path = request.extensions().get::<MatchedPath>();
    let route = path.and_then(|path| Route::of(request.method(), path.as_str()));
    let Some(route) = route else { return Ok(()) };
    access::check(service, route.access, request)?;
    takes::check(route, request).await
}

/// The same for a page of a node that does not serve, which is for its own machine and for callers
/// with a token.
pub(super) fn check_near(auth: &Auth, request: &Request) -> Result<(), Failure> {
    check_host(matches!(auth, Auth::Tokens(_)), request)?;
    access::check_near(auth, request)
}

/// The handler's answer, and whether it is a refusal.
async fn answer(
    mut request: Request,
    next: Next,
    id: &RequestId,
    span: &tracing::Span,
) -> (Response, bool) {
    request.extensions_mut().insert(id.clone());
    let handled = AssertUnwindSafe(next.run(request)).catch_unwind().instrument(span.clone()).await;
    let response = handled.unwrap_or_else(|_| {
        // The hook logs the panic itself, with its place.
        tracing::error!(request_id = id.as_str(), "a request failed by a bug in the broker");
        let detail = "the broker has an internal error; its log has this request's id";
        Failure::from(Problem::new(Code::Internal, detail)).into_response()
    });
    let is_refused = response.extensions().get::<Failure>().is_some() || is_refused_call(&response);
    (finish(response, id, span), is_refused)
}

async fn discard(unread: Option<Unread>, response: &mut Response) {
    if let Some(unread) = unread {
        unread.finish(response).await;
    }
}

fn span(request: &Request, id: &RequestId) -> tracing::Span {
    let path = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let traceparent = request.headers().get(&TRACEPARENT).and_then(|value| value.to_str().ok());
    let span = request_span(format_args!("{} {path}", request.method()), traceparent);
    span.record("request_id", id.as_str());
    span
}

fn finish(response: Response, id: &RequestId, span: &tracing::Span) -> Response {
    let mut response = match response.extensions().get::<Failure>() {
        Some(failure) => {
            span.record("answer", failure.code().as_str());
            if failure.code() == Code::Internal {
                span.record("otel.status_code", "ERROR");
            }
            let mut document = failure.document(id.as_str());
            keep_allow(&response, &mut document);
            document
        }
        None => {
            span.record("answer", response.status().as_str());
            response
        }
    };
    response.headers_mut().insert(REQUEST_ID, id.text.clone());
    response
}

/// Refuses changes by web pages of other sites, even if no token is needed: only browsers send
/// these headers, and a page cannot forge them. Older browsers only send `Origin`.
fn check_origin(method: &Method, headers: &HeaderMap) -> Result<(), Failure> {
    if method.is_safe() {
        return Ok(());
    }
    let is_foreign = match headers.get(&SEC_FETCH_SITE).map(HeaderValue::as_bytes) {
        Some(site) => matches!(site, b"cross-site" | b"same-site"),
        None => headers.get(ORIGIN).is_some_and(|origin| {
            let origin = origin.to_str().unwrap_or_default();
            let host = headers.get(HOST).and_then(|host| host.to_str().ok());
            origin.split_once("://").map(|(_, rest)| rest) != host
        }),
    };
    if is_foreign {
        let detail = "requests from web pages of other sites are not allowed";
        return Err(Problem::new(Code::Forbidden, detail).into());
    }
    Ok(())
}

/// If no token is needed, a web page could reach the broker under its own name that resolves to
/// this machine. From this machine the broker is called by its address, as localhost, or by a name
/// of the local network.
fn check_host(wants_tokens: bool, request: &Request) -> Result<(), Failure> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let (host, is_doubled) = (hosts.next(), hosts.next().is_some());
    if is_doubled {
        return Err(Failure::invalid("Host: the header is given twice"));
    }
    let peer = request.extensions().get::<Peer>();
    // A proxy in between may rely on it: RFC 9112 requires a refusal, whatever is in the path.
    if host.is_none() && peer.is_some() && request.version() == Version::HTTP_11 {
        return Err(Failure::invalid("Host: the header is missing"));
    }
    if wants_tokens || !peer.is_some_and(|peer| peer.address.ip().is_loopback()) {
        return Ok(());
    }
    let authority = request.uri().authority().map(|authority| authority.as_str());
    let host = host.and_then(|host| host.to_str().ok()).or(authority);
    if host.is_none_or(is_local_name) {
        return Ok(());
    }
    let detail = "Host: without tokens the broker accepts only its IP address or localhost as \
                  host name";
    Err(Problem::new(Code::Forbidden, detail).into())
}

fn is_local_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    // Nobody on the internet owns a name without a dot.
    let is_of_a_network = !name.is_empty() && !name.contains('.');
    is_of_a_network || name.ends_with(".localhost") || name.parse::<IpAddr>().is_ok()
}

/// A new id, in the form of a UUIDv7: it sorts by time.
pub(crate) fn generated() -> HeaderValue {
    let ms = u128::from(crate::time::now().0 & ((1 << 48) - 1));
    let random = fastrand::u128(..);
    let (low, high) = (random & ((1 << 62) - 1), random >> 116 & 0xfff);
    let number = ms << 80 | 7 << 76 | high << 64 | 0b10 << 62 | low;
    let text = wire::Id(number.to_be_bytes()).to_string();
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("unnamed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn carry_out(request: Request, next: Next) -> Response {
        let id = RequestId::of(request.headers());
        let span = span(&request, &id);
        answer(request, next, &id, &span).await.0
    }

    #[test]
    fn names_of_this_machine_are_known() {
        for local in [
            "localhost",
            "localhost:4747",
            "LOCALHOST",
            "a.localhost:1",
            "127.0.0.1:4747",
            "[::1]:4747",
            "[::1]",
            "10.0.0.7",
            "hapax:4747",
        ] {
            assert!(is_local_name(local), "{local}");
        }
        for foreign in
            ["evil.example", "evil.example:4747", "localhost.evil.example", "", ":4747", "evil."]
        {
            assert!(!is_local_name(foreign), "{foreign}");
        }
    }

    #[test]
    fn a_page_of_another_origin_changes_nothing() {
        let check = |pairs: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.insert(*name, HeaderValue::from_str(value).unwrap());
            }
            check_origin(&Method::POST, &headers).is_ok()
        };
        assert!(check(&[("host", "localhost:4747")]));
        assert!(check(&[("host", "localhost:4747"), ("origin", "http://localhost:4747")]));
        assert!(!check(&[("host", "localhost:4747"), ("origin", "http://evil.example")]));
        assert!(!check(&[("host", "localhost:4747"), ("origin", "null")]));
        assert!(!check(&[("sec-fetch-site", "cross-site")]));
        assert!(check(&[("sec-fetch-site", "none"), ("origin", "null")]));
    }

    #[tokio::test]
    async fn a_handler_that_falls_is_an_internal_error_with_the_requests_id() {
        async fn fall() -> Response {
            panic!("a planted fault")
        }
        let router = axum::Router::new()
            .route("/", axum::routing::get(fall))
            .layer(axum::middleware::from_fn(carry_out));
        let request = Request::builder().header("request-id", "r-1");
        let request = request.body(axum::body::Body::empty()).unwrap();
        let response = tower::ServiceExt::oneshot(router, request).await.unwrap();
        assert_eq!(response.status(), http::StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(response.headers()["request-id"], "r-1");
        assert_eq!(response.headers()["retry-after"], "1");
        let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap();
        let problem: serde_json::Value = serde_json::from_slice(&body.to_bytes()).unwrap();
        assert_eq!((&problem["code"], &problem["request_id"]), (&"internal".into(), &"r-1".into()));
        assert!(!problem.to_string().contains("planted"), "what fell is for the log");
    }

    #[test]
    fn a_sane_request_id_is_kept_and_another_is_replaced() {
        let of = |value: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(value).unwrap());
            RequestId::of(&headers)
        };
        assert_eq!(of(b"req-1.a:b").as_str(), "req-1.a:b");
        for bad in [&b""[..], b"a b", b"\"a\"", b"\xc3\xa9", &[b'x'; 129]] {
            let id = of(bad);
            assert!(!id.is_given);
            assert_eq!(id.as_str().len(), 36);
        }
        let date = hapax_core::date(generated().to_str().unwrap(), hapax_core::Time(u64::MAX / 2));
        assert!(date.is_some(), "an id tells its time");
        assert_ne!(generated(), generated());
    }
}
