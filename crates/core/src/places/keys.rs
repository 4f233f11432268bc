//! Keys: of unfinished messages, and remembered ones.
//!
//! One index has an entry for each digest that memory knows: the slot of its unfinished ("living")
//! message, or the place of its record, among those written since the last checkpoint or those of
//! the checkpoint in progress. A digest without an entry may have a record among the rows loaded
//! for this batch. A record that changes is written again into the newest generation. Duplicates
//! are counted beside a record, and a large result is kept beside it as well: neither a duplicate
//! nor its answer copies the result.
//!
//! What ended without a record leaves a trace, an empty record, because a look-up could still find
//! its row. A message that uses a remembered key again needs no trace of the earlier record: while
//! it is in memory its entry hides all rows and records of the key, and it stays in memory until a
//! checkpoint has written it and deleted them. A new message is dirty, and dirty messages are not
//! evicted.
//!
//! Growing, and the work after a checkpoint, is done in bounded steps.
//!
//! Invariants:
//! - a digest has at most one entry, apart from entries of finished generations: for its message,
//!   for its record, or for its trace;
//! - tables are never iterated, because their order depends on a seed.

mod arena;
mod generation;
mod index;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use hashbrown::HashTable;

pub(crate) use generation::Generation;
pub use generation::Records;

use self::generation::{Beside, large_result};
use self::index::{Entry, Index, KINDS, Kind, Kinds, PLACES, Position};
use crate::ids::Time;
use crate::key::Digest;
use crate::message::{Messages, Slot};
use crate::record::KeyRecord;
use crate::row::RowKey;

#[derive(Debug)]
pub(crate) struct Keys {
    seed: u64,
    /// Bytes of records that a generation is expected to hold.
    room: usize,
    index: Index,
    current: Generation,
    frozen: Option<Arc<Generation>>,
    /// An emptied generation, for reuse.
    spare: Option<Generation>,
    /// Finished generations that still have entries in the index.
    stale: Kinds,
    sweep: Option<Sweep>,
    /// Results and counts of finished generations, to be dropped in steps.
    dropped: Vec<Beside>,
    /// Records read from the rows for the current batch.
    cached: HashTable<(Digest, KeyRecord)>,
    /// Keys that were not found in the rows for the current batch. Only for an assert.
    absent: BTreeSet<Digest>,
}

/// Progress of removing entries of finished generations from the index.
#[derive(Clone, Copy, Debug)]
struct Sweep {
    kinds: Kinds,
    next: usize,
}

/// The kind of an entry that refers to a slot. The other kinds are used for generations in turn.
const LIVING: Kind = 1;
/// Segments of the index that one step sweeps; below, the most steps a sweep takes.
const SWEEP_STEP: usize = 4;
const SWEEP_STEPS_MAX: usize = 256;
/// Results and counts that one step drops.
const DROP_STEP: usize = 1_024;
/// Messages in memory above which no more are accepted: messages loaded from the rows need slots
/// too.
const CROWDED: usize = PLACES as usize / 2;

/// What is known of a digest.
#[derive(Debug)]
pub(crate) enum Known {
    Living(Slot),
    Record(Box<KeyRecord>),
}

impl Keys {
    pub(crate) fn new(seed: u64, index_places: usize) -> Self {
        Self {
            seed,
            room: 0,
            index: Index::new(index_places),
            current: Generation::new(LIVING + 1),
            frozen: None,
            spare: None,
            stale: Kinds::default(),
            sweep: None,
            dropped: Vec::new(),
            cached: HashTable::new(),
            absent: BTreeSet::new(),
        }
    }

    #[inline]
    fn hash(&self, digest: &Digest) -> u32 {
        (digest.spread(self.seed) >> 32) as u32
    }

    #[inline]
    fn is_record(&self, entry: Entry, digest: &Digest) -> bool {
        let (kind, place) = (entry.kind(), entry.place());
        if kind == self.current.kind {
            return self.current.arena.is_of(place, digest);
        }
        let frozen = self.frozen.as_ref().filter(|frozen| frozen.kind == kind);
        frozen.is_some_and(|frozen| frozen.arena.is_of(place, digest))
    }

    /// The entry of a digest.
    #[inline]
    fn locate(&self, messages: &Messages, digest: &Digest) -> Option<(Position, Entry)> {
        self.index.find(self.hash(digest), |entry| match entry.kind() {
            LIVING => messages.is_of(Slot(entry.place()), digest),
            _ => self.is_record(entry, digest),
        })
    }

    /// The entry of a digest that is not living.
    #[inline]
    fn locate_record(&self, digest: &Digest) -> Option<(Position, Entry)> {
        self.index.find(self.hash(digest), |entry| {
            entry.kind() != LIVING && self.is_record(entry, digest)
        })
    }

