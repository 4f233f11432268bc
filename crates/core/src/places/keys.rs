//! Keys: those of living messages, and those remembered.
//!
//! A look-up asks, in this order: the living, the records written since the last checkpoint, the
//! records of the checkpoint under way, and what was warmed from the rows for this batch. A
//! record that changes is written again into the newest generation, which hides the older ones.
//! Duplicates are counted beside a record, and a large result is kept beside it as well: neither
//! a duplicate nor its answer copies the result.
//!
//! Invariants:
//! - a digest is living, or has a record, or neither: never both in the newest view;
//! - tables are found in, never iterated, since their order depends on a seed; but for the rows
//!   of a checkpoint, which are sorted afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use hashbrown::HashTable;

use crate::ids::Time;
use crate::key::Digest;
use crate::message::{Messages, Slot};
use crate::record::{self, KeyRecord};
use crate::row::{RowKey, RowSink, point};

#[derive(Debug)]
pub(crate) struct Keys {
    seed: u64,
    /// How much of records a generation is expected to hold.
    room: usize,
    living: HashTable<(u64, Slot)>,
    current: Generation,
    frozen: Option<Arc<Generation>>,
    /// An emptied generation: memory that was touched before is cheaper than new memory.
    spare: Option<Generation>,
    /// Records read from the rows for the batch at hand.
    cached: HashTable<(Digest, KeyRecord)>,
    /// Keys that were looked for in the rows for the batch at hand, in vain. For an assert alone.
    absent: BTreeSet<Digest>,
}

/// The records written between two checkpoints: encoded, in one arena, found by digest.
#[derive(Debug, Default)]
pub(crate) struct Generation {
    arena: Vec<u8>,
    index: HashTable<Entry>,
    /// Large results, by the place of their record. Answers share them.
    results: BTreeMap<u32, Bytes>,
    result_bytes: usize,
    /// Duplicates that came since the record was written, by the place of the record.
    duplicates: BTreeMap<u32, Duplicates>,
    /// Points and rows that must go with this checkpoint.
    point_deletes: Vec<(Digest, u64)>,
    row_deletes: Vec<RowKey>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Bits of the digest, so that a miss does not touch the arena.
    check: u32,
    /// Where it is in the arena, in units of [`UNIT`] bytes.
    at: u32,
    /// Zero for a message that ended and left no record.
    len: u32,
}

/// How many duplicates of a key came, and when the last one did.
#[derive(Clone, Copy, Debug)]
struct Duplicates {
    count: u64,
    last: Time,
}

const DIGEST: usize = 16;
/// What the arena is addressed in: 32 bits of it are 16 GiB, far beyond what a partition lets
/// wait for a checkpoint.
const UNIT: usize = 4;
/// A result from this size on is kept beside the arena, to be shared by its answers.
const SHARED_BYTES_MIN: usize = 4_096;

impl Generation {
    fn find(&self, seed: u64, digest: &Digest) -> Option<&[u8]> {
        self.bytes(self.entry(seed, digest)?)
    }

    fn entry(&self, seed: u64, digest: &Digest) -> Option<Entry> {
        let check = digest.halves()[1] as u32;
        let found = self.index.find(digest.spread(seed), |entry| {
            entry.check == check && digest_at(&self.arena, entry.at) == Some(*digest)
        });
        found.copied()
    }

    fn bytes(&self, entry: Entry) -> Option<&[u8]> {
        let start = entry.at as usize * UNIT + DIGEST;
        self.arena.get(start..start + entry.len as usize)
    }

    /// The record of an entry with everything that is kept beside it; `None` for a trace.
    fn record(&self, entry: Entry) -> Option<KeyRecord> {
        let bytes = self.bytes(entry).filter(|bytes| !bytes.is_empty())?;
        let record = record::decode(bytes);
        debug_assert!(record.is_ok(), "records in memory are whole");
        let mut record = record.ok()?;
        if let Some(result) = &mut record.result
            && let Some(shared) = self.results.get(&entry.at)
        {
            debug_assert!(result.body.is_empty(), "a body is beside the record or in it");
            result.body = shared.clone();
        }
        if let Some(duplicates) = self.duplicates.get(&entry.at) {
            record.duplicates += duplicates.count;
            record::remember_duplicates(&mut record.history, duplicates.last, duplicates.count);
        }
        Some(record)
    }

