//! The data directory of a broker.
//!
//! ```text
//!   hapax-data/
//!     broker.json       format, number of partitions and the secret of fingerprints, fixed when
//!                       the data is created; whether it is being created, or is a copy that was
//!                       not opened yet
//!     broker.json.imported   instead of broker.json in a directory that was retired by an import
//!     secret            makes leases unguessable; readable only by its owner; a copy gets another
//!     tokens.json       hashed tokens, if there are any
//!     partition-0000/   a partition: journal and rows (docs/disk-format.md)
//! ```

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use hapax_core::Recipe;
use hapax_postgres::{Secret, Shared, Uuid};
use hapax_store::{Epoch, disk};
use serde::{Deserialize, Serialize};

use super::Error;
use crate::whole;

/// The format of new data. Format 1, of 0.1, has no secret of fingerprints and keeps its recipe.
const FORMAT: u32 = 2;

/// A data directory, complete or about to be created. The engine opens its partitions and then
/// completes it.
#[derive(Clone, Debug)]
pub struct Data {
    path: PathBuf,
    head: Head,
    secret: [u8; 32],
    recipe: Recipe,
}

/// The contents of `broker.json`. A wrong number here would make keys be looked up in the wrong
/// partition or under other digests.
#[derive(Clone, Debug)]
struct Head {
    partitions: u16,
    /// Absent if the data uses the first recipe.
    hashing: Option<Hashing>,
    /// Absent if the directory is complete and in use.
    state: Option<State>,
}

/// The secret of fingerprints. A copy keeps it, unlike the secret of leases: what was sent before
/// is compared with what is sent again.
#[derive(Clone)]
struct Hashing([u8; 32]);

impl fmt::Debug for Hashing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hashing")
    }
}

/// A file in the directory of a node whose data is in a database, and what is before the broker's
/// id in it.
const NODE: &str = "node";
const OF_BROKER: &str = "the data of this node is in a database, of the broker ";

/// What `broker.json` is called in a directory that was retired.
const RETIRED: &str = "broker.json.imported";

/// How far the epochs of data that moved are at least raised.
const MOVED_STEP: u32 = 4_096;

/// A broker on disk that is to move into a database.
#[derive(Debug)]
pub struct Moving {
    /// The directories of its partitions.
    pub partitions: Vec<PathBuf>,
    /// `None` in data of 0.1, which keeps its recipe.
    pub fingerprints: Option<Secret>,
    pub leases: Secret,
    /// Whether it is a copy that no broker has opened yet: leases of the original are not valid.
    pub is_copy: bool,
}

/// A [`Head`] as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    format: u32,
    partitions: u16,
    /// Hexadecimal; since format 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fingerprint_secret: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state: Option<State>,
    checksum: String,
}

/// Why a data directory is not yet that of a running broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// Being created: it was never used, and missing parts are created.
    Creating,
    /// A copy that no broker has opened yet. The original may have continued: the first broker that
    /// opens the copy raises its epochs above the original's and takes another secret, so that no
    /// fence is reused and no earlier lease settles anything.
    Copy,
}

impl Data {
    /// Opens the directory, or creates it with this number of partitions. An existing one keeps its
    /// number. If a part is missing, it is refused and nothing is changed.
    pub fn open(path: &Path, partitions: u16) -> Result<Self, Error> {
        let head = match Head::read(path)? {
            Some(head) => head,
            None => Head::create(path, partitions)?,
        };
        let secret = match head.state {
            Some(State::Creating) => new_secret(path)?,
            Some(State::Copy) => {
                refuse_incomplete(path, head.partitions)?;
                new_secret(path)?
            }
            None => refuse_incomplete(path, head.partitions)?,
        };
        let recipe = head.recipe();
        Ok(Self { path: path.to_owned(), head, secret, recipe })
    }

