//! Incoming frames. A frame that arrives in one chunk is a slice of it; tonic's own reader copies
//! every chunk into a buffer first.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http_body::Body;
use tonic::Status;

/// A flag for compression, which is off, and the length.
const HEAD: usize = 5;

/// The frames of a request or a response.
#[derive(Debug)]
pub struct Incoming<B> {
    body: B,
    /// The longest frame that is accepted.
    max: usize,
    /// The unread part of the last chunk.
    chunk: Bytes,
    /// The beginning of a frame whose rest is in the next chunks: its head, and then the frame.
    head: Vec<u8>,
    frame: Option<(Vec<u8>, usize)>,
    is_ended: bool,
}

impl<B> Incoming<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    pub fn new(body: B, max: usize) -> Self {
        let (head, chunk) = (Vec::with_capacity(HEAD), Bytes::new());
        Self { body, max, chunk, head, frame: None, is_ended: false }
    }

    /// The next frame; `None` at the end of a request or of a successful response.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        while !self.is_ended {
            match self.cut() {
                Ok(Some(frame)) => return Poll::Ready(Some(Ok(frame))),
                Ok(None) => {}
                Err(status) => return self.end(Some(status)),
            }
            let next = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(next)) => next,
                Some(Err(error)) => return self.end(Some(Status::from_error(error.into()))),
                None if self.head.is_empty() && self.frame.is_none() => return self.end(None),
                None => return self.end(Some(Status::internal("the stream ends in a frame"))),
            };
            match next.into_data() {
                Ok(chunk) => self.chunk = chunk,
                Err(next) => {
                    let trailers = next.into_trailers().unwrap_or_default();
                    let status = Status::from_header_map(&trailers);
                    return self.end(status.filter(|status| status.code() != tonic::Code::Ok));
                }
            }
        }
        Poll::Ready(None)
    }

    fn end(&mut self, status: Option<Status>) -> Poll<Option<Result<Bytes, Status>>> {
        self.is_ended = true;
        Poll::Ready(status.map(Err))
    }

    /// A frame, if the chunk has the rest of it.
    fn cut(&mut self) -> Result<Option<Bytes>, Status> {
        if self.frame.is_none() {
            let missing = (HEAD - self.head.len()).min(self.chunk.len());
            self.head.extend_from_slice(&self.chunk.split_to(missing));
            let &[flag, ref length @ ..] = self.head.as_slice() else { return Ok(None) };
            let Ok(length) = length.try_into().map(u32::from_be_bytes) else { return Ok(None) };
            let length = length as usize;
            if flag != 0 {
                return Err(Status::internal("the frame is compressed, which nobody asked for"));
            }
            if length > self.max {
                let what = format!("a frame of {length} bytes, where {} are allowed", self.max);
                return Err(Status::out_of_range(what));
            }
            self.head.clear();
            if self.chunk.len() >= length {
                return Ok(Some(self.chunk.split_to(length)));
            }
            self.frame = Some((Vec::with_capacity(length), length));
        }
        let Some((frame, length)) = &mut self.frame else { return Ok(None) };
        let missing = (*length - frame.len()).min(self.chunk.remaining());
        frame.extend_from_slice(&self.chunk.split_to(missing));
        let is_whole = frame.len() == *length;
        Ok(self.frame.take_if(|_| is_whole).map(|(frame, _)| frame.into()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;

    use http::HeaderMap;
    use http_body::Frame;

    use super::*;

    struct Chunks(VecDeque<Frame<Bytes>>);

    impl Body for Chunks {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(Ok))
        }
    }

    fn framed(frames: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for frame in frames {
            bytes.push(0);
            bytes.extend_from_slice(&(frame.len() as u32).to_be_bytes());
            bytes.extend_from_slice(frame);
        }
        bytes
    }

    fn read(chunks: impl IntoIterator<Item = Frame<Bytes>>) -> (Vec<Vec<u8>>, Option<Status>) {
        let mut incoming = Incoming::new(Chunks(chunks.into_iter().collect()), 1_000);
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut frames = Vec::new();
        loop {
            match incoming.poll_next(&mut context) {
                Poll::Ready(Some(Ok(frame))) => frames.push(frame.to_vec()),
                Poll::Ready(Some(Err(status))) => {
                    assert!(matches!(incoming.poll_next(&mut context), Poll::Ready(None)));
                    return (frames, Some(status));
                }
                Poll::Ready(None) => return (frames, None),
                Poll::Pending => panic!("all is there"),
            }
        }
    }

    #[test]
    fn frames_are_whole_however_they_are_cut() {
        let frames = [vec![], vec![1], vec![2; 300], vec![], vec![3; 1_000]];
        let bytes = framed(&frames);
        for size in [1, 2, 4, 5, 6, 7, 299, 306, bytes.len()] {
            let chunks = bytes.chunks(size).map(|part| Frame::data(Bytes::copy_from_slice(part)));
            let (read, status) = read(chunks);
            assert_eq!(read, frames, "in chunks of {size}");
            assert!(status.is_none());
        }
    }

    #[test]
    fn what_is_no_frame_ends_the_stream_with_a_status() {
        let chunk = |bytes: &[u8]| Frame::data(Bytes::copy_from_slice(bytes));
        let code = |chunk| read([chunk]).1.map(|status| status.code());
        let too_long = framed(&[vec![0; 1_001]]);
        assert_eq!(code(chunk(&too_long)), Some(tonic::Code::OutOfRange));
        assert_eq!(code(chunk(&[1, 0, 0, 0, 1, 9])), Some(tonic::Code::Internal), "compressed");
        assert_eq!(code(chunk(&[0, 0])), Some(tonic::Code::Internal), "cut off in its head");
        assert_eq!(code(chunk(&[0, 0, 0, 0, 2, 9])), Some(tonic::Code::Internal), "cut off");
        let mut trailers = HeaderMap::new();
        Status::unavailable("stops").add_header(&mut trailers).unwrap();
        let (frames, status) = read([chunk(&[0, 0, 0, 0, 1, 9]), Frame::trailers(trailers)]);
        assert_eq!(frames, [[9]]);
        assert_eq!(status.map(|status| status.code()), Some(tonic::Code::Unavailable));
    }
}
