//! Small files that are replaced atomically: written to a temporary file, synced, and renamed. Each
//! has a checksum, so that a flipped bit is noticed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Replaces a file, durably. The caller ensures that there is one writer at a time.
pub(crate) fn write(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let new = path.with_added_extension("new");
    // Left by a killed writer; created again, so that its mode is ours.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// Detects damage, not manipulation.
pub(crate) fn checksum(bytes: &[u8]) -> String {
    let hash = blake3::hash(bytes);
    hash.to_hex().chars().take(16).collect()
}
