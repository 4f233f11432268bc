//! The token file, `tokens.json` in the data directory, as the command line changes it. A change is
//! atomic: it is written to a temporary file, synced, and renamed, under a lock that one writer
//! holds at a time. A running broker reloads the file. The file contains only hashes, and only its
//! owner may read it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use hapax_core::QueueName;
use hapax_core::limits::TENANT_BYTES_MAX;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::token::{self, Hash, Id};
use super::{Patterns, Permissions};
use crate::whole;

const FORMAT: u32 = 1;
const NAME_CHARS_MAX: usize = 80;
/// Each costs the broker about 300 bytes.
const TOKENS_MAX: usize = 100_000;
/// Larger files were not written by this program.
const FILE_BYTES_MAX: u64 = 256 * 1_024 * 1_024;

/// The tokens of a data directory.
#[derive(Clone, Debug)]
pub struct TokenFile {
    directory: PathBuf,
}

/// The properties of a new token.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// A unique name for people. `None`: the token is named by its id.
    pub name: Option<String>,
    pub tenant: String,
    pub queues: Patterns,
    pub can: Permissions,
    pub expires_at: Option<Timestamp>,
}

/// A token that was just created. Its text cannot be shown again.
#[derive(Clone)]
pub struct Created {
    pub token: String,
    pub listed: Listed,
}

/// A token without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listed {
    pub id: String,
    pub name: Option<String>,
    pub tenant: String,
    pub queues: Patterns,
    pub can: Permissions,
    #[serde(serialize_with = "rfc3339::write")]
    pub created_at: Timestamp,
    #[serde(serialize_with = "rfc3339::write_option")]
    pub expires_at: Option<Timestamp>,
}

/// Why tokens cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {what} {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "{} is damaged: {why}. Restore it from a backup, or move it away and make new tokens",
        path.display()
    )]
    Damaged { path: PathBuf, why: String },
    #[error(
        "{} has format {format}, and this program knows formats up to {FORMAT}: \
         use a newer release of hapax",
        path.display()
    )]
    Newer { path: PathBuf, format: u32 },
    #[error("the system gives no random numbers: {0}")]
    Random(getrandom::Error),
    #[error("a token named {0:?} exists already: choose another name, or remove it first")]
    NameTaken(String),
    #[error("a token's name has 1 to {NAME_CHARS_MAX} printable characters")]
    InvalidName,
    #[error(
        "{0:?} is not a valid tenant name: use 1 to {TENANT_BYTES_MAX} characters of A-Z a-z 0-9 \
         . _ -"
    )]
    InvalidTenant(String),
    #[error("a token needs at least one permission, such as --can send,work")]
    NoPermission,
    #[error("the token would have expired already at {0}")]
    ExpiredAlready(Timestamp),
    #[error(
        "there are already {TOKENS_MAX} tokens, which is the maximum: remove some with `hapax \
             token rm`"
    )]
    TooMany,
    #[error("there is no token with the name or id {0:?}: see `hapax token ls`")]
    NoSuchToken(String),
}

/// The file as it is written.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    format: u32,
    /// A flipped bit must not grant a token anything.
    checksum: String,
    tokens: Vec<Entry>,
}

