//! The delivery of a message to a worker.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hapax_wire::{Id, lean};

use crate::answer::at;
use crate::error::Error;
use crate::message::from_json;

/// A lease, to settle with. Opaque.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease(pub(crate) Bytes);

/// A message delivered to a worker.
///
/// It shares the memory of its frame with other deliveries; copy what you keep for long.
#[derive(Clone, Debug)]
pub struct Delivery {
    frame: Bytes,
    body: Bytes,
    lease: Range<u32>,
    key: Range<u32>,
    group: Range<u32>,
    content_type: Range<u32>,
    id: Id,
    fence: u64,
    attempt: u32,
    generation: u32,
    accepted_at_ms: u64,
    deadline_ms: u64,
    source: Arc<Source>,
    /// Fields that most messages do not have. Shared by a handler and its context.
    more: Option<Arc<More>>,
}

/// Fields that all deliveries of a connection share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) tenant: String,
    pub(crate) queue: String,
    pub(crate) lease_ms: u64,
    /// Whether the queue deduplicates per group.
    pub(crate) keys_per_group: bool,
}

impl Source {
    pub(crate) fn new(queue: &str) -> Self {
        Self { queue: queue.to_owned(), ..Self::default() }
    }
}

#[derive(Debug)]
struct More {
    headers: HashMap<String, String>,
    recovery_points: HashMap<String, Bytes>,
}

impl Delivery {
    /// The parts are slices of the frame.
    pub(crate) fn new(frame: &Bytes, delivery: &lean::Delivery<'_>, source: &Arc<Source>) -> Self {
        let part = |part: &[u8]| range(frame, part);
        Self {
            body: frame.slice_ref(delivery.body),
            lease: part(delivery.lease),
            key: part(delivery.key.as_bytes()),
            group: part(delivery.group.as_bytes()),
            content_type: part(delivery.content_type.as_bytes()),
            id: Id::of(delivery.id),
            fence: delivery.fence,
            attempt: delivery.attempt,
            generation: delivery.generation,
            accepted_at_ms: delivery.accepted_at_ms,
            deadline_ms: delivery.deadline_ms,
            source: Arc::clone(source),
            more: more(frame, delivery),
            frame: frame.clone(),
        }
    }

    fn bytes(&self, part: &Range<u32>) -> &[u8] {
        self.frame.get(part.start as usize..part.end as usize).unwrap_or_default()
    }

    fn part(&self, part: &Range<u32>) -> &str {
        // Checked when it was read.
        std::str::from_utf8(self.bytes(part)).unwrap_or_default()
    }

    pub fn key(&self) -> &str {
        self.part(&self.key)
    }

    pub fn id(&self) -> Id {
        self.id
    }

    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The body as text, if it is UTF-8.
    pub fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.body).ok()
    }

    pub fn parse_json<T: serde::de::DeserializeOwned>(&self) -> Result<T, Error> {
        from_json(&self.body)
    }

    pub fn content_type(&self) -> Option<&str> {
        Some(self.part(&self.content_type)).filter(|text| !text.is_empty())
    }

    pub fn group(&self) -> Option<&str> {
        Some(self.part(&self.group)).filter(|text| !text.is_empty())
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.more.as_ref()?.headers.get(name).map(String::as_str)
    }

    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        let headers = self.more.iter().flat_map(|more| &more.headers);
        headers.map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The tenant of the message. Empty with a broker of release 0.1.
    pub fn tenant(&self) -> &str {
        &self.source.tenant
    }

    /// The queue it came from.
    pub fn queue(&self) -> &str {
        &self.source.queue
    }

    /// Attempt number, from 1 on.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The number of replays.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    pub fn accepted_at(&self) -> SystemTime {
        at(self.accepted_at_ms)
    }

    /// The time at which the lease ends if it is not extended, by the broker's clock.
    pub fn deadline(&self) -> SystemTime {
        at(self.deadline_ms)
    }

    /// The length of the lease, counted from its last extension. Use it to schedule extends by your
    /// own clock.
    pub fn lease_length(&self) -> Duration {
        Duration::from_millis(self.source.lease_ms)
    }

    /// The data that an earlier attempt saved under the name.
    pub fn recovery_point(&self, name: &str) -> Option<&Bytes> {
        self.more.as_ref()?.recovery_points.get(name)
    }

    pub fn recovery_points(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        let points = self.more.iter().flat_map(|more| &more.recovery_points);
        points.map(|(name, data)| (name.as_str(), data))
    }

    pub fn lease(&self) -> Lease {
        Lease(self.frame.slice(self.lease.start as usize..self.lease.end as usize))
    }

    /// Grows with every lease; of two leases of one message the larger is the newer.
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// Derives the key of a follow-up: see [`derive`](crate::derive).
    pub fn derive(&self, name: &str) -> String {
        let group = if self.source.keys_per_group { self.part(&self.group) } else { "" };
        crate::derive(&self.source.queue, group, self.key(), self.generation, name)
    }
}

