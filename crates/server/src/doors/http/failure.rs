//! Refusals as problem documents of RFC 9457. A handler does not know the request's id. So its
//! answer has the failure as an extension and an empty body, and the dispatch writes the document.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use hapax_core::InFlight;
use hapax_wire::{self as wire, Code};
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::dispatch::{REQUEST_ID, RequestId};
use crate::doors::shape;
use crate::doors::standby::Reason;
use crate::problem::Problem;

/// Why a request is refused.
#[derive(Clone, Debug)]
pub(super) struct Failure(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    status: StatusCode,
    problem: Problem,
    /// For a claim: the state of the key.
    in_flight: Option<InFlight>,
    /// From a node that does not serve: the address of the one that does.
    serving: Option<String>,
}

impl Failure {
    /// A refusal with a more specific status than that of its code.
    pub(super) fn with_status(status: StatusCode, problem: Problem) -> Self {
        Self(Box::new(Inner { status, problem, in_flight: None, serving: None }))
    }

    pub(super) fn invalid(detail: impl Into<String>) -> Self {
        Problem::invalid(detail).into()
    }

    /// Another caller holds the claimed key.
    pub(super) fn in_flight(in_flight: InFlight, retry_after_ms: u64) -> Self {
        let detail = "the key is being processed; its outcome is not known yet";
        let problem = Problem {
            retry_after_ms: Some(retry_after_ms),
            ..Problem::new(Code::InFlight, detail)
        };
        let mut failure = Self::from(problem);
        failure.0.in_flight = Some(in_flight);
        failure
    }

    pub(super) fn code(&self) -> Code {
        self.0.problem.code
    }

    /// The whole answer.
    pub(super) fn document(&self, request_id: &str) -> Response {
        let Inner { status, problem, in_flight, serving } = &*self.0;
        let shaped = shape::problem(problem);
        let mut document = wire::Document::new(problem.code, status.as_u16(), &shaped, request_id);
        document.serving = serving.as_deref();
        if let Some(it) = in_flight {
            document.id = Some(wire::Id(it.id.0));
            document.accepted_at = Some(wire::Timestamp(it.accepted_at.0));
            document.state = Some(shape::state(it.place));
            document.attempts = Some(it.attempts);
            document.deadline = it.deadline.map(|at| wire::Timestamp(at.0));
        }
        // A document of texts and numbers can be written.
        let body = serde_json::to_vec(&document).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = *status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(ms) = problem.retry_after_ms {
            headers.insert(RETRY_AFTER, HeaderValue::from(ms.div_ceil(1_000).max(1)));
        }
        if *status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        let status = match problem.is_stale {
            true => StatusCode::PRECONDITION_FAILED,
            false => problem.code.status(),
        };
        Self::with_status(status, problem)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = self.0.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// The answer of a node that does not serve.
pub(in crate::doors) fn refused_by_a_standby(reason: &Reason, headers: &HeaderMap) -> Response {
    let mut failure = Failure::from(reason.problem());
    failure.0.serving.clone_from(&reason.serving);
    whole(&failure, headers)
}

/// The answer to a request that no handler answers.
pub(in crate::doors) fn refused(problem: Problem, headers: &HeaderMap) -> Response {
    whole(&problem.into(), headers)
}

pub(super) fn whole(failure: &Failure, headers: &HeaderMap) -> Response {
    let id = RequestId::of(headers);
    let mut response = failure.document(id.as_str());
    response.headers_mut().insert(REQUEST_ID, id.text);
    response
}

/// Keeps the `Allow` header of the router's answer, which is replaced.
pub(super) fn keep_allow(from: &Response, to: &mut Response) {
    if let Some(allow) = from.headers().get(ALLOW) {
        to.headers_mut().insert(ALLOW, allow.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_core::Answer;

    #[test]
    fn every_code_has_its_status_and_retryable_ones_say_when() {
        for code in Code::ALL {
            let response = Failure::from(Problem::new(*code, "why")).document("id");
            assert_eq!(response.status(), code.status());
            assert_eq!(response.headers().contains_key(RETRY_AFTER), code.is_retryable());
        }
    }

    #[test]
    fn a_full_disk_is_retryable_and_seconds_are_rounded_up() {
        let full = Problem::of_answer(&Answer::StoreFull).unwrap();
        let response = Failure::from(full).document("id");
        assert_eq!(response.status(), StatusCode::INSUFFICIENT_STORAGE);
        for (ms, seconds) in [(1, "1"), (1_000, "1"), (1_001, "2"), (0, "1")] {
            let problem =
                Problem { retry_after_ms: Some(ms), ..Problem::new(Code::RateLimited, "why") };
            let response = Failure::from(problem).document("id");
            assert_eq!(response.headers()[RETRY_AFTER], seconds);
        }
    }
}
