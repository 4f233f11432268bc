//! The files of a store: the operations that the journal and the archive need of a file system.
//!
//! Two implementations: [`crate::OsVolume`], a directory, and the simulator's faulty disk. Both
//! follow the rules of real file systems: written bytes are safe only after `sync`; a created,
//! renamed or removed name only after `sync_names`; after a failed `sync` the state is unknown.

use std::io;
use std::sync::Arc;

use crate::Error;
use crate::archive::Head;

/// A flat directory of files.
pub trait Volume: Send + Sync + std::fmt::Debug {
    /// Opens an existing file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>>;
    /// Creates a file; fails if the name is taken.
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>>;
    /// Renames atomically, replacing a file of the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Replaces what the file `name` holds by `bytes`, all or nothing, durably when it returns, and
    /// with it the names of all files created before. `head` is what the bytes say of the owner and
    /// its journal: a volume that several processes share MUST refuse an owner that was replaced as
    /// [`Error::Fenced`]. A directory that one process has locked does it by [`replace_by_rename`].
    fn replace(&self, name: &str, bytes: &[u8], head: Head) -> Result<(), NotReplaced>;
    fn remove(&self, name: &str) -> io::Result<()>;
    /// The names of all files, sorted.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes every creation, rename and removal so far durable.
    fn sync_names(&self) -> io::Result<()>;
    /// Takes the lock file `name` until the guard is dropped; `WouldBlock` if it is taken.
    fn lock(&self, name: &str) -> io::Result<Box<dyn Lock>>;
    /// Free bytes.
    fn free_bytes(&self) -> io::Result<u64>;
    /// The name of the file in messages.
    fn describe(&self, name: &str) -> String;
}

/// Why a file was not replaced, or perhaps not.
#[derive(Debug)]
pub enum NotReplaced {
    /// It is the old one.
    Unchanged(Error),
    /// Only opening it anew shows which it is.
    Unknown(Error),
}

/// Replaces a file of a file system: [`Volume::replace`].
pub fn replace_by_rename(volume: &dyn Volume, name: &str, bytes: &[u8]) -> Result<(), NotReplaced> {
    let temporary = format!("{name}.tmp");
    let label = volume.describe(&temporary);
    let unchanged = |operation| {
        let label = label.clone();
        move |error| NotReplaced::Unchanged(Error::io(operation, &label, error))
    };
    match volume.remove(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(unchanged("remove")(error));
        }
        _ => {}
    }
    let file = volume.create(&temporary).map_err(unchanged("create"))?;
    file.write_all_at(bytes, 0).map_err(unchanged("write"))?;
    file.sync().map_err(unchanged("sync"))?;
    let unknown = |operation| {
        let label = volume.describe(name);
        move |error| NotReplaced::Unknown(Error::io(operation, &label, error))
    };
    // The names of other files first: the renaming may become durable by itself at any time.
    volume.sync_names().map_err(unknown("sync the names of"))?;
    volume.rename(&temporary, name).map_err(unknown("rename"))?;
    volume.sync_names().map_err(unknown("sync the names of"))
}

/// One open file. All methods take `&self`: a file is shared between its writer thread and reader
/// threads.
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
