//! Texts, ids, times, fences and leases in JSON.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

/// A text that borrows from the JSON it was read from, unless it was escaped there. Unlike a
/// `Cow`, it does so in an `Option` too.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text<'a>(pub Cow<'a, str>);

impl Text<'_> {
    /// Whether the text is not empty.
    pub fn is_given(&self) -> bool {
        !self.0.is_empty()
    }
}

impl std::ops::Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl From<String> for Text<'_> {
    fn from(text: String) -> Self {
        Self(Cow::Owned(text))
    }
}

impl Serialize for Text<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }

            fn visit_string<E>(self, text: String) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text)))
            }
        }
        deserializer.deserialize_str(Read)
    }
}

/// A message's id, in the hyphenated form of a UUID.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, ToSchema)]
#[schema(value_type = String, format = "uuid", example = "01901234-5678-7005-8000-00000000004d")]
pub struct Id(pub [u8; 16]);

impl Id {
    /// The id in a protobuf field; zeros if it is not valid.
    pub fn of(bytes: &[u8]) -> Self {
        Self(bytes.try_into().unwrap_or_default())
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = u128::from_be_bytes(self.0);
        let part = |bits: u32, digits: u32| (number >> bits) & ((1 << (4 * digits)) - 1);
        let [a, b, c, d] = [part(96, 8), part(80, 4), part(64, 4), part(48, 4)];
        write!(f, "{a:08x}-{b:04x}-{c:04x}-{d:04x}-{:012x}", part(0, 12))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Milliseconds since 1970, written as RFC 3339 in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ToSchema)]
#[schema(value_type = String, format = DateTime, example = "2026-03-01T12:00:00.000Z")]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Reads RFC 3339; `None` if it is not a time since 1970.
    pub fn parse(text: &str) -> Option<Self> {
        let ms = text.parse::<jiff::Timestamp>().ok()?.as_millisecond();
        u64::try_from(ms).ok().map(Self)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = i64::try_from(self.0).unwrap_or(i64::MAX);
        write!(f, "{:.3}", jiff::Timestamp::from_millisecond(ms).unwrap_or(jiff::Timestamp::MAX))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Text::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            D::Error::custom(format!(
                "{text:?} is not an RFC 3339 time such as 2026-03-01T12:00:00Z",
                text = &*text
            ))
        })
    }
}

/// A fence, as a string of decimal digits: it may exceed the integers that JSON parsers read
/// without loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, ToSchema)]
#[schema(value_type = String, pattern = "^[0-9]{1,20}$", example = "1099511627776")]
pub struct Fence(pub u64);

impl Serialize for Fence {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// A lease: URL-safe base64 without padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease<'a>(pub &'a [u8]);

impl Lease<'_> {
    /// The bytes of a lease; empty if the text is not valid.
    pub fn read(text: &str) -> Bytes {
        URL_SAFE_NO_PAD.decode(text).unwrap_or_default().into()
    }
}

impl fmt::Display for Lease<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl Serialize for Lease<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

/// `None` for an empty text: protobuf has no `null`.
pub(crate) fn some(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// Writes `null` for an empty text.
pub(crate) fn or_null<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    some(text).serialize(serializer)
}

/// Reads `null` as an empty text.
pub(crate) fn null_is_empty<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

/// Writes milliseconds as a time.
pub(crate) fn time<S: Serializer>(ms: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    Timestamp(*ms).serialize(serializer)
}

/// Reads a time as milliseconds, or `null`.
pub(crate) fn time_if_given<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
    Ok(Option::<Timestamp>::deserialize(d)?.map(|time| time.0))
}

/// Gives a type the schema of the type that it is written as.
macro_rules! schema_of {
    ($shape:ty as $name:literal, $form:ty) => {
        impl utoipa::PartialSchema for $shape {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                <$form as utoipa::PartialSchema>::schema()
            }
        }

        impl utoipa::ToSchema for $shape {
            fn name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }

            fn schemas(all: &mut Vec<(String, utoipa::openapi::RefOr<utoipa::openapi::Schema>)>) {
                <$form as utoipa::ToSchema>::schemas(all);
            }
        }
    };
}
pub(crate) use schema_of;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_back() {
        for day in ["2000-02-29", "2024-02-29", "2100-03-01", "1999-12-31", "1970-01-01"] {
            for time in ["23:59:59.999", "00:00:00.000"] {
                let text = format!("{day}T{time}Z");
                assert_eq!(Timestamp::parse(&text).unwrap().to_string(), text);
            }
        }
        assert_eq!(Timestamp(1).to_string(), "1970-01-01T00:00:00.001Z");
        assert_eq!(Timestamp(u64::MAX).to_string(), "9999-12-30T22:00:00.999Z", "the last one");
        assert_eq!(Timestamp::parse("1969-12-31T00:00:00Z"), None);
    }

    #[test]
    fn a_text_borrows_where_it_can() {
        let json = r#"["plain", "es\ncaped"]"#;
        let texts: Vec<Option<Text<'_>>> = serde_json::from_str(json).unwrap();
        assert!(matches!(&texts[0], Some(Text(Cow::Borrowed("plain")))));
        assert!(matches!(&texts[1], Some(Text(Cow::Owned(text))) if text == "es\ncaped"));
    }

    #[test]
    fn a_fence_is_a_string_of_digits_and_loses_none() {
        let json = serde_json::to_string(&Fence(u64::MAX)).unwrap();
        assert_eq!(json, r#""18446744073709551615""#);
    }

    #[test]
    fn a_lease_reads_back_and_what_is_none_is_empty() {
        let bytes: Vec<u8> = (0..42).collect();
        assert_eq!(Lease::read(&Lease(&bytes).to_string()), bytes);
        assert_eq!(Lease::read("not a lease!"), "");
    }

    #[test]
    fn an_id_is_written_as_a_uuid() {
        let id = Id([1, 144, 18, 52, 86, 120, 112, 5, 128, 0, 0, 0, 0, 0, 0, 77]);
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(json, r#""01901234-5678-7005-8000-00000000004d""#);
        assert_eq!(Id::of(&id.0), id);
        assert_eq!(Id::of(b"short"), Id::default());
    }
}
