//! Durations as people write them (`500ms`, `30s`, `5m`, `2h`, `7d`) and read them (`3 m`).

use std::time::Duration;

use jiff::{Span, SpanRelativeTo};

/// Parses a duration, to the millisecond. A bare number is refused, since its unit is unclear.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    if text.parse::<u64>().is_ok() {
        return Err(format!("{text:?} has no unit: did you mean {text}s?"));
    }
    let exact = days(text).or_else(|| {
        let span: Span = text.parse().ok()?;
        span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?.try_into().ok()
    });
    let read = exact.and_then(|exact| {
        let ms = milliseconds(exact.saturating_add(Duration::from_micros(500)));
        // A duration below a millisecond must not become zero.
        (ms > 0 || exact.is_zero()).then(|| Duration::from_millis(ms))
    });
    let help = "is not a duration: give a number and a unit, such as 500ms, 30s, 5m, 2h or 7d";
    read.ok_or_else(|| format!("{text:?} {help}"))
}

/// Parses fractions of a day, which jiff refuses.
fn days(text: &str) -> Option<Duration> {
    let days: f64 = text.strip_suffix('d')?.trim_end().parse().ok()?;
    Duration::try_from_secs_f64(days * 86_400.0).ok()
}

pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// As [`short`], but rounded to the nearest unit, for times in the future: seven days less a second
/// is shown as seven days.
pub(crate) fn nearest(ms: u64) -> String {
    let (unit_ms, _) = unit(ms);
    short(ms.saturating_add(unit_ms / 2))
}

fn unit(ms: u64) -> (u64, &'static str) {
    const UNITS: &[(u64, &str)] =
        &[(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")];
    UNITS.iter().find(|(unit_ms, _)| ms >= *unit_ms).copied().unwrap_or((1, "ms"))
}

/// Formats a duration as one number and its unit, rounded down.
pub(crate) fn short(ms: u64) -> String {
    let (unit_ms, name) = unit(ms);
    match ms / unit_ms {
        // Days are coarse at first.
        1 if name == "d" => format!("{} h", ms / 3_600_000),
        whole => format!("{whole} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        let ms = |text| parse(text).map(milliseconds);
        for (text, expected) in [
            ("500ms", 500),
            ("0s", 0),
            ("1.5s", 1_500),
            ("1.2345s", 1_235),
            ("5 m", 300_000),
            ("90m", 5_400_000),
            ("1h30m", 5_400_000),
            ("7d", 604_800_000),
            ("1.5d", 129_600_000),
            ("2d 12h", 216_000_000),
        ] {
            assert_eq!(ms(text), Ok(expected), "{text}");
        }
        for wrong in ["", "s", "soon", "-1s", "1s ago", "1.2.3s", "1mo", "-1d", "nand", "5us"] {
            assert!(ms(wrong).unwrap_err().contains("is not a duration"), "{wrong}");
        }
        assert!(ms("30").unwrap_err().contains("did you mean 30s?"));
    }

    #[test]
    fn what_the_broker_shows_reads_back() {
        for ms in [0, 999, 1_500, 5_400_000, 604_800_000] {
            let shown = hapax_server::time::show_ms(ms);
            assert_eq!(parse(&shown).map(milliseconds), Ok(ms), "{shown}");
        }
    }

    #[test]
    fn a_short_duration_is_one_number() {
        for (ms, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (3_500, "3 s"),
            (185_000, "3 m"),
            (26 * 3_600_000, "26 h"),
            (50 * 3_600_000, "2 d"),
        ] {
            assert_eq!(short(ms), text);
        }
    }
}
