//! Times as people and other programs read them.

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

/// What the wall clock says.
pub fn now() -> Time {
    Time(u64::try_from(Timestamp::now().as_millisecond()).unwrap_or_default())
}

/// Reads RFC 3339; `None` where it is no time since 1970.
pub fn parse(text: &str) -> Option<Time> {
    let ms = text.parse::<Timestamp>().ok()?.as_millisecond();
    u64::try_from(ms).ok().map(Time)
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
}
