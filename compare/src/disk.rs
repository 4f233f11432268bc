//! The disk itself, to tell its moods from those of the systems.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;

/// What is written and synced at a time, and how often.
const WRITE_BYTES: usize = 64 << 10;
const WRITES: u64 = 200;

/// What `statfs` says of a file system in memory.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// How long syncs of 64 KiB took, into a file that has its blocks already.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Syncs {
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

pub(crate) fn measure(place: &Path) -> Result<Syncs> {
    let file = tempfile::tempfile_in(place).context("no file for measuring the disk")?;
    let block = vec![0x5a; WRITE_BYTES];
    let mut micros = Vec::new();
    // The first half gives the file its blocks.
    for is_measured in [false, true] {
        for number in 0..WRITES {
            let begun = Instant::now();
            write(&file, number, &block)?;
            if is_measured {
                micros.push(begun.elapsed().as_micros() as f64 / 1_000.0);
            }
        }
    }
    micros.sort_by(f64::total_cmp);
    let percentile = |of_hundred: usize| {
        micros.get(micros.len().saturating_sub(1) * of_hundred / 100).copied().unwrap_or(0.0)
    };
    Ok(Syncs { p50_ms: percentile(50), p99_ms: percentile(99) })
}

/// Whether nothing that is synced there outlives the power.
pub(crate) fn is_memory(place: &Path) -> Result<bool> {
    let found = rustix::fs::statfs(place).context("the directory cannot be looked at")?;
    Ok(found.f_type == TMPFS_MAGIC)
}

fn write(file: &File, number: u64, block: &[u8]) -> Result<()> {
    file.write_all_at(block, number * block.len() as u64)?;
    Ok(file.sync_data()?)
}
