//! The disk by itself: so many bytes in so many batches, each synced.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;

pub(crate) struct Raw {
    pub(crate) wall: Duration,
    /// Sorted, in microseconds.
    pub(crate) syncs: Vec<u64>,
}

/// Writes into a file that has its blocks already, as the journal does.
pub(crate) fn write(directory: &Path, batches: u64, bytes: u64) -> Result<Raw> {
    const FILE_BYTES: u64 = 64 * 1_024 * 1_024;
    let path = directory.join("raw");
    let file = File::create_new(&path)?;
    let zeros = vec![0; 1_024 * 1_024];
    for offset in (0..FILE_BYTES).step_by(zeros.len()) {
        file.write_all_at(&zeros, offset)?;
    }
    file.sync_all()?;
    let batch = vec![b'x'; (bytes / batches.max(1)) as usize];
    let mut syncs = Vec::with_capacity(batches as usize);
    let mut offset = 0;
    let start = Instant::now();
    for _ in 0..batches {
        if offset + batch.len() as u64 > FILE_BYTES {
            offset = 0;
        }
        file.write_all_at(&batch, offset)?;
        let sync = Instant::now();
        file.sync_data()?;
        syncs.push(sync.elapsed().as_micros() as u64);
        offset += batch.len() as u64;
    }
    let wall = start.elapsed();
    std::fs::remove_file(path)?;
    syncs.sort_unstable();
    Ok(Raw { wall, syncs })
}
