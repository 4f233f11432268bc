//! The content of a message, in one allocation.

use std::sync::Arc;

use crate::limits;

/// Key, body, content type, group and headers of a message, immutable and shared: the journal, the
/// machine and every delivery hold the same bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    bytes: Box<[u8]>,
    key: u8,
    content_type: u8,
    group: u8,
    headers: u16,
}

impl Content {
    pub fn builder(key: &str) -> Builder<'_> {
        Builder { key, content_type: None, group: None, headers: Vec::new() }
    }

    /// The caller's key; empty if it gave none.
    pub fn key(&self) -> &str {
        self.text(0, self.key.into())
    }

    /// The key's bytes, without the UTF-8 check of [`Content::key`].
    pub fn key_bytes(&self) -> &[u8] {
        self.bytes.get(..self.key.into()).unwrap_or_default()
    }

    /// Whether the caller gave a key.
    pub fn has_key(&self) -> bool {
        self.key > 0
    }

    pub fn content_type(&self) -> Option<&str> {
        let text = self.text(self.key.into(), self.content_type.into());
        (!text.is_empty()).then_some(text)
    }

    pub fn group(&self) -> Option<&str> {
        if self.group == 0 {
            return None;
        }
        let start = usize::from(self.key) + usize::from(self.content_type);
        Some(self.text(start, self.group.into()))
    }

    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        let start = self.body_start() - usize::from(self.headers);
        let mut parts = self.text(start, self.headers.into()).split('\0');
        std::iter::from_fn(move || Some((parts.next()?, parts.next()?)))
    }

    pub fn body(&self) -> &[u8] {
        self.bytes.get(self.body_start()..).unwrap_or_default()
    }

    /// Bytes of memory and quota that the message takes.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn parts(&self) -> (&[u8], [u8; 3], u16) {
        (&self.bytes, [self.key, self.content_type, self.group], self.headers)
    }

    /// The inverse of `parts`; `None` if the lengths do not fit the bytes.
    pub(crate) fn from_parts(bytes: &[u8], lengths: [u8; 3], headers: u16) -> Option<Self> {
        let [key, content_type, group] = lengths;
        let content = Self { bytes: bytes.into(), key, content_type, group, headers };
        let text = content.bytes.get(..content.body_start())?;
        std::str::from_utf8(text).ok()?;
        Some(content)
    }

    fn body_start(&self) -> usize {
        usize::from(self.key)
            + usize::from(self.content_type)
            + usize::from(self.group)
            + usize::from(self.headers)
    }

    fn text(&self, start: usize, len: usize) -> &str {
        debug_assert!(start + len <= self.bytes.len(), "the lengths were checked");
        let bytes = self.bytes.get(start..start + len).unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

// Each length fits the type that stores it.
const _: () = assert!(limits::KEY_BYTES_MAX <= u8::MAX as usize);
const _: () = assert!(limits::GROUP_BYTES_MAX <= u8::MAX as usize);
const _: () = assert!(limits::CONTENT_TYPE_BYTES_MAX <= u8::MAX as usize);
const _: () = assert!(limits::HEADERS_BYTES_MAX <= u16::MAX as usize);

/// Why a message is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    #[error("the queue requires a key, and this message has none")]
    MissingKey,
    #[error("a key has 1 to 255 bytes of UTF-8, this one has {0}")]
    KeyLength(usize),
    #[error("a key must not have control characters, this one has one at byte {0}")]
    KeyCharacter(usize),
    #[error("a group has 1 to 255 bytes, this one has {0}")]
    GroupLength(usize),
    #[error("the queue deduplicates per group, and this message has no group")]
    MissingGroup,
    #[error("a content type has at most 255 bytes, this one has {0}")]
    ContentTypeLength(usize),
    #[error(
        "a message has at most 64 headers with 16 KiB in total, without empty names and zero bytes"
    )]
    Headers,
    #[error("the body has {bytes} bytes, the queue allows {max}")]
    BodyTooLarge { bytes: u64, max: u64 },
    #[error("the delay of {0} ms is longer than a year")]
    Delay(u64),
    #[error("the time to live must be at least 1 ms")]
    TimeToLive,
    #[error("a name must have 1 to 80 characters of A-Z a-z 0-9 . _ -")]
    Name,
    #[error("a worker's name has at most 64 bytes")]
    Worker,
    #[error("a receive may ask for 1 to 1000 messages")]
    ReceiveMax,
    #[error("a receive id, claim id or redrive id has 1 to 128 bytes")]
    Id,
    #[error("a lease must last 100 ms to 12 h, not {0} ms")]
    LeaseLength(u64),
    #[error(
        "at most 64 messages with 8 MiB in total can be emitted, each with a key or a name of at \
         most 255 bytes"
    )]
    Emits,
    #[error("the name of an emit has at most 255 bytes, this one has {0}")]
    EmitName(usize),
    #[error("emits {0} and {1} have the same queue and key: give each its own name")]
    SameEmits(usize, usize),
    #[error("a recovery point's name has 1 to 128 bytes")]
    PointName,
    #[error("a message has at most 64 recovery points with 64 KiB in total")]
    Points,
    #[error("a redrive needs 1 to 1000 keys, a filter that is not empty, or all")]
    Redrive,
    #[error("the operation is not allowed: the message is {0}")]
    State(&'static str),
    #[error(
        "the date of the operation is {} h ahead of the broker's clock; at most one day is allowed",
        .ahead_ms.div_ceil(3_600_000)
    )]
    DatedAhead { ahead_ms: u64 },
    #[error("the body of the finished message is no longer stored: send it with the replay")]
    BodyGone,
    #[error("the message in the request has another key")]
    OtherKey,
    #[error("the operation needs {bytes} bytes in the journal, at most {max} are allowed")]
    TooLarge { bytes: usize, max: usize },
}