    /// Writes a record, or that there is none, over what was there before. `shared` is its result
    /// where that is kept beside it.
    fn put(
        &mut self,
        seed: u64,
        digest: &Digest,
        record: Option<&KeyRecord>,
        shared: Option<Bytes>,
    ) -> Entry {
        self.arena.resize(self.arena.len().next_multiple_of(UNIT), 0);
        let start = self.arena.len();
        assert!(start / UNIT < u32::MAX as usize, "checkpoints come before the arena is full");
        self.arena.extend_from_slice(&digest.0);
        if let Some(record) = record {
            record::encode_apart(record, shared.is_some(), &mut self.arena);
        }
        let len = self.arena.len() - start - DIGEST;
        debug_assert_eq!(record.is_some(), len > 0, "an empty record would pass for a trace");
        let at = (start / UNIT) as u32;
        let entry = Entry { check: digest.halves()[1] as u32, at, len: len as u32 };
        let (arena, hash) = (&self.arena, digest.spread(seed));
        let known = self.index.entry(
            hash,
            |known| known.check == entry.check && digest_at(arena, known.at) == Some(*digest),
            |known| digest_at(arena, known.at).map_or(0, |digest| digest.spread(seed)),
        );
        let mut before = None;
        known.and_modify(|known| before = Some(std::mem::replace(known, entry))).or_insert(entry);
        if let Some(before) = before {
            self.forget_beside(before);
        }
        if let Some(shared) = shared {
            self.result_bytes += shared.len();
            self.results.insert(at, shared);
        }
        debug_assert_eq!(
            self.find(seed, digest).map(<[u8]>::len),
            Some(len),
            "the newest is found"
        );
        entry
    }

    /// What was kept beside a record that is written anew.
    fn forget_beside(&mut self, before: Entry) {
        if !self.results.is_empty()
            && let Some(result) = self.results.remove(&before.at)
        {
            self.result_bytes -= result.len();
        }
        if !self.duplicates.is_empty() {
            self.duplicates.remove(&before.at);
        }
    }

    /// Makes room for as many records without incident as fit into `bytes`, and leaves what is
    /// there: a table that grows under load makes its callers wait, and first touches of memory
    /// are dear.
    fn reserve(&mut self, seed: u64, bytes: usize) {
        let records = bytes / (DIGEST + 60 + 2 * size_of::<Entry>());
        let arena = &self.arena;
        self.index.reserve(records.saturating_sub(self.index.len()), |known| {
            digest_at(arena, known.at).map_or(0, |digest| digest.spread(seed))
        });
        self.arena.reserve(bytes.saturating_sub(self.arena.len()));
        // Lists that double move what they hold, while everybody waits.
        self.row_deletes.reserve(records.saturating_sub(self.row_deletes.len()));
        self.point_deletes.reserve(records.saturating_sub(self.point_deletes.len()));
    }

    /// About how much memory it takes.
    fn footprint(&self) -> usize {
        self.arena.len()
            + self.result_bytes
            + self.results.len() * 64
            + self.duplicates.len() * 2 * size_of::<(u32, Duplicates)>()
            + self.index.len() * 2 * size_of::<Entry>()
            + self.row_deletes.len() * size_of::<RowKey>()
            + self.point_deletes.len() * 24
    }

    fn clear(&mut self) {
        self.arena.clear();
        self.index.clear();
        self.results.clear();
        self.result_bytes = 0;
        self.duplicates.clear();
        self.point_deletes.clear();
        self.row_deletes.clear();
    }