    #[inline]
    pub(crate) fn living(&self, messages: &Messages, digest: &Digest) -> Option<Slot> {
        let found = self.index.find(self.hash(digest), |entry| {
            entry.kind() == LIVING && messages.is_of(Slot(entry.place()), digest)
        });
        found.map(|(_, entry)| Slot(entry.place()))
    }

    /// Living or remembered. The key of a record may be free or expired: the caller checks.
    pub(crate) fn find(&self, messages: &Messages, digest: &Digest) -> Option<Known> {
        let record = match self.locate(messages, digest) {
            Some((_, entry)) if entry.kind() == LIVING => {
                return Some(Known::Living(Slot(entry.place())));
            }
            Some((_, entry)) => self.record_at(entry),
            None => self.cached(digest).cloned(),
        };
        record.map(|record| Known::Record(Box::new(record)))
    }

    /// The record of a key that is not living.
    pub(crate) fn record(&self, messages: &Messages, digest: &Digest) -> Option<KeyRecord> {
        match self.find(messages, digest)? {
            Known::Living(_) => None,
            Known::Record(record) => Some(*record),
        }
    }

    fn record_at(&self, entry: Entry) -> Option<KeyRecord> {
        if entry.kind() == self.current.kind {
            return self.current.record(entry.place());
        }
        let frozen = self.frozen.as_ref().filter(|frozen| frozen.kind == entry.kind());
        assert!(frozen.is_some(), "only entries of generations that are there are found");
        frozen?.record(entry.place())
    }

    /// Whether memory knows a digest better than the rows: it is living, or has a record or a
    /// trace.
    #[inline]
    pub(crate) fn is_known(&self, messages: &Messages, digest: &Digest) -> bool {
        self.locate(messages, digest).is_some()
    }

    /// The slot that probably holds the digest's message; a hint, `None` proves nothing.
    #[inline]
    pub(crate) fn peek(&self, digest: &Digest) -> Option<Slot> {
        let entry = self.index.peek(self.hash(digest))?;
        (entry.kind() == LIVING).then_some(Slot(entry.place()))
    }

    /// Whether there is a record, or the trace of something without one, not yet in the rows.
    pub(crate) fn is_written(&self, digest: &Digest) -> bool {
        self.locate_record(digest).is_some()
    }

    /// Adds a living key that has no entry.
    pub(crate) fn insert_living(&mut self, digest: &Digest, slot: Slot) {
        debug_assert!(!self.is_written(digest), "living, or remembered");
        let entry = Entry::new(self.hash(digest), LIVING, slot.0);
        self.index.insert(entry, self.stale);
    }

    pub(crate) fn remove_living(&mut self, digest: &Digest, slot: Slot) {
        let position = self.living_at(digest, slot);
        self.index.remove(position);
    }

    /// The position of a message's entry. The message may have left its slot.
    fn living_at(&self, digest: &Digest, slot: Slot) -> Position {
        let found = self
            .index
            .find(self.hash(digest), |entry| entry.kind() == LIVING && entry.place() == slot.0);
        match found {
            Some((position, _)) => position,
            None => not_living(slot),
        }
    }

    /// Replaces the entry of a message that ended by its record.
    pub(crate) fn remember_living(&mut self, digest: &Digest, slot: Slot, record: &KeyRecord) {
        let position = self.living_at(digest, slot);
        let place = self.current.append(digest, Some(record), shared(record));
        let entry = Entry::new(self.hash(digest), self.current.kind, place);
        self.index.replace(position, entry);
    }

    /// Writes or overwrites the record of a key that is not living.
    pub(crate) fn remember(&mut self, digest: &Digest, record: &KeyRecord) {
        self.write(digest, Some(record), shared(record));
    }

    /// Writes a record, or a trace, over the previous one. Returns its place.
    fn write(&mut self, digest: &Digest, record: Option<&KeyRecord>, shared: Option<Bytes>) -> u32 {
        let place = self.current.append(digest, record, shared);
        let new = Entry::new(self.hash(digest), self.current.kind, place);
        let before = self.index.find(self.hash(digest), |entry| {
            entry.kind() != LIVING && self.is_record(entry, digest)
        });
        match before {
            Some((position, before)) => {
                self.index.replace(position, new);
                self.forget_current(before);
            }
            None => self.index.insert(new, self.stale),
        }
        debug_assert_eq!(self.locate_record(digest).map(|(_, entry)| entry), Some(new));
        place
    }

