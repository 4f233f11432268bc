//! The index of keys: an entry of eight bytes for each digest known in memory.
//!
//! Open addressing in segments of equal size. The leading bits of a hash choose the segment, its
//! last bits the place in it, with linear probing: a look-up touches one or two cache lines. A full
//! segment splits in two, so that growing moves the entries of one segment at a time; a single
//! large table would move all of them while everything waits.
//!
//! Entries do not hold digests: a search compares what an entry refers to. They hold all bits of
//! the hash that the index uses, so that moving one touches nothing else. The hash is seeded, so
//! that no caller can choose keys that fill one segment.
//!
//! Invariants:
//! - an entry is in the segment that its hash chooses, and no place between its first one and the
//!   one that it is in is empty;
//! - every segment has an empty place, where a search ends.

/// Bits of a hash, a kind and a place: 32, 3 and 29 of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry(u64);

/// What an entry refers to: zero is no kind, so that no entry is zero.
pub(super) type Kind = u8;

/// One more than the largest place that an entry can hold.
pub(super) const PLACES: u32 = 1 << PLACE_BITS;
pub(super) const KINDS: Kind = 1 << KIND_BITS;

const PLACE_BITS: u32 = 29;
const KIND_BITS: u32 = 3;
const EMPTY: u64 = 0;
/// Never reached: what entries can refer to bounds the segments long before.
const DEPTH_MAX: u32 = 28;

impl Entry {
    #[inline]
    pub(super) fn new(hash: u32, kind: Kind, place: u32) -> Self {
        assert!(place < PLACES, "places are bounded before they are given");
        debug_assert!((1..KINDS).contains(&kind));
        let low = u32::from(kind) << PLACE_BITS | place;
        Self(u64::from(hash) << 32 | u64::from(low))
    }

    #[inline]
    pub(super) fn hash(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline]
    pub(super) fn kind(self) -> Kind {
        (self.0 as u32 >> PLACE_BITS) as Kind
    }

    #[inline]
    pub(super) fn place(self) -> u32 {
        self.0 as u32 & (PLACES - 1)
    }
}

/// Where an entry is, until the index changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    segment: u32,
    at: u32,
}

#[derive(Debug)]
pub(super) struct Index {
    /// Places in a segment: a power of two.
    places: usize,
    /// Leading bits of a hash that choose the segment.
    depth: u32,
    /// The segment of a hash, by those bits.
    directory: Vec<u32>,
    segments: Vec<Segment>,
    /// The entries of the segment that is being rebuilt.
    scratch: Vec<u64>,
}

#[derive(Debug)]
struct Segment {
    entries: Box<[u64]>,
    used: u32,
    /// Leading bits that its entries have in common.
    depth: u32,
}

impl Segment {
    fn new(places: usize, depth: u32) -> Self {
        Self { entries: vec![EMPTY; places].into_boxed_slice(), used: 0, depth }
    }

    #[inline]
    fn at(&self, place: usize) -> u64 {
        self.entries.get(place).copied().unwrap_or(EMPTY)
    }

    #[inline]
    fn set(&mut self, place: usize, entry: u64) {
        if let Some(slot) = self.entries.get_mut(place) {
            *slot = entry;
        }
    }

    #[inline]
    fn mask(&self) -> usize {
        self.entries.len() - 1
    }

    /// Puts an entry into the first empty place from its home on.
    #[inline]
    fn put(&mut self, entry: Entry) {
        let mask = self.mask();
        let mut at = entry.hash() as usize & mask;
        while self.at(at) != EMPTY {
            at = (at + 1) & mask;
        }
        self.set(at, entry.0);
        self.used += 1;
    }

    /// Removes an entry, and moves those behind it up.
    fn remove(&mut self, mut hole: usize) {
        let mask = self.mask();
        let mut next = (hole + 1) & mask;
        while self.at(next) != EMPTY {
            let home = Entry(self.at(next)).hash() as usize & mask;
            // It may move into the hole, unless that is before its home.
            if next.wrapping_sub(home) & mask >= next.wrapping_sub(hole) & mask {
                self.set(hole, self.at(next));
                hole = next;
            }
            next = (next + 1) & mask;
        }
        self.set(hole, EMPTY);
        self.used -= 1;
    }

    /// Empties it into `out`.
    fn drain(&mut self, out: &mut Vec<u64>) {
        out.clear();
        out.extend(self.entries.iter().copied().filter(|entry| *entry != EMPTY));
        self.entries.fill(EMPTY);
        self.used = 0;
    }
}

impl Index {
    pub(super) fn new(places: usize) -> Self {
        assert!(places.is_power_of_two() && places >= 4, "a segment has so many places: {places}");
        let segments = vec![Segment::new(places, 0)];
        Self { places, depth: 0, directory: vec![0], segments, scratch: Vec::new() }
    }

    /// The most entries of a segment before it splits. A third of the places stays empty, to keep
    /// searches short.
    fn most(&self) -> usize {
        self.places - self.places / 4 - self.places / 16
    }