    /// How many records there are, and about how many bytes they take.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.index.len(), self.arena.len() + self.result_bytes)
    }

    /// The records, for a checkpoint. The store sorts.
    pub(crate) fn write(&self, sink: &mut dyn RowSink) {
        let mut value = Vec::new();
        for entry in &self.index {
            let (Some(digest), Some(bytes)) =
                (digest_at(&self.arena, entry.at), self.bytes(*entry))
            else {
                continue;
            };
            if bytes.is_empty() {
                continue;
            }
            debug_assert!(record::decode(bytes).is_ok(), "a record is whole before it is written");
            value.clear();
            value.push(point::RECORD);
            if self.has_beside(*entry) {
                let record = self.record(*entry);
                assert!(record.is_some(), "a record in memory can be read");
                record.iter().for_each(|record| record::encode(record, &mut value));
            } else {
                value.extend_from_slice(bytes);
            }
            sink.put_point(&digest, record::peek_drop_at(bytes), &value);
        }
    }

    /// Whether something of a record is kept beside it.
    fn has_beside(&self, entry: Entry) -> bool {
        self.results.contains_key(&entry.at) || self.duplicates.contains_key(&entry.at)
    }

    /// Whether a record of this digest is written into the bucket of `drop_at`.
    pub(crate) fn writes_point(&self, seed: u64, digest: &Digest, drop_at: u64) -> bool {
        let found = self.find(seed, digest).filter(|bytes| !bytes.is_empty());
        found.is_some_and(|bytes| record::peek_drop_at(bytes) == drop_at)
    }

    pub(crate) fn point_deletes(&self) -> &[(Digest, u64)] {
        &self.point_deletes
    }

    pub(crate) fn row_deletes(&self) -> &[RowKey] {
        &self.row_deletes
    }
}

fn digest_at(arena: &[u8], at: u32) -> Option<Digest> {
    arena.get(at as usize * UNIT..)?.first_chunk().copied().map(Digest)
}

/// What is known of a digest.
#[derive(Debug)]
pub(crate) enum Known {
    Living(Slot),
    Record(Box<KeyRecord>),
}

