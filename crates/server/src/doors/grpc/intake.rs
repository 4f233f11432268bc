//! The frames of a stream, each with its share of the memory for requests.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::Stream;
use tonic::{Status, Streaming};

use super::meter::Meter;
use super::status::named;
use crate::service::Admitted;

/// A frame, and its share of the memory, held until it is dropped.
pub(super) type Admission = (Bytes, Admitted);

pub(super) struct Intake {
    frames: Streaming<Bytes>,
    meter: Meter,
    is_ended: bool,
}

impl Intake {
    pub(super) fn new(frames: Streaming<Bytes>, meter: Meter) -> Self {
        Self { frames, meter, is_ended: false }
    }

    /// Whether the caller says no more, or is not listened to any more.
    pub(super) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Reads no more.
    pub(super) fn end(&mut self) {
        self.is_ended = true;
    }

    /// The next frame, or `None` at the end.
    pub(super) fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Admission>, Status>> {
        if self.is_ended {
            return Poll::Ready(Ok(None));
        }
        let Some(frame) = ready!(Pin::new(&mut self.frames).poll_next(context)) else {
            self.is_ended = true;
            return Poll::Ready(Ok(None));
        };
        let frame = frame.map_err(|refused| named(&refused))?;
        let admitted = self.meter.split(&frame);
        Poll::Ready(Ok(Some((frame, admitted))))
    }
}
