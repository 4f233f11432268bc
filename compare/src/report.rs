//! What was measured: a line per run while it goes on, one table or one JSON object in the end.

use std::time::Duration;

use serde::Serialize;

use crate::disk::Syncs;

/// All that one program run measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Lives per run.
    pub(crate) count: u64,
    pub(crate) rows: Vec<Row>,
    /// The raw disk, before each round.
    pub(crate) disk: Vec<Syncs>,
}

/// One system at one size of bodies.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) system: &'static str,
    pub(crate) description: &'static str,
    pub(crate) size: usize,
    /// Of each run, in order.
    pub(crate) lives_per_s: Vec<f64>,
    pub(crate) median_lives_per_s: f64,
    /// The median against that of the best peer at this size.
    pub(crate) against_best_peer: Option<f64>,
    #[serde(skip)]
    pub(crate) is_peer: bool,
}

impl Row {
    pub(crate) fn add(&mut self, count: u64, took: Duration) -> f64 {
        let rate = count as f64 / took.as_secs_f64();
        self.lives_per_s.push(rate);
        self.median_lives_per_s = median(&self.lives_per_s);
        rate
    }
}

impl Report {
    /// Fills in the ratios, once all runs are over.
    pub(crate) fn compare(&mut self) {
        let medians: Vec<(usize, f64)> = self
            .rows
            .iter()
            .filter(|row| row.is_peer)
            .map(|row| (row.size, row.median_lives_per_s))
            .collect();
        for row in &mut self.rows {
            let peers = medians.iter().filter(|(size, _)| *size == row.size);
            let best = peers.map(|(_, median)| *median).fold(0.0, f64::max);
            row.against_best_peer = (best > 0.0).then(|| row.median_lives_per_s / best);
        }
    }

    #[expect(clippy::print_stdout, reason = "the program's output")]
    pub(crate) fn print(&self, as_json: bool) -> serde_json::Result<()> {
        if as_json {
            println!("{}", serde_json::to_string_pretty(self)?);
        } else {
            println!("{}", self.table());
        }
        Ok(())
    }

    fn table(&self) -> String {
        let header = ["body", "system", "lives/s, median", "lowest", "highest", "× best peer"];
        let mut lines = vec![header.map(str::to_owned)];
        for row in &self.rows {
            let lowest = row.lives_per_s.iter().copied().fold(f64::INFINITY, f64::min);
            let highest = row.lives_per_s.iter().copied().fold(0.0, f64::max);
            lines.push([
                format!("{} bytes", row.size),
                row.description.to_owned(),
                grouped(row.median_lives_per_s),
                grouped(lowest),
                grouped(highest),
                row.against_best_peer.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
            ]);
        }
        let width = |column: usize| {
            let cells = lines.iter().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: [usize; 6] = std::array::from_fn(width);
        let mut text: Vec<String> = lines
            .iter()
            .map(|[body, system, cells @ ..]| {
                let [body_width, system_width, widths @ ..] = &widths;
                let mut line = format!("{body:<body_width$}  {system:<system_width$}");
                for (cell, width) in cells.iter().zip(widths) {
                    line += &format!("  {cell:>width$}");
                }
                line
            })
            .collect();
        let runs = self.rows.iter().map(|row| row.lives_per_s.len()).max().unwrap_or(0);
        text.push(format!(
            "{} lives a run, {runs} runs of each in turns; every message verified: \
             accepted, delivered and settled once",
            grouped(self.count as f64)
        ));
        text.join("\n")
    }
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

/// The middle one, or the mean of the two in the middle.
pub(crate) fn median(values: &[f64]) -> f64 {
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
