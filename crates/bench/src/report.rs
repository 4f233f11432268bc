//! Prints what was measured: a table for people, JSON for programs.

use serde::Serialize;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    pub(crate) json: bool,
}

impl Report {
    /// One measurement: its name, its fields as JSON, its lines for people.
    #[expect(clippy::print_stdout, reason = "the program's output")]
    pub(crate) fn print(&self, name: &str, fields: &impl Serialize, lines: &[(String, String)]) {
        if self.json {
            let fields = serde_json::to_value(fields).unwrap_or_default();
            println!("{}", serde_json::json!({ "measurement": name, "values": fields }));
            return;
        }
        println!("\n{name}");
        let width = lines.iter().map(|(label, _)| label.len()).max().unwrap_or(0);
        for (label, value) in lines {
            println!("  {label:width$}  {value}");
        }
    }
}

pub(crate) fn line(label: &str, value: impl Into<String>) -> (String, String) {
    (label.to_owned(), value.into())
}

/// 1234567 as 1,234,567.
pub(crate) fn grouped(number: f64) -> String {
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

/// The percentile of a list of durations in microseconds.
pub(crate) fn percentile(sorted: &[u64], of_thousand: usize) -> f64 {
    let place = (sorted.len().saturating_sub(1)) * of_thousand / 1_000;
    sorted.get(place).map_or(0.0, |micros| *micros as f64 / 1_000.0)
}
