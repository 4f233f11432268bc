//! Whole lives per second on an empty store, beside the raw disk and fjall.

use std::path::Path;

use anyhow::Result;
use clap::Args;
use hapax_bench::disk::{Probe, Syncs};
use hapax_bench::report::{grouped, median};
use serde::Serialize;

use crate::rig::{Measured, Rig, Shape};
use crate::{Report, line, peer};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Number of lives.
    #[arg(long, default_value_t = 3_000_000)]
    count: u64,
    /// Lives per batch.
    #[arg(long, default_value_t = 512)]
    batch: u32,
    /// Bytes of a body.
    #[arg(long, default_value_t = 100)]
    size: usize,
    /// Bytes of a result.
    #[arg(long, default_value_t = 16)]
    result: usize,
    /// Number of lives on fjall. Fewer would never leave its memory.
    #[arg(long, default_value_t = 3_000_000)]
    peer_count: u64,
}

#[derive(Serialize)]
struct Fields {
    lives_per_s: f64,
    writer_us_per_life: f64,
    behind_us_per_life: f64,
    raw_lives_per_s: f64,
    ratio_to_raw: f64,
    fjall_lives_per_s: f64,
    fjall_us_per_life: f64,
    ratio_to_fjall: f64,
    fjall_batched_lives_per_s: f64,
    ratio_to_fjall_batched: f64,
    at_least_once_lives_per_s: f64,
    dedup_ratio: f64,
    longest_submit_ms: f64,
    longest_submit_cpu_ms: f64,
    longest_hold_ms: f64,
    sync_p50_ms: f64,
    sync_p99_ms: f64,
    sync_max_ms: f64,
}

pub(crate) fn run(arguments: &Arguments, directory: &Path, report: &Report) -> Result<()> {
    let shape = Shape {
        lives: arguments.count,
        batch: arguments.batch,
        body_bytes: arguments.size,
        result_bytes: arguments.result,
        dedup: true,
    };
    let mut rig = Rig::open(&directory.join("lives"))?;
    let queue = rig.queue("dedup", true)?;
    let plain = rig.queue("plain", false)?;
    // In turns, so that both see the same conditions; the first turn warms up.
    let turns = 6;
    let part = Shape { lives: shape.lives / turns, ..shape };
    rig.run(&queue, part)?;
    rig.run(&plain, Shape { dedup: false, ..part })?;
    rig.take_syncs();
    let (mut dedup, mut off) = (Vec::new(), Vec::new());
    for _ in 0..turns {
        dedup.push(rig.run(&queue, part)?);
        off.push(rig.run(&plain, Shape { dedup: false, ..part })?);
    }
    let syncs = rig.take_syncs();
    rig.close()?;
    let measured = sum(&dedup);
    let at_least_once = median_rate(&off);
    let with_keys = median_rate(&dedup);
    let mut raw_syncs = Syncs::default();
    let raw_wall = raw_syncs.measure(directory, raw(shape))?;
    let raw_rate = shape.lives as f64 / raw_wall.as_secs_f64();
    let peer_shape = Shape { lives: arguments.peer_count, ..shape };
    let peer = peer::run(directory, peer_shape, peer::Form::Single)?;
    let peer_rate = arguments.peer_count as f64 / peer.wall.as_secs_f64();
    let batched = peer::run(directory, peer_shape, peer::Form::Batched)?;
    let batched_rate = arguments.peer_count as f64 / batched.wall.as_secs_f64();
    let fields = Fields {
        lives_per_s: measured.per_second(),
        writer_us_per_life: measured.writer_us(),
        behind_us_per_life: measured.behind_us(),
        raw_lives_per_s: raw_rate,
        ratio_to_raw: measured.per_second() / raw_rate,
        fjall_lives_per_s: peer_rate,
        fjall_us_per_life: peer.cpu.as_secs_f64() * 1e6 / arguments.peer_count as f64,
        ratio_to_fjall: measured.per_second() / peer_rate,
        fjall_batched_lives_per_s: batched_rate,
        ratio_to_fjall_batched: measured.per_second() / batched_rate,
        at_least_once_lives_per_s: at_least_once,
        dedup_ratio: with_keys / at_least_once,
        longest_submit_ms: measured.longest_submit.as_secs_f64() * 1e3,
        longest_submit_cpu_ms: measured.longest_submit_cpu.as_secs_f64() * 1e3,
        longest_hold_ms: measured.longest_hold.as_secs_f64() * 1e3,
        sync_p50_ms: syncs.percentile_ms(50.0).unwrap_or(0.0),
        sync_p99_ms: syncs.percentile_ms(99.0).unwrap_or(0.0),
        sync_max_ms: syncs.percentile_ms(100.0).unwrap_or(0.0),
    };
    let raw_p99 = raw_syncs.percentile_ms(99.0).unwrap_or(0.0);
    report.print("lives on an empty store", &fields, &lines(&fields, raw_p99));
    Ok(())
}

fn lines(fields: &Fields, raw_p99: f64) -> Vec<[String; 2]> {
    vec![
        line("lives per second", grouped(fields.lives_per_s)),
        line("CPU per life, writer", format!("{:.2} µs", fields.writer_us_per_life)),
        line("CPU per life, behind it", format!("{:.2} µs", fields.behind_us_per_life)),
        line(
            "raw writer, about as many bytes",
            format!("{} ({:.2} ×)", grouped(fields.raw_lives_per_s), fields.ratio_to_raw),
        ),
        line(
            "fjall, used directly",
            format!(
                "{} at {:.1} µs ({:.1} ×)",
                grouped(fields.fjall_lives_per_s),
                fields.fjall_us_per_life,
                fields.ratio_to_fjall
            ),
        ),
        line(
            "fjall, in write batches",
            format!(
                "{} ({:.1} ×)",
                grouped(fields.fjall_batched_lives_per_s),
                fields.ratio_to_fjall_batched
            ),
        ),
        line(
            "at-least-once without keys",
            format!(
                "{} (deduplication keeps {:.1} %)",
                grouped(fields.at_least_once_lives_per_s),
                fields.dedup_ratio * 100.0
            ),
        ),
        line(
            "longest submit",
            format!(
                "{:.1} ms, {:.1} of CPU",
                fields.longest_submit_ms, fields.longest_submit_cpu_ms
            ),
        ),
        line("longest hold", format!("{:.1} ms", fields.longest_hold_ms)),
        line(
            "the disk's own syncs",
            format!(
                "p50 {:.2}, p99 {:.2}, longest {:.1} ms (raw p99 {:.2})",
                fields.sync_p50_ms, fields.sync_p99_ms, fields.sync_max_ms, raw_p99
            ),
        ),
    ]
}

/// About as many bytes as the journal has, in as many batches.
fn raw(shape: Shape) -> Probe {
    let writes = (shape.lives / u64::from(shape.batch)).max(1);
    let bytes = shape.lives * (shape.body_bytes as u64 + 150);
    Probe { writes, write_bytes: bytes / writes, pause: None }
}

fn median_rate(runs: &[Measured]) -> f64 {
    median(&runs.iter().map(Measured::per_second).collect::<Vec<_>>())
}

fn sum(runs: &[Measured]) -> Measured {
    let mut all = Measured::default();
    for run in runs {
        all.lives += run.lives;
        all.wall += run.wall;
        all.writer_cpu += run.writer_cpu;
        all.behind_cpu += run.behind_cpu;
        all.longest_submit = all.longest_submit.max(run.longest_submit);
        all.longest_submit_cpu = all.longest_submit_cpu.max(run.longest_submit_cpu);
        all.longest_hold = all.longest_hold.max(run.longest_hold);
    }
    all
}
