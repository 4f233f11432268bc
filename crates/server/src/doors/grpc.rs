//! The gRPC API: two streams for speed, unary calls for the rest. Converts bytes to commands and
//! outcomes to bytes; it has no rules. The refusal of a whole call is a status with the code in its
//! metadata; the refusal of one message or settle is an answer in its place.

mod backup;

mod intake;
mod meter;
mod outbox;
mod part;
mod put;
mod send;
mod status;
mod unary;
mod work;

use std::future::{Ready, ready};
use std::sync::Arc;

use axum::extract::Request as HttpRequest;
use axum::routing::post;
use bytes::Bytes;
use futures_util::Stream;
use hapax_wire::lean::Raw;
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
use intake::Intake;
use meter::Meter;
use send::SendStream;
use status::status;
use work::WorkStream;

/// A frame up: what the largest request of HTTP holds, and its framing.
pub(super) const FRAME_BYTES_MAX: usize = 32 * 1_024 * 1_024 + 64 * 1_024;
const SEND: &str = "/hapax.v1.Hapax/Send";
const WORK: &str = "/hapax.v1.Hapax/Work";

/// Every gRPC service of the broker: its own, health and reflection.
pub fn routes(service: Service) -> axum::Router {
    let (health, healthy) = tonic_health::server::health_reporter();
    tokio::spawn(report(health, service.clone()));
    let sends = Opener { service: service.clone(), open: SendStream::new };
    let works = Opener { service: service.clone(), open: WorkStream::new };
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
        .route(WORK, post(move |request: HttpRequest| serve(works.clone(), request)));
    let metered = axum::middleware::from_fn_with_state(metered, meter::admit);
    let traced = axum::middleware::from_fn(trace);
    let read = axum::middleware::from_fn(read_refused);
    let routes = routes.routes().into_axum_router().merge(streams);
    routes.layer(metered).layer(traced).layer(read)
}

/// Reads what is left of a small call that was refused, so that its caller gets the refusal. The
/// two streams are left alone: they are read frame by frame for as long as they live.
async fn read_refused(
    mut request: HttpRequest,
    next: axum::middleware::Next,
) -> axum::response::Response {
    if matches!(request.uri().path(), SEND | WORK) {
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

/// Every call in a span of its own, where spans are exported. Of a stream it is the opening.
async fn trace(request: HttpRequest, next: axum::middleware::Next) -> axum::response::Response {
    let traceparent = request.headers().get("traceparent").and_then(|value| value.to_str().ok());
    let name = request.uri().path().trim_start_matches('/');
    let span = crate::log::request_span(name, traceparent);
    let response = next.run(request).instrument(span.clone()).await;
    // The status of a call that was refused at once; others tell it behind their answers.
    if let Some(code) = response.headers().get("hapax-code").and_then(|code| code.to_str().ok()) {
        span.record("answer", code);
    }
    response
}

async fn serve<O: StreamingService<Bytes, Response = Vec<u8>> + Send>(
    opener: O,
    request: HttpRequest,
) -> http::Response<tonic::body::Body>
where
    O::ResponseStream: Send + 'static,
{
    let mut grpc = Grpc::new(Raw::default())
        .max_decoding_message_size(FRAME_BYTES_MAX)
        .max_encoding_message_size(usize::MAX);
    grpc.streaming(opener, request).await
}

/// Opens streams for callers who are known.
#[derive(Clone)]
struct Opener<O> {
    service: Service,
    open: O,
}

impl<O, S> StreamingService<Bytes> for Opener<O>
where
    O: Fn(Service, Arc<Principal>, Intake) -> S,
    S: Stream<Item = Result<Vec<u8>, Status>>,
{
    type Response = Vec<u8>;
    type ResponseStream = S;
    type Future = Ready<Result<Response<S>, Status>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        let opened = principal(&request).and_then(|principal| {
            let meter = request.extensions().get::<Meter>().cloned().ok_or_else(unmetered)?;
            let intake = Intake::new(request.into_inner(), meter);
            Ok(Response::new((self.open)(self.service.clone(), principal, intake)))
        });
        ready(opened.map_err(|problem| status(&problem)))
    }
}

/// Says what health checks get to hear, as long as the broker runs.
async fn report(health: tonic_health::server::HealthReporter, service: Service) {
    use tonic_health::ServingStatus::{NotServing, Serving};
    let engine = service.engine().clone();
    drop(service);
    for status in [Serving, NotServing] {
        health.set_service_status("", status).await;
        health.set_service_status("hapax.v1.Hapax", status).await;
        tokio::select! {
            () = engine.draining() => {}
            _ = engine.failed() => {}
        }
    }
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
