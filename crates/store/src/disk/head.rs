//! Looks at the manifest's head without opening the archive: opening it removes what a crash left
//! over, which must not happen where the journal turns out to be damaged.

use std::io::ErrorKind;

use super::marker::MANIFEST_NAME;
use crate::archive::Head;
use crate::{Error, Volume};

/// The manifest's header: magic, version, length of the payload, checksum of these.
const HEADER_LEN: usize = 20;
/// The last version that is known, and the first one that says how far the journal was synced.
const VERSION: u32 = 2;

/// What an intact manifest of a known version says; `None` for any other, which the
/// archive then refuses in its own words.
pub(super) fn peek(volume: &dyn Volume) -> Result<Option<Head>, Error> {
    let failed = |error| Error::io("read", &volume.describe(MANIFEST_NAME), error);
    let file = match volume.open(MANIFEST_NAME) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let len = usize::try_from(file.len().map_err(failed)?).unwrap_or(usize::MAX);
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, 0).map_err(failed)?;
    Ok(decode(&bytes))
}

fn decode(bytes: &[u8]) -> Option<Head> {
    let (header, rest) = bytes.split_at_checked(HEADER_LEN)?;
    let (payload, checksum) = rest.split_last_chunk()?;
    let (covered, header_checksum) = header.split_last_chunk()?;
    let intact = crc32c::crc32c(covered) == u32::from_le_bytes(*header_checksum)
        && crc32c::crc32c(payload) == u32::from_le_bytes(*checksum);
    let version = u32::from_le_bytes(*header.get(8..)?.first_chunk()?);
    (intact && (1..=VERSION).contains(&version)).then_some(())?;
    let (epoch, rest) = payload.split_first_chunk()?;
    let through = rest.first_chunk()?;
    let synced = if version < VERSION { &[0; 8] } else { payload.last_chunk()? };
    Some(Head {
        epoch: u32::from_le_bytes(*epoch),
        through: u64::from_le_bytes(*through),
        synced: u64::from_le_bytes(*synced),
    })
}
