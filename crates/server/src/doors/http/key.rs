//! The `Idempotency-Key` header, in its two forms.
//!
//! A structured-field string (`"order-42"`, RFC 8941) or the bare value (`order-42`). The bare form
//! has no spaces, commas or quotes: with them it could be two keys, or half of one. Only this name
//! is the key's; what merely looks like it is told to the caller and not taken.

use std::borrow::Cow;

use hapax_core::limits;
use hapax_wire::Code;
use http::{HeaderMap, HeaderName};

use crate::problem::Problem;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The caller's key; `None` where there is no such header.
pub(super) fn read(headers: &HeaderMap) -> Result<Option<Cow<'_, str>>, Problem> {
    let mut values = headers.get_all(&IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(malformed("Idempotency-Key is given more than once"));
    }
    let text = std::str::from_utf8(value.as_bytes())
        .map_err(|_| malformed("Idempotency-Key is not UTF-8"))?;
    let text = text.trim_matches([' ', '\t']);
    let key = match text.strip_prefix('"') {
        Some(quoted) => unquote(quoted)?,
        None => bare(text)?,
    };
    check(&key)?;
    Ok(Some(key))
}

/// Whether a text can be a key at all.
pub(super) fn check(key: &str) -> Result<(), Problem> {
    if !(1..=limits::KEY_BYTES_MAX).contains(&key.len()) {
        let detail =
            format!("a key has 1 to {} bytes, this one has {}", limits::KEY_BYTES_MAX, key.len());
        return Err(malformed(detail));
    }
    if key.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
        return Err(malformed("a key has no control characters"));
    }
    Ok(())
}

/// Why a key may be missing although the caller thinks it sent one.
pub(super) fn missing(headers: &HeaderMap) -> Problem {
    let look_alike = headers.keys().find(|name| {
        let plain: String = name.as_str().chars().filter(|c| c.is_ascii_alphanumeric()).collect();
        plain.contains("idempoten") || plain.contains("idempotan") || plain.contains("idemkey")
    });
    let detail = match look_alike {
        Some(name) => format!(
            "the queue needs a key with every message: there is a header {name}, but the key's is \
             Idempotency-Key"
        ),
        None => "the queue needs a key with every message: send Idempotency-Key".to_owned(),
    };
    Problem::new(Code::MissingKey, detail)
}

fn unquote(quoted: &str) -> Result<Cow<'_, str>, Problem> {
    if let Some((text, "")) = quoted.split_once('"')
        && !text.contains('\\')
    {
        return Ok(Cow::Borrowed(text));
    }
    let mut key = String::with_capacity(quoted.len());
    let mut rest = quoted.chars();
    while let Some(character) = rest.next() {
        match character {
            '"' if rest.as_str().is_empty() => return Ok(Cow::Owned(key)),
            '"' => return Err(malformed("Idempotency-Key goes on after its closing quote")),
            '\\' => match rest.next() {
                Some(escaped @ ('"' | '\\')) => key.push(escaped),
                _ => return Err(malformed("Idempotency-Key escapes what needs no escape")),
            },
            character => key.push(character),
        }
    }
    Err(malformed("Idempotency-Key has no closing quote"))
}

fn bare(text: &str) -> Result<Cow<'_, str>, Problem> {
    if text.contains([' ', '\t', ',', '"']) {
        return Err(malformed(
            "Idempotency-Key without quotes has no spaces, commas or quotes: write it as \"KEY\"",
        ));
    }
    Ok(Cow::Borrowed(text))
}

pub(super) fn malformed(detail: impl Into<String>) -> Problem {
    Problem::new(Code::MalformedKey, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn keys(values: &[&[u8]]) -> Result<Option<String>, Code> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(IDEMPOTENCY_KEY, HeaderValue::from_bytes(value).unwrap());
        }
        let read = read(&headers).map(|key| key.map(Cow::into_owned));
        read.map_err(|problem| problem.code)
    }

    #[test]
    fn a_key_is_read_in_both_forms() {
        for (value, key) in [
            (&b"order-42"[..], "order-42"),
            (b"\"order-42\"", "order-42"),
            (b"  \"order 42, the first\" ", "order 42, the first"),
            (br#""a \"b\" \\c""#, r#"a "b" \c"#),
            (b"user:7/order;1=x", "user:7/order;1=x"),
            ("\"größe\"".as_bytes(), "größe"),
            ("größe".as_bytes(), "größe"),
            (b"8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        ] {
            assert_eq!(keys(&[value]), Ok(Some(key.to_owned())), "{value:?}");
        }
        assert_eq!(keys(&[]), Ok(None));
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let long = [b'x'; 256];
        for value in [
            &b""[..],
            b"\"\"",
            b"\"",
            b"\"open",
            b"\"a\"b",
            b"\"a\", \"b\"",
            b"\"a\";x=1",
            br#""a\b""#,
            br#""a\"#,
            b"a, b",
            b"a b",
            b"a\"b",
            b"\xff\xfe",
            b"\"a\tb\"",
            &long,
        ] {
            assert_eq!(keys(&[value]), Err(Code::MalformedKey), "{value:?}");
        }
        assert_eq!(keys(&[b"a", b"a"]), Err(Code::MalformedKey));
    }

    #[test]
    fn what_looks_like_the_header_is_named_and_not_taken() {
        for name in ["x-idempotency-key", "idempotency_key", "idempotencykey", "idempotent-key"] {
            let mut headers = HeaderMap::new();
            headers.insert(HeaderName::try_from(name).unwrap(), HeaderValue::from_static("k"));
            assert_eq!(read(&headers), Ok(None));
            assert!(missing(&headers).detail.contains(name), "{name}");
        }
    }
}
