//! Pages about the broker itself: health, metrics, limits and the error codes.

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use hapax_core::limits;
use hapax_wire::{self as wire, Code};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use super::failure::Failure;
use super::{dispatch, messages, openapi, output, work};
use crate::auth::Auth;
use crate::metrics;
use crate::problem::Problem;
use crate::service::{Service, WAIT_MAX};

const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";

/// The name and version of the broker
#[utoipa::path(
    get, path = "/", operation_id = "getHome", tag = "broker",
    responses(
        (status = 200, description = "A few lines", body = String, content_type = "text/plain"),
    ),
    security(()),
)]
pub(super) async fn home() -> Response {
    let version = env!("CARGO_PKG_VERSION");
    let text = format!(
        "Hapax {version}: a durable message queue in which every message has an idempotency \
         key.\n\n\
         /v1/openapi.json   the HTTP API\n\
         /v1/limits         its limits\n\
         /errors            what each error means\n\
         /readyz, /livez    health checks\n\
         /metrics           metrics for Prometheus\n\n\
         Try it:\n\
         \x20 curl -X PUT  URL/v1/queues/orders\n\
         \x20 curl -X POST URL/v1/queues/orders/messages -H 'Idempotency-Key: order-42' -d hello\n\
         \x20 curl -X POST URL/v1/queues/orders/receive --json '{{\"max\":1}}'\n"
    );
    page(StatusCode::OK, TEXT, text)
}

/// Whether the process runs
#[utoipa::path(
    get, path = "/livez", operation_id = "checkLive", tag = "broker",
    responses((status = 200, description = "It does", body = String, content_type = "text/plain")),
    security(()),
)]
pub(super) async fn livez() -> Response {
    page(StatusCode::OK, TEXT, "ok\n")
}

/// Whether every partition can answer
#[utoipa::path(
    get, path = "/readyz", operation_id = "checkReady", tag = "broker",
    responses(
        (status = 200, description = "They can", body = String, content_type = "text/plain"),
        (status = 503, description = "`unavailable`: stopping, or a partition \
                                      cannot answer: its disk failed, or it has another owner"),
    ),
    security(()),
)]
pub(super) async fn readyz(State(service): State<Service>) -> Result<Response, Failure> {
    let engine = service.engine();
    if engine.is_ready() {
        return Ok(page(StatusCode::OK, TEXT, "ready\n"));
    }
    let detail = match engine.fenced().first() {
        _ if engine.is_draining() => "the broker is stopping".to_owned(),
        Some((_, why)) => why.to_string(),
        None if engine.is_stalled() => "a partition gets nothing done".to_owned(),
        None => "a partition has failed; restart the broker".to_owned(),
    };
    Err(Problem::new(Code::Unavailable, detail).into())
}

/// Metrics
///
/// In the text format of OpenMetrics if `Accept` asks for it, else in that of Prometheus. Open to
/// the broker's own machine; from elsewhere it needs a valid token.
#[utoipa::path(
    get, path = "/metrics", operation_id = "getMetrics", tag = "broker",
    responses(
        (status = 200, description = "Counters", content(
            (String = "text/plain"), (String = "application/openmetrics-text"),
        )),
    ),
    security((), ("token" = [])),
)]
pub(super) async fn metrics(State(service): State<Service>, headers: HeaderMap) -> Response {
    metrics_page(&headers, service.metrics().encode(service.engine()).await)
}

/// The metrics of a node that does not serve, for the same callers.
pub(in crate::doors) fn metrics_of_a_standby(
    metrics: &metrics::Metrics,
    auth: &Auth,
    request: &Request,
) -> Response {
    match dispatch::check_near(auth, request) {
        Ok(()) => metrics_page(request.headers(), metrics.encode_standby()),
        Err(failure) => super::failure::whole(&failure, request.headers()),
    }
}

fn metrics_page(headers: &HeaderMap, text: String) -> Response {
    match accepts(headers, "openmetrics") {
        true => page(StatusCode::OK, metrics::CONTENT_TYPE, text),
        false => page(StatusCode::OK, metrics::PLAIN_CONTENT_TYPE, metrics::plain(&text)),
    }
}