    #[inline]
    fn segment_of(&self, hash: u32) -> u32 {
        let place = (u64::from(hash) << self.depth) >> 32;
        self.directory.get(place as usize).copied().unwrap_or(0)
    }

    #[inline]
    fn segment(&self, number: u32) -> &Segment {
        match self.segments.get(number as usize) {
            Some(segment) => segment,
            None => no_segment(number),
        }
    }

    #[inline]
    fn segment_mut(&mut self, number: u32) -> &mut Segment {
        match self.segments.get_mut(number as usize) {
            Some(segment) => segment,
            None => no_segment(number),
        }
    }

    /// The first entry of the hash that `is` accepts.
    #[inline]
    pub(super) fn find(
        &self,
        hash: u32,
        mut is: impl FnMut(Entry) -> bool,
    ) -> Option<(Position, Entry)> {
        let number = self.segment_of(hash);
        let segment = self.segment(number);
        let mask = segment.mask();
        let mut at = hash as usize & mask;
        loop {
            let entry = Entry(segment.at(at));
            if entry.0 == EMPTY {
                return None;
            }
            if entry.hash() == hash && is(entry) {
                return Some((Position { segment: number, at: at as u32 }, entry));
            }
            at = (at + 1) & mask;
        }
    }

    /// The content of a hash's home place: an entry of that hash, of another one, or none.
    #[inline]
    pub(super) fn peek(&self, hash: u32) -> Option<Entry> {
        let segment = self.segment(self.segment_of(hash));
        let entry = Entry(segment.at(hash as usize & segment.mask()));
        (entry.0 != EMPTY).then_some(entry)
    }

    /// Puts another entry of the same hash into a place.
    #[inline]
    pub(super) fn replace(&mut self, position: Position, entry: Entry) {
        let segment = self.segment_mut(position.segment);
        let before = Entry(segment.at(position.at as usize));
        debug_assert!(before.0 != EMPTY && before.hash() == entry.hash(), "of the same digest");
        segment.set(position.at as usize, entry.0);
    }

    pub(super) fn remove(&mut self, position: Position) {
        self.segment_mut(position.segment).remove(position.at as usize);
    }

    /// Adds an entry of a digest that has none. Where its segment is full, entries of the `stale`
    /// kinds leave it, and it splits.
    #[inline]
    pub(super) fn insert(&mut self, entry: Entry, stale: Kinds) {
        let mut number = self.segment_of(entry.hash());
        if self.segment(number).used as usize >= self.most() {
            number = self.make_room(entry.hash(), stale);
        }
        self.segment_mut(number).put(entry);
    }

    #[cold]
    fn make_room(&mut self, hash: u32, stale: Kinds) -> u32 {
        self.sweep(self.segment_of(hash) as usize, stale);
        loop {
            let number = self.segment_of(hash);
            if (self.segment(number).used as usize) < self.most() {
                return number;
            }
            self.split(hash);
        }
    }

    /// Splits the segment of a hash: entries whose next bit is set move to a new one.
    fn split(&mut self, hash: u32) {
        let number = self.segment_of(hash);
        let depth = self.segment(number).depth;
        if depth == self.depth {
            self.deepen();
        }
        // Its part of the directory: the second half of it is the new segment's.
        let part = 1usize << (self.depth - depth);
        let first = ((u64::from(hash) << self.depth) >> 32) as usize & !(part - 1);
        let new = self.segments.len() as u32;
        if let Some(half) = self.directory.get_mut(first + part / 2..first + part) {
            debug_assert!(half.iter().all(|known| *known == number), "a segment is one part");
            half.fill(new);
        }
        self.segments.push(Segment::new(self.places, depth + 1));
        let mut scratch = std::mem::take(&mut self.scratch);
        let segment = self.segment_mut(number);
        segment.depth = depth + 1;
        segment.drain(&mut scratch);
        for entry in scratch.iter().copied().map(Entry) {
            let is_upper = entry.hash() >> (31 - depth) & 1 == 1;
            self.segment_mut(if is_upper { new } else { number }).put(entry);
        }
        self.scratch = scratch;
    }

    /// Doubles the directory: one more bit of a hash chooses the segment.
    fn deepen(&mut self) {
        assert!(self.depth < DEPTH_MAX, "what entries refer to ends before segments do");
        self.directory = self.directory.iter().flat_map(|number| [*number; 2]).collect();
        self.depth += 1;
    }

    pub(super) fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Removes the entries of these kinds from one segment.
    pub(super) fn sweep(&mut self, number: usize, kinds: Kinds) {
        let Some(segment) = self.segments.get_mut(number) else { return };
        let is_stale = |entry: u64| entry != EMPTY && kinds.has(Entry(entry).kind());
        if !segment.entries.iter().any(|entry| is_stale(*entry)) {
            return;
        }
        segment.drain(&mut self.scratch);
        for entry in self.scratch.iter().filter(|entry| !is_stale(**entry)) {
            segment.put(Entry(*entry));
        }
    }

    /// Every entry, for checks.
    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> {
        let entries = self.segments.iter().flat_map(|segment| &segment.entries);
        entries.copied().filter(|entry| *entry != EMPTY).map(Entry)
    }

