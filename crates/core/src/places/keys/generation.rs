//! The records written between two checkpoints, and what is stored with them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use hashbrown::HashTable;

use crate::ids::Time;
use crate::key::Digest;
use crate::list::List;
use crate::places::keys::arena::Arena;
use crate::places::keys::index::Kind;
use crate::record::{self, KeyRecord};
use crate::row::{RowKey, RowSink, point};

/// The records of a checkpoint, which no longer change.
#[derive(Clone, Debug)]
pub struct Records(Arc<Generation>);

impl Records {
    /// The record that was put under this place, as the value of its point.
    pub fn value(&self, place: u32) -> &[u8] {
        self.0.arena.bytes(place)
    }
}

#[derive(Debug)]
pub(crate) struct Generation {
    /// The kind of its entries in the index.
    pub(super) kind: Kind,
    /// Records, as values of their points; a trace is empty.
    pub(super) arena: Arena,
    /// Records and traces that were not written again.
    count: usize,
    pub(super) beside: Beside,
    /// Points and rows that this checkpoint deletes.
    point_deletes: List<(Digest, u64)>,
    row_deletes: List<RowKey>,
}

/// What is kept beside records, by the place of the record.
#[derive(Debug, Default)]
pub(super) struct Beside {
    /// Large results. Answers share them.
    results: BTreeMap<u32, Bytes>,
    result_bytes: usize,
    /// Duplicates since the record was written.
    duplicates: BTreeMap<u32, Duplicates>,
}

/// The number of duplicates of a key, and the time of the last.
#[derive(Clone, Copy, Debug)]
struct Duplicates {
    count: u64,
    last: Time,
}

/// Average memory of an index entry, including empty places.
const ENTRY_BYTES: usize = 16;
/// A result of at least this size is kept beside the arena, to be shared by answers.
const SHARED_BYTES_MIN: usize = 4_096;

impl Generation {
    pub(super) fn new(kind: Kind) -> Self {
        Self {
            kind,
            arena: Arena::default(),
            count: 0,
            beside: Beside::default(),
            point_deletes: List::default(),
            row_deletes: List::default(),
        }
    }

    /// Writes a record, or a trace, and returns its place. The caller must [`forget`](Self::forget)
    /// what the key had in this generation. `shared` is the result if it is kept beside the record.
    pub(super) fn append(
        &mut self,
        digest: &Digest,
        record: Option<&KeyRecord>,
        shared: Option<Bytes>,
    ) -> u32 {
        let place = self.arena.append(digest, |out| {
            if let Some(record) = record {
                out.push(point::RECORD);
                record::encode_apart(record, shared.is_some(), out);
            }
        });
        self.count += 1;
        if let Some(shared) = shared {
            self.beside.result_bytes += shared.len();
            self.beside.results.insert(place, shared);
        }
        place
    }

    /// Drops a record that is written again or whose key lives: the checkpoint skips it.
    pub(super) fn forget(&mut self, place: u32) {
        self.arena.rewrite(place);
        self.count -= 1;
        self.beside.forget(place);
    }

    /// The record with everything that is kept beside it; `None` for a trace.
    pub(super) fn record(&self, place: u32) -> Option<KeyRecord> {
        let (_, bytes) = self.arena.bytes(place).split_first()?;
        let record = record::decode(bytes);
        assert!(record.is_ok(), "a record in memory can be read");
        let mut record = record.ok()?;
        if let Some(result) = &mut record.result
            && let Some(shared) = self.beside.results.get(&place)
        {
            debug_assert!(result.body.is_empty(), "a body is beside the record or in it");
            result.body = shared.clone();
        }
        if let Some(duplicates) = self.beside.duplicates.get(&place) {
            record.duplicates += duplicates.count;
            record::remember_duplicates(&mut record.history, duplicates.last, duplicates.count);
        }
        Some(record)
    }

    /// Copies a record of another generation, with what is beside it. Returns its place here.
    pub(super) fn take_over(&mut self, digest: &Digest, other: &Self, place: u32) -> u32 {
        let bytes = other.arena.bytes(place);
        let new = self.arena.append(digest, |out| out.extend_from_slice(bytes));
        self.count += 1;
        if let Some(result) = other.beside.results.get(&place) {
            self.beside.result_bytes += result.len();
            self.beside.results.insert(new, result.clone());
        }
        if let Some(duplicates) = other.beside.duplicates.get(&place) {
            self.beside.duplicates.insert(new, *duplicates);
        }
        new
    }

    /// Deletes what another generation would have deleted.
    pub(super) fn take_over_deletes(&mut self, other: &Self) {
        other.point_deletes.iter().for_each(|point| self.point_deletes.push(*point));
        other.row_deletes.iter().for_each(|row| self.row_deletes.push(*row));
    }

    pub(super) fn count_duplicate(&mut self, place: u32, at: Time) {
        debug_assert!(!self.arena.bytes(place).is_empty(), "no record has no duplicates");
        let duplicates = Duplicates { count: 0, last: at };
        let duplicates = self.beside.duplicates.entry(place).or_insert(duplicates);
        duplicates.count += 1;
        duplicates.last = at;
    }

