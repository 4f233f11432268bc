//! Run files: immutable once the manifest lists them.
//!
//! ```text
//!  blocks of section 0 │ blocks of section 1 │ … │ indexes and filters │ footer │ trailer
//! ```
//!
//! One checkpoint writes one run file, however many buckets it has rows for; a merge writes one
//! with one section. The manifest has the same information as the footer and is authoritative: the
//! footer is for people and for `verify`. The trailer has the footer's length and checksum, the
//! run's number, the version and a magic, with its own checksum.
//!
//! A run's number is `epoch << 40 | n` of the owner that wrote it, so that no two owners give the
//! same one. Releases up to 0.1 counted from 1 on: their numbers are of epoch 0, which is nobody's.
//!
//! Invariants:
//! - the file is written once, front to back, and synced piece by piece;
//! - it is synced to its end before any manifest lists it.

use std::io;
use std::sync::Arc;

use super::bounds::{STEP_BYTES, UNIT_BYTES};
use super::build::Built;
use super::bytes::Decoder;
use super::section::{Meta, Part, Section};
use super::state::Shared;
use crate::{Corruption, Epoch, Error, File, Volume};

pub(super) const VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"HAPAXRUN";
pub(super) const TRAILER_BYTES: u64 = 32;

/// How many bits of a run's number count the runs of one epoch.
const COUNT_BITS: u32 = 40;
/// Epochs beyond this one, which no partition reaches, share its numbers.
const EPOCH_MAX: Epoch = (1 << (u64::BITS - COUNT_BITS)) - 1;

/// The least number of a run that an owner writes.
pub(super) fn first_of(epoch: Epoch) -> u64 {
    u64::from(epoch.min(EPOCH_MAX)) << COUNT_BITS
}

pub(super) fn name(id: u64) -> String {
    format!("run-{id:016x}")
}

/// The number in the name of a run file; `None` for other files.
pub(super) fn id_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("run-").filter(|digits| digits.len() == 16)?;
    let id = u64::from_str_radix(digits, 16).ok()?;
    (self::name(id) == name).then_some(id)
}

/// An open run file.
#[derive(Debug)]
pub(super) struct RunFile {
    pub(super) id: u64,
    pub(super) bytes: u64,
    /// Its name in messages.
    label: String,
    file: Arc<dyn File>,
}

impl RunFile {
    /// Opens a run the manifest names.
    pub(super) fn open(volume: &dyn Volume, id: u64, bytes: u64) -> Result<Arc<Self>, Error> {
        let name = name(id);
        let label = volume.describe(&name);
        let file = volume.open(&name).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                let what = "the manifest names this file and it is missing".to_owned();
                Error::Corrupt(Corruption { file: label.clone(), offset: 0, what })
            }
            _ => Error::io("open", &label, error),
        })?;
        let run = Self { id, bytes, label, file };
        let length = run.file.len().map_err(|error| Error::io("measure", &run.label, error))?;
        if length != bytes {
            return Err(run.corrupt(length.min(bytes), "the file has not the length it had"));
        }
        Ok(Arc::new(run))
    }

    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> Result<(), Error> {
        self.file.read_exact_at(buffer, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.corrupt(offset, "the file ends too early"),
            _ => Error::io("read", &self.label, error),
        })
    }

    pub(super) fn corrupt(&self, offset: u64, what: &str) -> Error {
        Error::Corrupt(Corruption { file: self.label.clone(), offset, what: what.to_owned() })
    }

    pub(super) fn label(&self) -> &str {
        &self.label
    }
}

/// The contents of a footer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Footer {
    pub(super) run: u64,
    pub(super) sections: Vec<Meta>,
}

