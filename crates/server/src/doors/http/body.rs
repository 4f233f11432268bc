//! Reads the bodies of requests within limits of memory and time. Memory is taken as the bytes
//! arrive, in steps that double: a request that announces a large length and sends little holds
//! little. A request that is too slow or too large is refused.

use std::sync::Arc;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use hapax_core::{BodyHasher, QueueName, Recipe, limits};
use hapax_wire::{Code, json};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use serde::Deserialize;
use tokio::time::{Instant, timeout_at};

use super::failure::Failure;
use crate::doors::pace::{Pace, late};
use crate::problem::Problem;
use crate::service::{Admitted, Permit, Service};

/// Bytes requested at first.
const STEP_BYTES: usize = 64 * 1_024;
/// What the smallest request counts for.
const REQUEST_BYTES_MIN: usize = 1_024;
const CHUNK_BYTES_MAX: usize = 1_024 * 1_024;
/// Memory for a whole body of known length is allocated when this much of it has arrived.
const DEPOSIT_BYTES: usize = 1_024 * 1_024;
/// The most JSON of unknown length.
const UNTOLD_BYTES_MAX: usize = 8 * 1_024 * 1_024;
/// Messages up to this size are read without checking the limit of their queue first: the queue
/// refuses them itself.
const UNASKED_BYTES_MAX: u64 = 1_024 * 1_024;

/// A body, and the memory it takes.
#[derive(Debug)]
pub(super) struct Payload {
    pub(super) bytes: Bytes,
    admitted: Admitted,
}

impl Payload {
    /// Drops the bytes. What was built from them still counts.
    pub(super) fn into_admitted(self) -> Admitted {
        self.admitted
    }
}

/// Reads a body of limited size.
pub(super) async fn read(
    service: &Service,
    tenant: &Arc<str>,
    headers: &HeaderMap,
    body: Body,
    max: usize,
) -> Result<Payload, Failure> {
    let max = Max { bytes: max, would_help: "", queue: None };
    read_within(service, tenant, headers, body, max).await
}

/// Reads a message no larger than its queue allows.
pub(super) async fn read_message(
    service: &Service,
    permit: &Permit,
    headers: &HeaderMap,
    body: Body,
) -> Result<Payload, Failure> {
    let bytes = limits::BODY_BYTES_MAX as usize;
    let max = Max { bytes, would_help: "", queue: Some(permit.queue()) };
    read_within(service, permit.tenant(), headers, body, max).await
}

/// Hashes a body of limited size, without keeping it.
pub(super) async fn hash(
    recipe: &Recipe,
    headers: &HeaderMap,
    mut body: Body,
    max: usize,
) -> Result<BodyHasher, Failure> {
    check_encoding(headers)?;
    if told_length(headers)?.is_some_and(|length| length > max as u64) {
        return Err(too_large(max));
    }
    let mut pace = Pace::begin();
    let mut hasher = recipe.hasher();
    while let Some(frame) = next_frame(&mut body, &mut pace).await? {
        let Ok(part) = frame.into_data() else { continue };
        hasher.update(&part);
        if hasher.count() > max as u64 {
            return Err(too_large(max));
        }
    }
    Ok(hasher)
}

/// How large a body may be.
struct Max<'a> {
    bytes: usize,
    /// Hint appended to the error when the body is too large.
    would_help: &'static str,
    /// The queue whose limit may be lower; checked only if the body is large.
    queue: Option<&'a QueueName>,
}

impl Max<'_> {
    async fn check(&mut self, service: &Service, bytes: u64) -> Result<(), Failure> {
        if bytes > UNASKED_BYTES_MAX
            && let Some(queue) = self.queue.take()
        {
            let shown = service.engine().show(queue).await.map_err(Problem::from)?;
            let max = shown.map_err(Problem::from)?.config.max_body_bytes;
            self.bytes = usize::try_from(max).unwrap_or(usize::MAX).min(self.bytes);
        }
        match bytes > self.bytes as u64 {
            true => Err(larger_than(self.bytes, self.would_help)),
            false => Ok(()),
        }
    }
}