    /// What all nodes of a broker share in their database. The directory is this node's own, for a
    /// cache.
    pub fn shared(path: &Path, shared: &Shared) -> Self {
        let hashing = shared.fingerprints.as_ref().map(|secret| Hashing(secret.0));
        let head = Head { partitions: shared.partitions, hashing, state: None };
        let recipe = head.recipe();
        Self { path: path.to_owned(), head, secret: shared.leases.0, recipe }
    }

    /// Refuses a directory with the data of a broker on disk, for one whose store is elsewhere.
    pub fn refuse_data(path: &Path) -> Result<(), Error> {
        match Head::read(path)? {
            Some(_) => Err(Error::OnDisk(path.to_owned())),
            None => refuse_partitions(path),
        }
    }

    /// Notes that the directory is that of a node of this broker, whose store is elsewhere. Without
    /// it, a node that is once started without its store, or with that of another broker, would
    /// find no data, and be an empty broker.
    pub fn of_node(path: &Path, broker: Uuid) -> Result<(), Error> {
        hapax_store::create_private_directory(path)
            .map_err(|error| Error::io("create", path, error))?;
        write(&path.join(NODE), format!("{OF_BROKER}{broker}\n").as_bytes(), 0o600)
    }

    /// The broker whose node has the directory; `None` if it is of no node yet.
    pub fn broker_of_node(path: &Path) -> Result<Option<Uuid>, Error> {
        let file = path.join(NODE);
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("read", &file, error)),
        };
        let broker = text.strip_prefix(OF_BROKER).and_then(|id| id.strip_suffix('\n'));
        match broker.and_then(|id| Uuid::parse_str(id).ok()) {
            Some(broker) => Ok(Some(broker)),
            None => Err(Error::Damaged(file, "it names no broker".to_owned())),
        }
    }

    /// Whether the directory is that of a node whose store is elsewhere.
    pub fn is_of_node(path: &Path) -> bool {
        path.join(NODE).exists() && !path.join("broker.json").exists()
    }

    /// How the partitions are to be opened.
    pub(super) fn store_options(&self) -> disk::Options {
        disk::Options {
            must_exist: self.head.state != Some(State::Creating),
            lineage: (self.head.state == Some(State::Copy)).then(lineage),
            ..disk::Options::default()
        }
    }

    /// Marks the directory as complete: all partitions are open.
    pub(super) fn complete(&mut self) -> Result<(), Error> {
        if self.head.state.take().is_some() {
            write(&self.path.join("secret"), &sealed(&self.secret), 0o600)?;
            self.head.write(&self.path)?;
        }
        Ok(())
    }

    /// The partitions of a complete data directory, without changing anything.
    pub fn partition_paths(path: &Path) -> Result<Vec<PathBuf>, Error> {
        let Some(head) = Head::read(path)? else {
            refuse_remains(path)?;
            return Err(Error::NoData(path.to_owned()));
        };
        if head.state == Some(State::Creating) {
            return Err(Error::NoData(path.to_owned()));
        }
        refuse_incomplete(path, head.partitions)?;
        Ok((0..head.partitions).map(|number| partition_path(path, number)).collect())
    }

    /// What is needed to bring a complete data directory into a database. Changes nothing.
    pub fn moving(path: &Path) -> Result<Moving, Error> {
        let partitions = Self::partition_paths(path)?;
        let head = Head::read(path)?.ok_or_else(|| Error::NoData(path.to_owned()))?;
        let is_copy = head.state == Some(State::Copy);
        let leases = if is_copy { new_secret(path)? } else { secret(path)? };
        let fingerprints = head.hashing.map(|Hashing(secret)| Secret(secret));
        Ok(Moving { partitions, fingerprints, leases: Secret(leases), is_copy })
    }

    /// Keeps every broker, of any release, from starting on a directory whose data is in a database
    /// now. Undone by renaming the file back.
    pub fn retire(path: &Path) -> Result<(), Error> {
        let renamed = fs::rename(path.join("broker.json"), path.join(RETIRED))
            .and_then(|()| fs::File::open(path)?.sync_all());
        renamed.map_err(|error| Error::io("retire", path, error))
    }

    /// Writes what a copy of the directory needs besides its partitions, and marks it as a copy.
    pub fn copy_head(path: &Path, target: &Path) -> Result<(), Error> {
        let head = Head::read(path)?.ok_or_else(|| Error::NoData(path.to_owned()))?;
        let secret = secret(path)?;
        write(&target.join("secret"), &sealed(&secret), 0o600)?;
        let tokens = path.join("tokens.json");
        match fs::read(&tokens) {
            Ok(bytes) => write(&target.join("tokens.json"), &bytes, 0o600)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io("read", &tokens, error)),
        }
        // Last: a copy without a head is incomplete.
        Head { state: Some(State::Copy), ..head }.write(target)
    }

    /// Refuses a target for a copy that lies in the data itself.
    pub fn refuse_target_inside(path: &Path, target: &Path) -> Result<(), Error> {
        let real = |path: &Path| fs::canonicalize(path);
        let data = real(path).map_err(|error| Error::io("read", path, error))?;
        let absolute =
            std::path::absolute(target).map_err(|error| Error::io("find", target, error))?;
        // The target need not exist yet: its first existing parent counts.
        let existing = absolute.ancestors().find_map(|ancestor| real(ancestor).ok());
        match existing.is_some_and(|existing| existing.starts_with(&data)) {
            true => Err(Error::Inside { target: target.to_owned(), data: path.to_owned() }),
            false => Ok(()),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn partitions(&self) -> u16 {
        self.head.partitions
    }

    /// How keys and bodies are hashed, in every partition.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    pub(super) fn partition(&self, number: u16) -> PathBuf {
        partition_path(&self.path, number)
    }

    pub fn secret(&self) -> &[u8; 32] {
        &self.secret
    }
}

