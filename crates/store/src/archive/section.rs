//! Sections: the sorted rows of one bucket, or the ordered rows, within one run file.
//!
//! A section's blocks are authoritative. Its index (first key of each block) and its filter are
//! derived: they are read from the file when it is opened, and rebuilt from the blocks if they are
//! damaged.

use std::sync::Arc;

use super::block::Walk;
use super::bounds::{READ_AHEAD_BYTES, UNIT_BYTES};
use super::bytes::{Decoder, put_varint};
use super::filter::{Builder, DIRECTORY_HEAD_BYTES, Filters, Loader};
use super::run::RunFile;
use super::{ordered, points};
use crate::Error;

/// Which rows a section holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Points { drop_at: u64 },
    Ordered,
}

/// A checksummed range of a run file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// Covers the whole index; of a filter its directory, which has the checksums of the shards.
    pub(super) checksum: u32,
}

/// A section as the manifest and the run's footer describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) kind: Kind,
    /// Orders the sections of one kind: larger is newer, and hides what is older.
    pub(super) age: u64,
    pub(super) first_unit: u64,
    pub(super) units: u64,
    pub(super) blocks: u64,
    /// All rows, including deleted ones.
    pub(super) rows: u64,
    pub(super) deleted: u64,
    pub(super) smallest: Vec<u8>,
    pub(super) largest: Vec<u8>,
    pub(super) index: Part,
    pub(super) filter: Part,
}

impl Meta {
    pub(super) fn block_bytes(&self) -> u64 {
        self.units * UNIT_BYTES as u64
    }

    /// Bytes of the section in its file.
    pub(super) fn bytes(&self) -> u64 {
        self.block_bytes() + self.index.bytes + self.filter.bytes
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        let (tag, drop_at) = match self.kind {
            Kind::Points { drop_at } => (1_u8, drop_at),
            Kind::Ordered => (2, 0),
        };
        out.push(tag);
        let numbers = [
            drop_at,
            self.age,
            self.first_unit,
            self.units,
            self.blocks,
            self.rows,
            self.deleted,
            self.index.offset,
            self.index.bytes,
            self.filter.offset,
            self.filter.bytes,
        ];
        for number in numbers {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.index.checksum.to_le_bytes());
        out.extend_from_slice(&self.filter.checksum.to_le_bytes());
        for key in [&self.smallest, &self.largest] {
            out.extend_from_slice(&(key.len() as u16).to_le_bytes());
            out.extend_from_slice(key);
        }
    }

    pub(super) fn take(decoder: &mut Decoder<'_>) -> Option<Self> {
        let tag = decoder.u8()?;
        let drop_at = decoder.u64()?;
        let kind = match tag {
            1 => Kind::Points { drop_at },
            2 => Kind::Ordered,
            _ => return None,
        };
        let (age, first_unit, units) = (decoder.u64()?, decoder.u64()?, decoder.u64()?);
        let (blocks, rows, deleted) = (decoder.u64()?, decoder.u64()?, decoder.u64()?);
        let (index_at, index_bytes) = (decoder.u64()?, decoder.u64()?);
        let (filter_at, filter_bytes) = (decoder.u64()?, decoder.u64()?);
        let (index_checksum, filter_checksum) = (decoder.u32()?, decoder.u32()?);
        let mut keys = [Vec::new(), Vec::new()];
        for key in &mut keys {
            let length = usize::from(decoder.u16()?);
            *key = decoder.take(length)?.to_vec();
        }
        let [smallest, largest] = keys;
        Some(Self {
            kind,
            age,
            first_unit,
            units,
            blocks,
            rows,
            deleted,
            smallest,
            largest,
            index: Part { offset: index_at, bytes: index_bytes, checksum: index_checksum },
            filter: Part { offset: filter_at, bytes: filter_bytes, checksum: filter_checksum },
        })
    }

    /// Whether all its parts lie within a file of `bytes`.
    pub(super) fn is_within(&self, bytes: u64) -> bool {
        let unit = UNIT_BYTES as u64;
        let blocks_end = self.first_unit.checked_add(self.units).and_then(|n| n.checked_mul(unit));
        let index_end = self.index.offset.checked_add(self.index.bytes);
        let filter_end = self.filter.offset.checked_add(self.filter.bytes);
        self.units > 0
            && self.deleted <= self.rows
            && [blocks_end, index_end, filter_end]
                .into_iter()
                .all(|end| end.is_some_and(|end| end <= bytes))
    }
}

/// The first key of each block and where it begins, counted from the section's first unit.
#[derive(Debug)]
pub(super) enum Index {
    /// Only the first half of a point's key; blocks of one unit each need no starts.
    Points {
        firsts: Vec<u64>,
        starts: Option<Vec<u32>>,
    },
    Ordered {
        firsts: Vec<Box<[u8]>>,
        starts: Vec<u32>,
    },
}

