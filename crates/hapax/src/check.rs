//! `hapax check`: verifies a directory and says what it found.

use std::path::Path;

use anyhow::{Context, Result, bail};
use hapax_store::archive::Severity;
use hapax_store::{OsVolume, disk};

#[expect(clippy::print_stdout, reason = "the command's output")]
pub(crate) fn run(directory: &Path) -> Result<()> {
    let volume = OsVolume::open(directory)
        .with_context(|| format!("{} cannot be read", directory.display()))?;
    let summary = disk::check(&volume, &mut |finding| {
        let kind = match finding.severity {
            Severity::Damage => "DAMAGE ",
            Severity::Derived => "rebuilt",
            Severity::Note => "note   ",
        };
        println!("{kind} {} at byte {}: {}", finding.file, finding.offset, finding.what);
    })?;
    println!(
        "journal  {} batches, {} bytes in {} segments, up to batch {}{}",
        summary.batches,
        summary.batch_bytes,
        summary.segments,
        summary.last,
        if summary.sealed { ", closed in good order" } else { ", not closed: a crash or a kill" },
    );
    println!(
        "rows     {} in {} files, {} bytes, as of batch {}",
        summary.archive.rows, summary.archive.files, summary.archive.bytes, summary.through
    );
    println!("owners   {} so far", summary.epoch);
    if summary.damages > 0 {
        bail!(
            "{} damaged places; nothing was changed. Restore a backup: hapax restore BACKUP DIR",
            summary.damages
        );
    }
    println!("{} is sound", directory.display());
    Ok(())
}
