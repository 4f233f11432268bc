//! The format marker: shows that a directory holds a complete store, its format and its identity.

use std::io::ErrorKind;

use crate::{Corruption, Error, Volume};

/// The name of the marker.
pub const NAME: &str = "format";
/// The archive's manifest.
pub(super) const MANIFEST_NAME: &str = "MANIFEST";
const NEW_NAME: &str = "format.tmp";
const MAGIC: [u8; 8] = *b"HAPAXFMT";
/// The format of a directory as a whole. Journal and archive have versions of their own.
const VERSION: u32 = 1;
const LEN: usize = 24;

/// The identity of the store; `None` if there is no marker.
pub(super) fn read(volume: &dyn Volume) -> Result<Option<u64>, Error> {
    let file = match volume.open(NAME) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("open", &volume.describe(NAME), error)),
    };
    let failed = |error| Error::io("read", &volume.describe(NAME), error);
    let mut bytes = [0; LEN];
    if file.len().map_err(failed)? < LEN as u64 {
        return Err(damaged(volume, "the marker is too short"));
    }
    file.read_exact_at(&mut bytes, 0).map_err(failed)?;
    let (version, identity, checksum) = decode(&bytes);
    if !bytes.starts_with(&MAGIC) || checksum != checksum_of(&bytes) {
        return Err(damaged(volume, "the marker fails its checksum"));
    }
    match version {
        VERSION => Ok(Some(identity)),
        found => {
            let file = volume.describe(NAME);
            Err(Error::NewerFormat { file, found, known: VERSION })
        }
    }
}

/// Writes the marker atomically, and makes all names so far durable.
pub(super) fn write(volume: &dyn Volume, identity: u64) -> Result<(), Error> {
    let mut bytes = Vec::with_capacity(LEN);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&identity.to_le_bytes());
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    assert_eq!(bytes.len(), LEN, "the marker has its fixed size");
    assert!(bytes.first_chunk().is_some_and(|bytes| decode(bytes).1 == identity), "read back");
    let failed = |error| Error::io("write", &volume.describe(NAME), error);
    // Left by an earlier attempt.
    match volume.remove(NEW_NAME) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let file = volume.create(NEW_NAME).map_err(failed)?;
    file.write_all_at(&bytes, 0).map_err(failed)?;
    file.sync().map_err(failed)?;
    // Everything that the marker vouches for is durable before the marker is.
    volume.sync_names().map_err(failed)?;
    volume.rename(NEW_NAME, NAME).map_err(failed)?;
    volume.sync_names().map_err(failed)
}

/// A directory that should hold a store and has no marker.
pub(super) fn absent(volume: &dyn Volume) -> Error {
    damaged(volume, "the marker is missing: the store is gone, or its copy was not completed")
}

/// A directory without a marker that is not new.
pub(super) fn missing(volume: &dyn Volume) -> Error {
    damaged(volume, "the marker is missing, but the directory holds data of a store")
}

/// The archive creates a manifest if there is none, which must not happen to an existing store.
pub(super) fn refuse_missing_manifest(volume: &dyn Volume) -> Result<(), Error> {
    let name = MANIFEST_NAME;
    match volume.open(name) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::Corrupt(Corruption {
            file: volume.describe(name),
            offset: 0,
            what: "the manifest is missing".to_owned(),
        })),
        Err(error) => Err(Error::io("open", &volume.describe(name), error)),
    }
}

fn damaged(volume: &dyn Volume, what: &str) -> Error {
    Error::Corrupt(Corruption { file: volume.describe(NAME), offset: 0, what: what.to_owned() })
}

fn decode(bytes: &[u8; LEN]) -> (u32, u64, u32) {
    let [_, _, _, _, _, _, _, _, rest @ ..] = bytes;
    let [a, b, c, d, rest @ ..] = rest;
    let version = u32::from_le_bytes([*a, *b, *c, *d]);
    let [identity @ .., e, f, g, h] = rest;
    (version, u64::from_le_bytes(*identity), u32::from_le_bytes([*e, *f, *g, *h]))
}

fn checksum_of(bytes: &[u8; LEN]) -> u32 {
    let [covered @ .., _, _, _, _] = bytes;
    crc32c::crc32c(covered)
}