    fn forget_current(&mut self, before: Entry) {
        if before.kind() == self.current.kind {
            self.current.forget(before.place());
        }
    }

    /// Counts a duplicate of a remembered key. The record is written once for all duplicates
    /// between two checkpoints.
    pub(crate) fn count(&mut self, digest: &Digest, at: Time) {
        let found = self.locate_record(digest).map(|(_, entry)| entry);
        let place = match found {
            Some(entry) if entry.kind() == self.current.kind => entry.place(),
            _ => {
                let cached = || self.cached(digest).cloned();
                let Some(record) = found.map_or_else(cached, |entry| self.record_at(entry)) else {
                    return;
                };
                let shared = large_result(&record).cloned();
                self.write(digest, Some(&record), shared)
            }
        };
        self.current.count_duplicate(place, at);
    }

    /// Hides the record of a key that is about to live again, in memory and in the rows.
    pub(crate) fn supersede(&mut self, digest: &Digest, record: &KeyRecord) {
        if let Some((position, entry)) = self.locate_record(digest) {
            self.index.remove(position);
            self.forget_current(entry);
        }
        self.delete_point(digest, record.drop_at());
    }

    /// Leaves a trace of something that ended without a record, but has a row that a look-up might
    /// still find.
    pub(crate) fn trace(&mut self, digest: &Digest) {
        self.write(digest, None, None);
    }

    pub(crate) fn delete_row(&mut self, key: RowKey) {
        self.current.delete_row(key);
    }

    pub(crate) fn delete_point(&mut self, digest: &Digest, drop_at: u64) {
        self.current.delete_point(digest, drop_at);
    }

    pub(crate) fn cache(&mut self, digest: Digest, record: KeyRecord) {
        let seed = self.seed;
        let hash = digest.spread(seed);
        if self.cached.find(hash, |(known, _)| *known == digest).is_none() {
            self.cached.insert_unique(hash, (digest, record), |(known, _)| known.spread(seed));
        }
    }

    #[inline]
    fn cached(&self, digest: &Digest) -> Option<&KeyRecord> {
        if self.cached.is_empty() {
            return None;
        }
        let found = self.cached.find(digest.spread(self.seed), |(known, _)| known == digest);
        found.map(|(_, record)| record)
    }

    pub(crate) fn is_cached(&self, digest: &Digest) -> bool {
        self.cached(digest).is_some()
    }

    /// Notes that a key is not in the rows, for a debug assert: no decision treats a key as unknown
    /// that was not looked up.
    pub(crate) fn note_absent(&mut self, digest: &Digest) {
        if cfg!(debug_assertions) {
            self.absent.insert(*digest);
        }
    }

    /// Whether the key was looked up and not found, or its row is known to be outdated.
    pub(crate) fn is_known_absent(&self, digest: &Digest) -> bool {
        self.absent.contains(digest) || self.is_written(digest)
    }

    /// Drops what was read for the previous batch, and continues the work that the last checkpoint
    /// left.
    pub(crate) fn finish_batch(&mut self) {
        self.cached.clear();
        self.absent.clear();
        self.step();
    }

    /// One step of the work that the last checkpoints left.
    pub(crate) fn step(&mut self) {
        if let Some(beside) = self.dropped.last_mut() {
            beside.drop_some(DROP_STEP);
            if beside.is_empty() {
                self.dropped.pop();
            }
        }
        if self.stale.is_empty() {
            return;
        }
        let Sweep { kinds, next } = self.sweep.unwrap_or(Sweep { kinds: self.stale, next: 0 });
        // Segments created by splits meanwhile come after the others.
        let segments = self.index.segments();
        let end = next + SWEEP_STEP.max(segments.div_ceil(SWEEP_STEPS_MAX));
        for segment in next..end.min(segments) {
            self.index.sweep(segment, kinds);
        }
        self.sweep = (end < segments).then_some(Sweep { kinds, next: end });
        if self.sweep.is_none() {
            self.stale = self.stale.without(kinds);
        }
    }

    pub(crate) fn footprint(&self) -> usize {
        self.current.footprint()
    }

    pub(crate) fn checkpoint_footprint(&self) -> usize {
        self.frozen.as_ref().map_or(0, |frozen| frozen.footprint())
    }

    /// Whether the index is close to the most it can address, so that no new message should be
    /// accepted: a checkpoint or an eviction makes room. A partition's memory limit is reached long
    /// before.
    #[inline]
    pub(crate) fn is_crowded(&self, messages: &Messages) -> bool {
        messages.len() >= CROWDED || self.current.arena.is_crowded()
    }

