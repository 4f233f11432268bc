//! Outgoing frames. A frame is sent as a chunk of the body without copying, after the five bytes
//! that gRPC puts before a message; tonic's own body copies every frame into a buffer first.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};
use tonic::Status;
use tonic::codegen::tokio_stream::Stream;

/// A flag for compression, which is off, and the length.
const HEAD: usize = 5;
/// A small frame is copied behind its head: that is cheaper than another chunk.
const COPIED_BYTES_MAX: usize = 1_024;

/// The body of a request or a response, made of frames.
#[derive(Debug)]
pub struct Frames<S> {
    stream: S,
    /// The frame whose head was sent.
    next: Option<Bytes>,
    /// A response ends with its status, a request with nothing.
    has_status: bool,
    is_ended: bool,
}

impl<S> Frames<S> {
    pub fn of_request(stream: S) -> Self {
        Self { stream, next: None, has_status: false, is_ended: false }
    }

    pub fn of_response(stream: S) -> Self {
        Self { has_status: true, ..Self::of_request(stream) }
    }

    fn end(&mut self, status: &Status) -> Option<Result<Frame<Bytes>, Status>> {
        self.is_ended = true;
        self.has_status.then(|| {
            let mut trailers = HeaderMap::new();
            status.add_header(&mut trailers).map(|()| Frame::trailers(trailers))
        })
    }
}

impl<T, S> Body for Frames<S>
where
    T: Into<Bytes>,
    S: Stream<Item = Result<T, Status>> + Unpin,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(frame) = self.next.take() {
            return Poll::Ready(Some(Ok(Frame::data(frame))));
        }
        if self.is_ended {
            return Poll::Ready(None);
        }
        let frame: Bytes = match ready!(Pin::new(&mut self.stream).poll_next(context)) {
            Some(Ok(frame)) => frame.into(),
            Some(Err(status)) => return Poll::Ready(self.end(&status)),
            None => return Poll::Ready(self.end(&Status::ok(""))),
        };
        let Ok(length) = u32::try_from(frame.len()) else {
            let status = Status::out_of_range("the frame is larger than gRPC allows");
            return Poll::Ready(self.end(&status));
        };
        let mut head = Vec::with_capacity(HEAD + COPIED_BYTES_MAX);
        head.push(0);
        head.extend_from_slice(&length.to_be_bytes());
        if frame.len() <= COPIED_BYTES_MAX {
            head.extend_from_slice(&frame);
        } else {
            self.next = Some(frame);
        }
        Poll::Ready(Some(Ok(Frame::data(head.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_ended && self.next.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Chunk = Result<Frame<Bytes>, Status>;

    fn chunks(frames: Frames<impl Stream<Item = Result<Vec<u8>, Status>> + Unpin>) -> Vec<Chunk> {
        let mut frames = frames;
        let mut context = Context::from_waker(std::task::Waker::noop());
        std::iter::from_fn(|| match Pin::new(&mut frames).poll_frame(&mut context) {
            Poll::Ready(chunk) => chunk,
            Poll::Pending => panic!("all is there"),
        })
        .collect()
    }

    fn stream(
        items: Vec<Result<Vec<u8>, Status>>,
    ) -> impl Stream<Item = Result<Vec<u8>, Status>> + Unpin {
        tonic::codegen::tokio_stream::iter(items)
    }

    fn data(chunks: &[Chunk]) -> Vec<u8> {
        let data = chunks.iter().flatten().filter_map(Frame::data_ref);
        data.flat_map(|bytes| bytes.to_vec()).collect()
    }

    #[test]
    fn frames_of_any_size_follow_their_heads() {
        for size in [0, 1, COPIED_BYTES_MAX, COPIED_BYTES_MAX + 1, 100_000] {
            let frame = vec![7; size];
            let chunks = chunks(Frames::of_request(stream(vec![Ok(frame.clone()), Ok(vec![1])])));
            let mut expected = vec![0];
            expected.extend_from_slice(&(size as u32).to_be_bytes());
            expected.extend_from_slice(&frame);
            expected.extend_from_slice(&[0, 0, 0, 0, 1, 1]);
            assert_eq!(data(&chunks), expected, "{size}");
            assert!(chunks.iter().flatten().all(Frame::is_data), "a request has no trailers");
        }
    }

    #[test]
    fn a_response_ends_with_its_status() {
        let refused = Status::unavailable("the broker stops");
        for (last, code) in [(None, "0"), (Some(Err(refused)), "14")] {
            let items = std::iter::once(Ok(vec![9])).chain(last).collect();
            let chunks = chunks(Frames::of_response(stream(items)));
            assert_eq!(data(&chunks), [0, 0, 0, 0, 1, 9]);
            let trailers = chunks.last().unwrap().as_ref().unwrap().trailers_ref().unwrap();
            assert_eq!(trailers.get("grpc-status").unwrap(), code);
        }
    }
}
