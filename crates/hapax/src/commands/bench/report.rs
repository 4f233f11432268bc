//! What was measured: lines for people, fields for programs.

use std::sync::atomic::Ordering;
use std::time::Instant;

use serde::Serialize;

use super::Bench;
use super::cpu::Times;
use super::disk::Syncs;
use super::ledger::Ledger;
use super::load::Lived;
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
    /// Of `--latency`.
    rate: Option<u64>,
    seconds: f64,
    sends_per_s: f64,
    lives_per_s: f64,
    /// Of a send's confirmation.
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    max_ms: f64,
    server_cpu_us_per_life: Option<f64>,
    client_cpu_us_per_life: f64,
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
        lived: Lived,
        cpu: Times,
        start: Instant,
        syncs: &Syncs,
    ) -> Self {
        let count = bench.count as f64;
        let ms = |percentile: f64| lived.confirms.value_at_percentile(percentile) as f64 / 1e3;
        let wrong = ledger.verify();
        Self {
            mode: if bench.latency { "latency" } else { "throughput" },
            producers: bench.producers,
            workers: bench.workers,
            size: bench.size,
            count: bench.count,
            window: bench.window,
            backlog: bench.backlog,
            dedup: bench.dedup == "on",
            rate: bench.latency.then_some(bench.rate),
            seconds: start.elapsed().as_secs_f64(),
            sends_per_s: count / lived.sends.as_secs_f64(),
            lives_per_s: count / lived.lives.as_secs_f64(),
            p50_ms: ms(50.0),
            p99_ms: ms(99.0),
            p999_ms: ms(99.9),
            max_ms: lived.confirms.max() as f64 / 1e3,
            server_cpu_us_per_life: cpu.server_us.map(|us| us / count),
            client_cpu_us_per_life: cpu.client_us / count,
            sync_p50_ms: syncs.percentile(50.0),
            sync_p99_ms: syncs.percentile(99.0),
            redelivered: ledger.faults.redelivered.load(Ordering::Relaxed),
            leases_lost: ledger.faults.leases_lost.load(Ordering::Relaxed),
            verified: wrong.is_empty(),
            wrong,
        }
    }

    pub(super) fn print(&self, screen: Screen) -> Result<(), Failure> {
        let number = |value: Option<f64>, unit: &str| match value {
            Some(value) => format!("{value:.2} {unit}"),
            None => "not known".to_owned(),
        };
        let confirm = format!(
            "p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms, longest {:.2} ms",
            self.p50_ms, self.p99_ms, self.p999_ms, self.max_ms
        );
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
        let lines = [
            ("lives", what),
            ("sends", format!("{} per second", grouped(self.sends_per_s))),
            ("whole lives", format!("{} per second", grouped(self.lives_per_s))),
            ("confirmed after", confirm),
            ("server", number(self.server_cpu_us_per_life, "µs of processor per life")),
            ("client", number(Some(self.client_cpu_us_per_life), "µs of processor per life")),
            ("a raw sync here", sync),
        ];
        for (name, text) in lines {
            screen.line(format_args!("{name:<16}  {text}"))?;
        }
        if self.redelivered + self.leases_lost > 0 {
            screen.line(format_args!(
                "{:<16}  {} redelivered, {} leases lost",
                "on the way", self.redelivered, self.leases_lost
            ))?;
        }
        let text = match self.verified {
            true => screen.paint(
                Colour::Green,
                "every message was accepted, delivered and done exactly once, as it was sent",
            ),
            false => screen.paint(Colour::Red, format_args!("WRONG: {}", self.wrong.join("; "))),
        };
        screen.line(format_args!("{:<16}  {text}", "verified"))?;
        Ok(())
    }
}

/// 1234567 as 1,234,567.
fn grouped(number: f64) -> String {
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

#[test]
fn numbers_are_grouped() {
    assert_eq!(grouped(1_234_567.4), "1,234,567");
    assert_eq!(grouped(999.0), "999");
}
