//! Formats times.

use std::time::{SystemTime, UNIX_EPOCH};

use hapax_core::Time;
use jiff::Timestamp;

/// RFC 3339 in UTC, with milliseconds.
pub fn rfc3339(time: Time) -> String {
    let ms = i64::try_from(time.0).unwrap_or(i64::MAX);
    match Timestamp::from_millisecond(ms) {
        Ok(timestamp) => format!("{timestamp:.3}"),
        Err(_) => format!("{:.3}", Timestamp::MAX),
    }
}

/// The wall clock.
pub fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Parses RFC 3339; `None` if it is not a time since 1970.
pub fn parse(text: &str) -> Option<Time> {
    let ms = text.parse::<Timestamp>().ok()?.as_millisecond();
    u64::try_from(ms).ok().map(Time)
}

/// A duration in the largest unit that shows it exactly: `90m`, `1500ms`. `hapax` reads it back.
pub fn show_ms(ms: u64) -> String {
    const UNITS: [(&str, u64); 4] =
        [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
    match UNITS.iter().find(|(_, unit_ms)| ms >= *unit_ms && ms.is_multiple_of(*unit_ms)) {
        Some((unit, unit_ms)) => format!("{}{unit}", ms / unit_ms),
        None => format!("{ms}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_back() {
        assert_eq!(rfc3339(Time(1_700_000_000_123)), "2023-11-14T22:13:20.123Z");
        assert_eq!(parse("2023-11-14T23:13:20.123+01:00"), Some(Time(1_700_000_000_123)));
        assert_eq!(parse("yesterday"), None);
        assert!(rfc3339(Time::NEVER).starts_with("9999-12-"));
    }

    #[test]
    fn a_duration_is_shown_exactly() {
        let shown = [0, 999, 1_000, 1_500, 90 * 60_000, 86_400_000].map(show_ms);
        assert_eq!(shown, ["0ms", "999ms", "1s", "1500ms", "90m", "1d"]);
    }
}
