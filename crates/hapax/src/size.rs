//! Parses and formats sizes in bytes (`256MiB`, `1GB`, `4096`).

const UNITS: [(&str, u64); 10] = [
    ("", 1),
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

/// Parses a size.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (number, unit) = (number.parse::<u64>().ok(), unit.trim());
    let known = UNITS.iter().find(|(name, _)| *name == unit);
    if let (Some(number), None, Some(meant)) = (number, known, abbreviated(unit)) {
        return Err(format!("{text:?} has an unknown unit: did you mean {number}{meant}?"));
    }
    let bytes = known.and_then(|(_, scale)| number?.checked_mul(*scale));
    bytes.ok_or_else(|| format!("{text:?} is not a size such as 256MiB or 1GB"))
}

/// The unit to suggest for an unclear one: `MiB` for `M`, `Mi` or `mib`, which could mean 1000 or
/// 1024.
fn abbreviated(unit: &str) -> Option<&'static str> {
    let unit = unit.to_lowercase();
    let mut names = UNITS.iter().map(|(name, _)| *name);
    names.find(|name| !unit.is_empty() && name.to_lowercase().starts_with(&unit))
}

/// The size in the largest binary unit that shows it exactly; [`parse`] reads it back.
pub(crate) fn show(bytes: u64) -> String {
    let binary = UNITS.iter().rev().filter(|(name, _)| name.ends_with("iB"));
    let mut exact = binary.filter(|(_, scale)| bytes >= *scale && bytes.is_multiple_of(*scale));
    match exact.next() {
        Some((unit, scale)) => format!("{}{unit}", bytes / scale),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_by_people() {
        for (text, bytes, shown) in [
            ("256MiB", 256 << 20, "256MiB"),
            ("1 GiB", 1 << 30, "1GiB"),
            ("1MB", 1_000_000, "1000000"),
            ("4096", 4_096, "4KiB"),
            ("4097B", 4_097, "4097"),
            ("0", 0, "0"),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
            assert_eq!((show(bytes).as_str(), parse(shown)), (shown, Ok(bytes)));
        }
        for wrong in ["1.5GiB", "GiB", "99999999999TiB", "-1", "lots", ""] {
            assert!(parse(wrong).unwrap_err().contains("is not a size"), "{wrong}");
        }
        assert!(parse("256M").unwrap_err().contains("did you mean 256MiB?"));
    }
}
