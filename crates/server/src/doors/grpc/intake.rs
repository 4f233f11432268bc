//! The frames of a stream, each when there is memory for it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::Stream;
use hapax_wire::Code;
use tokio::sync::OwnedSemaphorePermit;
use tonic::{Status, Streaming};

use super::status::status;
use crate::problem::Problem;
use crate::service::Service;

/// What a frame takes besides its bytes.
const OVERHEAD_BYTES: usize = 512;

type Admission = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, Problem>> + Send>>;

/// A frame, and its share of the memory for requests, held until the permit is dropped.
pub(super) type Admitted = (Bytes, OwnedSemaphorePermit);

pub(super) struct Intake {
    service: Service,
    frames: Streaming<Bytes>,
    /// A frame that waits for memory. No other is read meanwhile.
    waiting: Option<(Admission, Bytes)>,
    is_ended: bool,
}

impl Intake {
    pub(super) fn new(service: Service, frames: Streaming<Bytes>) -> Self {
        Self { service, frames, waiting: None, is_ended: false }
    }

    /// Whether the caller says no more, or is not listened to any more.
    pub(super) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Reads no more.
    pub(super) fn end(&mut self) {
        self.is_ended = true;
        self.waiting = None;
    }

    /// The next frame, or `None` at the end.
    pub(super) fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Admitted>, Status>> {
        if self.is_ended {
            return Poll::Ready(Ok(None));
        }
        if self.waiting.is_none() {
            let Some(frame) = ready!(Pin::new(&mut self.frames).poll_next(context)) else {
                self.is_ended = true;
                return Poll::Ready(Ok(None));
            };
            let frame = frame.map_err(named)?;
            let bytes = frame.len() + OVERHEAD_BYTES;
            if let Some(permit) = self.service.try_admit(bytes) {
                return Poll::Ready(Ok(Some((frame, permit))));
            }
            let service = self.service.clone();
            let admission = Box::pin(async move { service.admit(bytes).await });
            self.waiting = Some((admission, frame));
        }
        let Some((admission, _)) = &mut self.waiting else { return Poll::Pending };
        let permit = ready!(admission.as_mut().poll(context)).map_err(|why| status(&why))?;
        let frame = self.waiting.take().map(|(_, frame)| frame);
        Poll::Ready(Ok(frame.map(|frame| (frame, permit))))
    }
}

/// What the framing refused, with a code of ours where the caller is to blame.
fn named(refused: Status) -> Status {
    let code = match refused.code() {
        tonic::Code::OutOfRange => Code::TooLarge,
        tonic::Code::Internal | tonic::Code::Unimplemented => Code::Invalid,
        _ => return refused,
    };
    status(&Problem::new(code, refused.message()))
}
