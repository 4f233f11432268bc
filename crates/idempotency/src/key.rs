//! The client's key: from its header, and the date that it may tell.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hapax_wire::key::{self, Malformed};
use http::{HeaderMap, HeaderName};

use crate::problem::Problem;

pub(crate) use hapax_wire::key::IDEMPOTENCY_KEY;

/// How far ahead a key may be dated, as by the broker: what is dated further ahead would be
/// forgotten too early.
const DATED_AHEAD: Duration = Duration::from_millis(hapax_keys::DATED_AHEAD_MS);

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
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    let date = hapax_keys::date_ms(key, now_ms)?;
    Some(UNIX_EPOCH + Duration::from_millis(date))
}

#[cfg(test)]
mod tests {
    use super::*;

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
