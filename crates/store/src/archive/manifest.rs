//! The manifest: the sections and run files of the archive, and the batch up to which they are
//! complete.
//!
//! ```text
//!  magic "HAPAXMAN" │ version u32 │ payload bytes u32 │ crc32c of these │ payload │ crc32c of it
//! ```
//!
//! The header is the same in every version, so that a newer manifest can be distinguished from a
//! damaged one. The payload: epoch u32, through u64, at u64, next run u64, runs u32; per run its
//! number u64, bytes u64, sections u32 and these, as in the run's footer; synced u64 (since version
//! 2).
//!
//! Invariants:
//! - the manifest is replaced atomically ([`Volume::replace`](crate::Volume::replace));
//! - the files that it lists are synced, contents and names, before that.

use std::io;

use super::bounds::MANIFEST_BYTES_MAX;
use super::bytes::Decoder;
use super::section::Meta;
use crate::{Corruption, Epoch, Error, Sequence, Volume};

pub(super) const NAME: &str = "MANIFEST";
pub(super) const TEMPORARY: &str = "MANIFEST.tmp";
const MAGIC: &[u8; 8] = b"HAPAXMAN";
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 20;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Manifest {
    pub(super) epoch: Epoch,
    pub(super) through: Sequence,
    /// The partition's time at the last checkpoint.
    pub(super) at: u64,
    /// No run has this number or a larger one.
    pub(super) next_run: u64,
    pub(super) runs: Vec<Run>,
    /// How far the journal was synced when this was written, encoded by the journal; 0 in version
    /// 1, which lacks it.
    pub(super) synced: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) id: u64,
    pub(super) bytes: u64,
    /// The live sections.
    pub(super) sections: Vec<Meta>,
}

impl Manifest {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        payload.extend_from_slice(&self.epoch.to_le_bytes());
        for number in [self.through, self.at, self.next_run] {
            payload.extend_from_slice(&number.to_le_bytes());
        }
        payload.extend_from_slice(&(self.runs.len() as u32).to_le_bytes());
        for run in &self.runs {
            assert!(run.id < self.next_run, "no run has this number or a larger one");
            assert!(run.sections.iter().all(|meta| meta.is_within(run.bytes)), "or it is damage");
            payload.extend_from_slice(&run.id.to_le_bytes());
            payload.extend_from_slice(&run.bytes.to_le_bytes());
            payload.extend_from_slice(&(run.sections.len() as u32).to_le_bytes());
            run.sections.iter().for_each(|meta| meta.put(&mut payload));
        }
        payload.extend_from_slice(&self.synced.to_le_bytes());
        debug_assert_eq!(parse_payload(&payload).as_ref(), Some(self), "it is read as written");
        let mut out = Vec::with_capacity(HEADER_BYTES + payload.len() + 4);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        out.extend_from_slice(&crc32c::crc32c(&out).to_le_bytes());
        assert_eq!(out.len(), HEADER_BYTES, "the header has its fixed size");
        out.extend_from_slice(&payload);
        out.extend_from_slice(&crc32c::crc32c(&payload).to_le_bytes());
        assert!(out.len() as u64 <= MANIFEST_BYTES_MAX, "a manifest is within its bound");
        out
    }

    /// Reads the manifest; `None` if there is none.
    pub(super) fn read(volume: &dyn Volume) -> Result<Option<Self>, Error> {
        let label = volume.describe(NAME);
        let file = match volume.open(NAME) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("open", &label, error)),
        };
        let length = file.len().map_err(|error| Error::io("measure", &label, error))?;
        if length > MANIFEST_BYTES_MAX {
            return Err(corrupt(&label, 0, "the manifest is impossibly long"));
        }
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, 0).map_err(|error| Error::io("read", &label, error))?;
        Self::decode(&bytes, &label).map(Some)
    }

    pub(super) fn decode(bytes: &[u8], label: &str) -> Result<Self, Error> {
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(corrupt(label, 0, "the manifest is too short"));
        };
        let Some((version, payload_bytes)) = parse_header(header) else {
            return Err(corrupt(label, 0, "the manifest's header fails its checksum"));
        };
        if version > VERSION {
            let file = label.to_owned();
            return Err(Error::NewerFormat { file, found: version, known: VERSION });
        }
        let at = HEADER_BYTES as u64;
        let Some((payload, checksum)) = rest.split_last_chunk::<4>() else {
            return Err(corrupt(label, at, "the manifest is too short"));
        };
        if payload.len() != payload_bytes as usize
            || crc32c::crc32c(payload) != u32::from_le_bytes(*checksum)
        {
            return Err(corrupt(label, at, "the manifest fails its checksum"));
        }
        parse_payload(payload).ok_or_else(|| {
            corrupt(label, at, "the manifest passes its checksum but makes no sense")
        })
    }
}