/// The position of a part in its frame. Frames are far smaller than 4 GiB.
fn range(frame: &Bytes, part: &[u8]) -> Range<u32> {
    let start = part.as_ptr().addr().wrapping_sub(frame.as_ptr().addr());
    if part.is_empty() || start + part.len() > frame.len() {
        return 0..0;
    }
    start as u32..(start + part.len()) as u32
}

fn more(frame: &Bytes, delivery: &lean::Delivery<'_>) -> Option<Arc<More>> {
    if delivery.headers.is_empty() && delivery.recovery_points.is_empty() {
        return None;
    }
    let headers = delivery
        .headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), String::from_utf8_lossy(value).into_owned()));
    let points = delivery.recovery_points.iter();
    let points = points.map(|(name, data)| ((*name).to_owned(), frame.slice_ref(data)));
    Some(Arc::new(More { headers: headers.collect(), recovery_points: points.collect() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_reads_back_from_the_frame() {
        let delivery = lean::Delivery {
            lease: b"lease",
            fence: 7,
            key: "order-42",
            id: &[3; 16],
            attempt: 2,
            generation: 1,
            body: b"body",
            group: "eu",
            headers: vec![("a", b"b")],
            recovery_points: vec![("charged", b"17")],
            ..lean::Delivery::default()
        };
        let mut frame = Vec::new();
        lean::put_delivery(&mut frame, &delivery);
        let frame = Bytes::from(frame);
        let mut reply = lean::WorkReply::read(&frame).unwrap();
        let mut source = Source {
            tenant: "acme".to_owned(),
            queue: "orders".to_owned(),
            lease_ms: 30_000,
            keys_per_group: false,
        };
        let delivery = reply.next_delivery().unwrap().unwrap();
        let read = Delivery::new(&frame, &delivery, &Arc::new(source.clone()));
        assert_eq!((read.key(), &read.body()[..]), ("order-42", &b"body"[..]));
        assert_eq!((read.group(), read.content_type()), (Some("eu"), None));
        assert_eq!((read.tenant(), read.queue()), ("acme", "orders"));
        assert_eq!(read.lease_length(), Duration::from_secs(30));
        assert_eq!((read.lease().0, read.fence()), (Bytes::from_static(b"lease"), 7));
        assert_eq!((read.attempt(), read.generation(), read.id()), (2, 1, Id([3; 16])));
        assert_eq!(read.header("a"), Some("b"));
        assert_eq!(&read.recovery_point("charged").unwrap()[..], b"17");
        let derived = |group| crate::derive("orders", group, "order-42", 1, "receipt");
        assert_eq!(read.derive("receipt"), derived(""));
        source.keys_per_group = true;
        let read = Delivery::new(&frame, &delivery, &Arc::new(source));
        assert_eq!(read.derive("receipt"), derived("eu"), "where the group is part of the key");
    }
}