impl Index {
    pub(super) fn new(kind: Kind) -> Self {
        match kind {
            Kind::Points { .. } => Self::Points { firsts: Vec::new(), starts: None },
            Kind::Ordered => Self::Ordered { firsts: Vec::new(), starts: Vec::new() },
        }
    }

    pub(super) fn push_point(&mut self, first: u64, start: u64) {
        let Self::Points { firsts, starts } = self else { return };
        let start = start as u32;
        debug_assert!(firsts.last().is_none_or(|last| *last <= first), "blocks ascend");
        match starts {
            Some(starts) => starts.push(start),
            None if start as usize == firsts.len() => {}
            None => *starts = Some((0..firsts.len() as u32).chain([start]).collect()),
        }
        firsts.push(first);
    }

    pub(super) fn push_ordered(&mut self, first: Box<[u8]>, start: u64) {
        let Self::Ordered { firsts, starts } = self else { return };
        debug_assert!(firsts.last().is_none_or(|last| *last < first), "blocks ascend");
        debug_assert!(starts.last().is_none_or(|last| u64::from(*last) < start));
        firsts.push(first);
        starts.push(start as u32);
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Points { firsts, .. } => firsts.len(),
            Self::Ordered { firsts, .. } => firsts.len(),
        }
    }

    /// Where block `number` begins; `None` behind the last.
    pub(super) fn start(&self, number: usize) -> Option<u64> {
        match self {
            Self::Points { firsts, starts: None } => {
                (number < firsts.len()).then_some(number as u64)
            }
            Self::Points { starts: Some(starts), .. } | Self::Ordered { starts, .. } => {
                starts.get(number).copied().map(u64::from)
            }
        }
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Points { firsts, starts } => {
                let places = starts.as_ref().map_or(firsts.len(), Vec::len);
                debug_assert_eq!(places, firsts.len(), "every block has its place");
                out.reserve(8 * firsts.len());
                firsts.iter().for_each(|first| out.extend_from_slice(&first.to_le_bytes()));
                for start in starts.iter().flatten() {
                    out.extend_from_slice(&start.to_le_bytes());
                }
            }
            Self::Ordered { firsts, starts } => {
                for (first, start) in firsts.iter().zip(starts) {
                    out.extend_from_slice(&start.to_le_bytes());
                    put_varint(out, first.len() as u64);
                    out.extend_from_slice(first);
                }
            }
        }
    }

    fn take(bytes: &[u8], kind: Kind, blocks: usize) -> Option<Self> {
        let mut index = Self::new(kind);
        let mut decoder = Decoder::new(bytes);
        match &mut index {
            Self::Points { firsts, starts } => {
                let prefixes = decoder.take(blocks.checked_mul(8)?)?.as_chunks::<8>().0;
                *firsts = prefixes.iter().map(|first| u64::from_le_bytes(*first)).collect();
                if !decoder.is_empty() {
                    let places = decoder.take(blocks.checked_mul(4)?)?.as_chunks::<4>().0;
                    let places = places.iter().map(|start| u32::from_le_bytes(*start));
                    *starts = Some(places.collect());
                }
            }
            Self::Ordered { firsts, starts } => {
                for _ in 0..blocks {
                    starts.push(decoder.u32()?);
                    let length = usize::try_from(decoder.varint()?).ok()?;
                    firsts.push(decoder.take(length)?.into());
                }
            }
        }
        decoder.is_empty().then_some(index)
    }
}

/// A live section, ready to be read.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) meta: Meta,
    pub(super) run: Arc<RunFile>,
    pub(super) index: Index,
    /// Absent if memory for filters is used up: then every answer is "maybe".
    pub(super) filters: Option<Filters>,
    smallest: u64,
    largest: u64,
}

impl Section {
    pub(super) fn new(
        meta: Meta,
        run: Arc<RunFile>,
        index: Index,
        filters: Option<Filters>,
    ) -> Self {
        assert_eq!(index.len() as u64, meta.blocks, "the index knows every block");
        let (smallest, largest) = (prefix(&meta.smallest), prefix(&meta.largest));
        Self { meta, run, index, filters, smallest, largest }
    }

    /// Reads index and filter. A damaged one is rebuilt and reported to `damaged`. The filter is
    /// kept only if it has at most `filter_bytes_max` bytes.
    pub(super) fn load(
        meta: Meta,
        run: Arc<RunFile>,
        filter_bytes_max: u64,
        damaged: &mut dyn FnMut(u64, &str),
    ) -> Result<Self, Error> {
        let index = load_index(&meta, &run)?;
        if index.is_none() {
            damaged(meta.index.offset, "the index fails its checksum");
        }
        let filters = match meta.kind {
            Kind::Points { .. } => load_filters(&meta, &run, filter_bytes_max)?,
            Kind::Ordered => Loaded::Skipped,
        };
        if let Loaded::Damaged = filters {
            damaged(meta.filter.offset, "the filter fails its checksum");
        }
        match (index, filters) {
            (Some(index), Loaded::Filters(filters)) => {
                Ok(Self::new(meta, run, index, Some(filters)))
            }
            (Some(index), Loaded::Skipped) => Ok(Self::new(meta, run, index, None)),
            (_, was) => {
                let (index, filters) = rebuild(&meta, &run)?;
                let kept = !matches!(was, Loaded::Skipped);
                let filters = filters.filter(|new| kept && new.bytes() <= filter_bytes_max);
                Ok(Self::new(meta, run, index, filters))
            }
        }
    }

