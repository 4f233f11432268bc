//! `hapax backup` and `hapax restore`: verified copies of a directory.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use hapax_store::disk::{self, DiskStore};
use hapax_store::{OsVolume, Store};
use indicatif::{ProgressBar, ProgressStyle};

pub(crate) fn backup(directory: &Path, target: &Path) -> Result<()> {
    copy(directory, target).with_context(|| format!("no backup of {}", directory.display()))
}

pub(crate) fn restore(backup: &Path, directory: &Path) -> Result<()> {
    copy(backup, directory).with_context(|| format!("{} is not restored", directory.display()))
}

/// A restored directory is one more copy: what makes a backup consistent makes it usable.
#[expect(clippy::print_stdout, reason = "the command's output")]
fn copy(from: &Path, to: &Path) -> Result<()> {
    // Opening alone would create what is not there.
    OsVolume::open(from).with_context(|| format!("{} cannot be read", from.display()))?;
    let mut store = DiskStore::open_threaded(from, disk::Options::default(), Arc::new(|| {}))?;
    let target = OsVolume::create(to)?;
    let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes}, {eta} left");
    let bar = ProgressBar::new(0);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let summary = disk::backup(&store.source(), &target, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    store.close()?;
    println!(
        "{} holds everything up to batch {}: {} rows and {} batches, verified",
        to.display(),
        summary.last,
        summary.archive.rows,
        summary.batches
    );
    Ok(())
}