/// This document
#[utoipa::path(
    get, path = "/v1/openapi.json", operation_id = "getOpenApi", tag = "broker",
    responses((status = 200, description = "OpenAPI 3.1", body = Object)),
    security(()),
)]
pub(super) async fn openapi() -> Response {
    page(StatusCode::OK, "application/json", openapi::document())
}

/// The limits of requests
#[utoipa::path(
    get, path = "/v1/limits", operation_id = "getLimits", tag = "broker",
    responses((status = 200, description = "The bounds", body = wire::Limits)),
    security(()),
)]
pub(super) async fn limits() -> Response {
    let limits = wire::Limits {
        queue_name_bytes_max: limits::QUEUE_NAME_BYTES_MAX as u64,
        key_bytes_max: limits::KEY_BYTES_MAX as u64,
        group_bytes_max: limits::GROUP_BYTES_MAX as u64,
        content_type_bytes_max: limits::CONTENT_TYPE_BYTES_MAX as u64,
        fingerprint_bytes_max: limits::FINGERPRINT_BYTES_MAX as u64,
        worker_bytes_max: limits::WORKER_BYTES_MAX as u64,
        receive_id_bytes_max: limits::RECEIVE_ID_BYTES_MAX as u64,
        redrive_id_bytes_max: limits::REDRIVE_ID_BYTES_MAX as u64,
        claim_id_bytes_max: limits::CLAIM_ID_BYTES_MAX as u64,
        emit_name_bytes_max: limits::EMIT_NAME_BYTES_MAX as u64,
        grpc_frame_bytes_max: crate::doors::grpc::FRAME_BYTES_MAX as u64,
        error_bytes_max: limits::ERROR_BYTES_MAX as u64,
        headers_max: limits::HEADERS_MAX as u64,
        headers_bytes_max: limits::HEADERS_BYTES_MAX as u64,
        body_bytes_max: limits::BODY_BYTES_MAX,
        batch_messages_max: wire::BATCH_MAX as u64,
        batch_bytes_max: messages::BATCH_BYTES_MAX as u64,
        receive_messages_max: limits::RECEIVE_MAX.into(),
        receive_bytes_max: limits::RECEIVE_BYTES_MAX as u64,
        settle_items_max: wire::SETTLE_MAX as u64,
        settle_bytes_max: work::SETTLE_BYTES_MAX as u64,
        emits_max: limits::EMITS_MAX as u64,
        emits_bytes_max: limits::EMITS_BYTES_MAX as u64,
        recovery_points_max: limits::RECOVERY_POINTS_MAX as u64,
        recovery_points_bytes_max: limits::RECOVERY_POINTS_BYTES_MAX as u64,
        recovery_point_name_bytes_max: limits::RECOVERY_POINT_NAME_BYTES_MAX as u64,
        browse_messages_max: limits::BROWSE_MAX as u64,
        redrive_keys_max: limits::REDRIVE_KEYS_MAX as u64,
        history_events_max: limits::HISTORY_MAX as u64,
        wait_ms_max: WAIT_MAX.as_millis() as u64,
        lease_ms_min: limits::LEASE_MS_MIN,
        lease_ms_max: limits::LEASE_MS_MAX,
        delay_ms_max: limits::DELAY_MS_MAX,
        retention_ms_min: limits::RETENTION_MS_MIN,
        retention_ms_max: limits::RETENTION_MS_MAX,
        backoff_ms_max: limits::BACKOFF_MS_MAX,
        attempts_max: limits::ATTEMPTS_MAX.into(),
    };
    output::small(StatusCode::OK, &limits)
}

