//! Filters: what says "surely new" of a point without reading the disk.
//!
//! A section's filter is cut into shards by the first bits of the key, so that one is built from
//! few keys at a time and finding a key's shard takes a shift. A shard whose building fails, or
//! which got too many keys, says "maybe" to all.
//!
//! On disk: a directory (shift u8, shards u32, then per shard its state u8, seed u64, segment
//! length u32, segment count × length u32, fingerprints u32, crc32c of the fingerprints u32),
//! followed by the shards' fingerprints, 16 bits each.
//!
//! Invariant: a filter never says "new" of a key that was pushed.

use xorf::{BinaryFuse16, Descriptor, Filter};

use super::bounds::{SHARD_BITS_MAX, SHARD_ROWS, SHARD_ROWS_MAX};
use super::bytes::Decoder;

#[derive(Debug)]
enum Shard {
    Empty,
    Maybe,
    Built { filter: BinaryFuse16, checksum: u32 },
}

/// The filter of a section of points.
#[derive(Debug)]
pub(super) struct Filters {
    shift: u32,
    shards: Vec<Shard>,
    bytes: u64,
}

impl Filters {
    #[inline]
    pub(super) fn contains(&self, prefix: u64) -> bool {
        let shard = prefix.checked_shr(self.shift).unwrap_or(0);
        match self.shards.get(shard as usize) {
            Some(Shard::Built { filter, .. }) => filter.contains(&prefix),
            Some(Shard::Empty) => false,
            Some(Shard::Maybe) | None => true,
        }
    }

    /// Memory in use.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn shards(&self) -> usize {
        self.shards.len()
    }

    pub(super) fn put_directory(&self, out: &mut Vec<u8>) {
        out.push(self.shift as u8);
        out.extend_from_slice(&(self.shards.len() as u32).to_le_bytes());
        for shard in &self.shards {
            let entry = match shard {
                Shard::Empty => Entry::default(),
                Shard::Maybe => Entry { state: 1, ..Entry::default() },
                Shard::Built { filter, checksum } => Entry {
                    state: 2,
                    seed: filter.descriptor.seed,
                    segment: filter.descriptor.segment_length,
                    segments: filter.descriptor.segment_count_length,
                    fingerprints: filter.fingerprints.len() as u32,
                    checksum: *checksum,
                },
            };
            entry.put(out);
        }
    }

    /// Appends the fingerprints of one shard.
    pub(super) fn put_shard(&self, number: usize, out: &mut Vec<u8>) {
        if let Some(Shard::Built { filter, .. }) = self.shards.get(number) {
            put_fingerprints(filter, out);
        }
    }
}

fn put_fingerprints(filter: &BinaryFuse16, out: &mut Vec<u8>) {
    let before = out.len();
    out.resize(before + 2 * filter.fingerprints.len(), 0);
    let pairs = out.get_mut(before..).unwrap_or_default().as_chunks_mut::<2>().0;
    for (pair, fingerprint) in pairs.iter_mut().zip(&filter.fingerprints) {
        *pair = fingerprint.to_le_bytes();
    }
}

/// A shard as the directory describes it.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    state: u8,
    seed: u64,
    segment: u32,
    segments: u32,
    fingerprints: u32,
    checksum: u32,
}

const ENTRY_BYTES: usize = 25;

impl Entry {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(self.state);
        out.extend_from_slice(&self.seed.to_le_bytes());
        for number in [self.segment, self.segments, self.fingerprints, self.checksum] {
            out.extend_from_slice(&number.to_le_bytes());
        }
    }

    fn take(decoder: &mut Decoder<'_>) -> Option<Self> {
        Some(Self {
            state: decoder.u8()?,
            seed: decoder.u64()?,
            segment: decoder.u32()?,
            segments: decoder.u32()?,
            fingerprints: decoder.u32()?,
            checksum: decoder.u32()?,
        })
    }

    /// A look-up computes places from these numbers: they must lie within the fingerprints.
    fn is_sane(&self) -> bool {
        let places = u64::from(self.segments) + 2 * u64::from(self.segment);
        self.segment.is_power_of_two()
            && self.segments.is_multiple_of(self.segment)
            && self.segments > 0
            && places == u64::from(self.fingerprints)
    }
}

/// How many bytes the directory of a filter begins with before its entries.
pub(super) const DIRECTORY_HEAD_BYTES: usize = 5;

/// Reads a filter back, shard by shard, in the order in which it lies on disk.
#[derive(Debug)]
pub(super) struct Loader {
    entries: Vec<Entry>,
    filters: Filters,
}

impl Loader {
    /// How long the directory is whose first bytes these are.
    pub(super) fn directory_bytes(head: &[u8]) -> Option<usize> {
        let mut decoder = Decoder::new(head);
        decoder.u8()?;
        let shards = decoder.u32()?;
        (shards <= 1 << SHARD_BITS_MAX)
            .then_some(DIRECTORY_HEAD_BYTES + shards as usize * ENTRY_BYTES)
    }

    pub(super) fn new(directory: &[u8]) -> Option<Self> {
        let mut decoder = Decoder::new(directory);
        let shift = u32::from(decoder.u8()?);
        let shards = decoder.u32()? as usize;
        let bits = 64_u32.checked_sub(shift)?;
        if bits > SHARD_BITS_MAX || shards != 1 << bits {
            return None;
        }
        let mut entries = Vec::with_capacity(shards);
        for _ in 0..shards {
            entries.push(Entry::take(&mut decoder)?);
        }
        decoder.is_empty().then_some(())?;
        let filters = Filters { shift, shards: Vec::with_capacity(shards), bytes: 0 };
        Some(Self { entries, filters })
    }

