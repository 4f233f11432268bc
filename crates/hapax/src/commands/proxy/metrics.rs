//! The metrics of a proxy, for Prometheus, and the port that serves them.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use hapax_client::{Admin, Code, Error};
use hapax_idempotency::{Event, Idempotency, Outcome, Settlement};
use hapax_server::listen::{Limits, Listener};
use hapax_server::metrics::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use tokio::sync::watch;

use super::Proxy;
use crate::session::Session;

/// Timeout of the check whether the broker answers.
const READY_TIMEOUT: Duration = Duration::from_secs(2);

type Labels = [(&'static str, &'static str); 1];
type Counters = Family<Labels, Counter>;

/// All metrics. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    requests: Counters,
    settlements: Counters,
    broker_errors: Counters,
    upstream: Counters,
    upstream_seconds: Histogram,
    /// Whether the broker did not answer a request last, which was logged.
    is_away: AtomicBool,
}

/// How a request to the upstream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Answered(StatusCode),
    Unreachable,
    Broken,
    TimedOut,
}

impl Ended {
    fn as_str(self) -> &'static str {
        match self {
            Self::Answered(status) => match status.as_u16() {
                200..=299 => "2xx",
                300..=399 => "3xx",
                400..=499 => "4xx",
                500..=599 => "5xx",
                _ => "other",
            },
            Self::Unreachable => "unreachable",
            Self::Broken => "broken",
            Self::TimedOut => "timed_out",
        }
    }
}

impl Inner {
    /// Logs that the broker went away, and that it is back: once each, at a level that is shown by
    /// default.
    fn note(&self, event: Event) {
        let is_away = match event {
            Event::BrokerFailed(Code::Unavailable) => true,
            Event::Answered(Outcome::Replayed | Outcome::Conflict)
            | Event::Settled(Settlement::Kept | Settlement::NotKept | Settlement::Released) => {
                false
            }
            _ => return,
        };
        match (self.is_away.swap(is_away, Ordering::Relaxed), is_away) {
            (false, true) => tracing::warn!("the broker does not answer: see /readyz"),
            (true, false) => tracing::warn!("the broker answers again"),
            _ => {}
        }
    }
}

impl Metrics {
    pub(super) fn new() -> Self {
        let inner = Inner {
            requests: Family::default(),
            settlements: Family::default(),
            broker_errors: Family::default(),
            upstream: Family::default(),
            // From half a millisecond to two minutes.
            upstream_seconds: Histogram::new(exponential_buckets(0.000_5, 2.0, 18)),
            is_away: AtomicBool::new(false),
        };
        // Created in advance: a missing counter looks like one that disappeared.
        for outcome in Outcome::ALL {
            drop(inner.requests.get_or_create(&[("outcome", outcome.as_str())]));
        }
        for settlement in Settlement::ALL {
            drop(inner.settlements.get_or_create(&[("how", settlement.as_str())]));
        }
        for ended in ["2xx", "3xx", "4xx", "5xx", "unreachable", "broken", "timed_out"] {
            drop(inner.upstream.get_or_create(&[("ended", ended)]));
        }
        Self(Arc::new(inner))
    }

    /// Counts an event of the layer.
    pub(super) fn observer(&self) -> impl Fn(Event) + Send + Sync + 'static {
        let inner = Arc::clone(&self.0);
        move |event| {
            inner.note(event);
            let (family, labels) = match event {
                Event::Answered(outcome) => (&inner.requests, [("outcome", outcome.as_str())]),
                Event::Settled(settlement) => (&inner.settlements, [("how", settlement.as_str())]),
                Event::BrokerFailed(code) => (&inner.broker_errors, [("code", code.as_str())]),
                _ => return,
            };
            family.get_or_create(&labels).inc();
        }
    }

    pub(super) fn upstream(&self, ended: Ended, took: Duration) {
        self.0.upstream.get_or_create(&[("ended", ended.as_str())]).inc();
        self.0.upstream_seconds.observe(took.as_secs_f64());
    }

    fn encode(&self, running: usize) -> String {
        let mut registry = Registry::with_prefix("hapax_proxy");
        for (name, help, family) in [
            ("requests", "Requests to routes, by outcome", &self.0.requests),
            (
                "settlements",
                "Keys by their outcome after the call to the upstream",
                &self.0.settlements,
            ),
            ("broker_errors", "Calls to the broker that failed", &self.0.broker_errors),
            ("upstream_requests", "Requests to the upstream, by outcome", &self.0.upstream),
        ] {
            registry.register(name, help, family.clone());
        }
        registry.register_with_unit(
            "upstream",
            "Time from a request to the upstream until the head of its response",
            Unit::Seconds,
            self.0.upstream_seconds.clone(),
        );
        let operations = Gauge::<i64>::default();
        operations.set(running as i64);
        let help =
            "Protected requests in progress, including those whose clients have disconnected";
        registry.register("operations", help, operations);
        let mut page = String::new();
        // Writing to a string does not fail.
        let _ = encode_registry(&mut page, &registry);
        let _ = encode_eof(&mut page);
        page
    }
}

/// Serves `/metrics`, `/livez` and `/readyz` until it is stopped.
pub(super) fn serve(
    listener: Listener,
    metrics: Metrics,
    idempotency: Idempotency,
    session: &Session,
    proxy: &Proxy,
    mut stopped: watch::Receiver<bool>,
) -> impl Future<Output = ()> + Send + 'static {
    let (admin, queue) = (session.client.clone(), Arc::<str>::from(proxy.queue.as_str()));
    let service = tower::service_fn(move |request: Request<Incoming>| {
        let (metrics, idempotency) = (metrics.clone(), idempotency.clone());
        let (admin, queue) = (admin.clone(), Arc::clone(&queue));
        async move {
            let (status, content_type, text) = match request.uri().path() {
                "/metrics" => (StatusCode::OK, CONTENT_TYPE, metrics.encode(idempotency.running())),
                "/livez" => (StatusCode::OK, "text/plain", "alive\n".to_owned()),
                "/readyz" => ready(&admin, &queue).await,
                _ => {
                    let text = "this port serves /metrics, /livez and /readyz\n";
                    (StatusCode::NOT_FOUND, "text/plain", text.to_owned())
                }
            };
            let mut response = Response::new(Body::from(text));
            *response.status_mut() = status;
            let content_type = HeaderValue::from_static(content_type);
            response.headers_mut().insert(header::CONTENT_TYPE, content_type);
            Ok::<_, Infallible>(response)
        }
    });
    let limits = Limits { drain: Duration::from_secs(1), connections_max: 64, ..Limits::default() };
    async move {
        let until = async move { drop(stopped.wait_for(|stopped| *stopped).await) };
        listener.run(service, limits, until).await;
    }
}

/// Whether the broker answers at all, whatever the answer is.
async fn ready(admin: &Admin, queue: &str) -> (StatusCode, &'static str, String) {
    let asked = tokio::time::timeout(READY_TIMEOUT, admin.queue(queue)).await;
    let error = match asked {
        Ok(Ok(_)) => return (StatusCode::OK, "text/plain", "ready\n".to_owned()),
        Ok(Err(error)) if !matches!(error, Error::Unreachable { .. } | Error::TimedOut(_)) => {
            return (StatusCode::OK, "text/plain", "ready\n".to_owned());
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer".to_owned(),
    };
    (
        StatusCode::SERVICE_UNAVAILABLE,
        "text/plain",
        format!("the broker cannot be reached: {error}\n"),
    )
}
