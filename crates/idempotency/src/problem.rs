//! The layer's error responses: problem documents (RFC 9457), as the broker writes them.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use serde_json::{Map, Value, json};

use crate::route::Route;

/// An error response of the layer, `application/problem+json`.
///
/// `code` is for programs. It is one of the broker's codes, or `in_doubt` or `response_not_kept`. A
/// retryable problem has `Retry-After`: the same request with the same key may succeed then.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    code: &'static str,
    status: StatusCode,
    title: &'static str,
    detail: String,
    retry_after: Option<Duration>,
    more: Map<String, Value>,
}

impl Problem {
    pub fn new(
        code: &'static str,
        status: StatusCode,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Self {
        let (detail, more) = (detail.into(), Map::new());
        Self { code, status, title, detail, retry_after: None, more }
    }

    /// Marks it as retryable after this time.
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// Adds a field to the document.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.more.insert(name.to_owned(), value.into());
        self
    }

    pub fn code(&self) -> &'static str {
        self.code
    }

    pub fn status(&self) -> StatusCode {
        self.status
    }

    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Converts to a response with any body type made of bytes.
    pub fn into_response<B: From<Bytes>>(self) -> Response<B> {
        let mut document = json!({
            // A URN: the service behind has no such page.
            "type": format!("urn:hapax:error:{}", self.code),
            "title": self.title,
            "status": self.status.as_u16(),
            "detail": self.detail,
            "code": self.code,
            "retryable": self.retry_after.is_some(),
        });
        if let Some(document) = document.as_object_mut() {
            document.extend(self.more);
        }
        let mut response = Response::new(B::from(Bytes::from(document.to_string())));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(after) = self.retry_after {
            let seconds = after.as_millis().div_ceil(1_000).max(1) as u64;
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// The problems that the layer itself answers with.
impl Problem {
    pub(crate) fn missing_key(detail: impl Into<String>) -> Self {
        let title = "An idempotency key is required";
        Self::new("missing_key", StatusCode::BAD_REQUEST, title, detail)
    }

    pub(crate) fn malformed_key(detail: impl Into<String>) -> Self {
        let title = "The idempotency key is malformed";
        Self::new("malformed_key", StatusCode::BAD_REQUEST, title, detail)
    }

    pub(crate) fn broken_request() -> Self {
        let detail = "the connection ended before the end of the body; nothing was done";
        let title = "The request is invalid";
        Self::new("invalid", StatusCode::BAD_REQUEST, title, detail)
    }

    pub(crate) fn lookalike(route: &Route) -> Self {
        let detail = format!(
            "the method or path of this request is ambiguous (case, encoded slashes, ';'): some \
             services would read it as {route}, which requires a key. Write it in that form"
        );
        let title = "The request is invalid";
        Self::new("invalid", StatusCode::BAD_REQUEST, title, detail)
    }

    pub(crate) fn hop_by_hop(name: &HeaderName) -> Self {
        let detail = format!(
            "the Connection header names {name}, so services behind a proxy would not see that \
             header; nothing was done"
        );
        let title = "The request is invalid";
        Self::new("invalid", StatusCode::BAD_REQUEST, title, detail)
    }

    pub(crate) fn no_tenant() -> Self {
        let detail = "this route stores its answers per caller, and this request does not \
                      identify its caller";
        let title = "The caller is unknown";
        Self::new("unauthorized", StatusCode::UNAUTHORIZED, title, detail)
    }

    pub(crate) fn request_timeout(after: Duration) -> Self {
        let detail = format!("the request did not arrive within {} s", after.as_secs());
        let title = "The request took too long to arrive";
        Self::new("unavailable", StatusCode::REQUEST_TIMEOUT, title, detail)
            .retry_after(Duration::from_secs(1))
    }

    pub(crate) fn too_large(max: usize) -> Self {
        let detail = format!("a request with a key may have at most {max} bytes; nothing was done");
        let title = "The request is too large";
        Self::new("too_large", StatusCode::PAYLOAD_TOO_LARGE, title, detail)
    }

    pub(crate) fn conflict() -> Self {
        let detail = "the key was used before with a different request (method, path, query, \
                      headers and body are compared); the earlier one is unchanged, and this one \
                      was not carried out";
        let title = "The key was used for another operation";
        Self::new("conflict", StatusCode::UNPROCESSABLE_ENTITY, title, detail)
    }

    pub(crate) fn in_progress(after: Duration) -> Self {
        let detail = "a request with this key is in progress: retry later, or wait for its answer \
                      with Prefer: wait=SECONDS";
        Self::new("in_flight", StatusCode::CONFLICT, "The first request is in progress", detail)
            .retry_after(after)
    }

    pub(crate) fn in_doubt(claim_key: &str) -> Self {
        let detail = "a request with this key was begun and its outcome is unknown: it may have \
                      been carried out, and is not repeated until an operator has resolved it";
        Self::new("in_doubt", StatusCode::CONFLICT, "The outcome is unknown", detail)
            .with("claim_key", claim_key)
    }

    pub(crate) fn broken_response(claim_key: &str) -> Self {
        let detail = "the request was begun, but its response was interrupted, so its outcome is \
                      unknown";
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Self::new("in_doubt", status, "The outcome is unknown", detail).with("claim_key", claim_key)
    }

    pub(crate) fn lease_lost(after: Duration) -> Self {
        let detail = "this request lost its lease while it was in progress, and another request \
                      with the same key is being processed: retry with the same key to get its \
                      answer";
        Self::new("lease_lost", StatusCode::CONFLICT, "Another request has the key", detail)
            .retry_after(after)
    }

    pub(crate) fn too_old() -> Self {
        let detail = "the date of the key is older than the retention, so the request may have \
                      been carried out already; it was not carried out now";
        Self::new("too_old", StatusCode::GONE, "The request is older than the retention", detail)
    }

    pub(crate) fn undated_key() -> Self {
        let detail = "this route accepts only UUIDv7 or ULID keys, so that late retries can be \
                      recognised";
        let title = "The key has no date";
        Self::new("undated_key", StatusCode::UNPROCESSABLE_ENTITY, title, detail)
    }

    pub(crate) fn not_kept(status: StatusCode) -> Self {
        let detail = format!(
            "the request with this key was carried out and answered with {}; its response was too \
             large to be stored",
            status.as_u16()
        );
        Self::new("response_not_kept", StatusCode::GONE, "The response was not stored", detail)
            .with("original_status", status.as_u16())
    }

    pub(crate) fn unavailable(detail: &str, after: Duration) -> Self {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Self::new("unavailable", status, "Idempotency cannot be guaranteed now", detail)
            .retry_after(after)
    }

    pub(crate) fn internal(detail: &str) -> Self {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Self::new("internal", status, "The service has an internal error", detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_written_as_the_broker_writes_them() {
        let response: Response<Bytes> =
            Problem::in_progress(Duration::from_millis(1_200)).into_response();
        assert_eq!(response.status(), 409);
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        assert_eq!(response.headers()["retry-after"], "2");
        let document: Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(document["type"], "urn:hapax:error:in_flight");
        assert_eq!(document["code"], "in_flight");
        assert_eq!(document["status"], 409);
        assert_eq!(document["retryable"], true);
    }

    #[test]
    fn what_a_retry_does_not_help_says_so() {
        let response: Response<Bytes> = Problem::in_doubt("abc").into_response();
        assert_eq!(response.headers().get("retry-after"), None);
        let document: Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(
            (&document["retryable"], &document["claim_key"]),
            (&json!(false), &json!("abc"))
        );
    }
}