impl Keys {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            room: 0,
            living: HashTable::new(),
            current: Generation::default(),
            frozen: None,
            spare: None,
            cached: HashTable::new(),
            absent: BTreeSet::new(),
        }
    }

    #[inline]
    pub(crate) fn living(&self, messages: &Messages, digest: &Digest) -> Option<Slot> {
        let hash = digest.spread(self.seed);
        let found = self
            .living
            .find(hash, |(known, slot)| *known == hash && messages.at(*slot).digest == *digest);
        found.map(|(_, slot)| *slot)
    }

    /// Living or remembered. The key of a record may be free or expired: the caller judges.
    pub(crate) fn find(&self, messages: &Messages, digest: &Digest) -> Option<Known> {
        if let Some(slot) = self.living(messages, digest) {
            return Some(Known::Living(slot));
        }
        self.record(digest).map(|record| Known::Record(Box::new(record)))
    }

    pub(crate) fn record(&self, digest: &Digest) -> Option<KeyRecord> {
        if let Some(entry) = self.current.entry(self.seed, digest) {
            return self.current.record(entry);
        }
        if let Some(frozen) = &self.frozen
            && let Some(entry) = frozen.entry(self.seed, digest)
        {
            return frozen.record(entry);
        }
        let found = self.cached.find(digest.spread(self.seed), |(known, _)| known == digest);
        found.map(|(_, record)| record.clone())
    }

    /// A record, or the trace of a message without one, not yet in the rows.
    pub(crate) fn written(&self, digest: &Digest) -> Option<&[u8]> {
        let frozen = || self.frozen.as_ref().and_then(|frozen| frozen.find(self.seed, digest));
        self.current.find(self.seed, digest).or_else(frozen)
    }

    pub(crate) fn insert_living(&mut self, digest: &Digest, slot: Slot) {
        let hash = digest.spread(self.seed);
        self.living.insert_unique(hash, (hash, slot), |(hash, _)| *hash);
    }

    pub(crate) fn remove_living(&mut self, messages: &Messages, digest: &Digest) -> Option<Slot> {
        let hash = digest.spread(self.seed);
        let found = self.living.find_entry(hash, |(known, slot)| {
            *known == hash && messages.at(*slot).digest == *digest
        });
        Some(found.ok()?.remove().0.1)
    }

    /// Writes or overwrites the record of a key that is not living.
    pub(crate) fn remember(&mut self, digest: &Digest, record: &KeyRecord) {
        // A copy of its own: the bytes may be a part of a much larger buffer.
        let shared = large_result(record).map(|body| Bytes::copy_from_slice(body));
        self.current.put(self.seed, digest, Some(record), shared);
    }

    /// Counts a duplicate of a key that is remembered. Its record is written once for all that
    /// come between two checkpoints.
    pub(crate) fn count(&mut self, digest: &Digest, at: Time) {
        let entry = match self.current.entry(self.seed, digest) {
            Some(entry) => entry,
            None => {
                let Some(record) = self.record(digest) else { return };
                let shared = large_result(&record).cloned();
                self.current.put(self.seed, digest, Some(&record), shared)
            }
        };
        debug_assert!(entry.len > 0, "what left no record has no duplicates");
        let duplicates = Duplicates { count: 0, last: at };
        let duplicates = self.current.duplicates.entry(entry.at).or_insert(duplicates);
        duplicates.count += 1;
        duplicates.last = at;
    }

    /// The key of a record lives again: the record must not be found, now or in the rows.
    pub(crate) fn supersede(&mut self, digest: &Digest, record: &KeyRecord) {
        self.trace(digest);
        self.delete_point(digest, record.drop_at());
    }

    /// Something ended and left no record, but has a row that a look-up might still meet.
    pub(crate) fn trace(&mut self, digest: &Digest) {
        self.current.put(self.seed, digest, None, None);
    }

    pub(crate) fn delete_row(&mut self, key: RowKey) {
        self.current.row_deletes.push(key);
    }

    pub(crate) fn delete_point(&mut self, digest: &Digest, drop_at: u64) {
        self.current.point_deletes.push((*digest, drop_at));
    }

    pub(crate) fn cache(&mut self, digest: Digest, record: KeyRecord) {
        let seed = self.seed;
        let hash = digest.spread(seed);
        if self.cached.find(hash, |(known, _)| *known == digest).is_none() {
            self.cached.insert_unique(hash, (digest, record), |(known, _)| known.spread(seed));
        }
    }

    pub(crate) fn is_cached(&self, digest: &Digest) -> bool {
        self.cached.find(digest.spread(self.seed), |(known, _)| known == digest).is_some()
    }

    /// A key is not in the rows. Remembered for a debug assert: no decision takes a key for
    /// unknown that nobody looked for.
    pub(crate) fn note_absent(&mut self, digest: &Digest) {
        if cfg!(debug_assertions) {
            self.absent.insert(*digest);
        }
    }

    /// Whether the key was looked for in vain, or memory knows that its row is outdated.
    pub(crate) fn is_known_absent(&self, digest: &Digest) -> bool {
        self.absent.contains(digest) || self.written(digest).is_some()
    }

    /// Forgets what was read for the batch before.
    pub(crate) fn clear_cache(&mut self) {
        self.cached.clear();
        self.absent.clear();
    }

    pub(crate) fn footprint(&self) -> usize {
        self.current.footprint()
    }

    pub(crate) fn checkpoint_footprint(&self) -> usize {
        self.frozen.as_ref().map_or(0, |frozen| frozen.footprint())
    }

    /// Starts a new generation; the old one is what the checkpoint writes.
    pub(crate) fn begin_checkpoint(&mut self) -> Arc<Generation> {
        assert!(self.frozen.is_none(), "one checkpoint at a time");
        let next = self.spare.take().unwrap_or_else(|| self.generation());
        assert!(next.index.is_empty() && next.arena.is_empty(), "a generation begins empty");
        assert!(next.point_deletes.is_empty() && next.row_deletes.is_empty());
        assert!(next.results.is_empty() && next.result_bytes == 0 && next.duplicates.is_empty());
        let frozen = Arc::new(std::mem::replace(&mut self.current, next));
        self.frozen = Some(Arc::clone(&frozen));
        frozen
    }

    /// The checkpoint is in the rows.
    pub(crate) fn finish_checkpoint(&mut self) {
        if let Some(mut generation) = self.frozen.take().and_then(Arc::into_inner) {
            generation.clear();
            self.spare = Some(generation);
        }
    }

    /// Makes room for what comes between two checkpoints, and while one of them is written.
    pub(crate) fn expect(&mut self, bytes: usize) {
        self.room = bytes;
        self.current.reserve(self.seed, bytes);
        self.spare = Some(self.generation());
    }

    fn generation(&self) -> Generation {
        let mut generation = Generation::default();
        generation.reserve(self.seed, self.room);
        generation
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    pub(crate) fn is_in_checkpoint(&self) -> bool {
        self.frozen.is_some()
    }
}

/// The result of a record, where it is kept beside it.
fn large_result(record: &KeyRecord) -> Option<&Bytes> {
    let body = record.result.as_ref().map(|result| &result.body)?;
    (body.len() >= SHARED_BYTES_MIN).then_some(body)
}