/// Collects the parts of a [`Content`].
#[derive(Debug)]
pub struct Builder<'a> {
    key: &'a str,
    content_type: Option<&'a str>,
    group: Option<&'a str>,
    headers: Vec<(&'a str, &'a str)>,
}

impl<'a> Builder<'a> {
    pub fn content_type(mut self, content_type: Option<&'a str>) -> Self {
        self.content_type = content_type.filter(|text| !text.is_empty());
        self
    }

    pub fn group(mut self, group: Option<&'a str>) -> Self {
        self.group = group;
        self
    }

    pub fn header(mut self, name: &'a str, value: &'a str) -> Self {
        self.headers.push((name, value));
        self
    }

    pub fn build(self, body: &[u8]) -> Result<Arc<Content>, Invalid> {
        let headers = self.check()?;
        let content_type = self.content_type.unwrap_or_default();
        let group = self.group.unwrap_or_default();
        let length = self.key.len() + content_type.len() + group.len() + headers.len() + body.len();
        let mut bytes = Vec::with_capacity(length);
        for part in [self.key, content_type, group, &headers] {
            bytes.extend_from_slice(part.as_bytes());
        }
        bytes.extend_from_slice(body);
        debug_assert_eq!(bytes.len(), length);
        Ok(Arc::new(Content {
            bytes: bytes.into_boxed_slice(),
            key: self.key.len() as u8,
            content_type: content_type.len() as u8,
            group: group.len() as u8,
            headers: headers.len() as u16,
        }))
    }

    /// Checks every bound; returns the headers joined.
    fn check(&self) -> Result<String, Invalid> {
        if self.key.len() > limits::KEY_BYTES_MAX {
            return Err(Invalid::KeyLength(self.key.len()));
        }
        if let Some(place) = self.key.bytes().position(|byte| byte < 0x20 || byte == 0x7f) {
            return Err(Invalid::KeyCharacter(place));
        }
        if let Some(group) = self.group
            && !(1..=limits::GROUP_BYTES_MAX).contains(&group.len())
        {
            return Err(Invalid::GroupLength(group.len()));
        }
        if let Some(content_type) = self.content_type
            && content_type.len() > limits::CONTENT_TYPE_BYTES_MAX
        {
            return Err(Invalid::ContentTypeLength(content_type.len()));
        }
        if self.headers.is_empty() {
            return Ok(String::new());
        }
        let mut joined = String::new();
        for (name, value) in &self.headers {
            if name.is_empty() || name.contains('\0') || value.contains('\0') {
                return Err(Invalid::Headers);
            }
            for part in [*name, "\0", value, "\0"] {
                joined.push_str(part);
            }
        }
        if self.headers.len() > limits::HEADERS_MAX || joined.len() > limits::HEADERS_BYTES_MAX {
            return Err(Invalid::Headers);
        }
        Ok(joined)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_reads_back() {
        let content = Content::builder("order-42")
            .content_type(Some("text/plain"))
            .group(Some("customer-7"))
            .header("traceparent", "00-1")
            .header("empty", "")
            .build(b"body\0\xff")
            .unwrap();
        assert_eq!(content.key(), "order-42");
        assert_eq!(content.content_type(), Some("text/plain"));
        assert_eq!(content.group(), Some("customer-7"));
        let headers: Vec<_> = content.headers().collect();
        assert_eq!(headers, [("traceparent", "00-1"), ("empty", "")]);
        assert_eq!(content.body(), b"body\0\xff");
        let (bytes, lengths, headers) = content.parts();
        assert_eq!(Content::from_parts(bytes, lengths, headers).as_ref(), Some(&*content));
        assert_eq!(Content::from_parts(b"short", lengths, headers), None);
    }

    #[test]
    fn every_bound_is_refused_with_its_reason() {
        let long = "x".repeat(256);
        let build = |builder: Builder<'_>| builder.build(b"").map(drop);
        assert_eq!(build(Content::builder(&long)), Err(Invalid::KeyLength(256)));
        assert_eq!(build(Content::builder("a\nb")), Err(Invalid::KeyCharacter(1)));
        let group = Content::builder("k").group(Some(""));
        assert_eq!(build(group), Err(Invalid::GroupLength(0)));
        let content_type = Content::builder("k").content_type(Some(&long));
        assert_eq!(build(content_type), Err(Invalid::ContentTypeLength(256)));
        assert_eq!(build(Content::builder("k").header("", "v")), Err(Invalid::Headers));
    }
}
