//! The time at which a key was made, where the key tells.

/// Dates read from keys are believed from here on.
const DATED_FROM_MS: u64 = 1_451_606_400_000; // 2016-01-01
/// Clocks differ, so an operation may be dated ahead by so much; its key is remembered from its
/// date on. What is dated further ahead is refused.
pub const DATED_AHEAD_MS: u64 = 24 * 60 * 60 * 1_000;
/// A word of 26 letters that would be a ULID of a time further ahead is none.
const ULID_AHEAD_MS: u64 = 366 * 24 * 60 * 60 * 1_000;

/// Returns when the key was made, in milliseconds since 1970, where it tells: a UUIDv7 or a ULID of
/// a believable time. A UUIDv7 tells whatever its time is; a word of 26 letters may look like a
/// ULID by chance, mostly of a time that is thousands of years ahead. A clock that runs ahead by
/// days is no chance: what it dates must not pass for undated now and be new again when its date
/// has come.
pub fn date_ms(key: &str, now_ms: u64) -> Option<u64> {
    let latest = now_ms.saturating_add(ULID_AHEAD_MS);
    let uuid = uuid_ms(key).filter(|at| *at >= DATED_FROM_MS);
    let ulid = || ulid_ms(key).filter(|at| (DATED_FROM_MS..=latest).contains(at));
    uuid.or_else(ulid)
}

/// Reads a UUID in its usual form, with hyphens.
pub fn parse_uuid(text: &str) -> Option<u128> {
    let bytes = text.as_bytes();
    if bytes.len() != 36 {
        return None;
    }
    let mut value = 0u128;
    for (place, byte) in bytes.iter().enumerate() {
        if matches!(place, 8 | 13 | 18 | 23) {
            if *byte != b'-' {
                return None;
            }
            continue;
        }
        value = value << 4 | u128::from(char::from(*byte).to_digit(16)?);
    }
    Some(value)
}

fn uuid_ms(key: &str) -> Option<u64> {
    let value = parse_uuid(key)?;
    let (version, variant) = (value >> 76 & 0xf, value >> 62 & 0b11);
    (version == 7 && variant == 0b10).then_some((value >> 80) as u64)
}

fn ulid_ms(key: &str) -> Option<u64> {
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

    const NOW_MS: u64 = 1_800_000_000_000;

    #[test]
    fn k8_uuid_v7_and_ulid_tell_their_date_and_nothing_else_does() {
        for (key, made) in [
            ("018bcfe5-6800-7000-8000-000000000001", 0x018b_cfe5_6800),
            ("01HF7YAT0000000000000000AB", 0x018b_cfe5_6800),
            ("01hf7yat0000000000000000ab", 0x018b_cfe5_6800),
            ("017f22e2-79b0-7cc3-98c4-dc0c0c07398f", 1_645_557_742_000),
            ("017F22E2-79B0-7CC3-98C4-DC0C0C07398F", 1_645_557_742_000),
            ("01ARZ3NDEKTSV4RRFFQ69G5FAV", 1_469_922_850_259),
        ] {
            assert_eq!(date_ms(key, NOW_MS), Some(made), "{key}");
        }
        for undated in [
            "018bcfe5-6800-4000-8000-000000000001",
            "8e03978e-40d5-43dd-bc93-6894a57f9324",
            "017f22e279b07cc398c4dc0c0c07398f",
            "00000000-6800-7000-8000-000000000001",
            "ORDERORDERORDERORDERORDER1",
            "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
            "7ZZZZZZZZZZZZZZZZZZZZZZZZZ",
            "order-42",
            "",
        ] {
            assert_eq!(date_ms(undated, NOW_MS), None, "{undated}");
        }
    }

    #[test]
    fn k8_a_clock_that_runs_ahead_by_days_still_dates() {
        const DAY_MS: u64 = 86_400_000;
        let (ulid, made) = ("01HF7YAT0000000000000000AB", 0x018b_cfe5_6800);
        assert_eq!(date_ms(ulid, made - 3 * DAY_MS), Some(made));
        assert_eq!(date_ms(ulid, made - 366 * DAY_MS), Some(made));
        assert_eq!(date_ms(ulid, made - 367 * DAY_MS), None);
        let uuid = "018bcfe5-6800-7000-8000-000000000001";
        assert_eq!(date_ms(uuid, made - 367 * DAY_MS), Some(made));
    }
}
