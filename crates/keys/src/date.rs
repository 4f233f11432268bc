//! The date of a key, if it carries one.

/// Earlier dates in keys are not believed.
const DATED_FROM_MS: u64 = 1_451_606_400_000; // 2016-01-01
/// Clocks differ, so an operation may be dated this far in the future; its retention starts at its
/// date. One dated further ahead is refused.
pub const DATED_AHEAD_MS: u64 = 24 * 60 * 60 * 1_000;
/// A word of 26 letters that would be a ULID dated further ahead than this does not count as one.
const ULID_AHEAD_MS: u64 = 366 * 24 * 60 * 60 * 1_000;

/// The value of a byte that is not a digit.
const NONE: u8 = u8::MAX;
const HEX: [u8; 256] = values(b"0123456789ABCDEF");
const CROCKFORD: [u8; 256] = values(b"0123456789ABCDEFGHJKMNPQRSTVWXYZ");

/// Returns the date of a UUIDv7 or a ULID, in milliseconds since 1970, if it is plausible. A UUIDv7
/// is dated however far ahead; a word of 26 letters may look like a ULID by chance, mostly
/// thousands of years ahead. A clock that runs days ahead is not chance: its keys must not count as
/// undated now and as new when their date has come.
pub fn date_ms(key: impl AsRef<[u8]>, now_ms: u64) -> Option<u64> {
    let key = key.as_ref();
    let latest = now_ms.saturating_add(ULID_AHEAD_MS);
    let uuid = uuid_ms(key).filter(|at| *at >= DATED_FROM_MS);
    let ulid = || ulid_ms(key).filter(|at| (DATED_FROM_MS..=latest).contains(at));
    uuid.or_else(ulid)
}

/// Reads a UUID in its usual form, with hyphens.
pub fn parse_uuid(text: impl AsRef<[u8]>) -> Option<u128> {
    let mut groups = text.as_ref().split(|byte| *byte == b'-');
    let mut group = |digits: usize| groups.next().filter(|it| it.len() == digits).and_then(hex);
    let time = (group(8)?, group(4)?, group(4)?);
    let rest = (group(4)?, group(12)?);
    let (high, low) = (time.0 << 32 | time.1 << 16 | time.2, rest.0 << 48 | rest.1);
    groups.next().is_none().then_some(u128::from(high) << 64 | u128::from(low))
}

/// Up to 16 digits. All are read before any is checked, which is faster than one by one.
fn hex(digits: &[u8]) -> Option<u64> {
    let (mut value, mut all) = (0, 0);
    for letter in digits {
        let digit = HEX.get(usize::from(*letter)).copied().unwrap_or(NONE);
        value = value << 4 | u64::from(digit);
        all |= digit;
    }
    (all < 16).then_some(value)
}

/// Every key is parsed, and a table is faster than comparisons.
#[expect(clippy::indexing_slicing, reason = "evaluated when this is compiled")]
const fn values(digits: &[u8]) -> [u8; 256] {
    let mut values = [NONE; 256];
    let mut value = 0;
    while value < digits.len() {
        values[digits[value].to_ascii_uppercase() as usize] = value as u8;
        values[digits[value].to_ascii_lowercase() as usize] = value as u8;
        value += 1;
    }
    values
}

fn digit(values: &[u8; 256], letter: u8) -> Option<u8> {
    values.get(usize::from(letter)).copied().filter(|value| *value != NONE)
}

fn uuid_ms(key: &[u8]) -> Option<u64> {
    // The version is checked first: most keys that look like a UUID are of version 4.
    let is_dated = key.len() == 36 && key.get(14) == Some(&b'7');
    let value = if is_dated { parse_uuid(key)? } else { return None };
    (value >> 62 & 0b11 == 0b10).then_some((value >> 80) as u64)
}

fn ulid_ms(key: &[u8]) -> Option<u64> {
    if key.len() != 26 {
        return None;
    }
    let mut value = 0u128;
    for (place, letter) in key.iter().copied().enumerate() {
        let digit = digit(&CROCKFORD, letter)?;
        if place == 0 && digit > 7 {
            return None;
        }
        value = value << 5 | u128::from(digit);
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
            "018bcfe5-6800-7000-c000-000000000001",
            "018bcfe5-6800-7000-8000-00000000000g",
            "018bcfe56-800-7000-8000-000000000001",
            "018bcfe5-6800-7000-8000-0000000000-1",
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