async fn read_within(
    service: &Service,
    tenant: &Arc<str>,
    headers: &HeaderMap,
    mut body: Body,
    mut max: Max<'_>,
) -> Result<Payload, Failure> {
    check_encoding(headers)?;
    let told = told_length(headers)?;
    max.check(service, told.unwrap_or(0)).await?;
    let length = told.and_then(|length| usize::try_from(length).ok());
    let mut room = length.unwrap_or(STEP_BYTES).min(STEP_BYTES);
    let mut admitted = service.request(tenant);
    service.admit(&mut admitted, room.max(REQUEST_BYTES_MIN)).await?;
    let mut pace = Pace::begin();
    let mut parts = Parts::new(length.unwrap_or(0));
    while let Some(frame) = next_frame(&mut body, &mut pace).await? {
        let Ok(part) = frame.into_data() else { continue };
        let total = parts.len() + part.len();
        max.check(service, total as u64).await?;
        while total > room {
            let step = room.max(STEP_BYTES); // Doubling: the chunks, and what they are joined to.
            let step = length.map_or(step, |length| step.min(length.saturating_sub(room)).max(1));
            let asked = Instant::now();
            service.admit(&mut admitted, step).await?;
            pace.waited(asked.elapsed());
            room += step;
        }
        parts.push(part);
    }
    Ok(Payload { bytes: parts.join(), admitted })
}

/// Reads a body of JSON; an empty one is an empty object. A large one needs a known length, so that
/// it is not joined from parts.
pub(super) async fn read_json(
    service: &Service,
    tenant: &Arc<str>,
    headers: &HeaderMap,
    body: Body,
    max: usize,
) -> Result<Payload, Failure> {
    check_json(headers)?;
    let bytes = match told_length(headers)? {
        Some(_) => max,
        None => max.min(UNTOLD_BYTES_MAX),
    };
    let would_help = if bytes < max { "; larger bodies need a Content-Length header" } else { "" };
    let max = Max { bytes, would_help, queue: None };
    let mut payload = read_within(service, tenant, headers, body, max).await?;
    if payload.bytes.is_empty() {
        payload.bytes = Bytes::from_static(b"{}");
    }
    Ok(payload)
}

/// The value in a body of JSON.
pub(super) fn parse<'a, T: Deserialize<'a>>(payload: &'a Payload) -> Result<T, Failure> {
    json::read(&payload.bytes).map_err(|error| Failure::invalid(error.to_string()))
}

/// The next part of a body, which has to arrive in time.
pub(super) async fn next_frame(
    body: &mut Body,
    pace: &mut Pace,
) -> Result<Option<http_body::Frame<Bytes>>, Failure> {
    match timeout_at(pace.next_by(), body.frame()).await {
        Ok(Some(Ok(frame))) => {
            pace.received(frame.data_ref().map_or(0, Bytes::len));
            Ok(Some(frame))
        }
        Ok(None) => Ok(None),
        Ok(Some(Err(_))) => {
            Err(Failure::invalid("the connection ended before the end of the body"))
        }
        Err(_) => Err(Failure::with_status(StatusCode::REQUEST_TIMEOUT, late())),
    }
}

pub(super) fn too_large(max: usize) -> Failure {
    larger_than(max, "")
}

fn larger_than(max: usize, would_help: &str) -> Failure {
    let detail = format!("the body of the request has more than {max} bytes{would_help}");
    Problem::new(Code::TooLarge, detail).into()
}

/// Nothing is decompressed: a small body could become a large one.
fn check_encoding(headers: &HeaderMap) -> Result<(), Failure> {
    let all = headers.get_all(CONTENT_ENCODING).iter();
    for encoding in all {
        if !encoding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity") {
            let detail = "Content-Encoding: send the body without compression";
            return Err(unsupported(detail.to_owned()));
        }
    }
    Ok(())
}

