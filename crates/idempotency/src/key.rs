//! The client's key: the header in its two forms, and the date that a key may tell.
//!
//! A structured-field string (`"order-42"`, RFC 8941) or the bare value (`order-42`). The bare form
//! has no spaces, commas or quotes: with them it could be two keys, or half of one. Only the one
//! name is the key's; what merely looks like it is told to the client and not taken.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName};

use crate::limits::KEY_BYTES_MAX;
use crate::problem::Problem;

pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Dates are believed between these: a word of 26 letters is not a ULID.
const DATED_FROM: Duration = Duration::from_millis(1_451_606_400_000); // 2016-01-01
const DATED_AHEAD: Duration = Duration::from_secs(24 * 60 * 60);

/// The key in a header; `None` where there is no such header.
pub(crate) fn read(headers: &HeaderMap, name: &HeaderName) -> Result<Option<String>, Problem> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(malformed(format!("{name} is given more than once")));
    }
    let text = std::str::from_utf8(value.as_bytes())
        .map_err(|_| malformed(format!("{name} is not UTF-8")))?;
    let text = text.trim_matches([' ', '\t']);
    let key = match text.strip_prefix('"') {
        Some(quoted) => unquote(quoted)?,
        None => bare(text)?,
    };
    check(&key)?;
    Ok(Some(key))
}

/// Whether a text can be a key at all.
pub(crate) fn check(key: &str) -> Result<(), Problem> {
    if !(1..=KEY_BYTES_MAX).contains(&key.len()) {
        let detail = format!("a key has 1 to {KEY_BYTES_MAX} bytes, this one has {}", key.len());
        return Err(malformed(detail));
    }
    if key.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
        return Err(malformed("a key has no control characters"));
    }
    Ok(())
}

/// Why a key may be missing although the client thinks it sent one.
pub(crate) fn missing(headers: &HeaderMap, name: &HeaderName) -> Problem {
    let look_alike = headers.keys().find(|name| {
        let plain: String = name.as_str().chars().filter(|c| c.is_ascii_alphanumeric()).collect();
        plain.contains("idempoten") || plain.contains("idempotan") || plain.contains("idemkey")
    });
    Problem::missing_key(match look_alike {
        Some(other) => {
            format!("this route needs a key: there is a header {other}, but the key's is {name}")
        }
        None => format!("this route needs a key with every request: send {name}"),
    })
}

fn unquote(quoted: &str) -> Result<String, Problem> {
    let mut key = String::with_capacity(quoted.len());
    let mut rest = quoted.chars();
    while let Some(character) = rest.next() {
        match character {
            '"' if rest.as_str().is_empty() => return Ok(key),
            '"' => return Err(malformed("the key goes on after its closing quote")),
            '\\' => match rest.next() {
                Some(escaped @ ('"' | '\\')) => key.push(escaped),
                _ => return Err(malformed("the key escapes what needs no escape")),
            },
            character => key.push(character),
        }
    }
    Err(malformed("the key has no closing quote"))
}

fn bare(text: &str) -> Result<String, Problem> {
    if text.contains([' ', '\t', ',', '"']) {
        return Err(malformed(
            "a key without quotes has no spaces, commas or quotes: write it as \"KEY\"",
        ));
    }
    Ok(text.to_owned())
}

fn malformed(detail: impl Into<String>) -> Problem {
    Problem::malformed_key(detail)
}

/// When the key was made, where it tells: a UUIDv7 or a ULID of a believable time. The broker
/// would see it too, were the key not hashed on its way there.
pub(crate) fn date(key: &str, now: SystemTime) -> Option<SystemTime> {
    let at = Duration::from_millis(uuid_date(key).or_else(|| ulid_date(key))?);
    let ahead = now.duration_since(UNIX_EPOCH).unwrap_or_default() + DATED_AHEAD;
    (DATED_FROM..=ahead).contains(&at).then(|| UNIX_EPOCH + at)
}

/// In its usual form, with hyphens.
fn uuid_date(key: &str) -> Option<u64> {
    let bytes = key.as_bytes();
    let is_hyphen = |place: usize| matches!(place, 8 | 13 | 18 | 23);
    if bytes.len() != 36 {
        return None;
    }
    let mut value = 0u128;
    for (place, byte) in bytes.iter().enumerate() {
        match (is_hyphen(place), byte) {
            (true, b'-') => {}
            (false, byte) => value = value << 4 | u128::from(char::from(*byte).to_digit(16)?),
            (true, _) => return None,
        }
    }
    let (version, variant) = (value >> 76 & 0xf, value >> 62 & 0b11);
    (version == 7 && variant == 0b10).then_some((value >> 80) as u64)
}

fn ulid_date(key: &str) -> Option<u64> {
    if key.len() != 26 {
        return None;
    }
    let mut value = 0u128;
    for (place, letter) in key.bytes().enumerate() {
        let digit = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
            .iter()
            .position(|known| *known == letter.to_ascii_uppercase())?;
        if place == 0 && digit > 7 {
            return None;
        }
        value = value << 5 | digit as u128;
    }
    Some((value >> 80) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn keys(values: &[&[u8]]) -> Result<Option<String>, &'static str> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(IDEMPOTENCY_KEY, HeaderValue::from_bytes(value).unwrap());
        }
        read(&headers, &IDEMPOTENCY_KEY).map_err(|problem| problem.code())
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
            (&[b'x'; 255], &"x".repeat(255)),
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
            assert_eq!(keys(&[value]), Err("malformed_key"), "{value:?}");
        }
        assert_eq!(keys(&[b"a", b"a"]), Err("malformed_key"));
    }

    #[test]
    fn what_looks_like_the_header_is_named_and_not_taken() {
        for name in ["x-idempotency-key", "idempotency_key", "idempotencykey", "idempotent-key"] {
            let mut headers = HeaderMap::new();
            headers.insert(HeaderName::try_from(name).unwrap(), HeaderValue::from_static("k"));
            assert!(read(&headers, &IDEMPOTENCY_KEY).is_ok_and(|key| key.is_none()));
            assert!(missing(&headers, &IDEMPOTENCY_KEY).detail().contains(name), "{name}");
        }
    }

    #[test]
    fn uuid_v7_and_ulid_tell_their_date_and_nothing_else_does() {
        let now = UNIX_EPOCH + Duration::from_millis(1_800_000_000_000);
        let ms = |key: &str| {
            let date = date(key, now)?;
            Some(date.duration_since(UNIX_EPOCH).unwrap().as_millis())
        };
        assert_eq!(ms("017f22e2-79b0-7cc3-98c4-dc0c0c07398f"), Some(1_645_557_742_000));
        assert_eq!(ms("01ARZ3NDEKTSV4RRFFQ69G5FAV"), Some(1_469_922_850_259));
        for undated in [
            "8e03978e-40d5-43dd-bc93-6894a57f9324",
            "017f22e279b07cc398c4dc0c0c07398f",
            "order-42",
            "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
            "7ZZZZZZZZZZZZZZZZZZZZZZZZZ",
            "",
        ] {
            assert_eq!(ms(undated), None, "{undated}");
        }
    }
}