    /// Panics if an entry would not be found or a count is wrong.
    pub(super) fn check(&self) {
        assert_eq!(self.directory.len(), 1 << self.depth, "one part for each hash");
        for (number, segment) in self.segments.iter().enumerate() {
            let entries = segment.entries.iter().filter(|entry| **entry != EMPTY);
            assert_eq!(entries.clone().count(), segment.used as usize, "entries are counted");
            assert!(segment.used as usize <= self.most(), "a search ends");
            for entry in entries.copied().map(Entry) {
                assert_eq!(self.segment_of(entry.hash()) as usize, number, "in its segment");
                assert!(self.find(entry.hash(), |known| known == entry).is_some(), "is found");
            }
        }
    }
}

/// A set of kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kinds(u8);

impl Kinds {
    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn has(self, kind: Kind) -> bool {
        self.0 & 1 << kind != 0
    }

    pub(super) fn with(self, kind: Kind) -> Self {
        debug_assert!((1..KINDS).contains(&kind));
        Self(self.0 | 1 << kind)
    }

    pub(super) fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }
}

#[cold]
#[expect(clippy::panic, reason = "a directory that names no segment is a bug, not an input")]
fn no_segment(number: u32) -> ! {
    panic!("there is no segment {number}")
}

const _: () = assert!(KIND_BITS + PLACE_BITS == 32, "an entry is 64 bits");
const _: () = assert!(KINDS as u32 <= u8::BITS, "a set of kinds is a byte");

#[cfg(test)]
mod tests {
    use super::*;

    /// Well-spread numbers that repeat nowhere.
    fn hash(number: u32) -> u32 {
        (number.wrapping_mul(0x9e37_79b9) ^ 0x5bd1_e995).rotate_left(7).wrapping_mul(0x85eb_ca6b)
    }

    fn find(index: &Index, number: u32) -> Option<(Position, Entry)> {
        index.find(hash(number), |entry| entry.place() == number)
    }

    #[test]
    fn an_entry_is_found_however_often_segments_split() {
        let mut index = Index::new(8);
        for number in 0..5_000 {
            assert!(find(&index, number).is_none());
            index.insert(
                Entry::new(hash(number), 1 + (number % 7) as Kind, number),
                Kinds::default(),
            );
            if number.is_power_of_two() {
                index.check();
            }
        }
        index.check();
        assert!(index.segments() > 5_000 / 8);
        for number in 0..5_000 {
            let (_, entry) = find(&index, number).unwrap();
            assert_eq!((entry.place(), entry.kind()), (number, 1 + (number % 7) as Kind));
        }
        assert_eq!(index.iter().count(), 5_000);
    }

    #[test]
    fn what_is_removed_hides_nothing_behind_it() {
        let mut index = Index::new(64);
        // Many of one first place, and some of the last ones, which wrap around.
        let hashes = [3u32, 3, 3, 4, 63, 63, 62, 63, 0, 3, 1, 0];
        for (place, hash) in (0..).zip(hashes) {
            index.insert(Entry::new(hash, 1, place), Kinds::default());
        }
        for (gone, hash) in (0..).zip(hashes) {
            let found = index.find(hash, |entry| entry.place() == gone);
            index.remove(found.unwrap().0);
            index.check();
            for (place, hash) in (0..).zip(hashes).skip(gone as usize + 1) {
                assert!(index.find(hash, |entry| entry.place() == place).is_some());
            }
        }
        assert_eq!(index.iter().count(), 0);
    }

    #[test]
    fn equal_hashes_are_told_apart_by_what_they_refer_to() {
        let mut index = Index::new(16);
        for place in 0..6 {
            index.insert(Entry::new(7 << 20, 2, place), Kinds::default());
        }
        let (position, _) = index.find(7 << 20, |entry| entry.place() == 4).unwrap();
        index.replace(position, Entry::new(7 << 20, 3, 9));
        assert!(index.find(7 << 20, |entry| entry.place() == 4).is_none());
        assert!(index.find(7 << 20, |entry| (entry.kind(), entry.place()) == (3, 9)).is_some());
    }

    #[test]
    fn a_full_segment_is_swept_before_it_splits() {
        let mut index = Index::new(16);
        let stale = Kinds::default().with(2);
        for number in 0..10_000 {
            index.insert(Entry::new(hash(number), 2, number), stale);
        }
        index.check();
        assert_eq!(index.segments(), 1);
    }

    #[test]
    fn a_sweep_takes_what_is_stale_and_nothing_else() {
        let mut index = Index::new(16);
        for number in 0..1_000 {
            index.insert(
                Entry::new(hash(number), 1 + (number % 3) as Kind, number),
                Kinds::default(),
            );
        }
        let stale = Kinds::default().with(2).with(3).without(Kinds::default().with(3));
        for segment in 0..index.segments() {
            index.sweep(segment, stale);
        }
        index.check();
        assert!((0..1_000).all(|number| find(&index, number).is_some() == (number % 3 != 1)));
    }
}
