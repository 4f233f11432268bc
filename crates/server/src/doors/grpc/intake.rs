//! The frames of a stream, each with its share of the memory for requests.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::Stream;
use hapax_wire::lean::check_members;
use tonic::{Status, Streaming};

use super::meter::Meter;
use super::status::{named, undecoded};
use crate::service::Admitted;

/// A frame, and its share of the memory, held until it is dropped.
pub(super) type Admission = (Bytes, Admitted);

pub(super) struct Intake {
    frames: Streaming<Bytes>,
    /// What its frames are in the `.proto`.
    name: &'static str,
    meter: Meter,
    is_ended: bool,
}

impl Intake {
    pub(super) fn new(frames: Streaming<Bytes>, name: &'static str, meter: Meter) -> Self {
        Self { frames, name, meter, is_ended: false }
    }

    /// Whether the caller has ended the stream, or it is no longer read.
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
        check_members(self.name, &frame).map_err(undecoded)?;
        let admitted = self.meter.split(&frame);
        Poll::Ready(Ok(Some((frame, admitted))))
    }
}