    /// Whether the section may have a key, if there is no filter: compares its first and last key.
    #[inline]
    pub(super) fn is_in_range(&self, prefix: u64) -> bool {
        self.smallest <= prefix && prefix <= self.largest
    }

    pub(super) fn filter_bytes(&self) -> u64 {
        self.filters.as_ref().map_or(0, Filters::bytes)
    }

    /// Walks all its blocks, or those from block `number` on.
    pub(super) fn walk(&self, number: usize, read_ahead: usize) -> Walk {
        let end = self.meta.first_unit + self.meta.units;
        let start = self.index.start(number).map_or(end, |start| self.meta.first_unit + start);
        Walk::new(self.run.clone(), start, end, read_ahead)
    }
}

/// The first half of a point's key, as a number that sorts like it.
pub(super) fn prefix(key: &[u8]) -> u64 {
    key.first_chunk::<8>().map_or(0, |first| u64::from_be_bytes(*first))
}

fn load_index(meta: &Meta, run: &RunFile) -> Result<Option<Index>, Error> {
    let length = usize::try_from(meta.index.bytes).unwrap_or(usize::MAX);
    let mut bytes = vec![0; length];
    run.read(&mut bytes, meta.index.offset)?;
    if crc32c::crc32c(&bytes) != meta.index.checksum {
        return Ok(None);
    }
    let blocks = usize::try_from(meta.blocks).unwrap_or(usize::MAX);
    Ok(Index::take(&bytes, meta.kind, blocks))
}

#[derive(Debug)]
enum Loaded {
    Filters(Filters),
    Skipped,
    Damaged,
}

fn load_filters(meta: &Meta, run: &RunFile, bytes_max: u64) -> Result<Loaded, Error> {
    let part = meta.filter;
    let mut head = [0; DIRECTORY_HEAD_BYTES];
    if part.bytes < head.len() as u64 {
        return Ok(Loaded::Damaged);
    }
    run.read(&mut head, part.offset)?;
    let Some(length) = Loader::directory_bytes(&head).filter(|n| *n as u64 <= part.bytes) else {
        return Ok(Loaded::Damaged);
    };
    let mut bytes = vec![0; length];
    run.read(&mut bytes, part.offset)?;
    if crc32c::crc32c(&bytes) != part.checksum {
        return Ok(Loaded::Damaged);
    }
    let Some(mut loader) = Loader::new(&bytes) else { return Ok(Loaded::Damaged) };
    if length as u64 + loader.bytes() != part.bytes {
        return Ok(Loaded::Damaged);
    }
    if loader.bytes() > bytes_max {
        return Ok(Loaded::Skipped);
    }
    let mut offset = part.offset + length as u64;
    while let Some(length) = loader.next_bytes() {
        bytes.resize(length, 0);
        run.read(&mut bytes, offset)?;
        if !loader.push(&bytes) {
            return Ok(Loaded::Damaged);
        }
        offset += length as u64;
    }
    Ok(loader.finish().map_or(Loaded::Damaged, Loaded::Filters))
}

/// Rebuilds index and filter from the blocks.
pub(super) fn rebuild(meta: &Meta, run: &Arc<RunFile>) -> Result<(Index, Option<Filters>), Error> {
    let mut index = Index::new(meta.kind);
    let end = meta.first_unit + meta.units;
    let walk = Walk::new(run.clone(), meta.first_unit, end, READ_AHEAD_BYTES);
    let mut rows = 0;
    let filters = if let Kind::Points { .. } = meta.kind {
        let mut builder = Builder::new(meta.rows);
        let mut cursor = points::Cursor::new(walk)?;
        while !cursor.ended() {
            let prefix = (cursor.key() >> 64) as u64;
            if let (unit, true) = cursor.place() {
                index.push_point(prefix, unit - meta.first_unit);
            }
            builder.push(prefix);
            rows += 1;
            cursor.advance()?;
        }
        Some(builder.finish())
    } else {
        let mut cursor = ordered::Cursor::new(walk)?;
        while !cursor.ended() {
            if let (unit, true) = cursor.place() {
                index.push_ordered(cursor.key().into(), unit - meta.first_unit);
            }
            rows += 1;
            cursor.advance()?;
        }
        None
    };
    if index.len() as u64 != meta.blocks || rows != meta.rows {
        let offset = meta.first_unit * UNIT_BYTES as u64;
        return Err(run.corrupt(offset, "the blocks are not those the manifest counts"));
    }
    Ok((index, filters))
}
