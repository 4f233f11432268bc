//! Parses and formats times. On the wire they are milliseconds since 1970.

use jiff::Timestamp;

use crate::duration::{nearest, short};

pub(crate) fn now_ms() -> u64 {
    hapax_server::time::now().0
}

/// Formats as RFC 3339 in UTC, like the HTTP API.
pub(crate) fn rfc3339(ms: u64) -> String {
    format!("{:.3}", timestamp(ms))
}

/// Formats for people: `2026-05-09 07:29:33.186`.
pub(crate) fn plain(ms: u64) -> String {
    rfc3339(ms).trim_end_matches('Z').replace('T', " ")
}

/// The time of the day alone.
pub(crate) fn of_day(ms: u64) -> String {
    plain(ms).split_once(' ').map(|(_, time)| time.to_owned()).unwrap_or_default()
}

/// `3 m ago`, or `in 5 s`.
pub(crate) fn relative(now_ms: u64, ms: u64) -> String {
    match now_ms.checked_sub(ms) {
        Some(0..1_000) => "just now".to_owned(),
        Some(past) => format!("{} ago", short(past)),
        None => format!("in {}", nearest(ms - now_ms)),
    }
}

/// Parses RFC 3339, or an age: `2h`.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    if let Ok(ago) = crate::duration::parse(text) {
        return Ok(now_ms().saturating_sub(crate::duration::milliseconds(ago)));
    }
    let help = || {
        format!(
            "{text:?} is not a time: give one such as 2026-05-09T07:00:00Z, or an age such \
                    as 2h"
        )
    };
    let ms = text.parse::<Timestamp>().map_err(|_| help())?.as_millisecond();
    u64::try_from(ms).map_err(|_| help())
}

fn timestamp(ms: u64) -> Timestamp {
    let ms = i64::try_from(ms).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_from_now() {
        let now = 1_700_000_000_000;
        assert_eq!(relative(now, now - 20), "just now");
        assert_eq!(relative(now, now - 185_000), "3 m ago");
        assert_eq!(relative(now, now + 5_000), "in 5 s");
        assert_eq!(relative(now, now + 7 * 86_400_000 - 5_000), "in 7 d");
        assert_eq!(plain(1_700_000_000_123), "2023-11-14 22:13:20.123");
        assert_eq!(of_day(1_700_000_000_123), "22:13:20.123");
    }

    #[test]
    fn times_are_read_as_dates_or_as_ages() {
        assert_eq!(parse("2023-11-14T22:13:20.123Z"), Ok(1_700_000_000_123));
        let hour = now_ms() - parse("1h").unwrap();
        assert!((3_600_000..3_660_000).contains(&hour), "{hour}");
        assert!(parse("yesterday").unwrap_err().contains("an age such as"));
    }
}