    pub(super) fn delete_row(&mut self, key: RowKey) {
        self.row_deletes.push(key);
    }

    pub(super) fn delete_point(&mut self, digest: &Digest, drop_at: u64) {
        self.point_deletes.push((*digest, drop_at));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.arena.is_empty()
            && self.count == 0
            && self.beside.is_empty()
            && self.point_deletes.len() == 0
            && self.row_deletes.len() == 0
    }

    /// About how much memory it takes.
    pub(super) fn footprint(&self) -> usize {
        self.arena.len()
            + self.count * ENTRY_BYTES
            + self.beside.footprint()
            + self.row_deletes.len() * size_of::<RowKey>()
            + self.point_deletes.len() * size_of::<(Digest, u64)>()
    }

    /// Drops everything, keeping memory for `bytes`. Returns what was beside the records, so that
    /// the end of a checkpoint does not wait until it is dropped.
    pub(super) fn clear(&mut self, bytes: usize) -> Beside {
        self.arena.clear(bytes);
        self.count = 0;
        let items = bytes / 100; // About one per record without incident.
        self.point_deletes.clear(items);
        self.row_deletes.clear(items);
        std::mem::take(&mut self.beside)
    }

    /// The number of records, and about how many bytes are not lent with them.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.count, self.beside.result_bytes)
    }

    /// Writes the records to a checkpoint in arena order, lent without copying. The store sorts.
    pub(crate) fn write(self: &Arc<Self>, sink: &mut dyn RowSink, deletes: &mut Deletes) {
        sink.borrow_from(Records(Arc::clone(self)));
        let mut value = Vec::new();
        for (place, digest, bytes) in self.arena.iter() {
            let Some((_, encoded)) = bytes.split_first() else { continue };
            debug_assert!(
                record::decode(encoded).is_ok(),
                "a record is whole before it is written"
            );
            let drop_at = record::peek_drop_at(encoded);
            deletes.except(&digest, drop_at);
            if !self.beside.has(place) {
                sink.put_record(&digest, drop_at, place);
                continue;
            }
            let record = self.record(place);
            assert!(record.is_some(), "a record in memory can be read");
            value.clear();
            value.push(point::RECORD);
            record.iter().for_each(|record| record::encode(record, &mut value));
            sink.put_point(&digest, drop_at, &value);
        }
    }

    /// The points to delete, unless they are written.
    pub(crate) fn deletes(&self, seed: u64) -> Deletes {
        let points = HashTable::with_capacity(self.point_deletes.len());
        let mut deletes = Deletes { seed, points };
        self.point_deletes.iter().for_each(|(digest, drop_at)| deletes.add(digest, *drop_at));
        deletes
    }

    pub(crate) fn row_deletes(&self) -> impl Iterator<Item = &RowKey> {
        self.row_deletes.iter()
    }
}

fn spread(point: &(Digest, u64), seed: u64) -> u64 {
    point.0.spread(seed)
}

/// Points that a checkpoint deletes.
#[derive(Debug)]
pub(crate) struct Deletes {
    seed: u64,
    points: HashTable<(Digest, u64)>,
}

impl Deletes {
    pub(crate) fn add(&mut self, digest: &Digest, drop_at: u64) {
        let (seed, point) = (self.seed, (*digest, drop_at));
        let hash = spread(&point, seed);
        let entry = self.points.entry(hash, |known| *known == point, |known| spread(known, seed));
        entry.or_insert(point);
    }

    /// Removes a point that is written: a write wins over a delete.
    #[inline]
    pub(crate) fn except(&mut self, digest: &Digest, drop_at: u64) {
        if self.points.is_empty() {
            return;
        }
        let is_same = |known: &(Digest, u64)| *known == (*digest, drop_at);
        if let Ok(found) = self.points.find_entry(digest.spread(self.seed), is_same) {
            found.remove();
        }
    }

    pub(crate) fn write(&self, sink: &mut dyn RowSink) {
        for (digest, drop_at) in &self.points {
            sink.delete_point(digest, *drop_at);
        }
    }
}

impl Beside {
    #[inline]
    fn has(&self, place: u32) -> bool {
        self.results.contains_key(&place) || self.duplicates.contains_key(&place)
    }

    fn forget(&mut self, place: u32) {
        if !self.results.is_empty()
            && let Some(result) = self.results.remove(&place)
        {
            self.result_bytes -= result.len();
        }
        if !self.duplicates.is_empty() {
            self.duplicates.remove(&place);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.results.is_empty() && self.duplicates.is_empty()
    }

    /// Drops at most `most` items.
    pub(super) fn drop_some(&mut self, most: usize) {
        for _ in 0..most {
            if self.results.pop_first().is_none() && self.duplicates.pop_first().is_none() {
                break;
            }
        }
    }

    fn footprint(&self) -> usize {
        self.result_bytes
            + self.results.len() * 64
            + self.duplicates.len() * 2 * size_of::<(u32, Duplicates)>()
    }
}

/// The result of a record, if it is large enough to be kept beside it.
pub(super) fn large_result(record: &KeyRecord) -> Option<&Bytes> {
    let body = record.result.as_ref().map(|result| &result.body)?;
    (body.len() >= SHARED_BYTES_MIN).then_some(body)
}