/// Reads the footer of a run; `None` if it is damaged.
pub(super) fn read_footer(run: &RunFile) -> Result<Option<Footer>, Error> {
    let Some(trailer_at) = run.bytes.checked_sub(TRAILER_BYTES) else { return Ok(None) };
    let mut trailer = [0; TRAILER_BYTES as usize];
    run.read(&mut trailer, trailer_at)?;
    let Some((length, checksum)) = parse_trailer(&trailer, run)? else { return Ok(None) };
    let Some(footer_at) = trailer_at.checked_sub(u64::from(length)) else { return Ok(None) };
    let mut bytes = vec![0; length as usize];
    run.read(&mut bytes, footer_at)?;
    if crc32c::crc32c(&bytes) != checksum {
        return Ok(None);
    }
    let mut decoder = Decoder::new(&bytes);
    let mut sections = Vec::new();
    while !decoder.is_empty() {
        let Some(meta) = Meta::take(&mut decoder) else { return Ok(None) };
        sections.push(meta);
    }
    Ok(Some(Footer { run: run.id, sections }))
}

/// Length and checksum of the footer.
fn parse_trailer(trailer: &[u8], run: &RunFile) -> Result<Option<(u32, u32)>, Error> {
    let fields = || {
        let (body, checksum) = trailer.split_last_chunk::<4>()?;
        (crc32c::crc32c(body) == u32::from_le_bytes(*checksum)).then_some(())?;
        let mut decoder = Decoder::new(body);
        let (length, checksum) = (decoder.u32()?, decoder.u32()?);
        let (id, version) = (decoder.u64()?, decoder.u32()?);
        (decoder.take(8)? == MAGIC && id == run.id).then_some((length, checksum, version))
    };
    match fields() {
        Some((_, _, found)) if found > VERSION => {
            Err(Error::NewerFormat { file: run.label.clone(), found, known: VERSION })
        }
        Some((length, checksum, _)) => Ok(Some((length, checksum))),
        None => Ok(None),
    }
}

/// Writes one run file, front to back.
#[derive(Debug)]
pub(super) struct RunWriter {
    pub(super) id: u64,
    name: String,
    label: String,
    file: Arc<dyn File>,
    /// Blocks go here first; the caller flushes when there is enough.
    pub(super) pending: Vec<u8>,
    written: u64,
    synced: u64,
    built: Vec<Built>,
    /// The next derived part to be written: section and part.
    finishing: (usize, usize),
}

impl RunWriter {
    pub(super) fn create(shared: &Shared, id: u64) -> Result<Self, Error> {
        let name = name(id);
        let label = shared.volume.describe(&name);
        let file = shared.volume.create(&name).map_err(|e| Error::io("create", &label, e))?;
        Ok(Self {
            id,
            name,
            label,
            file,
            pending: Vec::with_capacity(STEP_BYTES + STEP_BYTES / 4),
            written: 0,
            synced: 0,
            built: Vec::new(),
            finishing: (0, 0),
        })
    }

    /// The unit the next block begins at.
    pub(super) fn next_unit(&self) -> u64 {
        let offset = self.offset();
        debug_assert!(offset.is_multiple_of(UNIT_BYTES as u64), "blocks fill whole units");
        offset / UNIT_BYTES as u64
    }

    pub(super) fn add(&mut self, built: Built) {
        let end = built.meta.first_unit + built.meta.units;
        assert_eq!(end, self.next_unit(), "a section ends where the next one begins");
        self.built.push(built);
    }

    /// The length of the file including what is pending.
    pub(super) fn bytes(&self) -> u64 {
        self.offset()
    }

    /// Whether no section was added.
    pub(super) fn is_empty(&self) -> bool {
        self.built.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.pending.len() >= STEP_BYTES
    }

    /// Writes what is pending, and syncs if enough was written.
    pub(super) fn flush(&mut self, shared: &Shared) -> Result<(), Error> {
        if !self.pending.is_empty() {
            self.file
                .write_all_at(&self.pending, self.written)
                .map_err(|error| Error::io("write", &self.label, error))?;
            debug_assert!(self.synced <= self.written, "what is synced was written");
            self.written += self.pending.len() as u64;
            shared.counters.wrote(self.pending.len() as u64);
            self.pending.clear();
        }
        if self.written - self.synced >= shared.options.sync_bytes {
            self.sync()?;
        }
        Ok(())
    }