/// Version and length of the payload.
fn parse_header(header: &[u8]) -> Option<(u32, u32)> {
    let (body, checksum) = header.split_last_chunk::<4>()?;
    (crc32c::crc32c(body) == u32::from_le_bytes(*checksum)).then_some(())?;
    let mut decoder = Decoder::new(body);
    (decoder.take(8)? == MAGIC).then_some(())?;
    Some((decoder.u32()?, decoder.u32()?))
}

fn parse_payload(payload: &[u8]) -> Option<Manifest> {
    let mut decoder = Decoder::new(payload);
    let mut manifest = Manifest {
        epoch: decoder.u32()?,
        through: decoder.u64()?,
        at: decoder.u64()?,
        next_run: decoder.u64()?,
        runs: Vec::new(),
        synced: 0,
    };
    for _ in 0..decoder.u32()? {
        let (id, bytes, count) = (decoder.u64()?, decoder.u64()?, decoder.u32()?);
        let mut sections = Vec::new();
        for _ in 0..count {
            let meta = Meta::take(&mut decoder).filter(|meta| meta.is_within(bytes))?;
            sections.push(meta);
        }
        (id < manifest.next_run).then_some(())?;
        manifest.runs.push(Run { id, bytes, sections });
    }
    if !decoder.is_empty() {
        manifest.synced = decoder.u64()?;
    }
    decoder.is_empty().then_some(manifest)
}

pub(super) fn corrupt(label: &str, offset: u64, what: &str) -> Error {
    Error::Corrupt(Corruption { file: label.to_owned(), offset, what: what.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a manifest as version 1 wrote them.
    fn version_1(manifest: &Manifest) -> Vec<u8> {
        let bytes = manifest.encode();
        let payload = &bytes[HEADER_BYTES..bytes.len() - 4 - 8];
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&1_u32.to_le_bytes());
        out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        out.extend_from_slice(&crc32c::crc32c(&out).to_le_bytes());
        out.extend_from_slice(payload);
        out.extend_from_slice(&crc32c::crc32c(payload).to_le_bytes());
        out
    }

    #[test]
    fn a_manifest_beside_another_log_says_nothing_of_the_old_one_and_keeps_the_rest() {
        let manifest = Manifest { epoch: 3, through: 9, at: 7, next_run: 2, ..Manifest::default() };
        let noted = Manifest { synced: 77, ..manifest.clone() };
        for written in [noted.encode(), version_1(&noted)] {
            let moved = super::super::manifest_beside_another_log(&written).unwrap();
            assert_eq!(Manifest::decode(&moved, "MANIFEST").unwrap(), manifest);
        }
    }

    #[test]
    fn a_manifest_of_version_1_says_nothing_of_the_journal() {
        let manifest = Manifest { epoch: 3, through: 9, at: 7, next_run: 2, ..Manifest::default() };
        let noted = Manifest { synced: 77, ..manifest.clone() };
        assert_eq!(Manifest::decode(&noted.encode(), "MANIFEST").unwrap(), noted);
        assert_eq!(Manifest::decode(&version_1(&noted), "MANIFEST").unwrap(), manifest);
    }
}
