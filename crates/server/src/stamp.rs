//! Detects that a file was changed, without reading it. Used by code that keeps the contents of a
//! file in memory and reloads it: one `stat` a second. A file replaced by a rename and one written
//! in place both get another stamp.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The metadata of a file. Includes the inode's change time, because contents and modification time
/// can be restored, and inode numbers are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    /// `None` if there is no file, or it cannot be read: becoming readable is a change too.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_its_stamp_until_it_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        assert_eq!(Stamp::of(&path), None);
        fs::write(&path, "one").unwrap();
        let first = Stamp::of(&path);
        assert!(first.is_some());
        assert_eq!(Stamp::of(&path), first);
        let other = directory.path().join("other");
        fs::write(&other, "two").unwrap();
        fs::rename(&other, &path).unwrap();
        assert_ne!(Stamp::of(&path), first);
    }
}