    /// Starts a new generation; the checkpoint writes the old one.
    pub(crate) fn begin_checkpoint(&mut self) -> Arc<Generation> {
        assert!(self.frozen.is_none(), "one checkpoint at a time");
        let kind = self.next_kind();
        let mut next = self.spare.take().unwrap_or_else(|| Generation::new(kind));
        assert!(next.is_empty(), "a generation begins empty");
        next.kind = kind;
        let frozen = Arc::new(std::mem::replace(&mut self.current, next));
        self.frozen = Some(Arc::clone(&frozen));
        frozen
    }

    /// A kind that no entry has. There are enough for several checkpoints to pass before the
    /// entries of the first are swept. A caller that does not wait until it
    /// [may begin](Self::may_begin_checkpoint) gets the rest of the sweep at once.
    fn next_kind(&mut self) -> Kind {
        loop {
            if let Some(kind) = self.free_kind() {
                return kind;
            }
            self.step();
        }
    }

    fn free_kind(&self) -> Option<Kind> {
        let taken = self.stale.with(LIVING).with(self.current.kind);
        (1..KINDS).find(|kind| !taken.has(*kind))
    }

    /// Whether a checkpoint can begin without completing a sweep first, which would take long.
    pub(crate) fn may_begin_checkpoint(&self) -> bool {
        self.free_kind().is_some()
    }

    /// The checkpoint is in the rows.
    pub(crate) fn finish_checkpoint(&mut self) {
        let Some(frozen) = self.frozen.take() else { return };
        self.stale = self.stale.with(frozen.kind);
        if let Some(mut generation) = Arc::into_inner(frozen) {
            let beside = generation.clear(self.room);
            if !beside.is_empty() {
                self.dropped.push(beside);
            }
            self.spare = Some(generation);
        }
    }

    /// The checkpoint is given up: the next one writes its records, unless there are newer ones.
    pub(crate) fn cancel_checkpoint(&mut self) {
        let Some(frozen) = self.frozen.take() else { return };
        for (place, digest, _) in frozen.arena.iter() {
            let entry = Entry::new(self.hash(&digest), frozen.kind, place);
            let found = self.index.find(entry.hash(), |known| known == entry);
            if let Some((position, _)) = found {
                let place = self.current.take_over(&digest, &frozen, place);
                self.index.replace(position, Entry::new(entry.hash(), self.current.kind, place));
            }
        }
        self.current.take_over_deletes(&frozen);
        debug_assert!(self.index.iter().all(|entry| entry.kind() != frozen.kind), "all moved");
    }

    /// Sets the expected bytes between two checkpoints: that much memory is kept for the next ones.
    pub(crate) fn expect(&mut self, bytes: usize) {
        self.room = bytes;
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    pub(crate) fn is_in_checkpoint(&self) -> bool {
        self.frozen.is_some()
    }

    /// Pretends that the current generation is full.
    #[cfg(test)]
    pub(crate) fn crowd(&mut self) {
        self.current.arena.crowd();
    }

    /// Panics if the index disagrees with what it refers to.
    pub(crate) fn check(&self, messages: &Messages) {
        self.index.check();
        let count = |kind| self.index.iter().filter(|entry| entry.kind() == kind).count();
        assert_eq!(count(LIVING), messages.len(), "every message has its key");
        assert!(!self.stale.has(self.current.kind) && !self.stale.has(LIVING));
        let records = self.current.arena.iter().map(|(place, digest, _)| {
            let found = self.locate_record(&digest).map(|(_, entry)| entry);
            let entry = Entry::new(self.hash(&digest), self.current.kind, place);
            assert_eq!(found, Some(entry), "the newest record of a key is found");
            assert!(self.living(messages, &digest).is_none(), "living, or remembered");
        });
        let records = records.count();
        assert_eq!(records, self.current.size().0, "records are counted");
        assert_eq!(records, count(self.current.kind), "what was written again is not found");
        let kinds = Kinds::default().with(LIVING).with(self.current.kind);
        let kinds = self.frozen.iter().fold(kinds, |kinds, frozen| kinds.with(frozen.kind));
        let is_there = |entry: Entry| kinds.has(entry.kind()) || self.stale.has(entry.kind());
        assert!(self.index.iter().all(is_there), "what is neither there nor stale has no entry");
    }
}

/// The result of a record, if it is kept beside it. Copied, because the bytes may be part of a much
/// larger buffer.
fn shared(record: &KeyRecord) -> Option<Bytes> {
    large_result(record).map(|body| Bytes::copy_from_slice(body))
}

#[cold]
#[expect(clippy::panic, reason = "a message without an entry is a bug, not an input")]
fn not_living(slot: Slot) -> ! {
    panic!("the message in slot {} has no entry", slot.0)
}
