//! The gRPC API: streams for speed, unary calls for the rest. Converts bytes to commands and
//! outcomes to bytes; it has no rules. The refusal of a whole call is a status with the code in its
//! metadata; the refusal of one message or settle is an answer in its place.

mod backup;
mod claims;
mod intake;
mod meter;
mod outbox;
mod part;
mod put;
mod send;
mod status;
mod unary;
mod work;

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request as HttpRequest;
use axum::routing::post;
use bytes::Bytes;
use futures_util::stream::Empty;
use futures_util::{FutureExt, Stream};
use hapax_wire::lean::{Frames, Raw};
use hapax_wire::proto::hapax_server::HapaxServer;
use hapax_wire::{Code, proto};
use tonic::server::{Grpc, StreamingService};
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};
use tracing::Instrument;

use crate::auth::Principal;
use crate::doors::unread::{Unread, is_refused_call};
use crate::problem::Problem;
use crate::service::Service;
use claims::ClaimsStream;
use intake::Intake;
use meter::Meter;
use send::SendStream;
use status::status;
use work::WorkStream;

/// A frame up: what the largest request of HTTP holds, and its framing.
pub(super) const FRAME_BYTES_MAX: usize = 32 * 1_024 * 1_024 + 64 * 1_024;
const SEND: &str = "/hapax.v1.Hapax/Send";
const WORK: &str = "/hapax.v1.Hapax/Work";
const CLAIMS: &str = "/hapax.v1.Hapax/Claims";

/// Whether a path is that of a stream, which is read frame by frame.
fn is_stream(path: &str) -> bool {
    matches!(path, SEND | WORK | CLAIMS)
}

/// Every gRPC service of the broker: its own, health and reflection.
pub fn routes(service: Service) -> axum::Router {
    let (health, healthy) = tonic_health::server::health_reporter();
    tokio::spawn(report(health, service.clone()));
    let sends = Opener::new(&service, "hapax.v1.SendFrame", SendStream::new);
    let works = Opener::new(&service, "hapax.v1.WorkFrame", WorkStream::new);
    let claims = Opener::new(&service, "hapax.v1.ClaimsFrame", ClaimsStream::new);
    let metered = service.clone();
    let door = HapaxServer::new(Door { service })
        .max_decoding_message_size(FRAME_BYTES_MAX)
        .max_encoding_message_size(usize::MAX);
    let mut routes = Routes::builder();
    routes.add_service(door).add_service(healthy);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    if let (Ok(v1), Ok(v1alpha)) = (reflection().build_v1(), reflection().build_v1alpha()) {
        routes.add_service(v1).add_service(v1alpha);
    }
    // More exact than the route of the service, so that they come first.
    let streams = axum::Router::new()
        .route(SEND, post(move |request: HttpRequest| serve(sends.clone(), request)))
        .route(WORK, post(move |request: HttpRequest| serve(works.clone(), request)))
        .route(CLAIMS, post(move |request: HttpRequest| serve(claims.clone(), request)));
    let metered = axum::middleware::from_fn_with_state(metered, meter::admit);
    let traced = axum::middleware::from_fn(trace);
    let read = axum::middleware::from_fn(read_refused);
    let routes = routes.routes().into_axum_router().merge(streams);
    routes.layer(metered).layer(traced).layer(read)
}

/// Reads what is left of a small call that was refused, so that its caller gets the refusal. The
/// streams are left alone.
async fn read_refused(
    mut request: HttpRequest,
    next: axum::middleware::Next,
) -> axum::response::Response {
    if is_stream(request.uri().path()) {
        return next.run(request).await;
    }
    let unread = Unread::of(&mut request);
    let mut response = next.run(request).await;
    if let Some(unread) = unread
        && is_refused_call(&response)
    {
        unread.finish(&mut response).await;
    }
    response
}

/// Runs every call in a span, if spans are exported. For a stream the span covers the opening.
async fn trace(request: HttpRequest, next: axum::middleware::Next) -> axum::response::Response {
    let traceparent = request.headers().get("traceparent").and_then(|value| value.to_str().ok());
    let name = request.uri().path().trim_start_matches('/');
    let span = crate::log::request_span(name, traceparent);
    let response = next.run(request).instrument(span.clone()).await;
    // The status of a call that was refused at once; others have it in their trailers.
    if let Some(code) = response.headers().get("hapax-code").and_then(|code| code.to_str().ok()) {
        span.record("answer", code);
    }
    response
}

