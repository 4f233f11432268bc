//! The client's key: from its header, and the date that it may tell.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hapax_wire::key::{self, Malformed};
use http::{HeaderMap, HeaderName};

use crate::problem::Problem;

pub(crate) use hapax_wire::key::IDEMPOTENCY_KEY;

/// Dates are believed from here on.
const DATED_FROM: Duration = Duration::from_millis(1_451_606_400_000); // 2016-01-01
/// What is dated further ahead is refused, as by the broker: its key would be forgotten too early.
const DATED_AHEAD: Duration = Duration::from_secs(24 * 60 * 60);
/// A word of 26 letters that would be a ULID of a time further ahead is none.
const ULID_AHEAD: Duration = Duration::from_secs(366 * 24 * 60 * 60);

impl From<Malformed> for Problem {
    fn from(malformed: Malformed) -> Self {
        Self::malformed_key(malformed.0)
    }
}

/// The key in a header; `None` where there is no such header.
pub(crate) fn read(headers: &HeaderMap, name: &HeaderName) -> Result<Option<String>, Problem> {
    Ok(key::read(headers, name)?.map(Into::into))
}

/// Whether a text can be a key at all.
pub(crate) fn check(key: &str, now: SystemTime) -> Result<(), Problem> {
    key::check(key)?;
    match date(key, now) {
        Some(date) if date > now + DATED_AHEAD => {
            let detail = "the date of the key is more than a day in the future: check the clock \
                          of the client";
            Err(Problem::malformed_key(detail))
        }
        _ => Ok(()),
    }
}

/// Why a key may be missing although the client thinks it sent one.
pub(crate) fn missing(headers: &HeaderMap, name: &HeaderName) -> Problem {
    Problem::missing_key(match key::look_alike(headers) {
        Some(other) => {
            format!(
                "this route requires a key: the request has the header {other}, but the key's \
                     header is {name}"
            )
        }
        None => format!("this route requires a key: send the header {name}"),
    })
}

/// When the key was made, where it tells: a UUIDv7 or a ULID of a believable time. The broker
/// would see it too, were the key not hashed on its way there.
pub(crate) fn date(key: &str, now: SystemTime) -> Option<SystemTime> {
    let latest = now.duration_since(UNIX_EPOCH).unwrap_or_default() + ULID_AHEAD;
    let uuid = uuid_date(key).map(Duration::from_millis).filter(|at| *at >= DATED_FROM);
    let ulid = || ulid_date(key).map(Duration::from_millis);
    let ulid = || ulid().filter(|at| (DATED_FROM..=latest).contains(at));
    uuid.or_else(ulid).map(|at| UNIX_EPOCH + at)
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

    #[test]
    fn k8_a_key_that_is_dated_more_than_a_day_ahead_is_refused() {
        let days = |days: u64| Duration::from_secs(days * 24 * 60 * 60);
        for (key, made) in [
            ("017f22e2-79b0-7cc3-98c4-dc0c0c07398f", 1_645_557_742_000),
            ("01ARZ3NDEKTSV4RRFFQ69G5FAV", 1_469_922_850_259),
        ] {
            let made = UNIX_EPOCH + Duration::from_millis(made);
            check(key, made - days(1)).unwrap();
            let refused = check(key, made - days(2)).unwrap_err();
            assert_eq!(refused.code(), "malformed_key", "{key}");
        }
        check("order-42", UNIX_EPOCH).unwrap();
    }
}
