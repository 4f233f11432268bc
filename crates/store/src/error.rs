//! The errors of a store.

use std::io;

use rustix::io::Errno;

use crate::{Epoch, Sequence};

/// A place where the bytes on disk are not what was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{file} is damaged at byte {offset}: {what}; nothing was changed, restore it from a backup or \
     a copy"
)]
pub struct Corruption {
    pub file: String,
    pub offset: u64,
    pub what: String,
}

/// The end of a log: the last batch, the owner that wrote it, and a checksum over everything
/// before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEnd {
    pub epoch: Epoch,
    pub sequence: Sequence,
    pub chain: u64,
}

impl std::fmt::Display for LogEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { epoch, sequence, chain } = self;
        write!(f, "batch {sequence} of epoch {epoch} (chain {chain:016x})")
    }
}

/// Why a store refused or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("epoch {held} no longer owns the partition: epoch {newest} does")]
    Fenced { held: Epoch, newest: Epoch },
    #[error("batch {got} does not follow batch {last}")]
    OutOfOrder { got: Sequence, last: Sequence },
    #[error("a batch of {bytes} bytes is larger than a journal takes ({max})")]
    TooLarge { bytes: u64, max: u64 },
    #[error(transparent)]
    Corrupt(#[from] Corruption),
    #[error(
        "{file} was written by a newer release (format {found}, this one knows {known}): upgrade, \
         or use the data of a backup"
    )]
    NewerFormat { file: String, found: u32, known: u32 },
    #[error(
        "{file} was set back: it went to {had}, and now ends at {found}; nothing was changed. \
         A backup was restored, a standby that lagged behind was promoted, or it is another \
         database. Bring the later state back, or accept the loss (hapax cluster accept-loss)"
    )]
    Regressed { file: String, had: LogEnd, found: LogEnd },
    #[error("{file} would lose data: {setting}. Set it back: a node then goes on by itself")]
    Unsafe { file: String, setting: String },
    #[error("{file} cannot be reached: {why}")]
    Unreachable { file: String, why: String },
    #[error("another process holds {file}: stop it, or choose another directory")]
    Locked { file: String },
    #[error("{operation} {file}: {source}")]
    Io { operation: &'static str, file: String, source: io::Error },
    #[error("the store stopped after: {0}")]
    Stopped(String),
}

impl Error {
    /// Wraps an I/O error with what was being done to which file.
    pub fn io(operation: &'static str, file: &str, source: io::Error) -> Self {
        Self::Io { operation, file: file.to_owned(), source }
    }

    /// Whether the device is full, or the process or system has no more open files. Only
    /// checkpoints, merges and new segments return this; all are retried.
    pub fn is_full(&self) -> bool {
        let Self::Io { source, .. } = self else { return false };
        let is_out_of_files = [Errno::MFILE, Errno::NFILE]
            .iter()
            .any(|errno| source.raw_os_error() == Some(errno.raw_os_error()));
        let full =
            matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        full || is_out_of_files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_descriptors_is_waited_out_like_a_full_disk() {
        for (code, is_full) in [(24, true), (23, true), (28, true), (5, false)] {
            let error = Error::io("open", "f", io::Error::from_raw_os_error(code));
            assert_eq!(error.is_full(), is_full, "{error}");
        }
    }
}
