//! Durations as people write them (`500ms`, `30s`, `5m`, `2h`, `7d`) and read them (`3 m`).

use std::time::Duration;

const UNITS: &[(&str, u64)] =
    &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Reads a duration for clap. A bare number is refused: seconds or milliseconds, nobody can tell.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let help = || format!("give a number and a unit, such as 500ms, 30s, 5m, 2h or 7d: {text:?}");
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(help)?;
    let (number, unit) = text.split_at(end);
    let (_, unit_ms) = UNITS.iter().find(|(name, _)| *name == unit.trim()).ok_or_else(help)?;
    let number: f64 = number.parse().map_err(|_| help())?;
    Ok(Duration::from_millis((number * *unit_ms as f64).round() as u64))
}

/// A duration, or `forever`.
pub(crate) fn parse_endless(text: &str) -> Result<Option<Duration>, String> {
    match text {
        "forever" | "none" => Ok(None),
        _ => parse(text).map(Some),
    }
}

pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The same rounded to the nearest, for times to come: seven days less a second are seven days.
pub(crate) fn nearest(ms: u64) -> String {
    let (unit_ms, _) = unit(ms);
    short(ms.saturating_add(unit_ms / 2))
}

fn unit(ms: u64) -> (u64, &'static str) {
    const UNITS: &[(u64, &str)] =
        &[(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")];
    UNITS.iter().find(|(unit_ms, _)| ms >= *unit_ms).copied().unwrap_or((1, "ms"))
}

/// One number and its unit, rounded down: what an eye takes in at once.
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
        assert_eq!(ms("500ms"), Ok(500));
        assert_eq!(ms("1.5s"), Ok(1_500));
        assert_eq!(ms("5 m"), Ok(300_000));
        assert_eq!(ms("7d"), Ok(604_800_000));
        for wrong in ["", "5", "s", "5 weeks", "-1s", "1.2.3s", "5µs"] {
            assert!(ms(wrong).unwrap_err().contains("unit"), "{wrong}");
        }
        assert_eq!(parse_endless("forever"), Ok(None));
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
