//! The rules for the data directory: whether it is on durable storage.

use std::path::{Path, PathBuf};

use super::{Finding, IsWritten, Rule};

/// Directories that are emptied by restarts or by age.
const TEMPORARY: &[&str] = &["/tmp", "/var/tmp", "/run", "/var/run", "/dev/shm"];
/// File systems that do not survive a power failure.
const IN_MEMORY: &[&str] = &["tmpfs", "ramfs", "devtmpfs"];

/// The mounted file systems of this machine, as the kernel lists them; nothing elsewhere.
pub fn mounts() -> String {
    std::fs::read_to_string("/proc/self/mounts").unwrap_or_default()
}

pub(super) fn lint(path: &Path, mounts: &str, is_written: IsWritten<'_>) -> Option<Finding> {
    let (rule, why, fix) = if let Some((point, kind)) = in_memory(path, mounts) {
        let why = format!(
            "{point} is {kind}, which is in memory: every message and key is lost when the \
             machine restarts"
        );
        (Rule::MemoryData, why, "Keep the data on a disk")
    } else if let Some(directory) = TEMPORARY.iter().find(|directory| path.starts_with(directory)) {
        let why = format!(
            "{directory} is cleaned up by the system, with all messages and keys in \
                           it"
        );
        (Rule::TemporaryData, why, "Keep the data elsewhere, such as in /var/lib/hapax")
    } else if path.is_relative() && is_written("data") {
        let why = format!(
            "{} is relative: if it is started from another directory, the broker is empty and \
             knows no keys",
            path.display()
        );
        (Rule::RelativeData, why, "Use an absolute path such as /var/lib/hapax")
    } else {
        return None;
    };
    Some(Finding { rule, field: "data".to_owned(), why, fix: fix.to_owned() })
}

/// The file system in memory that the path is on, if it is on one: mount point and kind.
fn in_memory(path: &Path, mounts: &str) -> Option<(String, String)> {
    let path = existing(path)?;
    let parsed = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        Some((unescape(words.next()?), words.next()?.to_owned()))
    });
    // The longest mount point is the right one; of two mounts at one point the later hides the
    // earlier.
    let (point, kind) = parsed
        .filter(|(point, _)| path.starts_with(point))
        .max_by_key(|(point, _)| Path::new(point).components().count())?;
    IN_MEMORY.contains(&kind.as_str()).then_some((point, kind))
}

/// The path with links resolved, or its longest existing part.
fn existing(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    path.ancestors().find_map(|part| part.canonicalize().ok())
}

/// Decodes octal escapes, as which the kernel writes spaces and the like.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (code, letter)| text.replace(code, letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_mount_tells_whether_it_is_memory() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap();
        let inner = path.join("disk/data");
        let memory = format!("overlay / overlay rw 0 0\ntmpfs {} tmpfs rw 0 0\n", path.display());
        let (point, kind) = in_memory(&inner, &memory).unwrap();
        assert_eq!((Path::new(&point), kind.as_str()), (path.as_path(), "tmpfs"));
        std::fs::create_dir(path.join("disk")).unwrap();
        let disk = format!("{memory}/dev/sda1 {}/disk ext4 rw 0 0\n", path.display());
        assert_eq!(in_memory(&inner, &disk), None);
        let hidden = format!("{memory}/dev/sda1 {} ext4 rw 0 0\n", path.display());
        assert_eq!(in_memory(&inner, &hidden), None);
    }

    #[test]
    fn a_mount_point_may_have_spaces() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap().join("with space");
        std::fs::create_dir(&path).unwrap();
        let escaped = path.display().to_string().replace(' ', "\\040");
        assert!(in_memory(&path, &format!("tmpfs {escaped} tmpfs rw 0 0\n")).is_some());
    }

    #[test]
    fn without_mounts_nothing_is_said_of_memory() {
        assert_eq!(in_memory(Path::new("/anything"), ""), None);
        assert_eq!(in_memory(Path::new("/anything"), "no mounts at all\n\n"), None);
    }
}
