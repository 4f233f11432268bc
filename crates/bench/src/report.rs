//! Figures as text: the layout of every table that a benchmark prints.

use hdrhistogram::Histogram;

/// Longest latency that is kept exactly, in microseconds.
const LONGEST_US: u64 = 600_000_000;

/// A histogram of latencies in microseconds.
pub fn histogram() -> Histogram<u64> {
    let bounded = Histogram::new_with_bounds(1, LONGEST_US, 3);
    // The bounds are right; without them it grows as it needs to.
    bounded.unwrap_or_else(|_| Histogram::new(3).unwrap_or_else(|_| unreachable!("three digits")))
}

/// 1234567 as 1,234,567.
pub fn grouped(number: f64) -> String {
    let digits = format!("{:.0}", number.max(0.0));
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// The middle one, or the mean of the two in the middle.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = sorted.get(middle).copied().unwrap_or(0.0);
    if !sorted.len().is_multiple_of(2) {
        return upper;
    }
    let lower = middle.checked_sub(1).and_then(|place| sorted.get(place));
    lower.map_or(upper, |lower| f64::midpoint(*lower, upper))
}

/// A line for each row. Columns are as wide as their longest cell; the first `left` of them are
/// aligned to the left, the others to the right.
pub fn table<const COLUMNS: usize>(rows: &[[String; COLUMNS]], left: usize) -> Vec<String> {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    let line = |row: &[String; COLUMNS]| {
        let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
            if column < left { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(grouped(1_234_567.4), "1,234,567");
        assert_eq!(grouped(999.0), "999");
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let rows = [["a", "1", "µ"], ["bcd", "22", ""]].map(|row| row.map(str::to_owned));
        assert_eq!(table(&rows, 1), ["a     1  µ", "bcd  22"]);
        assert_eq!(table(&rows, 3), ["a    1   µ", "bcd  22"]);
    }
}