/// Every error code
#[utoipa::path(
    get, path = "/errors", operation_id = "listErrors", tag = "broker",
    responses(
        (status = 200, description = "JSON, or HTML if `Accept` names it", content(
            (wire::ErrorPages = "application/json"), (String = "text/html"),
        )),
    ),
    security(()),
)]
pub(super) async fn errors(headers: HeaderMap) -> Response {
    if !accepts(&headers, "html") {
        let errors = Code::ALL.iter().map(|code| explained(*code)).collect();
        return output::small(StatusCode::OK, &wire::ErrorPages { errors });
    }
    let rows = Code::ALL.iter().map(|code| {
        let (name, status) = (code.as_str(), code.status().as_u16());
        let title = escaped(code.title());
        format!(
            "<tr><td><a href=\"/errors/{name}\"><code>{name}</code></a></td><td>{status}</td>\
             <td>{title}</td></tr>\n"
        )
    });
    let table = format!(
        "<h1>Errors</h1>\n<table>\n<tr><th>code</th><th>status</th><th>meaning</th></tr>\n{}\
         </table>\n",
        rows.collect::<String>()
    );
    page(StatusCode::OK, HTML, html("Errors", &table))
}

/// What an error code means
#[utoipa::path(
    get, path = "/errors/{code}", operation_id = "getError", tag = "broker",
    params(("code" = String, Path)),
    responses(
        (status = 200, description = "JSON, or HTML if `Accept` names it", content(
            (wire::ErrorPage = "application/json"), (String = "text/html"),
        )),
        (status = 404, description = "`invalid`: there is no such code"),
    ),
    security(()),
)]
pub(super) async fn error(
    path: Result<Path<String>, axum::extract::rejection::PathRejection>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let code = path.ok().and_then(|Path(code)| Code::parse(&code));
    let Some(code) = code else {
        return Err(not_found("there is no such error code; /errors lists all codes"));
    };
    if !accepts(&headers, "html") {
        return Ok(output::small(StatusCode::OK, &explained(code)));
    }
    let wire::ErrorPage { code: name, title, status, retryable, means, why, what_to_do } =
        explained(code);
    let retry = if retryable { "may succeed later" } else { "fails again" };
    let text = format!(
        "<h1>{}</h1>\n<p><code>{name}</code>, HTTP status {status}. The same request {retry}.</p>\n\
         <h2>What it means</h2>\n<p>{}</p>\n<h2>Why it happens</h2>\n<p>{}</p>\n\
         <h2>What to do</h2>\n<p>{}</p>\n<p><a href=\"/errors\">All errors</a></p>\n",
        escaped(&title),
        prose(&means),
        prose(&why),
        prose(&what_to_do),
    );
    Ok(page(StatusCode::OK, HTML, html(&title, &text)))
}

/// No such path.
pub(super) async fn lost(headers: HeaderMap) -> Response {
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    if kind.starts_with(b"application/grpc") {
        return crate::doors::grpc::unknown_call();
    }
    not_found("there is no such path; /v1/openapi.json lists all paths").into_response()
}

/// The path is known, the method is not.
pub(super) async fn misused(method: Method) -> Failure {
    let detail = format!("{method} is not allowed for this path; see the Allow header");
    Failure::with_status(StatusCode::METHOD_NOT_ALLOWED, Problem::invalid(detail))
}

fn not_found(detail: &str) -> Failure {
    Failure::with_status(StatusCode::NOT_FOUND, Problem::invalid(detail))
}

fn explained(code: Code) -> wire::ErrorPage {
    wire::ErrorPage {
        code: code.as_str().to_owned(),
        title: code.title().to_owned(),
        status: code.status().as_u16(),
        retryable: code.is_retryable(),
        means: code.means().to_owned(),
        why: code.why().to_owned(),
        what_to_do: code.what_to_do().to_owned(),
    }
}

fn accepts(headers: &HeaderMap, kind: &str) -> bool {
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|value| value.contains(kind))
}

fn page(status: StatusCode, kind: &'static str, text: impl Into<Body>) -> Response {
    let mut response = (status, text.into()).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn html(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{} – Hapax</title>\n\
         <style>body{{font:16px/1.5 system-ui,sans-serif;max-width:42em;margin:2em auto;\
         padding:0 1em}}td,th{{text-align:left;padding:.2em 1em .2em 0}}</style>\n{body}</html>\n",
        escaped(title)
    )
}

/// Text with `code` in it.
fn prose(text: &str) -> String {
    let parts = text.split('`').enumerate().map(|(place, part)| match place % 2 {
        0 => escaped(part),
        _ => format!("<code>{}</code>", escaped(part)),
    });
    parts.collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