#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// A token as it is written.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    pub(super) id: Id,
    name: Option<String>,
    pub(super) tenant: String,
    pub(super) queues: Patterns,
    pub(super) can: Permissions,
    pub(super) hash: Hash,
    #[serde(with = "rfc3339")]
    created_at: Timestamp,
    #[serde(serialize_with = "rfc3339::write_option", deserialize_with = "rfc3339::read_option")]
    pub(super) expires_at: Option<Timestamp>,
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
        new.check(now)?;
        hapax_store::create_private_directory(&self.directory)
            .map_err(|source| io_error("create", &self.directory, source))?;
        let _lock = self.lock()?;
        let mut entries = self.read()?;
        if entries.len() >= TOKENS_MAX {
            return Err(Error::TooMany);
        }
        if let Some(name) = &new.name
            && entries.iter().any(|entry| entry.is_called(name))
        {
            return Err(Error::NameTaken(name.clone()));
        }
        let (token, id, hash) = loop {
            let made = token::make().map_err(Error::Random)?;
            if entries.iter().all(|entry| entry.id != made.1) {
                break made;
            }
        };
        let entry = Entry {
            id,
            name: new.name,
            tenant: new.tenant,
            queues: new.queues,
            can: new.can,
            hash,
            created_at: now,
            expires_at: new.expires_at,
        };
        let listed = entry.listed();
        entries.push(entry);
        self.write(entries)?;
        Ok(Created { token, listed })
    }

    /// All tokens, the oldest first.
    pub fn list(&self) -> Result<Vec<Listed>, Error> {
        Ok(self.read()?.iter().map(Entry::listed).collect())
    }

    /// Removes the token of this id or name.
    pub fn revoke(&self, id_or_name: &str) -> Result<Listed, Error> {
        let missing = || Error::NoSuchToken(id_or_name.to_owned());
        if !self.path().exists() {
            return Err(missing());
        }
        let _lock = self.lock()?;
        let mut entries = self.read()?;
        let place = entries.iter().position(|entry| entry.is_called(id_or_name));
        let removed = entries.remove(place.ok_or_else(missing)?);
        self.write(entries)?;
        Ok(removed.listed())
    }

    /// The stored tokens; none if there is no file.
    pub(super) fn read(&self) -> Result<Vec<Entry>, Error> {
        let path = self.path();
        let bytes = match read_bounded(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(io_error("read", &path, source)),
        };
        let damaged = |why: String| Error::Damaged { path: path.clone(), why };
        let read_json = |error: serde_json::Error| damaged(error.to_string());
        // The format first: a newer one may differ in everything else.
        let Format { format } = serde_json::from_slice(&bytes).map_err(read_json)?;
        if format > FORMAT {
            return Err(Error::Newer { path, format });
        }
        let contents: Contents = serde_json::from_slice(&bytes).map_err(read_json)?;
        if contents.checksum != checksum(&contents.tokens).map_err(read_json)? {
            return Err(damaged("its checksum does not match".to_owned()));
        }
        let mut ids: Vec<String> = contents.tokens.iter().map(|entry| entry.id.into()).collect();
        ids.sort_unstable();
        if !ids.is_sorted_by(|one, next| one < next) {
            return Err(damaged("two tokens have the same id".to_owned()));
        }
        if let Some(entry) = contents.tokens.iter().find(|entry| !is_tenant(&entry.tenant)) {
            return Err(damaged(format!("{:?} is not a valid tenant name", entry.tenant)));
        }
        Ok(contents.tokens)
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
        let write = || {
            let checksum = checksum(&tokens)?;
            let contents = Contents { format: FORMAT, checksum, tokens };
            let mut bytes = serde_json::to_vec_pretty(&contents)?;
            bytes.push(b'\n');
            whole::write(&path, &bytes, 0o600)
        };
        write().map_err(|source| io_error("write", &path, source))
    }
}

fn checksum(tokens: &[Entry]) -> serde_json::Result<String> {
    Ok(whole::checksum(&serde_json::to_vec(tokens)?))
}

/// The rules for names are the core's.
fn is_tenant(name: &str) -> bool {
    QueueName::new(name, "any").is_ok()
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

impl NewToken {
    fn check(&self, now: Timestamp) -> Result<(), Error> {
        if let Some(name) = &self.name {
            let is_printable = !name.chars().any(char::is_control) && name.trim() == name;
            if !(1..=NAME_CHARS_MAX).contains(&name.chars().count()) || !is_printable {
                return Err(Error::InvalidName);
            }
        }
        if !is_tenant(&self.tenant) {
            return Err(Error::InvalidTenant(self.tenant.clone()));
        }
        if self.can.is_empty() {
            return Err(Error::NoPermission);
        }
        match self.expires_at {
            Some(at) if at <= now => Err(Error::ExpiredAlready(at)),
            _ => Ok(()),
        }
    }
}

impl Entry {
    fn is_called(&self, id_or_name: &str) -> bool {
        self.name.as_deref() == Some(id_or_name) || self.id.to_string() == id_or_name
    }

    fn listed(&self) -> Listed {
        Listed {
            id: self.id.to_string(),
            name: self.name.clone(),
            tenant: self.tenant.clone(),
            queues: self.queues.clone(),
            can: self.can,
            created_at: self.created_at,
            expires_at: self.expires_at,
        }
    }
}

/// The text of a token is only for standard output, never for a log.
impl std::fmt::Debug for Created {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Created").field("listed", &self.listed).finish_non_exhaustive()
    }
}

/// Times as they stand in the file.
mod rfc3339 {
    use jiff::Timestamp;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    pub(super) fn write<S: Serializer>(at: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{at:.3}"))
    }

    pub(super) fn write_option<S: Serializer>(
        at: &Option<Timestamp>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        at.map(|at| format!("{at:.3}")).serialize(to)
    }

    pub(super) fn serialize<S: Serializer>(at: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        write(at, to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }

    pub(super) fn read_option<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Timestamp>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(de::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests;
