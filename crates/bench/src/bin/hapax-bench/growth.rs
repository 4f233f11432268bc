//! One continuous load of many keys: does the rate hold, and memory, and the disk?

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;
use hapax_bench::report::grouped;
use hapax_core::{Answer, Outcome, QueueName};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::rig::{Measured, Rig, Shape, messages, send};
use crate::{Report, line};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Number of keys.
    #[arg(long, default_value_t = 100_000_000)]
    keys: u64,
    /// Lives per batch.
    #[arg(long, default_value_t = 512)]
    batch: u32,
    /// Number of parts that are measured separately.
    #[arg(long, default_value_t = 10)]
    parts: u64,
}

#[derive(Serialize)]
struct Part {
    keys: u64,
    lives_per_s: f64,
    writer_us_per_life: f64,
    behind_us_per_life: f64,
    resident_mib: f64,
    disk_bytes_per_key: f64,
    longest_submit_ms: f64,
    longest_submit_cpu_ms: f64,
    longest_hold_ms: f64,
    longest_confirm_ms: f64,
    sync_p99_ms: f64,
    sync_max_ms: f64,
}

#[derive(Serialize)]
struct Fields {
    parts: Vec<Part>,
    last_to_first: f64,
    new_key_us: f64,
    new_key_blocks_read: f64,
    cold_key_us: f64,
    cold_key_blocks_read: f64,
    reopened_s: f64,
}

pub(crate) fn run(arguments: &Arguments, directory: &Path, report: &Report) -> Result<()> {
    let path = directory.join("growth");
    let mut rig = Rig::open(&path)?;
    let queue = rig.queue("growth", true)?;
    let shape = Shape {
        lives: arguments.keys / arguments.parts,
        batch: arguments.batch,
        body_bytes: 100,
        result_bytes: 0,
        dedup: true,
    };
    let bar = progress(arguments.keys);
    let mut parts = Vec::new();
    for number in 1..=arguments.parts {
        rig.take_syncs();
        let measured = rig.run(&queue, shape)?;
        let keys = number * shape.lives;
        parts.push(part(keys, &measured, &rig, &path)?);
        bar.set_position(keys);
        bar.set_message(format!("{} lives/s", grouped(measured.per_second())));
    }
    bar.finish_and_clear();
    let written = arguments.parts * shape.lives;
    let (new_us, new_blocks) = look_up(&mut rig, &queue, written.., false)?;
    // Old keys spread over the first part, which is no longer in memory.
    let step = (written / LOOK_UPS).clamp(1, 997);
    let (cold_us, cold_blocks) =
        look_up(&mut rig, &queue, (0..written).step_by(step as usize), true)?;
    rig.close()?;
    let start = Instant::now();
    let mut rig = Rig::open(&path)?;
    look_up(&mut rig, &queue, 0..10, true)?;
    let reopened_s = start.elapsed().as_secs_f64();
    rig.close()?;
    let rate = |part: Option<&Part>| part.map_or(0.0, |part| part.lives_per_s);
    let fields = Fields {
        last_to_first: rate(parts.last()) / rate(parts.first()),
        parts,
        new_key_us: new_us,
        new_key_blocks_read: new_blocks,
        cold_key_us: cold_us,
        cold_key_blocks_read: cold_blocks,
        reopened_s,
    };
    report.print("growth", &fields, &lines(&fields));
    Ok(())
}

fn progress(keys: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} keys, {eta} left, {msg}");
    let bar = ProgressBar::new(keys);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn part(keys: u64, measured: &Measured, rig: &Rig, path: &Path) -> Result<Part> {
    let syncs = rig.take_syncs();
    Ok(Part {
        keys,
        lives_per_s: measured.per_second(),
        writer_us_per_life: measured.writer_us(),
        behind_us_per_life: measured.behind_us(),
        resident_mib: resident_bytes()? as f64 / 1_048_576.0,
        disk_bytes_per_key: run_bytes(path)? as f64 / keys as f64,
        longest_submit_ms: measured.longest_submit.as_secs_f64() * 1e3,
        longest_submit_cpu_ms: measured.longest_submit_cpu.as_secs_f64() * 1e3,
        longest_hold_ms: measured.longest_hold.as_secs_f64() * 1e3,
        longest_confirm_ms: measured.longest_confirm.as_secs_f64() * 1e3,
        sync_p99_ms: syncs.percentile_ms(99.0).unwrap_or(0.0),
        sync_max_ms: syncs.percentile_ms(100.0).unwrap_or(0.0),
    })
}

/// Number of keys that are sent to measure a look-up.
const LOOK_UPS: u64 = 1_000;

/// Sends [`LOOK_UPS`] keys that are all new or all old; time and blocks read for each.
fn look_up(
    rig: &mut Rig,
    queue: &QueueName,
    keys: impl Iterator<Item = u64>,
    old: bool,
) -> Result<(f64, f64)> {
    let messages = messages(100);
    let mut commands = Vec::new();
    for number in keys.take(LOOK_UPS as usize) {
        commands.push(send(queue, &messages, number, true)?);
    }
    let count = commands.len() as f64;
    let before = rig.partition.store().archive().stats().blocks_read;
    let stamp = rig.stamp();
    let start = Instant::now();
    let ticket = rig.partition.submit(stamp, commands)?;
    let micros = start.elapsed().as_secs_f64() * 1e6 / count;
    let blocks = rig.partition.store().archive().stats().blocks_read - before;
    let outcomes = rig.outcomes(ticket)?;
    let known = outcomes.iter().all(|outcome| match outcome {
        Outcome::Sent(Answer::Done(_)) => old,
        Outcome::Sent(Answer::Accepted { .. }) => !old,
        _ => false,
    });
    ensure!(known, "a key was not answered as it should be");
    Ok((micros, blocks as f64 / count))
}

fn lines(fields: &Fields) -> Vec<[String; 2]> {
    let mut lines: Vec<_> = fields
        .parts
        .iter()
        .map(|part| {
            line(
                &format!("{} keys", grouped(part.keys as f64)),
                format!(
                    "{} lives/s, {:.2} + {:.2} µs, {:.0} MiB, {:.1} B/key on disk, longest \
                     submit {:.1} ({:.1} of CPU), hold {:.1}, confirm {:.1} ms, syncs p99 {:.2}, \
                     longest {:.1} ms",
                    grouped(part.lives_per_s),
                    part.writer_us_per_life,
                    part.behind_us_per_life,
                    part.resident_mib,
                    part.disk_bytes_per_key,
                    part.longest_submit_ms,
                    part.longest_submit_cpu_ms,
                    part.longest_hold_ms,
                    part.longest_confirm_ms,
                    part.sync_p99_ms,
                    part.sync_max_ms,
                ),
            )
        })
        .collect();
    lines.push(line("last rate to first", format!("{:.1} %", fields.last_to_first * 100.0)));
    lines.push(line(
        "a new key",
        format!("{:.2} µs, {:.3} blocks read", fields.new_key_us, fields.new_key_blocks_read),
    ));
    lines.push(line(
        "a remembered cold key",
        format!("{:.2} µs, {:.3} blocks read", fields.cold_key_us, fields.cold_key_blocks_read),
    ));
    lines.push(line("opened again", format!("{:.2} s", fields.reopened_s)));
    lines
}

/// The size of all run files.
fn run_bytes(path: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("run-") {
            bytes += entry.metadata().map_or(0, |meta| meta.len());
        }
    }
    Ok(bytes)
}

fn resident_bytes() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = status.split(' ').nth(1).unwrap_or("0").parse()?;
    Ok(pages * rustix::param::page_size() as u64)
}
