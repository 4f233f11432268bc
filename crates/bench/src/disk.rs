//! The disk by itself: how long it takes until a write is synced.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

use crate::report::histogram;

/// Size of the file that is written to, at most. Longer probes start again at its beginning.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Magic number of a file system in memory, in `statfs`.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// What to write.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    pub writes: u64,
    pub write_bytes: u64,
    /// Before each write. A disk or a processor that was asleep is slower than a busy one.
    pub pause: Option<Duration>,
}

/// Durations of syncs.
#[derive(Debug)]
pub struct Syncs {
    micros: Histogram<u64>,
}

impl Default for Syncs {
    fn default() -> Self {
        Self { micros: histogram() }
    }
}

impl Syncs {
    pub fn record(&mut self, took: Duration) {
        self.micros.saturating_record(took.as_micros() as u64);
    }

    /// The times in milliseconds; none if nothing was measured.
    pub fn percentile_ms(&self, percentile: f64) -> Option<f64> {
        let is_measured = !self.micros.is_empty();
        is_measured.then(|| self.micros.value_at_percentile(percentile) as f64 / 1e3)
    }

    /// Writes and syncs, one write after the other, into a file that has its blocks already, as
    /// the journal does. Returns the time that all of it took.
    pub fn measure(&mut self, directory: &Path, probe: Probe) -> Result<Duration> {
        let path = directory.join("raw");
        let measured = self.write(&path, probe);
        let _ = fs::remove_file(&path);
        measured.with_context(|| format!("the disk of {} cannot be measured", directory.display()))
    }

    fn write(&mut self, path: &Path, probe: Probe) -> std::io::Result<Duration> {
        let file = File::create_new(path)?;
        let block = vec![0x5a; probe.write_bytes as usize];
        let places = (FILE_BYTES_MAX / probe.write_bytes.max(1)).clamp(1, probe.writes.max(1));
        let offset = |number: u64| (number % places) * probe.write_bytes;
        for number in 0..places {
            file.write_all_at(&block, offset(number))?;
        }
        file.sync_all()?;
        let begun = Instant::now();
        for number in 0..probe.writes {
            if let Some(pause) = probe.pause {
                std::thread::sleep(pause);
            }
            let start = Instant::now();
            file.write_all_at(&block, offset(number))?;
            file.sync_data()?;
            self.record(start.elapsed());
        }
        Ok(begun.elapsed())
    }
}

/// Whether a directory is in memory, where nothing that is synced survives a power cut.
pub fn is_memory(directory: &Path) -> Result<bool> {
    let found = rustix::fs::statfs(directory)
        .with_context(|| format!("{} cannot be examined", directory.display()))?;
    Ok(found.f_type == TMPFS_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_write_is_measured_and_nothing_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let mut syncs = Syncs::default();
        assert_eq!(syncs.percentile_ms(50.0), None);
        for (writes, write_bytes) in [(3, 100), (2, FILE_BYTES_MAX), (0, 0)] {
            let probe = Probe { writes, write_bytes, pause: None };
            syncs.measure(directory.path(), probe).unwrap();
        }
        assert_eq!(syncs.micros.len(), 5);
        assert!(syncs.percentile_ms(50.0) <= syncs.percentile_ms(99.0));
        assert_eq!(directory.path().read_dir().unwrap().count(), 0);
    }
}
