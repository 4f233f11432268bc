//! The files under a store: just what the journal and the archive need of a file system.
//!
//! Two implementations: [`crate::OsVolume`], a directory, and the simulator's faulty disk. The
//! rules of the real thing hold for both: written bytes are safe after `sync` alone; a created,
//! renamed or removed name is safe after `sync_names` alone; after a failed `sync` nobody knows.

use std::io;
use std::sync::Arc;

/// A flat directory of files.
pub trait Volume: Send + Sync + std::fmt::Debug {
    /// Opens an existing file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>>;
    /// Creates a file; fails where the name is taken.
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>>;
    /// Renames, replacing what bears the new name, atomically.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    /// The names of all files, sorted.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes every creation, renaming and removal so far durable.
    fn sync_names(&self) -> io::Result<()>;
    /// Takes the lock file `name` until the guard is dropped; `WouldBlock` where somebody has it.
    fn lock(&self, name: &str) -> io::Result<Box<dyn Lock>>;
    /// How many bytes may still be written.
    fn free_bytes(&self) -> io::Result<u64>;
    /// How a person finds the file, for messages.
    fn describe(&self, name: &str) -> String;
}

/// One open file. All methods take `&self`: a file is shared between the thread that writes it and
/// those that read it.
pub trait File: Send + Sync + std::fmt::Debug {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes everything written to this file so far durable, with its length.
    fn sync(&self) -> io::Result<()>;
    fn len(&self) -> io::Result<u64>;
    fn set_len(&self, len: u64) -> io::Result<()>;
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// Holds a lock file until it is dropped.
pub trait Lock: Send + Sync + std::fmt::Debug {}