    /// Memory the whole filter will take.
    pub(super) fn bytes(&self) -> u64 {
        self.entries.iter().map(|entry| 2 * u64::from(entry.fingerprints)).sum()
    }

    /// How many bytes the next shard has on disk; `None` after the last.
    pub(super) fn next_bytes(&self) -> Option<usize> {
        Some(2 * self.entries.get(self.filters.shards.len())?.fingerprints as usize)
    }

    /// Takes the bytes of the next shard; `false` where they are damaged.
    pub(super) fn push(&mut self, bytes: &[u8]) -> bool {
        let Some(entry) = self.entries.get(self.filters.shards.len()) else { return false };
        let shard = match entry.state {
            0 => Shard::Empty,
            1 => Shard::Maybe,
            2 if entry.is_sane() && crc32c::crc32c(bytes) == entry.checksum => {
                let pairs = bytes.as_chunks::<2>().0.iter();
                let filter = BinaryFuse16 {
                    descriptor: Descriptor {
                        seed: entry.seed,
                        segment_length: entry.segment,
                        segment_length_mask: entry.segment - 1,
                        segment_count_length: entry.segments,
                    },
                    fingerprints: pairs.map(|pair| u16::from_le_bytes(*pair)).collect(),
                };
                Shard::Built { filter, checksum: entry.checksum }
            }
            _ => return false,
        };
        self.filters.shards.push(shard);
        self.filters.bytes += bytes.len() as u64;
        true
    }

    /// The filter, once every shard was pushed.
    pub(super) fn finish(self) -> Option<Filters> {
        (self.filters.shards.len() == self.entries.len()).then_some(self.filters)
    }
}

/// Builds a filter from prefixes in ascending order.
#[derive(Debug)]
pub(super) struct Builder {
    shift: u32,
    shards: Vec<Shard>,
    keys: Vec<u64>,
    crowded: bool,
    bytes: Vec<u8>,
}

impl Builder {
    /// For about `rows` keys: more or fewer do no harm but to the size of the shards.
    pub(super) fn new(rows: u64) -> Self {
        let shards = rows.div_ceil(SHARD_ROWS).max(1).next_power_of_two();
        let bits = shards.trailing_zeros().min(SHARD_BITS_MAX);
        let (shards, keys, bytes) = (Vec::new(), Vec::new(), Vec::new());
        Self { shift: 64 - bits, shards, keys, crowded: false, bytes }
    }

    #[inline]
    pub(super) fn push(&mut self, prefix: u64) {
        let shard = prefix.checked_shr(self.shift).unwrap_or(0) as usize;
        while shard > self.shards.len() {
            self.build();
        }
        // Keys are ascending, so that equal prefixes follow each other; a filter cannot be built
        // from a set with duplicates.
        if self.keys.last() == Some(&prefix) {
            return;
        }
        debug_assert!(self.keys.last().is_none_or(|last| *last < prefix), "prefixes ascend");
        if self.keys.len() < SHARD_ROWS_MAX {
            self.keys.push(prefix);
        } else {
            self.crowded = true;
        }
    }

    pub(super) fn finish(mut self) -> Filters {
        let shards = 1_usize << (64 - self.shift);
        while self.shards.len() < shards {
            self.build();
        }
        let bytes = self.shards.iter().map(|shard| match shard {
            Shard::Built { filter, .. } => 2 * filter.fingerprints.len() as u64,
            Shard::Empty | Shard::Maybe => 0,
        });
        Filters { shift: self.shift, bytes: bytes.sum(), shards: self.shards }
    }

    fn build(&mut self) {
        let shard = if self.keys.is_empty() {
            Shard::Empty
        } else if self.crowded {
            Shard::Maybe
        } else if let Ok(filter) = BinaryFuse16::try_from(self.keys.as_slice()) {
            self.bytes.clear();
            put_fingerprints(&filter, &mut self.bytes);
            Shard::Built { filter, checksum: crc32c::crc32c(&self.bytes) }
        } else {
            Shard::Maybe
        };
        self.shards.push(shard);
        self.keys.clear();
        self.crowded = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(count: u64) -> Vec<u64> {
        let mut keys: Vec<u64> =
            (0..count).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        keys.sort_unstable();
        keys
    }

    fn built(keys: &[u64]) -> Filters {
        let mut builder = Builder::new(keys.len() as u64);
        keys.iter().for_each(|key| builder.push(*key));
        builder.finish()
    }

    #[test]
    fn every_pushed_key_is_contained_also_after_a_round_trip() {
        for count in [0, 1, 2, 3, 50, 1000, 300_000] {
            let keys = keys(count);
            let filters = built(&keys);
            let mut directory = Vec::new();
            filters.put_directory(&mut directory);
            assert_eq!(Loader::directory_bytes(&directory), Some(directory.len()));
            let mut loader = Loader::new(&directory).expect("a directory");
            for number in 0..filters.shards() {
                let mut bytes = Vec::new();
                filters.put_shard(number, &mut bytes);
                assert_eq!(loader.next_bytes(), Some(bytes.len()));
                assert!(loader.push(&bytes));
            }
            let loaded = loader.finish().expect("all shards");
            assert!(keys.iter().all(|key| filters.contains(*key) && loaded.contains(*key)));
            assert_eq!(loaded.bytes(), filters.bytes());
            let wrong = keys.iter().filter(|key| loaded.contains(**key + 1)).count();
            assert!(wrong <= keys.len() / 1000, "{wrong} false positives of {}", keys.len());
        }
    }

    #[test]
    fn keys_that_are_no_digests_are_contained_too() {
        let low: Vec<u64> = (0..200_000).collect();
        let equal = vec![7; 1000];
        for keys in [low, equal] {
            let filters = built(&keys);
            assert!(keys.iter().all(|key| filters.contains(*key)));
        }
    }
}
