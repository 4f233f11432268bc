//! The format of a stored response: the bytes of a claim's result.
//!
//! | bytes | what |
//! |---|---|
//! | 1 | version: 1 |
//! | 1 | flags: 1 = the body was too large to be kept, and is absent |
//! | 2 | status, big endian |
//! | varint | how many headers follow |
//! | each | varint length, name in lowercase; varint length, value |
//! | the rest | body |
//!
//! Varints are LEB128. Unknown versions and flags are refused, so that responses of a newer release
//! are never misread.

use bytes::{Buf, Bytes};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use crate::limits::HEADERS_BYTES_MAX;

/// The content type of such a result.
pub(crate) const CONTENT_TYPE: &str = "application/vnd.hapax.http-response";

const VERSION: u8 = 1;
const NOT_KEPT: u8 = 1;

/// The stored parts of a response.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stored {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// `None` if it was too large.
    pub(crate) body: Option<Bytes>,
}

/// Why a result is not a stored response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("it has version {0}, which this release does not know")]
    Version(u8),
    #[error("it has flags that this release does not know: {0:#04x}")]
    Flags(u8),
    #[error("it ends too early")]
    Short,
    #[error("it has an invalid status, header name or header value")]
    Invalid,
}

impl Stored {
    /// Whether the response can be returned again. It cannot if its body or its headers are too
    /// large.
    pub(crate) fn is_kept(&self) -> bool {
        self.body.is_some() && self.headers_bytes() <= HEADERS_BYTES_MAX
    }

    fn headers_bytes(&self) -> usize {
        self.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 6).sum()
    }

    pub(crate) fn encode(&self) -> Bytes {
        let (is_kept, headers_bytes) = (self.is_kept(), self.headers_bytes());
        let body = self.body.as_deref().filter(|_| is_kept).unwrap_or_default();
        let mut bytes = Vec::with_capacity(8 + headers_bytes + body.len());
        bytes.extend([VERSION, if is_kept { 0 } else { NOT_KEPT }]);
        bytes.extend(self.status.as_u16().to_be_bytes());
        if is_kept {
            put_varint(&mut bytes, self.headers.len());
            for (name, value) in &self.headers {
                put(&mut bytes, name.as_str().as_bytes());
                put(&mut bytes, value.as_bytes());
            }
        } else {
            put_varint(&mut bytes, 0);
        }
        bytes.extend_from_slice(body);
        bytes.into()
    }

    pub(crate) fn decode(mut bytes: Bytes) -> Result<Self, Malformed> {
        let version = bytes.try_get_u8().map_err(|_| Malformed::Short)?;
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        let flags = bytes.try_get_u8().map_err(|_| Malformed::Short)?;
        if flags & !NOT_KEPT != 0 {
            return Err(Malformed::Flags(flags));
        }
        let status = bytes.try_get_u16().map_err(|_| Malformed::Short)?;
        let status = StatusCode::from_u16(status).map_err(|_| Malformed::Invalid)?;
        let mut headers = HeaderMap::new();
        for _ in 0..take_varint(&mut bytes)? {
            let name = HeaderName::from_bytes(&take(&mut bytes)?);
            let value = HeaderValue::from_maybe_shared(take(&mut bytes)?);
            headers.append(
                name.map_err(|_| Malformed::Invalid)?,
                value.map_err(|_| Malformed::Invalid)?,
            );
        }
        let body = (flags & NOT_KEPT == 0).then_some(bytes);
        Ok(Self { status, headers, body })
    }

    /// The response; `None` if it was not stored.
    pub(crate) fn into_response<B: From<Bytes>>(self) -> Option<Response<B>> {
        let mut response = Response::new(B::from(self.body?));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        Some(response)
    }
}

fn put(bytes: &mut Vec<u8>, part: &[u8]) {
    put_varint(bytes, part.len());
    bytes.extend_from_slice(part);
}

fn put_varint(bytes: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take(bytes: &mut Bytes) -> Result<Bytes, Malformed> {
    let length = take_varint(bytes)?;
    if length > bytes.len() {
        return Err(Malformed::Short);
    }
    Ok(bytes.split_to(length))
}

fn take_varint(bytes: &mut Bytes) -> Result<usize, Malformed> {
    let mut number = 0;
    for shift in [0, 7, 14, 21] {
        let byte = bytes.try_get_u8().map_err(|_| Malformed::Short)?;
        number |= usize::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(Malformed::Invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(body: &[u8]) -> Stored {
        let mut headers = HeaderMap::new();
        headers.append("link", HeaderValue::from_static("</a>; rel=prev"));
        headers.append("link", HeaderValue::from_static("</b>; rel=next"));
        headers.append("x-odd", HeaderValue::from_bytes(&[0xff, b'y', 0x80]).unwrap());
        let body = Some(Bytes::copy_from_slice(body));
        Stored { status: StatusCode::CREATED, headers, body }
    }

    #[test]
    fn a_response_comes_back_as_it_was_byte_for_byte() {
        let every_byte: Vec<u8> = (0..=255).collect();
        for body in [&b""[..], b"{}", &every_byte, &vec![7; 100_000]] {
            let stored = stored(body);
            assert_eq!(Stored::decode(stored.encode()), Ok(stored));
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_first_version() {
        let mut headers = HeaderMap::new();
        headers.append("etag", HeaderValue::from_static("\"1\""));
        let body = Some(Bytes::from_static(b"hi"));
        let stored = Stored { status: StatusCode::OK, headers, body };
        assert_eq!(&stored.encode()[..], b"\x01\x00\x00\xc8\x01\x04etag\x03\"1\"hi");
    }

    #[test]
    fn what_was_too_large_leaves_its_status() {
        let mut large = stored(b"");
        large.body = None;
        let back = Stored::decode(large.encode()).unwrap();
        assert_eq!((back.status, back.body, back.headers.len()), (StatusCode::CREATED, None, 0));

        let mut heads = stored(b"body");
        let value = HeaderValue::from_bytes(&vec![b'x'; HEADERS_BYTES_MAX]).unwrap();
        heads.headers.insert("x-large", value);
        assert_eq!(Stored::decode(heads.encode()).unwrap().body, None);
    }

    #[test]
    fn what_is_cut_or_foreign_is_refused() {
        let whole = stored(b"").encode();
        for end in 0..whole.len() {
            assert!(Stored::decode(whole.slice(..end)).is_err(), "cut at {end}");
        }
        let foreign = |bytes: &'static [u8]| Stored::decode(Bytes::from_static(bytes));
        assert_eq!(foreign(b"\x02\x00\x00\xc8\x00"), Err(Malformed::Version(2)));
        assert_eq!(foreign(b"\x01\x02\x00\xc8\x00"), Err(Malformed::Flags(2)));
        assert_eq!(foreign(b"\x01\x00\x00\x07\x00"), Err(Malformed::Invalid));
        assert_eq!(foreign(b"\x01\x00\x00\xc8\x01\x01 \x00"), Err(Malformed::Invalid));
        assert_eq!(foreign(b"\x01\x00\x00\xc8\xff\xff\xff\xff\xff"), Err(Malformed::Invalid));
    }
}
