//! Filters: answer "not here" for most unknown points without reading the disk.
//!
//! A section's filter is cut into shards by the first bits of the key, so that one is built from
//! few keys at a time and finding a key's shard takes a shift. A shard that cannot be built, or got
//! too many keys, answers "maybe" for every key.
//!
//! On disk: a directory (shift u8, shards u32, then per shard its state u8, seed u64, segment
//! length u32, segment count × length u32, fingerprints u32, crc32c of the fingerprints u32),
//! followed by the shards' fingerprints, 16 bits each.
//!
//! Invariant: a filter never answers "not here" for a key that was pushed.

use xorf::{BinaryFuse16, Descriptor};

use super::bounds::{SHARD_BITS_MAX, SHARD_ROWS, SHARD_ROWS_MAX};
use super::bytes::Decoder;
use super::section::prefix;
use crate::PointKey;

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
    pub(super) fn contains(&self, prefix: u64) -> bool {
        self.probe(prefix).is_hit()
    }

    /// Appends the indexes of the keys that may be contained. The places of a group of keys are
    /// computed first and loaded afterwards, so that the loads, nearly all of which miss every
    /// cache, overlap.
    pub(super) fn candidates(&self, keys: &[PointKey], out: &mut Vec<u32>) {
        let mut probes = [Probe::NONE; PROBES];
        for (group, keys) in (0_u32..).zip(keys.chunks(PROBES)) {
            for (probe, key) in probes.iter_mut().zip(keys) {
                *probe = self.probe(prefix(key));
            }
            for (number, probe) in (group * PROBES as u32..).zip(probes.iter().take(keys.len())) {
                if probe.is_hit() {
                    out.push(number);
                }
            }
        }
    }

    /// Where to look for a key: the arithmetic of `xorf`, repeated here because the bytes on disk
    /// depend on it; a test compares the two.
    #[inline]
    fn probe(&self, prefix: u64) -> Probe<'_> {
        let shard = prefix.checked_shr(self.shift).unwrap_or(0);
        let filter = match self.shards.get(shard as usize) {
            Some(Shard::Built { filter, .. }) => filter,
            Some(Shard::Empty) => return Probe { fingerprint: 1, ..Probe::NONE },
            Some(Shard::Maybe) | None => return Probe::NONE,
        };
        let Descriptor { seed, segment_length, segment_length_mask, segment_count_length } =
            filter.descriptor;
        let hash = mix(prefix.wrapping_add(seed));
        let first = ((u128::from(hash) * u128::from(segment_count_length)) >> 64) as u32;
        let second = (first + segment_length) ^ ((hash >> 18) as u32 & segment_length_mask);
        let third = (first + 2 * segment_length) ^ (hash as u32 & segment_length_mask);
        let fingerprint = (hash ^ (hash >> 32)) as u16;
        Probe { fingerprints: &filter.fingerprints, first, second, third, fingerprint }
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

/// How many keys are probed together.
const PROBES: usize = 32;

/// Three places whose fingerprints, XORed, equal that of a contained key.
#[derive(Clone, Copy, Debug)]
struct Probe<'a> {
    fingerprints: &'a [u16],
    first: u32,
    second: u32,
    third: u32,
    fingerprint: u16,
}

impl Probe<'_> {
    /// Looks nowhere and answers "maybe".
    const NONE: Self = Self { fingerprints: &[], first: 0, second: 0, third: 0, fingerprint: 0 };

    #[inline]
    fn is_hit(&self) -> bool {
        let at = |place: u32| self.fingerprints.get(place as usize).copied().unwrap_or(0);
        self.fingerprint ^ at(self.first) ^ at(self.second) ^ at(self.third) == 0
    }
}

/// The last steps of MurmurHash3.
#[inline]
fn mix(mut hash: u64) -> u64 {
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
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

/// Bytes of a filter's directory before its entries.
pub(super) const DIRECTORY_HEAD_BYTES: usize = 5;

/// Reads a filter back, shard by shard, in the order in which it lies on disk.
#[derive(Debug)]
pub(super) struct Loader {
    entries: Vec<Entry>,
    filters: Filters,
}

impl Loader {
    /// The length of a directory, from its first bytes.
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

    /// Bytes of the next shard on disk; `None` after the last.
    pub(super) fn next_bytes(&self) -> Option<usize> {
        Some(2 * self.entries.get(self.filters.shards.len())?.fingerprints as usize)
    }

    /// Adds the bytes of the next shard; `false` if they are damaged.
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
    /// For about `rows` keys; the actual number only affects the size of the shards.
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
        assert_eq!(self.shards.len(), shards, "every key has its shard");
        assert!(self.keys.is_empty(), "every key is in a filter");
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
    use xorf::Filter;

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
    fn a_probe_answers_as_the_library_does() {
        let keys = keys(300_000);
        let filters = built(&keys);
        let others = (0..300_000_u64).map(|n| mix(n ^ 0x5bd1_e995));
        let all: Vec<u64> = keys.iter().copied().chain(others).collect();
        let points: Vec<PointKey> =
            all.iter().map(|key| (u128::from(*key) << 64).to_be_bytes()).collect();
        let mut candidates = Vec::new();
        filters.candidates(&points, &mut candidates);
        let wanted = (0_u32..).zip(&all).filter(|(_, key)| {
            match &filters.shards[(**key >> filters.shift) as usize] {
                Shard::Built { filter, .. } => filter.contains(key),
                Shard::Empty | Shard::Maybe => panic!("every shard was built"),
            }
        });
        assert_eq!(candidates, wanted.map(|(number, _)| number).collect::<Vec<_>>());
        assert!(candidates.len() < 300_100, "{}", candidates.len());
    }

    /// Filters are kept on disk: another release of the library must build and read the same.
    #[test]
    fn a_filter_has_the_bytes_it_always_had() {
        let filters = built(&keys(1000));
        let mut bytes = Vec::new();
        filters.put_directory(&mut bytes);
        filters.put_shard(0, &mut bytes);
        assert_eq!((bytes.len(), crc32c::crc32c(&bytes)), (2846, 1_140_607_533));
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
