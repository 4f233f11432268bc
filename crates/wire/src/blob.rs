//! Bytes with their content type, and bodies in JSON.
//!
//! In JSON a body is the field `body` if it is UTF-8, otherwise `body_base64`.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use serde::de::{Deserializer, Error, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use utoipa::ToSchema;

use crate::text::{null_is_empty, some};

/// Padding is written, and optional when reading.
pub(crate) const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Bytes with their content type: `body` if they are UTF-8, otherwise `body_base64`.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Deserialize, ToSchema)]
pub struct Blob {
    #[prost(bytes = "bytes", tag = "1")]
    #[serde(default, alias = "body_base64", deserialize_with = "body")]
    #[schema(value_type = Option<String>)]
    pub body: Bytes,
    #[prost(string, tag = "2")]
    #[serde(default, deserialize_with = "null_is_empty")]
    #[schema(value_type = Option<String>)]
    pub content_type: String,
}

impl Blob {
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), content_type: String::new() }
    }

    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = content_type.into();
        self
    }

    /// JSON, with its content type.
    pub fn json(body: &(impl Serialize + ?Sized)) -> Result<Self, serde_json::Error> {
        Ok(Self::new(serde_json::to_vec(body)?).content_type("application/json"))
    }

    pub fn parse_json<T: serde::de::DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.body)
    }

    /// The bytes as text, if they are UTF-8.
    pub fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.body).ok()
    }
}

impl<B: Into<Bytes>> From<B> for Blob {
    fn from(body: B) -> Self {
        Self::new(body)
    }
}

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(None)?;
        put_body(&mut fields, &self.body)?;
        if let Some(content_type) = some(&self.content_type) {
            fields.serialize_entry("content_type", content_type)?;
        }
        fields.end()
    }
}

/// Writes a body as one of its two fields.
fn put_body<M: SerializeMap>(fields: &mut M, body: &[u8]) -> Result<(), M::Error> {
    match std::str::from_utf8(body) {
        Ok(text) => fields.serialize_entry("body", text),
        Err(_) => fields.serialize_entry("body_base64", &BASE64.encode(body)),
    }
}

/// Writes the body of a message, its content type and its headers.
pub(crate) fn put_content<M: SerializeMap>(
    fields: &mut M,
    body: &[u8],
    content_type: &str,
    headers: &BTreeMap<String, String>,
) -> Result<(), M::Error> {
    put_body(fields, body)?;
    fields.serialize_entry("content_type", &some(content_type))?;
    fields.serialize_entry("headers", headers)
}

/// Recovery points as JSON: an object of bodies.
#[derive(Debug)]
pub(crate) struct Points<'a>(pub(crate) &'a BTreeMap<String, Bytes>);

impl Serialize for Points<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, data)| (name, Blob::new(data.clone()))))
    }
}

/// Reads a body. The name of its field determines the form, and only [`crate::json::read`] knows
/// that name; other deserializers get an error.
pub(crate) fn body<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    struct Read;
    impl<'de> Visitor<'de> for Read {
        type Value = Bytes;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string")
        }

        fn visit_str<E>(self, text: &str) -> Result<Bytes, E> {
            Ok(Bytes::copy_from_slice(text.as_bytes()))
        }

        fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Bytes, E> {
            Ok(bytes.into())
        }

        fn visit_newtype_struct<D: Deserializer<'de>>(self, _: D) -> Result<Bytes, D::Error> {
            Err(D::Error::custom("a body is read by hapax_wire::json::read"))
        }
    }
    deserializer.deserialize_newtype_struct("Body", Read)
}

/// The same for a body that may be missing.
pub(crate) fn body_if_given<'de, D>(deserializer: D) -> Result<Option<Bytes>, D::Error>
where
    D: Deserializer<'de>,
{
    body(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::read;

    #[test]
    fn bytes_are_text_where_they_can_be() {
        let blob = Blob::new("café").content_type("text/plain");
        let json = serde_json::to_string(&blob).unwrap();
        assert_eq!(json, r#"{"body":"café","content_type":"text/plain"}"#);
        let blob = Blob::new(&b"\xff\x00"[..]);
        let json = serde_json::to_string(&blob).unwrap();
        assert_eq!(json, r#"{"body_base64":"/wA="}"#);
        assert_eq!(read::<Blob>(json.as_bytes()), Ok(blob));
    }

    #[test]
    fn base64_may_leave_out_its_padding_and_nothing_else() {
        let read = |json: &str| read::<Blob>(json.as_bytes()).map(|blob| blob.body);
        let said = |json: &str| read(json).unwrap_err().to_string();
        assert_eq!(read(r#"{"body_base64":"/wA="}"#).unwrap(), &b"\xff\x00"[..]);
        assert_eq!(read(r#"{"body_base64":"/wA"}"#).unwrap(), &b"\xff\x00"[..]);
        assert_eq!(read(r#"{"body":null,"content_type":null}"#).unwrap(), "");
        assert_eq!(read("{}").unwrap(), "");
        assert!(said(r#"{"body_base64":"/w A"}"#).starts_with("body_base64: not base64"));
        assert!(said(r#"{"body":7}"#).starts_with("body: invalid type: integer `7`"));
        for both in [r#"{"body":"a","body_base64":"YQ"}"#, r#"{"body_base64":"YQ","body":"a"}"#] {
            assert!(said(both).starts_with("give body or body_base64, not both"), "{both}");
        }
        for one in [r#"{"body":"a","body_base64":null}"#, r#"{"body":null,"body_base64":"YQ"}"#] {
            assert_eq!(read(one).unwrap(), "a", "of the two names one may be null");
        }
        assert!(said(r#"{"body":"a","body":"a"}"#).contains("duplicate field `body`"));
    }

    #[test]
    fn json_reads_back_with_its_content_type() {
        let blob = Blob::json(&("lemons", 3)).unwrap();
        assert_eq!(blob.content_type, "application/json");
        assert_eq!(blob.parse_json::<(String, u32)>().unwrap(), ("lemons".to_owned(), 3));
        assert!(blob.parse_json::<u32>().is_err());
    }

    #[test]
    fn a_reader_that_cannot_tell_base64_from_text_is_refused() {
        let error = serde_json::from_str::<Blob>(r#"{"body_base64":"/wA="}"#).unwrap_err();
        assert!(error.to_string().contains("json::read"), "{error}");
    }
}
