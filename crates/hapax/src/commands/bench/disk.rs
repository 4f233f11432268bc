//! The disk by itself: how long a small write takes to be on it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

/// Syncs of one measurement.
const SYNCS: u64 = 300;
/// Between two of them at most, so that a measurement ends.
const PAUSE_MAX: Duration = Duration::from_millis(10);
/// As much as a small batch of the journal.
const WRITE_BYTES: usize = 4_096;

/// The syncs of a run, before and after it.
#[derive(Debug)]
pub(super) struct Syncs {
    micros: Histogram<u64>,
}

impl Default for Syncs {
    fn default() -> Self {
        Self { micros: super::load::histogram() }
    }
}

impl Syncs {
    /// Writes into a file that has its blocks already, as the journal does; at the pace of the
    /// load, where it has one: a machine that was woken up for it is slower than a busy one.
    pub(super) fn measure(&mut self, directory: &Path, rate: Option<u64>) -> Result<()> {
        let path = directory.join("raw");
        let pause = rate.map(|rate| Duration::from_secs_f64(1.0 / rate.max(1) as f64));
        let measured = self.write(&path, pause.map(|pause| pause.min(PAUSE_MAX)));
        let _ = std::fs::remove_file(&path);
        measured.context("the disk cannot be measured")
    }

    fn write(&mut self, path: &Path, pause: Option<Duration>) -> std::io::Result<()> {
        let file = File::create_new(path)?;
        let block = vec![b'x'; WRITE_BYTES];
        let offset = |number: u64| number * WRITE_BYTES as u64;
        for number in 0..SYNCS {
            file.write_all_at(&block, offset(number))?;
        }
        file.sync_all()?;
        for number in 0..SYNCS {
            if let Some(pause) = pause {
                std::thread::sleep(pause);
            }
            let start = Instant::now();
            file.write_all_at(&block, offset(number))?;
            file.sync_data()?;
            self.micros.saturating_record(start.elapsed().as_micros() as u64);
        }
        Ok(())
    }

    /// In milliseconds; nothing where no disk was measured.
    pub(super) fn percentile(&self, percentile: f64) -> Option<f64> {
        let is_measured = !self.micros.is_empty();
        is_measured.then(|| self.micros.value_at_percentile(percentile) as f64 / 1e3)
    }
}
