//! The data directory of a broker.
//!
//! ```text
//!   hapax-data/
//!     broker.json       format and number of partitions, fixed when the data is created
//!     secret            makes leases unguessable; made once, readable by the owner alone
//!     tokens.json       hashed tokens, where there are any
//!     partition-0000/   a partition: journal and rows (docs/disk-format.md)
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Error;
use crate::whole;

const FORMAT: u32 = 1;

/// An opened data directory.
#[derive(Clone, Debug)]
pub struct Data {
    path: PathBuf,
    partitions: u16,
    secret: [u8; 32],
}

/// One wrong number here, and keys would be looked for in the wrong partition.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    format: u32,
    partitions: u16,
    checksum: String,
}

impl Data {
    /// Opens the directory, or creates it for so many partitions. An existing one keeps its
    /// number.
    pub fn open(path: &Path, partitions: u16) -> Result<Self, Error> {
        fs::create_dir_all(path).map_err(|error| Error::io("create", path, error))?;
        let head = match Head::read(path)? {
            Some(head) => head,
            None => Head::create(path, partitions)?,
        };
        let secret = secret(path)?;
        Ok(Self { path: path.to_owned(), partitions: head.partitions, secret })
    }

    /// The partitions of an existing data directory, without changing anything.
    pub fn partition_paths(path: &Path) -> Result<Vec<PathBuf>, Error> {
        let head = Head::read(path)?.ok_or_else(|| Error::NoData(path.to_owned()))?;
        Ok((0..head.partitions).map(|number| partition_path(path, number)).collect())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn partitions(&self) -> u16 {
        self.partitions
    }

    pub(super) fn partition(&self, number: u16) -> PathBuf {
        partition_path(&self.path, number)
    }

    pub fn secret(&self) -> &[u8; 32] {
        &self.secret
    }

    /// Writes what a copy of the directory needs besides its partitions.
    pub(super) fn copy_head(&self, target: &Path) -> Result<(), Error> {
        write(&target.join("secret"), &sealed(&self.secret), 0o600)?;
        let tokens = self.path.join("tokens.json");
        match fs::read(&tokens) {
            Ok(bytes) => write(&target.join("tokens.json"), &bytes, 0o600)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io("read", &tokens, error)),
        }
        // Last: what has no head was never a whole copy.
        Head::new(self.partitions).write(target)
    }
}

impl Head {
    fn new(partitions: u16) -> Self {
        let checksum = whole::checksum(format!("{FORMAT} {partitions}").as_bytes());
        Self { format: FORMAT, partitions, checksum }
    }

    fn read(path: &Path) -> Result<Option<Self>, Error> {
        let file = path.join("broker.json");
        let bytes = match fs::read(&file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("read", &file, error)),
        };
        let damaged = |why: String| Error::Damaged(file.clone(), why);
        let head: serde_json::Value =
            serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        // The format first: a newer one may look different in everything else.
        match head.get("format").and_then(serde_json::Value::as_u64) {
            Some(format) if format > u64::from(FORMAT) => {
                return Err(Error::Newer { path: path.to_owned(), format, known: FORMAT });
            }
            Some(_) => {}
            None => return Err(damaged("it has no format".to_owned())),
        }
        let head: Self =
            serde_json::from_value(head).map_err(|error| damaged(error.to_string()))?;
        let checksum = Self::new(head.partitions).checksum;
        if head.format != FORMAT || head.checksum != checksum {
            return Err(damaged("its checksum does not match".to_owned()));
        }
        Ok(Some(head))
    }

    fn create(path: &Path, partitions: u16) -> Result<Self, Error> {
        // Partitions without a head are somebody's data that lost it: never an empty broker.
        let first = partition_path(path, 0);
        if first.exists() {
            let why = "it is missing, although there are partitions beside it".to_owned();
            return Err(Error::Damaged(path.join("broker.json"), why));
        }
        let head = Self::new(partitions);
        head.write(path)?;
        Ok(head)
    }

    fn write(&self, path: &Path) -> Result<(), Error> {
        let file = path.join("broker.json");
        let mut bytes = serde_json::to_vec(self)
            .map_err(|error| Error::Damaged(file.clone(), error.to_string()))?;
        bytes.push(b'\n');
        write(&file, &bytes, 0o644)
    }
}

pub(super) fn partition_path(path: &Path, number: u16) -> PathBuf {
    path.join(format!("partition-{number:04}"))
}

fn secret(path: &Path) -> Result<[u8; 32], Error> {
    let file = path.join("secret");
    match fs::read(&file) {
        Ok(bytes) => match bytes.first_chunk() {
            Some(secret) if bytes == sealed(secret) => Ok(*secret),
            _ => Err(Error::Damaged(file, "its checksum does not match".to_owned())),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut secret = [0; 32];
            getrandom::fill(&mut secret)
                .map_err(|error| Error::io("make", &file, io::Error::other(error)))?;
            write(&file, &sealed(&secret), 0o600)?;
            Ok(secret)
        }
        Err(error) => Err(Error::io("read", &file, error)),
    }
}

/// The secret and its checksum, as they are written.
fn sealed(secret: &[u8; 32]) -> Vec<u8> {
    [secret.as_slice(), whole::checksum(secret).as_bytes()].concat()
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Error> {
    whole::write(path, bytes, mode).map_err(|error| Error::io("write", path, error))
}
