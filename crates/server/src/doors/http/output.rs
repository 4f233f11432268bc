//! Sends answers. A small answer is sent directly. A large one waits for memory first, is sent in
//! parts, and is dropped when its reader takes too long: a client that does not read cannot make
//! the broker hold answers.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use http_body::{Frame, SizeHint};
use serde::Serialize;
use tokio::task::AbortHandle;

use super::failure::Failure;
use crate::service::{Admitted, Service};

/// The size from which an answer is a large one.
const LARGE_BYTES: usize = 64 * 1_024;
/// Timeout for reading a large answer.
const READ: Duration = Duration::from_secs(120);

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// An answer that is known to be small.
pub(super) fn small(status: StatusCode, value: &impl Serialize) -> Response {
    finish(status, Body::from(write(value, 512)))
}

/// An answer of about the given size.
pub(super) async fn sized(
    service: &Service,
    tenant: &Arc<str>,
    status: StatusCode,
    value: &impl Serialize,
    bytes_about: usize,
) -> Result<Response, Failure> {
    if bytes_about < LARGE_BYTES {
        return Ok(finish(status, Body::from(write(value, bytes_about.max(512)))));
    }
    let mut admitted = service.request(tenant);
    service.admit(&mut admitted, bytes_about).await?;
    let bytes = Bytes::from(write(value, bytes_about));
    Ok(finish(status, Body::new(Held::new(bytes, admitted))))
}

fn write(value: &impl Serialize, bytes_about: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(bytes_about);
    // Writing to memory does not fail, and every value has texts for names.
    let written = serde_json::to_writer(&mut bytes, value);
    debug_assert!(written.is_ok(), "{written:?}");
    bytes
}

fn finish(status: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

/// Bytes that count as used memory until they are read or the read times out.
struct Held {
    unsent: Unsent,
    left: usize,
    timer: AbortHandle,
}

type Unsent = Arc<Mutex<Option<(Bytes, Admitted)>>>;

#[derive(Debug, thiserror::Error)]
#[error("the client did not read the answer in time")]
struct Unread;

impl Held {
    fn new(bytes: Bytes, admitted: Admitted) -> Self {
        let left = bytes.len();
        let unsent: Unsent = Arc::new(Mutex::new(Some((bytes, admitted))));
        let clearing = Arc::clone(&unsent);
        let timer = tokio::spawn(async move {
            tokio::time::sleep(READ).await;
            clearing.lock().unwrap_or_else(PoisonError::into_inner).take();
        });
        Self { unsent, left, timer: timer.abort_handle() }
    }
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = Unread;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Unread>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let mut unsent = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((bytes, _)) = unsent.as_mut() else {
            return Poll::Ready(Some(Err(Unread)));
        };
        let part = bytes.split_to(bytes.len().min(LARGE_BYTES));
        if bytes.is_empty() {
            unsent.take();
        }
        drop(unsent);
        self.left = self.left.saturating_sub(part.len());
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left as u64)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.timer.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body::Body as _;
    use http_body_util::BodyExt;

    use crate::service::Memory;

    async fn held(bytes: usize) -> (Held, Memory) {
        let memory = Memory::new(1_024 * 1_024);
        let mut admitted = memory.request(&"default".into());
        admitted.take(bytes).await;
        (Held::new(vec![b'x'; bytes].into(), admitted), memory)
    }

    #[tokio::test]
    async fn a_large_answer_leaves_in_parts_and_gives_its_memory_back() {
        let (mut held, memory) = held(3 * LARGE_BYTES + 5).await;
        assert_eq!(held.size_hint().exact(), Some(3 * LARGE_BYTES as u64 + 5));
        let mut parts = Vec::new();
        while let Some(part) = held.frame().await {
            assert!(parts.is_empty() || !memory.is_whole() || held.is_end_stream());
            parts.push(part.unwrap().into_data().unwrap().len());
        }
        assert_eq!(parts, [LARGE_BYTES, LARGE_BYTES, LARGE_BYTES, 5]);
        assert!(memory.is_whole());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_reads_is_let_go() {
        let (mut held, memory) = held(2 * LARGE_BYTES).await;
        held.frame().await.unwrap().unwrap();
        assert!(!memory.is_whole());
        // The clock is the test's own: it goes on when nothing else does.
        tokio::time::sleep(READ + Duration::from_secs(1)).await;
        assert!(memory.is_whole());
        assert!(held.frame().await.unwrap().is_err());
    }
}
