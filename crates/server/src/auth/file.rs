//! The token file, `tokens.json` in the data directory, as the command line changes it. A change is
//! atomic: it is written to a temporary file, synced, and renamed, under a lock that one writer
//! holds at a time. A running broker reloads the file. The file contains only hashes, and only its
//! owner may read it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::set::{self, Created, Entry, Error, Listed, NewToken};
use crate::whole;

/// Larger files were not written by this program.
const FILE_BYTES_MAX: u64 = 256 * 1_024 * 1_024;

/// The tokens of a data directory.
#[derive(Clone, Debug)]
pub struct TokenFile {
    directory: PathBuf,
}

impl TokenFile {
    /// The tokens of a broker with its data there. Nothing is read or created yet.
    pub fn in_directory(data: &Path) -> Self {
        Self { directory: data.to_owned() }
    }

    pub fn path(&self) -> PathBuf {
        self.directory.join("tokens.json")
    }

    /// Creates a token. The data directory is created if it is missing, so that tokens can be
    /// created before the broker is started.
    pub fn create(&self, new: NewToken, now: Timestamp) -> Result<Created, Error> {
        let drawn = set::draw(new, now)?;
        hapax_store::create_private_directory(&self.directory)
            .map_err(|source| io_error("create", &self.directory, source))?;
        let _lock = self.lock()?;
        let mut entries = self.read()?;
        set::add(&mut entries, &drawn.entry)?;
        self.write(entries)?;
        Ok(Created { token: drawn.token, listed: drawn.entry.listed() })
    }

    /// All tokens, the oldest first.
    pub fn list(&self) -> Result<Vec<Listed>, Error> {
        Ok(self.read()?.iter().map(Entry::listed).collect())
    }

    /// Removes the token of this id or name.
    pub fn revoke(&self, id_or_name: &str) -> Result<Listed, Error> {
        if !self.path().exists() {
            return Err(Error::NoSuchToken(id_or_name.to_owned()));
        }
        let _lock = self.lock()?;
        let mut entries = self.read()?;
        let removed = set::remove(&mut entries, id_or_name)?;
        self.write(entries)?;
        Ok(removed)
    }

    /// The file as it is, if there is one and it is sound, and the number of tokens in it.
    pub fn contents(&self) -> Result<Option<(Vec<u8>, usize)>, Error> {
        let path = self.path();
        match read_bounded(&path) {
            Ok(bytes) => {
                let count = set::parse(&bytes, &path.display().to_string())?.len();
                Ok(Some((bytes, count)))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(io_error("read", &path, source)),
        }
    }

    /// The stored tokens; none if there is no file.
    pub(super) fn read(&self) -> Result<Vec<Entry>, Error> {
        let path = self.path();
        match read_bounded(&path) {
            Ok(bytes) => set::parse(&bytes, &path.display().to_string()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(source) => Err(io_error("read", &path, source)),
        }
    }

    /// Held by one writer at a time; others wait. The kernel releases it even if the holder is
    /// killed.
    fn lock(&self) -> Result<File, Error> {
        let path = self.directory.join("tokens.lock");
        let lock = || {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false).mode(0o600);
            let file = options.open(&path)?;
            file.lock()?;
            Ok(file)
        };
        lock().map_err(|source| io_error("lock", &path, source))
    }

    /// Durable when it returns. Only under the lock.
    fn write(&self, tokens: Vec<Entry>) -> Result<(), Error> {
        let path = self.path();
        let write = || whole::write(&path, &set::encode(tokens)?, 0o600);
        write().map_err(|source| io_error("write", &path, source))
    }
}

fn io_error(what: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Io { what, path: path.to_owned(), source }
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    io::Read::read_to_end(&mut io::Read::take(file, FILE_BYTES_MAX + 1), &mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other("it is too large for a token file"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
