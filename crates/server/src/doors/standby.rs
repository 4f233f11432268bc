//! The doors of a node that does not serve: it waits for its turn, opens its data, or is cut off
//! from the database. Its port is open from the start. Everything but health checks and the pages
//! of errors is refused as `unavailable`, with the address of the node that serves, if it is known:
//! clients with several addresses go there at once. Nothing is done before such an answer, so that
//! every request may be sent again.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;
use hapax_wire::Code;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue};

use super::unread::Unread;
use super::{grpc, http as web};
use crate::problem::Problem;

/// The header, and the metadata, with the address of the node that serves; empty if none is known.
pub(super) const SERVING: HeaderName = HeaderName::from_static("hapax-serving");
/// When to ask again, if nobody serves yet: a takeover is a matter of seconds.
const RETRY_AFTER_MS: u64 = 250;

/// Why a node does not serve, and who does. Cheap to clone; all clones see a change.
#[derive(Clone, Debug)]
pub struct Standby(Arc<ArcSwap<Reason>>);

/// The present state of a node that does not serve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reason {
    /// For people, as in `/readyz`.
    pub why: String,
    /// The address of the node that serves, such as `http://10.0.0.7:4747`.
    pub serving: Option<String>,
}

impl Standby {
    pub fn new(reason: Reason) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(reason)))
    }

    pub fn set(&self, reason: Reason) {
        self.0.store(Arc::new(reason));
    }

    pub fn reason(&self) -> Arc<Reason> {
        self.0.load_full()
    }
}

impl Reason {
    pub(super) fn problem(&self) -> Problem {
        let detail = match &self.serving {
            Some(serving) => format!("{}; {serving} serves", self.why),
            None => self.why.clone(),
        };
        let retry_after_ms = Some(RETRY_AFTER_MS);
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
    web::pages_of_a_standby().merge(grpc::health_of_a_standby()).fallback_service(refused)
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
