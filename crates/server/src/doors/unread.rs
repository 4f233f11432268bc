//! Reads the rest of a refused request's body. A caller that sends its whole body before it reads
//! the answer would lose the answer if the connection were closed at once. So a part of the rest is
//! read and discarded; if more is left, the answer has `Connection: close`. Over HTTP/2 the request
//! is reset after its answer, and some clients (curl 7.88) then drop the answer: there a small rest
//! is read too.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CONNECTION, EXPECT};
use http::{HeaderValue, Version};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::time::timeout;

/// How much of a body is read and discarded, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rest {
    bytes_max: usize,
    wait: Duration,
    /// Whether the connection is closed if more is left.
    is_closing: bool,
}

/// Several times the size of an ordinary message: the connection depends on it.
const HTTP1: Rest =
    Rest { bytes_max: 4 * 1_024 * 1_024, wait: Duration::from_secs(2), is_closing: true };
/// Requests end one by one, so less is at stake.
const HTTP2: Rest = Rest { bytes_max: 64 * 1_024, wait: Duration::from_secs(1), is_closing: false };

/// A body that a handler may leave unread.
#[derive(Clone, Debug)]
pub(super) struct Unread {
    body: Arc<Mutex<Option<Body>>>,
    rest: Rest,
    /// The caller waits to be asked for its body.
    is_expected: bool,
}

impl Unread {
    /// Keeps access to the body of a request, if it has one.
    pub(super) fn of(request: &mut Request) -> Option<Self> {
        if request.body().is_end_stream() {
            return None;
        }
        let rest = if request.version() >= Version::HTTP_2 { HTTP2 } else { HTTP1 };
        let is_expected = request.headers().contains_key(EXPECT);
        let body = std::mem::take(request.body_mut());
        let unread = Self { body: Arc::new(Mutex::new(Some(body))), rest, is_expected };
        *request.body_mut() = Body::new(unread.clone());
        Some(unread)
    }

    /// Discards the rest, and marks the answer if the connection must be closed.
    pub(super) async fn finish(self, response: &mut Response) {
        let Some(mut body) = self.lock().take() else { return };
        let Rest { bytes_max, wait, is_closing } = self.rest;
        if !is_closing && body.size_hint().lower() > bytes_max as u64 {
            return; // It is known to be more.
        }
        let rest = async {
            let mut bytes = 0;
            while bytes <= bytes_max {
                match body.frame().await {
                    Some(Ok(frame)) => bytes += frame.data_ref().map_or(0, Bytes::len),
                    Some(Err(_)) => return false,
                    None => return true,
                }
            }
            false
        };
        let is_whole = !self.is_expected && timeout(wait, rest).await.unwrap_or(false);
        if !is_whole && is_closing {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Body>> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a gRPC call was refused before it had an answer: such a status is a header.
pub(super) fn is_refused_call(response: &Response) -> bool {
    response.headers().contains_key(tonic::Status::GRPC_STATUS)
}

impl HttpBody for Unread {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut body = self.lock();
        let Some(unread) = body.as_mut() else { return Poll::Ready(None) };
        let polled = Pin::new(unread).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) {
            *body = None; // All of it was read.
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.lock().as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.lock().as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn request(bytes: usize, chunks: usize) -> Request {
        let part = Bytes::from(vec![b'x'; bytes]);
        let parts = (0..chunks).map(move |_| Ok::<_, Infallible>(part.clone()));
        Request::new(Body::from_stream(futures_util::stream::iter(parts)))
    }

    async fn is_closed(unread: Unread) -> bool {
        let mut response = Response::new(Body::empty());
        unread.finish(&mut response).await;
        response.headers().contains_key(CONNECTION)
    }

    #[tokio::test]
    async fn the_rest_of_a_refused_body_is_thrown_away_or_the_connection_ends() {
        assert!(Unread::of(&mut Request::new(Body::empty())).is_none());
        let mut small = request(1_000, 3);
        assert!(!is_closed(Unread::of(&mut small).unwrap()).await);
        let mut large = request(1_024 * 1_024, 8);
        assert!(is_closed(Unread::of(&mut large).unwrap()).await);
        let mut expected = request(10, 1);
        expected.headers_mut().insert(EXPECT, HeaderValue::from_static("100-continue"));
        assert!(is_closed(Unread::of(&mut expected).unwrap()).await, "it was never asked for");
    }

    #[tokio::test]
    async fn over_http2_a_small_rest_is_read_and_a_large_one_is_left() {
        let http2 = |mut request: Request| {
            *request.version_mut() = Version::HTTP_2;
            Unread::of(&mut request).unwrap()
        };
        for (bytes, chunks) in [(1_000, 3), (1_024 * 1_024, 8)] {
            assert!(!is_closed(http2(request(bytes, chunks))).await, "others use the connection");
        }
        let known = Request::new(Body::from(vec![0; HTTP2.bytes_max + 1]));
        assert!(!is_closed(http2(known)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rest_that_does_not_come_is_not_waited_for_for_long() {
        let mut request = Request::new(Body::from_stream(futures_util::stream::pending::<
            Result<Bytes, Infallible>,
        >()));
        *request.version_mut() = Version::HTTP_2;
        assert!(!is_closed(Unread::of(&mut request).unwrap()).await);
    }

    #[tokio::test(start_paused = true)]
    async fn over_http2_nothing_of_a_rest_that_is_known_to_be_large_is_waited_for() {
        struct Promised;

        impl HttpBody for Promised {
            type Data = Bytes;
            type Error = Infallible;

            fn poll_frame(
                self: Pin<&mut Self>,
                _: &mut Context<'_>,
            ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
                Poll::Pending
            }

            fn size_hint(&self) -> SizeHint {
                SizeHint::with_exact(HTTP2.bytes_max as u64 + 1)
            }
        }

        let mut request = Request::new(Body::new(Promised));
        *request.version_mut() = Version::HTTP_2;
        let started = tokio::time::Instant::now();
        assert!(!is_closed(Unread::of(&mut request).unwrap()).await);
        assert_eq!(started.elapsed(), Duration::ZERO);
    }

    #[tokio::test]
    async fn a_body_that_was_read_has_no_rest() {
        let mut request = request(10, 3);
        let unread = Unread::of(&mut request).unwrap();
        let read = request.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(read.len(), 30);
        assert!(unread.lock().is_none());
        assert!(!is_closed(unread).await);
    }
}