impl Head {
    fn recipe(&self) -> Recipe {
        match &self.hashing {
            Some(Hashing(secret)) => Recipe::second(secret),
            None => Recipe::First,
        }
    }

    fn written(&self) -> Written {
        let (format, secret) = match &self.hashing {
            Some(Hashing(secret)) => (FORMAT, Some(hex(secret))),
            None => (1, None),
        };
        let Self { partitions, state, .. } = *self;
        let mut covered = format!("{format} {partitions}");
        for more in [secret.clone(), state.map(|state| format!("{state:?}"))].into_iter().flatten()
        {
            covered.push(' ');
            covered.push_str(&more);
        }
        let checksum = whole::checksum(covered.as_bytes());
        Written { format, partitions, fingerprint_secret: secret, state, checksum }
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
        let read: Written =
            serde_json::from_value(head).map_err(|error| damaged(error.to_string()))?;
        let secret = read.fingerprint_secret.as_deref();
        let secret = secret.map(|text| unhex(text).ok_or("fingerprint_secret is not a secret"));
        let hashing = secret.transpose().map_err(|why| damaged(why.to_owned()))?.map(Hashing);
        let head = Self { partitions: read.partitions, hashing, state: read.state };
        // The format says whether there is a secret, and the checksum covers both.
        let right = head.written();
        if read.format != right.format || read.checksum != right.checksum {
            return Err(damaged("its checksum does not match".to_owned()));
        }
        Ok(Some(head))
    }

    fn create(path: &Path, partitions: u16) -> Result<Self, Error> {
        refuse_remains(path)?;
        hapax_store::create_private_directory(path)
            .map_err(|error| Error::io("create", path, error))?;
        let hashing = Some(Hashing(new_secret(path)?));
        let head = Self { partitions, hashing, state: Some(State::Creating) };
        head.write(path)?;
        Ok(head)
    }

    fn write(&self, path: &Path) -> Result<(), Error> {
        let file = path.join("broker.json");
        let mut bytes = serde_json::to_vec(&self.written())
            .map_err(|error| Error::Damaged(file.clone(), error.to_string()))?;
        bytes.push(b'\n');
        write(&file, &bytes, 0o600)
    }
}

