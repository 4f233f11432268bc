//! Builds sections: takes rows in ascending order, writes blocks to a run, and collects index,
//! filter and counts.

use super::bounds::UNIT_BYTES;
use super::filter::{Builder, Filters};
use super::run::RunWriter;
use super::section::{Index, Kind, Meta, Part};
use super::{ordered, points};

/// A section whose blocks are written and whose derived parts are not yet.
#[derive(Debug)]
pub(super) struct Built {
    pub(super) meta: Meta,
    pub(super) index: Index,
    pub(super) filters: Option<Filters>,
}

/// Builds a section of points.
#[derive(Debug)]
pub(super) struct Points {
    meta: Meta,
    index: Index,
    filter: Builder,
    block: points::BlockBuilder,
    smallest: u128,
    largest: u128,
}

impl Points {
    /// For about `rows` points.
    pub(super) fn new(drop_at: u64, age: u64, rows: u64, writer: &RunWriter) -> Self {
        let kind = Kind::Points { drop_at };
        Self {
            meta: empty_meta(kind, age, writer),
            index: Index::new(kind),
            filter: Builder::new(rows),
            block: points::BlockBuilder::default(),
            smallest: 0,
            largest: 0,
        }
    }

    #[inline]
    pub(super) fn push(&mut self, writer: &mut RunWriter, key: u128, value: Option<&[u8]>) {
        if self.meta.rows == 0 {
            self.smallest = key;
        } else {
            assert!(self.largest < key, "points come in ascending order");
        }
        self.largest = key;
        if !self.block.fits(key, value) {
            self.end_block(writer);
        }
        self.block.push(key, value);
        self.filter.push((key >> 64) as u64);
        self.meta.rows += 1;
        self.meta.deleted += u64::from(value.is_none());
    }

    /// Passes the section to the writer, unless it has no rows.
    pub(super) fn finish(mut self, writer: &mut RunWriter) {
        if !self.block.is_empty() {
            self.end_block(writer);
        }
        if self.meta.rows == 0 {
            return;
        }
        assert!(self.smallest <= self.largest && self.meta.deleted <= self.meta.rows);
        assert_eq!(self.index.len() as u64, self.meta.blocks, "the index knows every block");
        self.meta.smallest = self.smallest.to_be_bytes().to_vec();
        self.meta.largest = self.largest.to_be_bytes().to_vec();
        let filters = Some(self.filter.finish());
        writer.add(Built { meta: self.meta, index: self.index, filters });
    }

    fn end_block(&mut self, writer: &mut RunWriter) {
        let (unit, before) = (writer.next_unit(), writer.pending.len());
        let first = self.block.finish(&mut writer.pending, writer.id, unit);
        self.index.push_point((first >> 64) as u64, unit - self.meta.first_unit);
        count_block(&mut self.meta, writer.pending.len() - before);
    }
}

/// Builds the section of ordered rows.
#[derive(Debug)]
pub(super) struct Ordered {
    meta: Meta,
    index: Index,
    block: ordered::BlockBuilder,
}

impl Ordered {
    pub(super) fn new(age: u64, writer: &RunWriter) -> Self {
        Self {
            meta: empty_meta(Kind::Ordered, age, writer),
            index: Index::new(Kind::Ordered),
            block: ordered::BlockBuilder::default(),
        }
    }

    pub(super) fn push(&mut self, writer: &mut RunWriter, key: &[u8], value: Option<&[u8]>) {
        if self.meta.rows == 0 {
            self.meta.smallest = key.to_vec();
        } else {
            assert!(self.meta.largest.as_slice() < key, "rows come in ascending order");
        }
        self.meta.largest.clear();
        self.meta.largest.extend_from_slice(key);
        if !self.block.fits(key, value) {
            self.end_block(writer);
        }
        self.block.push(key, value);
        self.meta.rows += 1;
        self.meta.deleted += u64::from(value.is_none());
    }

    /// Passes the section to the writer, unless it has no rows.
    pub(super) fn finish(mut self, writer: &mut RunWriter) {
        if !self.block.is_empty() {
            self.end_block(writer);
        }
        assert_eq!(self.index.len() as u64, self.meta.blocks, "the index knows every block");
        assert!(self.meta.smallest <= self.meta.largest && self.meta.deleted <= self.meta.rows);
        if self.meta.rows > 0 {
            writer.add(Built { meta: self.meta, index: self.index, filters: None });
        }
    }

    fn end_block(&mut self, writer: &mut RunWriter) {
        let (unit, before) = (writer.next_unit(), writer.pending.len());
        let first = self.block.finish(&mut writer.pending, writer.id, unit);
        self.index.push_ordered(first, unit - self.meta.first_unit);
        count_block(&mut self.meta, writer.pending.len() - before);
    }
}

fn count_block(meta: &mut Meta, bytes: usize) {
    debug_assert!(bytes > 0 && bytes.is_multiple_of(UNIT_BYTES), "blocks are whole units");
    meta.blocks += 1;
    meta.units += (bytes / UNIT_BYTES) as u64;
    assert!(u32::try_from(meta.units).is_ok(), "a section stays below 16 TiB");
}

fn empty_meta(kind: Kind, age: u64, writer: &RunWriter) -> Meta {
    Meta {
        kind,
        age,
        first_unit: writer.next_unit(),
        units: 0,
        blocks: 0,
        rows: 0,
        deleted: 0,
        smallest: Vec::new(),
        largest: Vec::new(),
        index: Part::default(),
        filter: Part::default(),
    }
}