    /// Writes a bounded piece of the derived parts, the footer and the trailer. `true` when the
    /// file is complete and synced.
    pub(super) fn finish_step(&mut self, shared: &Shared) -> Result<bool, Error> {
        while !self.is_full() {
            if !self.put_part() {
                self.put_footer();
                self.flush(shared)?;
                self.sync()?;
                return Ok(true);
            }
        }
        self.flush(shared)?;
        Ok(false)
    }

    /// The sections of the finished file. Filters stay in memory as far as there is room, counting
    /// `released` bytes that the replaced sections will free.
    pub(super) fn into_sections(self, shared: &Shared, released: u64) -> Vec<Arc<Section>> {
        assert_eq!(self.synced, self.written, "a run is synced before anything refers to it");
        assert!(self.pending.is_empty(), "and written to its end");
        assert_eq!(self.finishing, (self.built.len(), 0), "with every derived part");
        let (id, bytes) = (self.id, self.written);
        assert!(self.built.iter().all(|built| built.meta.is_within(bytes)), "or it is damage");
        let run = Arc::new(RunFile { id, bytes, label: self.label, file: self.file });
        let mut held = shared.view().filter_bytes().saturating_sub(released);
        let sections = self.built.into_iter().map(|built| {
            let filters = built.filters.filter(|filters| {
                let fits = held + filters.bytes() <= shared.options.filter_bytes_max;
                held += if fits { filters.bytes() } else { 0 };
                fits
            });
            Arc::new(Section::new(built.meta, run.clone(), built.index, filters))
        });
        sections.collect()
    }

    /// Removes the unfinished file.
    pub(super) fn abandon(self, shared: &Shared) -> Result<(), Error> {
        drop(self.file);
        shared.volume.remove(&self.name).map_err(|e| Error::io("remove", &self.label, e))
    }

    fn offset(&self) -> u64 {
        self.written + self.pending.len() as u64
    }

    fn sync(&mut self) -> Result<(), Error> {
        self.file.sync().map_err(|error| Error::io("sync", &self.label, error))?;
        self.synced = self.written;
        Ok(())
    }

    /// Appends the next derived part: part 0 of a section is its index, 1 the directory of its
    /// filter, the others are the filter's shards. `false` when there is none left.
    fn put_part(&mut self) -> bool {
        let offset = self.offset();
        let (section, part) = self.finishing;
        let Some(built) = self.built.get_mut(section) else { return false };
        let before = self.pending.len();
        match (part, &built.filters) {
            (0, _) => built.index.put(&mut self.pending),
            (1, Some(filters)) => filters.put_directory(&mut self.pending),
            (_, Some(filters)) if part - 2 < filters.shards() => {
                filters.put_shard(part - 2, &mut self.pending);
            }
            _ => {
                self.finishing = (section + 1, 0);
                return true;
            }
        }
        let put = self.pending.get(before..).unwrap_or_default();
        match part {
            0 => {
                let checksum = crc32c::crc32c(put);
                built.meta.index = Part { offset, bytes: put.len() as u64, checksum };
            }
            1 => {
                let checksum = crc32c::crc32c(put);
                built.meta.filter = Part { offset, bytes: put.len() as u64, checksum };
            }
            _ => built.meta.filter.bytes += put.len() as u64,
        }
        self.finishing = (section, part + 1);
        true
    }

    fn put_footer(&mut self) {
        let mut footer = Vec::new();
        self.built.iter().for_each(|built| built.meta.put(&mut footer));
        let mut trailer = Vec::new();
        trailer.extend_from_slice(&(footer.len() as u32).to_le_bytes());
        trailer.extend_from_slice(&crc32c::crc32c(&footer).to_le_bytes());
        trailer.extend_from_slice(&self.id.to_le_bytes());
        trailer.extend_from_slice(&VERSION.to_le_bytes());
        trailer.extend_from_slice(MAGIC);
        trailer.extend_from_slice(&crc32c::crc32c(&trailer).to_le_bytes());
        assert_eq!(trailer.len() as u64, TRAILER_BYTES, "the trailer has its fixed size");
        self.pending.extend_from_slice(&footer);
        self.pending.extend_from_slice(&trailer);
    }
}
