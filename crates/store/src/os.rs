//! A directory of the operating system as a [`Volume`].

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock, statvfs};
use rustix::io::Errno;

use crate::archive::Head;
use crate::{File, Lock, NotReplaced, Volume, replace_by_rename};

/// Only the broker's user may read bodies, keys and results.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// Creates a directory for data, with its parents, readable only by its owner. An existing one
/// keeps its permissions. Their names are durable when it returns.
pub fn create_private_directory(path: &Path) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    let missing = path.ancestors().take_while(|ancestor| !ancestor.exists()).count();
    fs::DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(&path)?;
    if missing == 0 {
        // Its name may not be durable either: another process may have created it just before. A
        // parent that we cannot open was created by another user, who is responsible for it.
        return match path.parent().map(fs::File::open) {
            Some(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            Some(parent) => parent?.sync_all(),
            None => Ok(()),
        };
    }
    for parent in path.ancestors().skip(1).take(missing) {
        fs::File::open(parent)?.sync_all()?;
    }
    Ok(())
}

/// The size of the file system that holds `path`, without blocks reserved for root.
pub fn disk_bytes(path: &Path) -> io::Result<u64> {
    let stat = statvfs(path)?;
    let blocks = stat.f_blocks.saturating_sub(stat.f_bfree.saturating_sub(stat.f_bavail));
    Ok(blocks.saturating_mul(stat.f_frsize))
}

/// A directory. Plain blocking system calls only, so that tools that inject faults see them.
#[derive(Debug)]
pub struct OsVolume {
    path: PathBuf,
    directory: fs::File,
    read_only: bool,
}

impl OsVolume {
    /// Opens `path`, which must exist.
    pub fn open(path: &Path) -> io::Result<Self> {
        let directory = fs::File::open(path)?;
        Ok(Self { path: path.to_owned(), directory, read_only: false })
    }

    /// Opens `path`, which must exist, read-only. Writes are refused, and leftovers are not
    /// removed.
    pub fn read_only(path: &Path) -> io::Result<Self> {
        Ok(Self { read_only: true, ..Self::open(path)? })
    }

    /// Locks the directory itself, until the guard is dropped; `WouldBlock` if it is locked. A lock
    /// file can be removed and created again while its owner runs, a directory cannot.
    pub fn lock_directory(&self) -> io::Result<Box<dyn Lock>> {
        // Opened again: a lock belongs to an open file, and this one is closed separately.
        let directory = fs::File::open(&self.path)?;
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Err(io::ErrorKind::WouldBlock.into()),
            // Some network file systems only lock files.
            Ok(()) | Err(_) => Ok(Box::new(OsLock { _file: directory })),
        }
    }

    fn refuse_changes(&self) -> io::Result<()> {
        if self.read_only { Err(io::ErrorKind::ReadOnlyFilesystem.into()) } else { Ok(()) }
    }

    /// Creates `path` and its parents if missing, durably.
    pub fn create(path: &Path) -> io::Result<Self> {
        create_private_directory(path)?;
        Self::open(path)
    }
}

impl Volume for OsVolume {
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let writes = !self.read_only;
        let file = fs::OpenOptions::new().read(true).write(writes).open(self.path.join(name))?;
        Ok(Arc::new(OsFile(file)))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.refuse_changes()?;
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(FILE_MODE)
            .open(self.path.join(name))?;
        Ok(Arc::new(OsFile(file)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.refuse_changes()?;
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn replace(&self, name: &str, bytes: &[u8], _head: Head) -> Result<(), NotReplaced> {
        replace_by_rename(self, name, bytes)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        if self.read_only {
            return Ok(());
        }
        fs::remove_file(self.path.join(name))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if entry.file_type()?.is_file()
                && let Ok(name) = entry.file_name().into_string()
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn sync_names(&self) -> io::Result<()> {
        self.directory.sync_all()
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn Lock>> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(!self.read_only).create(!self.read_only).truncate(false);
        options.mode(FILE_MODE);
        let opened = options.open(self.path.join(name));
        let directory = self.lock_directory()?;
        let file = match opened {
            Err(error) if self.read_only && error.kind() == io::ErrorKind::NotFound => {
                return Ok(directory);
            }
            opened => opened?,
        };
        // Release 0.1 only knows the lock file.
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Box::new(OsLocks { _directory: directory, _file: file }))
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stat = statvfs(&self.path)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn describe(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }
}

#[derive(Debug)]
struct OsFile(fs::File);

impl File for OsFile {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
}

/// The kernel releases the lock when the descriptor is closed, also when the process is killed.
#[derive(Debug)]
struct OsLock {
    _file: fs::File,
}

impl Lock for OsLock {}

/// A lock file and the directory it is in.
#[derive(Debug)]
struct OsLocks {
    _directory: Box<dyn Lock>,
    _file: fs::File,
}

impl Lock for OsLocks {}