/// Accepts JSON with or without its content type. Some programs send everything as a form.
fn check_json(headers: &HeaderMap) -> Result<(), Failure> {
    let Some(value) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let text = value.to_str().unwrap_or("?");
    let kind = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = kind == "application/json"
        || kind.starts_with("application/") && kind.ends_with("+json")
        || kind == "application/x-www-form-urlencoded";
    if is_json {
        return Ok(());
    }
    Err(unsupported("Content-Type: must be application/json".to_owned()))
}

fn unsupported(detail: String) -> Failure {
    Failure::with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE, Problem::invalid(detail))
}

fn told_length(headers: &HeaderMap) -> Result<Option<u64>, Failure> {
    let Some(value) = headers.get(CONTENT_LENGTH) else { return Ok(None) };
    let length = value.to_str().ok().and_then(|text| text.parse().ok());
    length.map(Some).ok_or_else(|| Failure::invalid("Content-Length is not a number"))
}

/// The parts of a body. One part alone is not copied; others are copied into chunks, which do not
/// have to be moved when there are more.
struct Parts {
    first: Option<Bytes>,
    chunks: Vec<BytesMut>,
    expected: usize,
    length: usize,
}

impl Parts {
    fn new(expected: usize) -> Self {
        Self { first: None, chunks: Vec::new(), expected, length: 0 }
    }

    fn len(&self) -> usize {
        self.length
    }

    fn push(&mut self, part: Bytes) {
        self.length += part.len();
        if self.length == part.len() {
            self.first = Some(part); // Those before it were empty.
            return;
        }
        if let Some(first) = self.first.take() {
            self.copy(&first);
        }
        self.copy(&part);
    }

    fn copy(&mut self, mut part: &[u8]) {
        while !part.is_empty() {
            let room = self.chunks.last().map_or(0, |chunk| chunk.capacity() - chunk.len());
            if room == 0 {
                match (self.expected, self.chunks.last_mut()) {
                    (0, _) => {
                        let wanted = self.length.clamp(STEP_BYTES, CHUNK_BYTES_MAX);
                        self.chunks.push(BytesMut::with_capacity(wanted));
                    }
                    (expected, None) => {
                        let wanted = expected.min(DEPOSIT_BYTES);
                        self.chunks.push(BytesMut::with_capacity(wanted));
                    }
                    (expected, Some(chunk)) => {
                        chunk.reserve(expected.saturating_sub(chunk.len()).max(part.len()));
                    }
                }
                continue;
            }
            let (now, later) = part.split_at(room.min(part.len()));
            if let Some(chunk) = self.chunks.last_mut() {
                chunk.extend_from_slice(now);
            }
            part = later;
        }
    }

    fn join(mut self) -> Bytes {
        if let Some(first) = self.first {
            return first;
        }
        match self.chunks.len() {
            0 | 1 => self.chunks.pop().unwrap_or_default().freeze(),
            _ => self.chunks.concat().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_joined_in_order() {
        let mut parts = Parts::new(0);
        for part in ["", "a", "", "bc", "d"] {
            parts.push(Bytes::from_static(part.as_bytes()));
        }
        assert_eq!(parts.len(), 4);
        assert_eq!(&parts.join()[..], b"abcd");
        assert_eq!(&Parts::new(9).join()[..], b"");
        for expected in [0, 10, 3_000_000] {
            let whole: Vec<u8> = (0..3_000_000_u32).map(|number| number as u8).collect();
            let mut parts = Parts::new(expected);
            for part in whole.chunks(70_001) {
                parts.push(Bytes::copy_from_slice(part));
            }
            assert!(parts.len() == whole.len() && parts.join() == whole, "{expected} expected");
        }
    }

    #[test]
    fn json_is_known_by_its_name() {
        let check = |kind: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, http::HeaderValue::from_static(kind));
            check_json(&headers).is_ok()
        };
        assert!(check("application/json"));
        assert!(check("Application/JSON; charset=utf-8"));
        assert!(check("application/merge-patch+json"));
        assert!(!check("text/plain"));
        assert!(!check("application/jsonp"));
    }
}
