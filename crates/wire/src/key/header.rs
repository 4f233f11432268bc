//! The syntax of keys, and the header with the key.
//!
//! The header is a structured-field string (`"order-42"`, RFC 8941) or the bare value (`order-42`).
//! The bare form has no spaces, commas or quotes: with them it could be two keys, or half of one.
//! Headers with a similar name are not read; they are reported to the caller.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName};

pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The longest key.
pub const KEY_BYTES_MAX: usize = 255;

/// Why a text is not a valid key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub Cow<'static, str>);

impl Malformed {
    fn new(why: impl Into<Cow<'static, str>>) -> Self {
        Self(why.into())
    }
}

/// The key in a header; `None` without that header.
pub fn read<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Option<Cow<'a, str>>, Malformed> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Malformed::new(format!("{name} is given more than once")));
    }
    let text = std::str::from_utf8(value.as_bytes())
        .map_err(|_| Malformed::new(format!("{name} is not UTF-8")))?;
    let text = text.trim_matches([' ', '\t']);
    let key = match text.strip_prefix('"') {
        Some(quoted) => unquote(quoted)?,
        None => bare(text)?,
    };
    check(&key)?;
    Ok(Some(key))
}

/// Checks that a text is a valid key.
pub fn check(key: &str) -> Result<(), Malformed> {
    if !(1..=KEY_BYTES_MAX).contains(&key.len()) {
        let bytes = key.len();
        let why = format!("a key has 1 to {KEY_BYTES_MAX} bytes, this one has {bytes}");
        return Err(Malformed::new(why));
    }
    if key.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
        return Err(Malformed::new("a key must not have control characters"));
    }
    Ok(())
}

/// A header that its sender may have confused with the key's.
pub fn look_alike(headers: &HeaderMap) -> Option<&HeaderName> {
    headers.keys().find(|name| {
        let plain: String = name.as_str().chars().filter(|c| c.is_ascii_alphanumeric()).collect();
        plain.contains("idempoten") || plain.contains("idempotan") || plain.contains("idemkey")
    })
}

fn unquote(quoted: &str) -> Result<Cow<'_, str>, Malformed> {
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
            '"' => return Err(Malformed::new("the key has text after its closing quote")),
            '\\' => match rest.next() {
                Some(escaped @ ('"' | '\\')) => key.push(escaped),
                _ => {
                    return Err(Malformed::new(
                        "the key has a backslash before a character other \
                                                than \\\" or \\\\",
                    ));
                }
            },
            character => key.push(character),
        }
    }
    Err(Malformed::new("the key has no closing quote"))
}

fn bare(text: &str) -> Result<Cow<'_, str>, Malformed> {
    if text.contains([' ', '\t', ',', '"']) {
        return Err(Malformed::new("a key with spaces, commas or quotes must be quoted: \"KEY\""));
    }
    Ok(Cow::Borrowed(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn keys(values: &[&[u8]]) -> Result<Option<String>, Malformed> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(IDEMPOTENCY_KEY, HeaderValue::from_bytes(value).unwrap());
        }
        read(&headers, &IDEMPOTENCY_KEY).map(|key| key.map(Cow::into_owned))
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
            (&[b'x'; 255], &"x".repeat(255)),
        ] {
            assert_eq!(keys(&[value]), Ok(Some(key.to_owned())), "{value:?}");
        }
        assert_eq!(keys(&[]), Ok(None));
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let long = [b'x'; 256];
        for (value, why) in [
            (&b""[..], "1 to 255"),
            (b"\"\"", "1 to 255"),
            (b"\"", "no closing quote"),
            (b"\"open", "no closing quote"),
            (b"\"a\"b", "after its closing quote"),
            (b"\"a\", \"b\"", "after its closing quote"),
            (b"\"a\";x=1", "after its closing quote"),
            (br#""a\b""#, "backslash"),
            (br#""a\"#, "backslash"),
            (b"a, b", "must be quoted"),
            (b"a b", "must be quoted"),
            (b"a\"b", "must be quoted"),
            (b"\xff\xfe", "not UTF-8"),
            (b"\"a\tb\"", "control characters"),
            (&long, "this one has 256"),
        ] {
            let refused = keys(&[value]).unwrap_err().to_string();
            assert!(refused.contains(why), "{value:?}: {refused}");
        }
        let refused = keys(&[b"a", b"a"]).unwrap_err().to_string();
        assert!(refused.contains("more than once"), "{refused}");
    }

    #[test]
    fn what_looks_like_the_header_is_named_and_not_taken() {
        for name in ["x-idempotency-key", "idempotency_key", "idempotencykey", "idempotent-key"] {
            let mut headers = HeaderMap::new();
            headers.insert(HeaderName::try_from(name).unwrap(), HeaderValue::from_static("k"));
            assert_eq!(read(&headers, &IDEMPOTENCY_KEY), Ok(None));
            assert_eq!(look_alike(&headers).map(HeaderName::as_str), Some(name));
        }
    }
}
