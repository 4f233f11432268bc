//! The doors of a node that does not serve: it waits for its turn, opens its data, or is cut off
//! from the database. Its port is open from the start. Everything but health checks, metrics and
//! the pages of errors is refused as `unavailable`, with the address of the node that serves, if it
//! is known: clients with several addresses go there at once. Nothing is done before such an
//! answer, so that every request may be sent again.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::get;
use hapax_wire::Code;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue};

use super::unread::Unread;
use super::{grpc, http as web};
use crate::auth::Auth;
use crate::metrics::Metrics;
use crate::problem::Problem;

/// The header, and the metadata, with the address of the node that serves; empty if none is known.
pub(super) const SERVING: HeaderName = HeaderName::from_static("hapax-serving");
/// When to ask again, if nobody serves yet: a takeover is a matter of seconds.
const RETRY_AFTER_MS: u64 = 250;
/// The same while nobody serves before an operator has decided: that takes minutes.
const RETRY_AFTER_OPERATOR_MS: u64 = 5_000;

/// Why a node does not serve, and who does. Cheap to clone; all clones see a change.
#[derive(Clone, Debug)]
pub struct Standby {
    reason: Arc<ArcSwap<Reason>>,
    /// What `/metrics` shows, and to whom.
    metrics: Option<(Metrics, Auth)>,
}

/// The present state of a node that does not serve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reason {
    /// For people, as in `/readyz`.
    pub why: String,
    /// The address of the node that serves, such as `http://10.0.0.7:4747`.
    pub serving: Option<String>,
    /// Nobody serves before an operator has decided.
    pub needs_operator: bool,
}

impl Standby {
    pub fn new(reason: Reason) -> Self {
        Self { reason: Arc::new(ArcSwap::from_pointee(reason)), metrics: None }
    }

    /// It answers `/metrics`, too.
    pub fn with_metrics(self, metrics: Metrics, auth: Auth) -> Self {
        Self { metrics: Some((metrics, auth)), ..self }
    }

    pub fn set(&self, reason: Reason) {
        self.reason.store(Arc::new(reason));
    }

    pub fn reason(&self) -> Arc<Reason> {
        self.reason.load_full()
    }
}

impl Reason {
    /// With nobody who serves, for now.
    pub fn new(why: &str) -> Self {
        Self { why: why.to_owned(), serving: None, needs_operator: false }
    }

    pub(super) fn problem(&self) -> Problem {
        let detail = match &self.serving {
            Some(serving) => format!("{}; {serving} serves", self.why),
            None => self.why.clone(),
        };
        let retry_after_ms = Some(match self.needs_operator {
            true => RETRY_AFTER_OPERATOR_MS,
            false => RETRY_AFTER_MS,
        });
        Problem { retry_after_ms, ..Problem::new(Code::Unavailable, detail) }
    }

    pub(super) fn header(&self) -> HeaderValue {
        let serving = self.serving.as_deref().unwrap_or_default();
        HeaderValue::try_from(serving).unwrap_or_else(|_| HeaderValue::from_static(""))
    }
}

/// HTTP and gRPC on one router.
pub fn routes(standby: &Standby) -> Router {
    let refused = Router::new().fallback(refuse).with_state(standby.clone());
    let mut pages = web::pages_of_a_standby();
    if let Some(metrics) = &standby.metrics {
        let page = Router::new().route("/metrics", get(show_metrics));
        pages = pages.merge(page.with_state(metrics.clone()));
    }
    pages.merge(grpc::health_of_a_standby()).fallback_service(refused)
}

/// As at a node that serves: for its own machine, and for callers with a token.
async fn show_metrics(
    State((metrics, auth)): State<(Metrics, Auth)>,
    request: Request,
) -> Response {
    web::metrics_of_a_standby(&metrics, &auth, &request)
}

async fn refuse(State(standby): State<Standby>, mut request: Request) -> Response {
    let reason = standby.reason();
    let kind = request.headers().get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let is_grpc = kind.starts_with(b"application/grpc");
    let unread = Unread::of(&mut request);
    let mut response = match is_grpc {
        true => grpc::refused(&reason.problem()),
        false => web::refused_by_a_standby(&reason, request.headers()),
    };
    response.headers_mut().insert(SERVING, reason.header());
    // A stream goes on until its caller has the answer.
    if let Some(unread) = unread.filter(|_| !is_grpc) {
        unread.finish(&mut response).await;
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Tokens;
    use crate::listen::Peer;
    use axum::body::Body;
    use http::StatusCode;
    use tower::ServiceExt;

    async fn metrics(standby: &Standby, peer: &str, host: &str) -> StatusCode {
        let address = peer.parse().unwrap();
        let request = http::Request::get("/metrics").header("host", host);
        let mut request = request.body(Body::empty()).unwrap();
        request.extensions_mut().insert(Peer { address, is_encrypted: false });
        routes(standby).oneshot(request).await.unwrap().status()
    }

    #[tokio::test]
    async fn metrics_are_for_the_own_machine_and_for_callers_with_a_token() {
        let standby = Standby::new(Reason::default());
        let own = "127.0.0.1:5";
        let status = metrics(&standby, own, "localhost").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "it has none");
        let directory = tempfile::tempdir().unwrap();
        let tokens = Auth::Tokens(Arc::new(Tokens::open(directory.path()).unwrap()));
        let guarded = standby.clone().with_metrics(Metrics::default(), tokens);
        assert_eq!(metrics(&guarded, own, "localhost").await, StatusCode::OK);
        let far = metrics(&guarded, "192.0.2.7:5", "localhost").await;
        assert_eq!(far, StatusCode::UNAUTHORIZED);
        let open = standby.with_metrics(Metrics::default(), Auth::off());
        assert_eq!(metrics(&open, "192.0.2.7:5", "queue.example").await, StatusCode::OK);
        let rebound = metrics(&open, own, "attacker.example").await;
        assert_eq!(rebound, StatusCode::FORBIDDEN, "a web page on this machine");
    }
}
