//! Disk space reserved for the manifest: a file of zeros, removed when there is no room for a
//! manifest otherwise.
//!
//! Without it a full disk would lock out a new owner, whose first act is a manifest with its epoch,
//! and block a checkpoint that only needs its manifest to free space. The file holds no data, so a
//! failure here only costs the reserve.

use std::io;

use crate::Volume;

/// A name that every release treats as a leftover.
const NAME: &str = "reserve.tmp";
/// It grows by this much at a time, as far as there is room.
const PIECE: [u8; 4096] = [0; 4096];

/// Reserves up to `bytes`. Returns whether all of them are reserved.
pub(super) fn keep(volume: &dyn Volume, bytes: u64) -> bool {
    bytes == 0 || grow(volume, bytes).is_ok()
}

fn grow(volume: &dyn Volume, bytes: u64) -> io::Result<()> {
    let file = match volume.open(NAME) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => volume.create(NAME)?,
        opened => opened?,
    };
    let mut at = file.len()?;
    if at >= bytes {
        return Ok(());
    }
    while at < bytes {
        file.write_all_at(&PIECE, at)?;
        at += PIECE.len() as u64;
    }
    file.sync()
}

/// Removes the reserve. Returns whether there was one.
pub(super) fn give_up(volume: &dyn Volume) -> bool {
    volume.remove(NAME).is_ok()
}
