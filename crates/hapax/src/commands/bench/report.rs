//! The report of a run: text for people, JSON for programs.

use hapax_bench::Ledger;
use hapax_bench::cpu::Times;
use hapax_bench::disk::Syncs;
use hapax_bench::report::{grouped, table};
use hapax_bench::wire::Lived;
use serde::Serialize;

use super::Bench;
use crate::failure::Failure;
use crate::screen::{Colour, Screen};

#[derive(Debug, Serialize)]
pub(super) struct Report {
    mode: &'static str,
    producers: usize,
    workers: usize,
    size: usize,
    count: u64,
    window: usize,
    backlog: u64,
    dedup: bool,
    /// Latencies, with `--latency`.
    rate: Option<u64>,
    seconds: f64,
    sends_per_s: f64,
    lives_per_s: f64,
    /// Latency of the confirmation of a send.
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    max_ms: f64,
    /// With `--pile-up`: seconds until workers started, lives per second from then on, and the
    /// longest confirmation of a message that was sent beside them.
    piled_s: Option<f64>,
    drained_per_s: Option<f64>,
    max_beside_ms: Option<f64>,
    /// Latency of the confirmation of a settle.
    settle_p50_ms: f64,
    settle_p99_ms: f64,
    settle_p999_ms: f64,
    settle_max_ms: f64,
    server_cpu_us_per_life: Option<f64>,
    client_cpu_us_per_life: f64,
    /// Share of all cores that both sides kept busy, from 0 to 1.
    cores_busy: Option<f64>,
    sync_p50_ms: Option<f64>,
    sync_p99_ms: Option<f64>,
    redelivered: u64,
    leases_lost: u64,
    /// Whether every message was accepted, delivered and done exactly once, as it was sent.
    pub(super) verified: bool,
    wrong: Vec<String>,
}

impl Report {
    pub(super) fn new(
        bench: &Bench,
        ledger: &Ledger,
        lived: &Lived,
        cpu: Times,
        syncs: &Syncs,
    ) -> Self {
        let count = bench.count as f64;
        let ms = |percentile: f64| lived.confirms.value_at_percentile(percentile) as f64 / 1e3;
        let settle_ms = |percentile| lived.settles.value_at_percentile(percentile) as f64 / 1e3;
        let wrong = ledger.faults();
        Self {
            mode: if bench.latency { "latency" } else { "throughput" },
            producers: bench.producers,
            workers: bench.workers,
            size: bench.size,
            count: bench.count,
            window: bench.window,
            backlog: bench.backlog,
            dedup: bench.has_keys(),
            rate: bench.latency.then_some(bench.rate),
            seconds: ledger.elapsed().as_secs_f64(),
            sends_per_s: count / lived.sends.as_secs_f64(),
            lives_per_s: count / lived.lives.as_secs_f64(),
            p50_ms: ms(50.0),
            p99_ms: ms(99.0),
            p999_ms: ms(99.9),
            max_ms: lived.confirms.max() as f64 / 1e3,
            piled_s: bench.pile_up.then_some(lived.piled.as_secs_f64()),
            drained_per_s: bench
                .pile_up
                .then(|| count / lived.lives.saturating_sub(lived.piled).as_secs_f64()),
            max_beside_ms: bench.pile_up.then(|| lived.confirms_beside.max() as f64 / 1e3),
            settle_p50_ms: settle_ms(50.0),
            settle_p99_ms: settle_ms(99.0),
            settle_p999_ms: settle_ms(99.9),
            settle_max_ms: lived.settles.max() as f64 / 1e3,
            server_cpu_us_per_life: cpu.server.map(|time| time.as_secs_f64() * 1e6 / count),
            client_cpu_us_per_life: cpu.client.as_secs_f64() * 1e6 / count,
            cores_busy: cpu.server.map(|_| cpu.cores_busy(lived.lives)),
            sync_p50_ms: syncs.percentile_ms(50.0),
            sync_p99_ms: syncs.percentile_ms(99.0),
            redelivered: ledger.redelivered(),
            leases_lost: ledger.leases_lost(),
            verified: wrong.is_empty(),
            wrong,
        }
    }

    pub(super) fn print(&self, screen: Screen) -> Result<(), Failure> {
        let number = |value: Option<f64>, unit: &str| match value {
            Some(value) => format!("{value:.2} {unit}"),
            None => "not known".to_owned(),
        };
        let times = |[p50, p99, p999, max]: [f64; 4]| {
            format!("p50 {p50:.2} ms, p99 {p99:.2} ms, p99.9 {p999:.2} ms, longest {max:.2} ms")
        };
        let confirm = times([self.p50_ms, self.p99_ms, self.p999_ms, self.max_ms]);
        let settle = times([
            self.settle_p50_ms,
            self.settle_p99_ms,
            self.settle_p999_ms,
            self.settle_max_ms,
        ]);
        let sync = format!(
            "p50 {}, p99 {}",
            number(self.sync_p50_ms, "ms"),
            number(self.sync_p99_ms, "ms")
        );
        let dedup = if self.dedup { "on" } else { "off" };
        let what = format!(
            "{} messages of {} bytes, {} producers, {} workers, window {}, backlog {}, \
             deduplication {dedup}",
            self.count, self.size, self.producers, self.workers, self.window, self.backlog
        );
        let verified = match self.verified {
            true => screen.paint(
                Colour::Green,
                "every message was accepted, delivered and done exactly once, as it was sent",
            ),
            false => screen.paint(Colour::Red, format_args!("WRONG: {}", self.wrong.join("; "))),
        };
        let mut lines = vec![
            ("lives", what),
            ("sends", format!("{} per second", grouped(self.sends_per_s))),
            ("whole lives", format!("{} per second", grouped(self.lives_per_s))),
            ("confirmed after", confirm),
            ("settled after", settle),
            ("server", number(self.server_cpu_us_per_life, "µs of processor per life")),
            ("client", number(Some(self.client_cpu_us_per_life), "µs of processor per life")),
            ("cores busy", number(self.cores_busy.map(|share| share * 100.0), "%")),
            ("a raw sync here", sync),
        ];
        if let Some((drained, max)) = self.drained_per_s.zip(self.max_beside_ms) {
            let drained = grouped(drained);
            let text = format!("{drained} per second, longest send meanwhile {max:.2} ms");
            lines.push(("drained", text));
        }
        if self.redelivered + self.leases_lost > 0 {
            let text =
                format!("{} redelivered, {} leases lost", self.redelivered, self.leases_lost);
            lines.push(("on the way", text));
        }
        lines.push(("verified", verified));
        let rows: Vec<_> = lines.into_iter().map(|(name, text)| [name.to_owned(), text]).collect();
        for line in table(&rows, 2) {
            screen.line(line)?;
        }
        Ok(())
    }
}
