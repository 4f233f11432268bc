//! Accounts the memory of calls: taken as their bytes arrive, held until they are answered. A
//! caller is authenticated before any of its bytes are read. A unary call holds memory for its
//! bytes until it is answered, and must arrive in time. A stream holds memory for its bytes until
//! they are a whole frame, which then has its own share; while there is no memory, the stream is
//! not read.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::{Code, Status};

use super::is_stream;
use super::status::{CODE, named, status};
use crate::auth::Principal;
use crate::doors::pace::{Pace, late};
use crate::problem::Problem;
use crate::service::{ADMISSION, Admitted, Service, no_memory};

/// Memory that a part of a body takes besides its bytes.
const OVERHEAD_BYTES: usize = 512;
/// The services that need no token have this in their paths instead of ours.
const OURS: &str = "/hapax.v1.Hapax/";

/// The memory of one call.
#[derive(Clone, Debug)]
pub(super) struct Meter(Arc<Mutex<Admitted>>);

impl Meter {
    /// The share of a complete frame.
    pub(super) fn split(&self, frame: &Bytes) -> Admitted {
        self.with(|admitted| admitted.split(frame.len() + OVERHEAD_BYTES))
    }

    fn with<T>(&self, change: impl FnOnce(&mut Admitted) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Authenticates a call and meters what it sends.
pub(super) async fn admit(
    State(service): State<Service>,
    mut request: Request,
    next: Next,
) -> Response {
    if !request.uri().path().starts_with(OURS) {
        return next.run(request).await;
    }
    let principal = match principal(&service, request.headers()) {
        Ok(principal) => principal,
        Err(problem) => return status(&problem).into_http(),
    };
    let meter = Meter(Arc::new(Mutex::new(service.request(principal.tenant()))));
    let timing = (!is_stream(request.uri().path())).then(Timing::begin);
    let extensions = request.extensions_mut();
    extensions.insert(principal);
    extensions.insert(meter.clone());
    let request = request
        .map(|body| Body::new(Metered { body, meter: meter.clone(), arrived: None, timing }));
    // The answer to a unary call is complete when this ends; a stream has its own copy.
    let mut response = next.run(request).await;
    drop(meter);
    name(response.headers_mut());
    response
}

/// Gives a refusal by the framework, which never reached a handler, one of our codes.
fn name(headers: &mut HeaderMap) {
    if headers.contains_key(CODE) || !headers.contains_key(Status::GRPC_STATUS) {
        return;
    }
    if let Some(refused) = Status::from_header_map(headers).filter(|it| it.code() != Code::Ok) {
        let refused = named(&Status::new(refused.code(), refused.message()));
        // A status was read from headers, so it fits into them again.
        let written = refused.add_header(headers);
        debug_assert!(written.is_ok(), "{written:?}");
    }
}

/// Authenticates the caller. Two tokens are refused, because the caller would be ambiguous.
fn principal(service: &Service, headers: &HeaderMap) -> Result<Arc<Principal>, Problem> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().map(|value| value.as_bytes());
    let value = if values.next().is_some() { Some(&b""[..]) } else { value };
    service.authenticate(value)
}

/// A body whose parts are passed on when there is memory for them.
struct Metered {
    body: Body,
    meter: Meter,
    /// A part that waits for memory. No other is read meanwhile.
    arrived: Option<Frame<Bytes>>,
    /// The pace of a unary call, which must arrive in time.
    timing: Option<Timing>,
}

struct Timing {
    pace: Pace,
    timer: Pin<Box<Sleep>>,
    /// Since when it waits for memory.
    asked: Option<Instant>,
}

impl Timing {
    fn begin() -> Self {
        let pace = Pace::begin();
        let timer = Box::pin(sleep_until(pace.next_by()));
        Self { pace, timer, asked: None }
    }

    /// A part has arrived, and waits for memory from now on.
    fn arrived(&mut self, bytes: usize) {
        let now = Instant::now();
        self.pace.received(bytes);
        self.asked = Some(now);
        self.timer.as_mut().reset(now + ADMISSION);
    }

    /// It has its memory; the next part may come.
    fn admitted(&mut self) {
        if let Some(asked) = self.asked.take() {
            self.pace.waited(asked.elapsed());
        }
        self.timer.as_mut().reset(self.pace.next_by());
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        ready!(self.timer.as_mut().poll(context));
        let why = if self.asked.is_some() { no_memory() } else { late() };
        Poll::Ready(status(&why))
    }
}

impl Metered {
    fn poll_part(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        loop {
            if let Some(frame) = &self.arrived {
                let bytes = frame.data_ref().map_or(0, Bytes::len) + OVERHEAD_BYTES;
                ready!(self.meter.with(|admitted| admitted.poll_take(context, bytes)));
                if let Some(timing) = &mut self.timing {
                    timing.admitted();
                }
                return Poll::Ready(self.arrived.take().map(Ok));
            }
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)) else {
                return Poll::Ready(None);
            };
            let frame = frame?;
            if let Some(timing) = &mut self.timing {
                timing.arrived(frame.data_ref().map_or(0, Bytes::len));
            }
            self.arrived = Some(frame);
        }
    }
}

impl HttpBody for Metered {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = this.poll_part(context) {
            return Poll::Ready(frame);
        }
        let Some(timing) = &mut this.timing else { return Poll::Pending };
        timing.poll(context).map(|status| Some(Err(axum::Error::new(status))))
    }

    fn is_end_stream(&self) -> bool {
        self.arrived.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
