//! The measurements: a line per run while it runs, one table or one JSON object at the end.

use std::time::Duration;

use hapax_bench::report::{grouped, median, table};
use serde::Serialize;

use crate::system::{Measured, System};

/// How long syncs of 64 KiB took, into a file that has its blocks already.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Disk {
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

/// All measurements of the program.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Lives per run.
    pub(crate) count: u64,
    pub(crate) rows: Vec<Row>,
    /// The raw disk, before each round.
    pub(crate) disk: Vec<Disk>,
}

/// One system at one size of bodies.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Row {
    pub(crate) system: String,
    pub(crate) description: String,
    pub(crate) size: usize,
    /// One value per run, in order.
    pub(crate) lives_per_s: Vec<f64>,
    pub(crate) median_lives_per_s: f64,
    pub(crate) server_cpu_us_per_life: Vec<f64>,
    pub(crate) client_cpu_us_per_life: Vec<f64>,
    /// The part of the server's CPU that its databases used. Empty where there is none.
    pub(crate) database_cpu_us_per_life: Vec<f64>,
    /// The same until everything was idle again.
    pub(crate) database_cpu_us_per_life_to_idle: Vec<f64>,
    pub(crate) wal_bytes_per_life: Vec<f64>,
    /// Share of all cores that server and client kept busy, from 0 to 1.
    pub(crate) cores_busy: Vec<f64>,
    /// The median against that of the best peer at this size.
    pub(crate) against_best_peer: Option<f64>,
    #[serde(skip)]
    pub(crate) is_peer: bool,
}

impl Row {
    pub(crate) fn new(system: &System, size: usize) -> Self {
        Self {
            system: system.name().to_owned(),
            description: system.describe(),
            is_peer: system.is_peer(),
            size,
            ..Self::default()
        }
    }

    /// Adds a run of `count` lives.
    pub(crate) fn add(&mut self, count: u64, measured: Measured) {
        let micros_per_life = |time: Duration| time.as_secs_f64() * 1e6 / count as f64;
        self.lives_per_s.push(count as f64 / measured.time.as_secs_f64());
        let server = measured.cpu.server.unwrap_or_default();
        self.server_cpu_us_per_life.push(micros_per_life(server));
        self.client_cpu_us_per_life.push(micros_per_life(measured.cpu.client));
        if let Some(database) = measured.database {
            self.database_cpu_us_per_life.push(micros_per_life(database.cpu));
            self.database_cpu_us_per_life_to_idle.push(micros_per_life(database.cpu_to_idle));
            self.wal_bytes_per_life.push(database.wal_bytes as f64 / count as f64);
        }
        self.cores_busy.push(measured.cpu.cores_busy(measured.time));
        self.median_lives_per_s = median(&self.lives_per_s);
    }

    fn cells(&self) -> [String; 12] {
        let lowest = self.lives_per_s.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = self.lives_per_s.iter().copied().fold(0.0, f64::max);
        [
            format!("{} bytes", self.size),
            self.description.clone(),
            grouped(self.median_lives_per_s),
            grouped(lowest),
            grouped(highest),
            self.against_best_peer.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
            format!("{:.1} µs", median(&self.server_cpu_us_per_life)),
            if_any(&self.database_cpu_us_per_life, |cpu| format!("{cpu:.1} µs")),
            if_any(&self.database_cpu_us_per_life_to_idle, |cpu| format!("{cpu:.1} µs")),
            if_any(&self.wal_bytes_per_life, |bytes| format!("{bytes:.0} B")),
            format!("{:.1} µs", median(&self.client_cpu_us_per_life)),
            format!("{:.0} %", median(&self.cores_busy) * 100.0),
        ]
    }

    /// The newest run, in words.
    pub(crate) fn last(&self) -> String {
        let last = |values: &[f64]| values.last().copied().unwrap_or(0.0);
        format!(
            "{:>5} bytes  {:<14} {:>9} lives/s, CPU per life: server {:.1} µs (database {:.1} µs), \
             client {:.1} µs, cores busy: {:.0} %, WAL per life: {:.0} B",
            self.size,
            self.system,
            grouped(last(&self.lives_per_s)),
            last(&self.server_cpu_us_per_life),
            last(&self.database_cpu_us_per_life),
            last(&self.client_cpu_us_per_life),
            last(&self.cores_busy) * 100.0,
            last(&self.wal_bytes_per_life)
        )
    }
}

/// The median in words, or a dash where nothing was measured.
fn if_any(values: &[f64], words: impl Fn(f64) -> String) -> String {
    if values.is_empty() { "-".to_owned() } else { words(median(values)) }
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
        let header = [
            "body",
            "system",
            "lives/s, median",
            "lowest",
            "highest",
            "× best peer",
            "server CPU",
            "of it database",
            "database to idle",
            "WAL",
            "client CPU",
            "cores busy",
        ];
        let mut lines = vec![header.map(str::to_owned)];
        lines.extend(self.rows.iter().map(Row::cells));
        let text = table(&lines, 2).join("\n");
        let runs = self.rows.iter().map(|row| row.lives_per_s.len()).max().unwrap_or(0);
        let count = grouped(self.count as f64);
        text + &format!(
            "\n{count} lives a run, runs of each: {runs}, in turns; CPU and WAL are per life\n"
        ) + "every message verified: accepted once, delivered once, unchanged, settled once"
    }
}

#[cfg(test)]
mod tests {
    use hapax_bench::cpu::Times;

    use super::*;

    fn row(is_peer: bool, size: usize, rates: &[f64]) -> Row {
        let mut row = Row {
            system: "x".to_owned(),
            description: "X".to_owned(),
            size,
            is_peer,
            ..Row::default()
        };
        for rate in rates {
            let time = Duration::from_secs_f64(1_000.0 / rate);
            row.add(
                1_000,
                Measured { time, cpu: Times { client: time, server: Some(time) }, database: None },
            );
        }
        row
    }

    #[test]
    fn ratios_are_to_the_best_peer_of_the_same_size() {
        let rows = vec![
            row(false, 100, &[1_000.0]),
            row(true, 100, &[100.0, 200.0, 900.0]),
            row(true, 100, &[50.0]),
            row(true, 1_024, &[400.0]),
        ];
        let mut report = Report { count: 1_000, rows, disk: Vec::new() };
        report.compare();
        let ratios: Vec<String> = report
            .rows
            .iter()
            .map(|row| format!("{:.2}", row.against_best_peer.unwrap()))
            .collect();
        assert_eq!(ratios, ["5.00", "1.00", "0.25", "1.00"]);
    }

    #[test]
    fn without_a_peer_there_is_no_ratio() {
        let rows = vec![row(false, 100, &[1_000.0])];
        let mut report = Report { count: 1_000, rows, disk: Vec::new() };
        report.compare();
        assert_eq!(report.rows[0].against_best_peer, None);
        assert!(report.table().contains("1,000"));
    }
}
