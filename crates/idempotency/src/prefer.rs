//! `Prefer: wait=SECONDS` (RFC 7240): the client wants to wait for the response.

use std::time::Duration;

use http::{HeaderMap, HeaderName};

use crate::limits::WAIT_SECONDS_MAX;

const PREFER: HeaderName = HeaderName::from_static("prefer");
pub(crate) const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// How long the client wants to wait. `None` if it is missing or malformed, because a preference is
/// never an error. Of two the first counts.
pub(crate) fn wait(headers: &HeaderMap) -> Option<Duration> {
    let values = headers.get_all(PREFER);
    let preferences =
        values.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    let seconds = preferences.filter_map(|preference| {
        let (name, value) = preference.split(';').next()?.split_once('=')?;
        let value = value.trim().trim_matches('"');
        let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        if !name.trim().eq_ignore_ascii_case("wait") || !is_number {
            return None;
        }
        Some(value.parse().unwrap_or(u64::MAX).min(WAIT_SECONDS_MAX))
    });
    seconds.map(Duration::from_secs).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(values: &[&'static str]) -> Option<u64> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(PREFER, http::HeaderValue::from_static(value));
        }
        wait(&headers).map(|wait| wait.as_secs())
    }

    #[test]
    fn a_wait_is_found_among_other_preferences() {
        assert_eq!(waits(&["wait=10"]), Some(10));
        assert_eq!(waits(&["respond-async, Wait = \"7\"; foo=bar"]), Some(7));
        assert_eq!(waits(&["return=minimal", "wait=3", "wait=4"]), Some(3));
        assert_eq!(waits(&["wait=99999999999999999999999"]), Some(60));
        assert_eq!(waits(&["wait=0"]), Some(0));
    }

    #[test]
    fn what_is_no_wait_is_no_error() {
        for value in ["wait", "wait=", "wait=-1", "wait=1.5", "wait=x", "waits=3", ""] {
            assert_eq!(waits(&[value]), None, "{value}");
        }
        assert_eq!(waits(&[]), None);
    }
}
