//! Messages on their way in, and bytes with their type.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use super::read::List;
use super::text::{Text, Timestamp};

/// Padding is written, and not missed where it is left out.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Bytes with their type: `body` where they are UTF-8, else `body_base64`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Blob<'a> {
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub body: Option<Text<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, content_encoding = "base64")]
    pub body_base64: Option<Text<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub content_type: Option<Text<'a>>,
}

impl<'a> Blob<'a> {
    pub fn new(bytes: &'a [u8], content_type: Option<&'a str>) -> Self {
        let (body, body_base64) = body_text(bytes);
        Self { body, body_base64, content_type: content_type.map(Text::from) }
    }

    pub fn bytes(&self) -> Result<Cow<'_, [u8]>, BadBody> {
        body_bytes(self.body.as_ref(), self.body_base64.as_ref())
    }
}

/// Why a body cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadBody {
    #[error("body and body_base64: give one of them")]
    Both,
    #[error("body_base64: {0}")]
    Base64(String),
}

/// The bytes of a body that was given in either form; none where it was not given.
pub fn body_bytes<'a>(
    body: Option<&'a Text<'_>>,
    body_base64: Option<&Text<'_>>,
) -> Result<Cow<'a, [u8]>, BadBody> {
    match (body, body_base64) {
        (Some(_), Some(_)) => Err(BadBody::Both),
        (Some(body), None) => Ok(Cow::Borrowed(body.as_bytes())),
        (None, Some(text)) => match BASE64.decode(text.as_bytes()) {
            Ok(bytes) => Ok(Cow::Owned(bytes)),
            Err(error) => Err(BadBody::Base64(error.to_string())),
        },
        (None, None) => Ok(Cow::Borrowed(&[])),
    }
}

/// `body` where the bytes are UTF-8, else `body_base64`.
pub fn body_text(bytes: &[u8]) -> (Option<Text<'_>>, Option<Text<'_>>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text.into()), None),
        Err(_) => (None, Some(BASE64.encode(bytes).into())),
    }
}

/// No message has as many.
const HEADERS_MAX: usize = 256;

/// Named texts, kept in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers<'a>(pub Vec<(Text<'a>, Text<'a>)>);

impl Headers<'_> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Headers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Headers<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Headers<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Headers<'de>, A::Error> {
                let mut headers = Vec::new();
                while let Some(header) = map.next_entry()? {
                    // Those beyond are too many in any case.
                    if headers.len() < HEADERS_MAX {
                        headers.push(header);
                    }
                }
                Ok(Headers(headers))
            }
        }
        deserializer.deserialize_map(Read)
    }
}

/// One message of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Message<'a> {
    /// The caller's name for the operation. May be left out in at-least-once queues only.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, max_length = 255)]
    pub key: Option<Text<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub body: Option<Text<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, content_encoding = "base64")]
    pub body_base64: Option<Text<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, max_length = 255)]
    pub content_type: Option<Text<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, max_length = 255)]
    pub group: Option<Text<'a>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Instead of the digest of body and group.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, max_length = 255)]
    pub fingerprint: Option<Text<'a>>,
    /// When the operation was born, for keys that do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issued_at: Option<Timestamp>,
    /// Kept with the message and handed to the worker.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    pub headers: Option<Headers<'a>>,
}

/// Messages in one batch.
pub const BATCH_MAX: usize = 1_000;

/// Messages to send together. Each is answered for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Batch<'a> {
    #[serde(borrow)]
    #[schema(value_type = Vec<Message>, max_items = 1000)]
    pub messages: List<Message<'a>, BATCH_MAX>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_text_where_they_can_be() {
        let blob = Blob::new(b"caf\xc3\xa9", Some("text/plain"));
        let json = serde_json::to_string(&blob).unwrap();
        assert_eq!(json, r#"{"body":"café","content_type":"text/plain"}"#);
        let blob = Blob::new(b"\xff\x00", None);
        assert_eq!(serde_json::to_string(&blob).unwrap(), r#"{"body_base64":"/wA="}"#);
        assert_eq!(blob.bytes().unwrap().as_ref(), b"\xff\x00");
    }

    #[test]
    fn base64_may_leave_out_its_padding_and_nothing_else() {
        let read = |json: &str| {
            let blob: Blob<'_> = serde_json::from_str(json).unwrap();
            blob.bytes().map(Cow::into_owned)
        };
        assert_eq!(read(r#"{"body_base64":"/wA="}"#), Ok(b"\xff\x00".to_vec()));
        assert_eq!(read(r#"{"body_base64":"/wA"}"#), Ok(b"\xff\x00".to_vec()));
        assert_eq!(read("{}"), Ok(Vec::new()));
        assert!(matches!(read(r#"{"body_base64":"/w A"}"#), Err(BadBody::Base64(_))));
        assert_eq!(read(r#"{"body":"a","body_base64":"YQ"}"#), Err(BadBody::Both));
    }

    #[test]
    fn a_batch_reads_back() {
        let json = r#"{"messages":[{"key":"k","body":"b","headers":{"b":"1","a":"2"}},{}]}"#;
        let batch: Batch<'_> = serde_json::from_str(json).unwrap();
        assert_eq!(batch.messages.len(), 2);
        assert_eq!(serde_json::to_string(&batch).unwrap(), json);
    }
}
