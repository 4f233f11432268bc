//! The frames of a stream, each with its share of the memory for requests.

use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use hapax_wire::lean::{Incoming, check_members};
use tonic::{Code, Status};

use super::FRAME_BYTES_MAX;
use super::meter::Meter;
use super::status::{named, undecoded};
use crate::service::Admitted;

/// A frame, and its share of the memory, held until it is dropped.
pub(super) type Admission = (Bytes, Admitted);

pub(super) struct Intake {
    frames: Incoming<Body>,
    /// What its frames are in the `.proto`.
    name: &'static str,
    meter: Meter,
    is_ended: bool,
}

impl Intake {
    pub(super) fn new(body: Body, name: &'static str, meter: Meter) -> Self {
        Self { frames: Incoming::new(body, FRAME_BYTES_MAX), name, meter, is_ended: false }
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
        let frame = match ready!(self.frames.poll_next(context)) {
            Some(Ok(frame)) => frame,
            // A caller that is gone, or has cancelled its call, has ended the stream.
            Some(Err(status)) if status.code() != Code::Cancelled => {
                return Poll::Ready(Err(named(&status)));
            }
            Some(Err(_)) | None => {
                self.is_ended = true;
                return Poll::Ready(Ok(None));
            }
        };
        check_members(self.name, &frame).map_err(undecoded)?;
        let admitted = self.meter.split(&frame);
        Poll::Ready(Ok(Some((frame, admitted))))
    }
}
