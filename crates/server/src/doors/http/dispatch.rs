//! What every request gets, whatever it asks: an id, a span, and an answer even if the handler
//! falls.

use std::panic::AssertUnwindSafe;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use hapax_wire::{Code, json};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tracing::Instrument;

use super::failure::{Failure, keep_allow};
use super::input::check_query;
use crate::log::request_span;
use crate::problem::Problem;

pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const REQUEST_ID_BYTES_MAX: usize = 128;

/// The id of a request; among the extensions of every request.
#[derive(Clone, Debug)]
pub(super) struct RequestId {
    pub(super) text: HeaderValue,
    /// The caller chose it.
    pub(super) is_given: bool,
}

impl RequestId {
    /// The caller's own where it is a sane one.
    fn of(headers: &HeaderMap) -> Self {
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

pub(super) async fn dispatch(mut request: Request, next: Next) -> Response {
    let id = RequestId::of(request.headers());
    let span = span(&request, &id);
    let method = request.method().clone();
    let checked = check_origin(&method, request.headers()).and_then(|()| {
        let path = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
        check_query(path, request.uri().query().unwrap_or_default())
    });
    if let Err(failure) = checked {
        return finish(failure.into_response(), &id, &span);
    }
    request.extensions_mut().insert(id.clone());
    let handled = AssertUnwindSafe(next.run(request)).catch_unwind().instrument(span.clone()).await;
    let response = handled.unwrap_or_else(|_| {
        // The panic itself is told by the hook, with its place.
        tracing::error!(request_id = id.as_str(), "a request was lost to a fault of the broker");
        let detail = "the broker met a fault of its own; its log has this request's id";
        Failure::from(Problem::new(Code::Internal, detail)).into_response()
    });
    finish(response, &id, &span)
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

/// Web pages of other sites get nothing done here, even where no token is needed: only browsers
/// send this header, and they send it truly.
fn check_origin(method: &Method, headers: &HeaderMap) -> Result<(), Failure> {
    let site = headers.get(&SEC_FETCH_SITE).map_or(&b""[..], HeaderValue::as_bytes);
    if !method.is_safe() && matches!(site, b"cross-site" | b"same-site") {
        let detail = "a web page of another site may not do this";
        return Err(Problem::new(Code::Forbidden, detail).into());
    }
    Ok(())
}

/// A new id, in the form of a UUIDv7: it sorts by time.
pub(super) fn generated() -> HeaderValue {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let ms = u128::from(u64::try_from(since.as_millis()).unwrap_or_default() & ((1 << 48) - 1));
    let random = fastrand::u128(..);
    let (low, high) = (random & ((1 << 62) - 1), random >> 116 & 0xfff);
    let number = ms << 80 | 7 << 76 | high << 64 | 0b10 << 62 | low;
    let text = json::Id(number.to_be_bytes()).to_string();
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("unnamed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_handler_that_falls_is_an_internal_error_with_the_requests_id() {
        async fn fall() -> Response {
            panic!("a planted fault")
        }
        let router = axum::Router::new()
            .route("/", axum::routing::get(fall))
            .layer(axum::middleware::from_fn(dispatch));
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