/// Opens a stream. Its frames are the body of the response, unchanged.
async fn serve<O, S>(opener: Opener<O>, request: HttpRequest) -> http::Response<tonic::body::Body>
where
    O: Fn(Service, Arc<Principal>, Intake) -> S + Send,
    S: Stream<Item = Result<Vec<u8>, Status>> + Send + Unpin + 'static,
{
    let (head, body) = request.into_parts();
    let mut opened = None;
    let opening = Opening { opener, body: Some(body), opened: &mut opened };
    // The frames are read from the body itself; the rest of the call is tonic's.
    let request = HttpRequest::from_parts(head, Body::empty());
    let response = Grpc::new(Raw).streaming(opening, request).await;
    match opened {
        Some(stream) => response.map(|_| tonic::body::Body::new(Frames::of_response(stream))),
        None => response,
    }
}

/// Opens streams for authenticated callers.
#[derive(Clone)]
struct Opener<O> {
    service: Service,
    /// What the frames are in the `.proto`.
    frame: &'static str,
    open: O,
}

impl<O> Opener<O> {
    fn new(service: &Service, frame: &'static str, open: O) -> Self {
        Self { service: service.clone(), frame, open }
    }
}

/// The opening of one stream.
struct Opening<'a, O, S> {
    opener: Opener<O>,
    body: Option<Body>,
    opened: &'a mut Option<S>,
}

impl<O, S> StreamingService<Bytes> for Opening<'_, O, S>
where
    O: Fn(Service, Arc<Principal>, Intake) -> S,
{
    type Response = Infallible;
    type ResponseStream = Empty<Result<Infallible, Status>>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        let opened = principal(&request).and_then(|principal| {
            let meter = request.extensions().get::<Meter>().cloned().ok_or_else(unmetered)?;
            let Opener { service, frame, open } = &self.opener;
            let Some(body) = self.body.take() else {
                unreachable!("a stream is opened once");
            };
            let intake = Intake::new(body, frame, meter);
            *self.opened = Some(open(service.clone(), principal, intake));
            Ok(Response::new(futures_util::stream::empty()))
        });
        ready(opened.map_err(|problem| status(&problem)))
    }
}

/// Sets the status for health checks while the broker runs.
async fn report(health: tonic_health::server::HealthReporter, service: Service) {
    use tonic_health::ServingStatus::{NotServing, Serving};
    let engine = service.engine().clone();
    drop(service);
    for status in [Serving, NotServing] {
        health.set_service_status("", status).await;
        health.set_service_status("hapax.v1.Hapax", status).await;
        engine.unready().await;
    }
}

/// Health checks of a node that does not serve.
pub(super) fn health_of_a_standby() -> axum::Router {
    use tonic_health::ServingStatus::NotServing;
    let (health, healthy) = tonic_health::server::health_reporter();
    for service in ["", "hapax.v1.Hapax"] {
        // Nobody else has its lock yet.
        let set = health.set_service_status(service, NotServing).now_or_never();
        debug_assert!(set.is_some(), "it is set at once");
    }
    Routes::new(healthy).into_axum_router().reset_fallback()
}

/// A refused call.
pub(super) fn refused(problem: &Problem) -> axum::response::Response {
    status(problem).into_http()
}

/// The end of a stream that is refused after its beginning.
pub(super) fn trailers(problem: &Problem) -> http::HeaderMap {
    let mut trailers = http::HeaderMap::new();
    // A status of texts and numbers can be written.
    let _ = status(problem).add_header(&mut trailers);
    trailers
}

/// The broker behind the generated trait.
#[derive(Debug)]
struct Door {
    service: Service,
}

/// The caller, as authenticated by the meter.
fn principal<T>(request: &Request<T>) -> Result<Arc<Principal>, Problem> {
    request.extensions().get::<Arc<Principal>>().cloned().ok_or_else(unmetered)
}

/// A call of a service that the broker does not have.
pub(super) fn unknown_call() -> axum::response::Response {
    status::named(&Status::unimplemented("there is no such method")).into_http()
}

/// Every route leads through the meter.
fn unmetered() -> Problem {
    Problem::new(Code::Internal, "the call was not authenticated")
}
