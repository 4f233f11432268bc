//! The mark: the position up to which the journal was synced before its last window, in a separate
//! file.
//!
//! The headers in the journal have the same information, but are lost if a segment is truncated.
//! The mark is written without a sync, so it costs almost nothing: it survives a killed process,
//! and may be outdated after a power cut. Its position is never too large, so it can prove damage
//! but never cause a false alarm. A missing or damaged mark is ignored.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use super::record::Position;
use crate::{Error, File, Volume};

pub(crate) const NAME: &str = "journal.mark";
const MAGIC: [u8; 8] = *b"HAPAXMRK";
const LEN: usize = 32;

/// The file of the mark, open for the flusher.
#[derive(Debug)]
pub(super) struct Mark {
    /// None if the volume is read-only and has no mark.
    file: Option<Arc<dyn File>>,
    identity: u64,
    written: Position,
}

impl Mark {
    /// Opens the file, or creates it if it is missing.
    pub(super) fn open(volume: &dyn Volume, identity: u64) -> Result<Self, Error> {
        let file = match volume.open(NAME) {
            Err(error) if error.kind() == ErrorKind::NotFound => volume.create(NAME),
            opened => opened,
        };
        let file = match file {
            Err(error) if error.kind() == ErrorKind::ReadOnlyFilesystem => None,
            file => Some(file.map_err(|error| Error::io("open", &volume.describe(NAME), error))?),
        };
        Ok(Self { file, identity, written: Position::default() })
    }

    pub(super) fn write(&mut self, synced: Position) -> io::Result<()> {
        assert!(synced >= self.written, "a mark never takes back what it proved");
        if synced == self.written {
            return Ok(());
        }
        self.file()?.write_all_at(&encode(self.identity, synced), 0)?;
        self.written = synced;
        Ok(())
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.file()?.sync()
    }

    fn file(&self) -> io::Result<&Arc<dyn File>> {
        self.file.as_ref().ok_or_else(|| ErrorKind::ReadOnlyFilesystem.into())
    }
}

/// The position that the mark proves; `None` if it proves nothing.
pub(super) fn read(volume: &dyn Volume, identity: u64) -> Result<Option<Position>, Error> {
    let mut bytes = [0; LEN];
    let read = volume.open(NAME).and_then(|file| file.read_exact_at(&mut bytes, 0));
    match read {
        Ok(()) => Ok(decode(identity, &bytes)),
        Err(error) if [ErrorKind::NotFound, ErrorKind::UnexpectedEof].contains(&error.kind()) => {
            Ok(None)
        }
        Err(error) => Err(Error::io("read", &volume.describe(NAME), error)),
    }
}

pub(crate) fn encode(identity: u64, synced: Position) -> [u8; LEN] {
    let [magic, place] = [MAGIC, synced.to_bits().to_le_bytes()];
    let identity = identity.to_le_bytes();
    let checksum =
        crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(&magic), &identity), &place);
    let mut bytes = [0; LEN];
    let fields = [&magic[..], &identity[..], &place[..], &checksum.to_le_bytes()[..]];
    for (to, from) in bytes.iter_mut().zip(fields.into_iter().flatten()) {
        *to = *from;
    }
    debug_assert_eq!(decode_place(&bytes), Some(synced), "what is read is what was written");
    bytes
}

fn decode(identity: u64, bytes: &[u8; LEN]) -> Option<Position> {
    let synced = decode_place(bytes)?;
    (encode(identity, synced) == *bytes).then_some(synced)
}

fn decode_place(bytes: &[u8; LEN]) -> Option<Position> {
    let place = bytes.get(16..)?.first_chunk()?;
    Some(Position::from_bits(u64::from_le_bytes(*place)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_comes_back_as_it_was_and_damaged_it_proves_nothing() {
        let synced = Position { segment: 3, offset: 4096 };
        let bytes = encode(7, synced);
        assert_eq!(decode(7, &bytes), Some(synced));
        assert_eq!(decode(8, &bytes), None);
        for bit in 0..LEN * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(7, &damaged), None, "bit {bit}");
        }
    }
}