pub(super) fn partition_path(path: &Path, number: u16) -> PathBuf {
    path.join(format!("partition-{number:04}"))
}

/// The secret of a directory whose head says that it is complete.
fn secret(path: &Path) -> Result<[u8; 32], Error> {
    let file = path.join("secret");
    match fs::read(&file) {
        Ok(bytes) => match bytes.first_chunk() {
            Some(secret) if bytes == sealed(secret) => Ok(*secret),
            _ => Err(Error::Damaged(file, "its checksum does not match".to_owned())),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::Missing(file)),
        Err(error) => Err(Error::io("read", &file, error)),
    }
}

fn new_secret(path: &Path) -> Result<[u8; 32], Error> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret)
        .map_err(|error| Error::io("make a secret for", path, io::Error::other(error)))?;
    Ok(secret)
}

fn hex(bytes: &[u8; 32]) -> String {
    blake3::Hash::from_bytes(*bytes).to_hex().to_string()
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    blake3::Hash::from_hex(text).ok().map(Into::into)
}

/// Refuses a directory that lacks its secret, a partition, or a part of one. Returns the secret.
fn refuse_incomplete(path: &Path, partitions: u16) -> Result<[u8; 32], Error> {
    let secret = secret(path)?;
    for number in 0..partitions {
        let partition = partition_path(path, number);
        for file in [partition.clone(), partition.join(disk::MARKER_NAME)] {
            if !file.try_exists().map_err(|error| Error::io("look for", &file, error))? {
                return Err(Error::Missing(file));
            }
        }
    }
    Ok(secret)
}

/// Refuses a directory that holds a partition, although it has no head.
fn refuse_partitions(path: &Path) -> Result<(), Error> {
    match partition_path(path, 0).try_exists() {
        Ok(true) => refuse_remains(path),
        Ok(false) => Ok(()),
        Err(error) => Err(Error::io("read", path, error)),
    }
}

/// Refuses a directory without a head that holds anything of a broker: data that lost its head, an
/// interrupted copy, or one partition of a broker. It is never treated as empty.
fn refuse_remains(path: &Path) -> Result<(), Error> {
    if path.join(RETIRED).exists() {
        return Err(Error::Retired(path.to_owned()));
    }
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io("read", path, error)),
    };
    for entry in entries {
        let name = entry.map_err(|error| Error::io("read", path, error))?.file_name();
        let name = name.to_string_lossy();
        if name == disk::MARKER_NAME || name == "MANIFEST" || name.starts_with("journal-") {
            return Err(Error::OnePartition(path.to_owned()));
        }
        if name == NODE {
            return Err(Error::OfNode(path.to_owned()));
        }
        if name == "secret" || name.starts_with("partition-") {
            let beside = path.join(name.as_ref());
            return Err(Error::HeadMissing { head: path.join("broker.json"), beside });
        }
    }
    Ok(())
}

/// The epoch of a partition that moves into a database. Should the directory be started again by
/// mistake, its fences are below those of the database.
pub(crate) fn moved_epoch(newest: Epoch) -> Epoch {
    lineage().max(newest.saturating_add(MOVED_STEP))
}

/// The minimum epoch of a copy that is opened now: it grows by one every two minutes, faster than a
/// broker is restarted.
fn lineage() -> u32 {
    const SINCE_S: u64 = 1_767_225_600; // 2026-01-01
    const UNIT_S: u64 = 120;
    let units = (crate::time::now().0 / 1_000).saturating_sub(SINCE_S) / UNIT_S;
    // Epochs stay below 2^23: half of that leaves room for starts.
    u32::try_from(units).unwrap_or(u32::MAX).min(1 << 22)
}

/// The secret and its checksum, as they are written.
fn sealed(secret: &[u8; 32]) -> Vec<u8> {
    [secret.as_slice(), whole::checksum(secret).as_bytes()].concat()
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Error> {
    whole::write(path, bytes, mode).map_err(|error| Error::io("write", path, error))
}
