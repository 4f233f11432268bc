//! The client's key: read from its header, with the date in it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hapax_wire::key::{self, Malformed};
use http::{HeaderMap, HeaderName};

use crate::problem::Problem;

pub(crate) use hapax_wire::key::IDEMPOTENCY_KEY;

/// How far in the future a key may be dated, as at the broker: a key dated further ahead would be
/// forgotten too early.
const DATED_AHEAD: Duration = Duration::from_millis(hapax_keys::DATED_AHEAD_MS);

impl From<Malformed> for Problem {
    fn from(malformed: Malformed) -> Self {
        Self::malformed_key(malformed.0)
    }
}

/// The key in a header; `None` without that header.
pub(crate) fn read(headers: &HeaderMap, name: &HeaderName) -> Result<Option<String>, Problem> {
    Ok(key::read(headers, name)?.map(Into::into))
}

/// Checks that a text is a valid key.
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

/// The error of a missing key, with a hint if the client sent a similar header.
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

/// The date in a UUIDv7 or a ULID of a plausible time. The broker cannot read it, because it gets a
/// hash of the key.
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
