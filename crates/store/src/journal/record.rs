//! The journal's bytes: the header of a segment, the header of a record, positions.
//!
//! Everything is little-endian. docs/disk-format.md has the tables.
//!
//! Invariants:
//! - a record's header checksum covers the store's identity and the segment's id, which are not in
//!   the bytes, and through `payload_checksum` the payload; so a record is valid only in the place
//!   it was written to, and leftovers of an earlier use of the file are not valid;
//! - `previous` is the header checksum of the record before, over segments: a chain;
//! - a segment's header keeps its first 16 bytes and its checksum in every future version, so that
//!   a newer format can be distinguished from damage.

use crate::{Epoch, Sequence};

/// The version of the journal's format that this release writes, and the newest it reads.
pub(crate) const VERSION: u32 = 1;
pub(crate) const SEGMENT_HEADER_LEN: u32 = 64;
pub(crate) const RECORD_HEADER_LEN: u32 = 48;
/// Records begin at multiples of this.
pub(crate) const ALIGNMENT: u32 = 16;

const _: () = assert!(SEGMENT_HEADER_LEN.is_multiple_of(ALIGNMENT), "the first record is aligned");
const _: () = assert!(RECORD_HEADER_LEN.is_multiple_of(ALIGNMENT), "and so is a seal's end");
const _: () = assert!(VERSION <= u8::MAX as u32, "a record has one byte for it");

const SEGMENT_MAGIC: [u8; 8] = *b"HAPAXJNL";
const RECORD_MAGIC: [u8; 4] = *b"HxJr";
/// The checksum's place in a segment's header.
const SEGMENT_CHECKSUM_AT: usize = 12;
/// The checksum's place in a record's header.
const RECORD_CHECKSUM_AT: usize = 12;

pub(crate) type SegmentHeaderBytes = [u8; SEGMENT_HEADER_LEN as usize];
pub(crate) type RecordHeaderBytes = [u8; RECORD_HEADER_LEN as usize];

/// A byte position in the journal. Positions sort in the order of writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub segment: u32,
    pub offset: u32,
}

impl Position {
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.segment) << 32 | u64::from(self.offset)
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self { segment: (bits >> 32) as u32, offset: bits as u32 }
    }
}

/// The result of decoding a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decoded<T> {
    /// Written by this store, for this place.
    Valid(T),
    /// Intact, in a format that this release does not know.
    Newer(u32),
    /// Anything else: zeros, leftovers, torn or damaged bytes.
    Invalid,
}

/// The first bytes of a segment that is or was in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) identity: u64,
    pub(crate) id: u32,
    /// The sequence of the first batch in this segment.
    pub(crate) first: Sequence,
    pub(crate) epoch: Epoch,
    /// The chain: the checksum of the last record of the segment before.
    pub(crate) previous: u32,
    /// Everything before this was synced when the header was written.
    pub(crate) synced: Position,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> SegmentHeaderBytes {
        assert!(self.synced.segment <= self.id, "what is to come is not synced");
        let mut bytes = [0; SEGMENT_HEADER_LEN as usize];
        put(&mut bytes, 0, &SEGMENT_MAGIC);
        put(&mut bytes, 8, &VERSION.to_le_bytes());
        put(&mut bytes, 16, &self.identity.to_le_bytes());
        put(&mut bytes, 24, &self.id.to_le_bytes());
        put(&mut bytes, 32, &self.first.to_le_bytes());
        put(&mut bytes, 40, &self.epoch.to_le_bytes());
        put(&mut bytes, 44, &self.previous.to_le_bytes());
        put(&mut bytes, 48, &self.synced.to_bits().to_le_bytes());
        let checksum = checksum_without(0, &bytes, SEGMENT_CHECKSUM_AT);
        put(&mut bytes, SEGMENT_CHECKSUM_AT, &checksum.to_le_bytes());
        bytes
    }

    /// Decodes a header of any store: the caller compares `identity` and `id`.
    pub(crate) fn decode(bytes: &SegmentHeaderBytes) -> Decoded<Self> {
        let checksum = checksum_without(0, bytes, SEGMENT_CHECKSUM_AT);
        if !bytes.starts_with(&SEGMENT_MAGIC) || checksum != u32_at(bytes, SEGMENT_CHECKSUM_AT) {
            return Decoded::Invalid;
        }
        match u32_at(bytes, 8) {
            VERSION => {}
            version if version > VERSION => return Decoded::Newer(version),
            _ => return Decoded::Invalid,
        }
        Decoded::Valid(Self {
            identity: u64_at(bytes, 16),
            id: u32_at(bytes, 24),
            first: u64_at(bytes, 32),
            epoch: u32_at(bytes, 40),
            previous: u32_at(bytes, 44),
            synced: Position::from_bits(u64_at(bytes, 48)),
        })
    }
}

/// What a record is for. The numbers are on disk and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// One batch; it takes the next sequence.
    Batch = 1,
    /// Only a header. Everything before it was synced and is valid, so damage there is not a torn
    /// tail. An owner's first and last record. Takes no sequence.
    Seal = 2,
}

/// The first bytes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) kind: Kind,
    pub(crate) length: u32,
    /// The batch's sequence; for a seal that of the last batch before it.
    pub(crate) sequence: Sequence,
    /// Everything before this was synced when the record was written.
    pub(crate) synced: Position,
    pub(crate) epoch: Epoch,
    /// The chain: the checksum of the record before.
    pub(crate) previous: u32,
    pub(crate) payload_checksum: u32,
    /// This record's link of the chain; set by `encode` and `decode`.
    pub(crate) checksum: u32,
}

impl RecordHeader {
    /// Sets `checksum`, the next record's `previous`.
    pub(crate) fn encode(&mut self, seed: Seed) -> RecordHeaderBytes {
        assert!(self.kind == Kind::Batch || self.length == 0, "a seal has no batch");
        let mut bytes = [0; RECORD_HEADER_LEN as usize];
        put(&mut bytes, 0, &RECORD_MAGIC);
        put(&mut bytes, 4, &[VERSION as u8, self.kind as u8]);
        put(&mut bytes, 8, &self.length.to_le_bytes());
        put(&mut bytes, 16, &self.sequence.to_le_bytes());
        put(&mut bytes, 24, &self.synced.to_bits().to_le_bytes());
        put(&mut bytes, 32, &self.epoch.to_le_bytes());
        put(&mut bytes, 36, &self.previous.to_le_bytes());
        put(&mut bytes, 40, &self.payload_checksum.to_le_bytes());
        self.checksum = checksum_without(seed.0, &bytes, RECORD_CHECKSUM_AT);
        put(&mut bytes, RECORD_CHECKSUM_AT, &self.checksum.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &RecordHeaderBytes, seed: Seed) -> Decoded<Self> {
        // When a segment is searched, the magic alone rules out nearly all places.
        if !bytes.starts_with(&RECORD_MAGIC) {
            return Decoded::Invalid;
        }
        let checksum = checksum_without(seed.0, bytes, RECORD_CHECKSUM_AT);
        if checksum != u32_at(bytes, RECORD_CHECKSUM_AT) {
            return Decoded::Invalid;
        }
        let (version, kind) = (u32_at(bytes, 4) & 0xff, u32_at(bytes, 4) >> 8 & 0xff);
        let kind = match (version, kind) {
            (VERSION, 1) => Kind::Batch,
            (VERSION, 2) => Kind::Seal,
            (version, _) if version > VERSION => return Decoded::Newer(version),
            _ => return Decoded::Invalid,
        };
        Decoded::Valid(Self {
            kind,
            length: u32_at(bytes, 8),
            sequence: u64_at(bytes, 16),
            synced: Position::from_bits(u64_at(bytes, 24)),
            epoch: u32_at(bytes, 32),
            previous: u32_at(bytes, 36),
            payload_checksum: u32_at(bytes, 40),
            checksum,
        })
    }
}

/// Initial value of the checksums of a segment's records: from the store's identity and the
/// segment's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed(u32);

impl Seed {
    pub(crate) fn new(identity: u64, segment: u32) -> Self {
        let seed = crc32c::crc32c(&identity.to_le_bytes());
        Self(crc32c::crc32c_append(seed, &segment.to_le_bytes()))
    }
}

pub(crate) fn payload_checksum(payload: &[u8]) -> u32 {
    crc32c::crc32c(payload)
}

/// Bytes of a record with this payload, with its header and padding. A `u64`, because the length
/// may be any found on disk.
pub(crate) fn record_len(payload_len: u32) -> u64 {
    (u64::from(RECORD_HEADER_LEN) + u64::from(payload_len)).next_multiple_of(u64::from(ALIGNMENT))
}

/// The file of a segment.
pub(crate) fn segment_name(id: u32) -> String {
    format!("journal-{id:08x}.seg")
}

/// The inverse of [`segment_name`]; `None` for every other file.
pub(crate) fn segment_id(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("journal-")?.strip_suffix(".seg")?;
    let id = u32::from_str_radix(digits, 16).ok()?;
    (segment_name(id) == name).then_some(id)
}

fn checksum_without(seed: u32, bytes: &[u8], at: usize) -> u32 {
    debug_assert!(at + 4 <= bytes.len());
    let (head, rest) = bytes.split_at(at);
    crc32c::crc32c_append(crc32c::crc32c_append(seed, head), rest.get(4..).unwrap_or_default())
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    debug_assert!(at + value.len() <= bytes.len());
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    debug_assert!(at + 4 <= bytes.len());
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    debug_assert!(at + 8 <= bytes.len());
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> RecordHeader {
        RecordHeader {
            kind: Kind::Batch,
            length: 5,
            sequence: 77,
            synced: Position { segment: 3, offset: 128 },
            epoch: 2,
            previous: 0xdead_beef,
            payload_checksum: payload_checksum(b"hello"),
            checksum: 0,
        }
    }

    fn segment() -> SegmentHeader {
        SegmentHeader {
            identity: 42,
            id: 9,
            first: 1000,
            epoch: 7,
            previous: 5,
            synced: Position { segment: 8, offset: 4096 },
        }
    }

    #[test]
    fn a_record_header_comes_back_as_it_was() {
        let mut header = record();
        let bytes = header.encode(Seed::new(1, 3));
        assert_eq!(RecordHeader::decode(&bytes, Seed::new(1, 3)), Decoded::Valid(header));
    }

    #[test]
    fn a_record_of_another_segment_or_store_is_invalid() {
        let bytes = record().encode(Seed::new(1, 3));
        assert_eq!(RecordHeader::decode(&bytes, Seed::new(1, 4)), Decoded::Invalid);
        assert_eq!(RecordHeader::decode(&bytes, Seed::new(2, 3)), Decoded::Invalid);
    }

    #[test]
    fn any_flipped_bit_makes_a_header_invalid() {
        let seed = Seed::new(1, 3);
        let record = record().encode(seed);
        for bit in 0..record.len() * 8 {
            let mut damaged = record;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RecordHeader::decode(&damaged, seed), Decoded::Invalid, "bit {bit}");
        }
        let segment = segment().encode();
        for bit in 0..segment.len() * 8 {
            let mut damaged = segment;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::decode(&damaged), Decoded::Invalid, "bit {bit}");
        }
    }

    #[test]
    fn a_segment_header_comes_back_as_it_was() {
        assert_eq!(SegmentHeader::decode(&segment().encode()), Decoded::Valid(segment()));
    }

    #[test]
    fn an_intact_header_of_a_newer_version_is_told_from_damage() {
        let mut bytes = segment().encode();
        bytes[8] = 2;
        let checksum = checksum_without(0, &bytes, SEGMENT_CHECKSUM_AT);
        put(&mut bytes, SEGMENT_CHECKSUM_AT, &checksum.to_le_bytes());
        assert_eq!(SegmentHeader::decode(&bytes), Decoded::Newer(2));
    }

    #[test]
    fn the_bytes_of_version_1_never_change() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(&segment().encode()), GOLDEN_SEGMENT.concat());
        assert_eq!(hex(&record().encode(Seed::new(1, 3))), GOLDEN_RECORD.concat());
    }

    const GOLDEN_SEGMENT: [&str; 4] = [
        "48415041584a4e4c010000000a91a0ec",
        "2a000000000000000900000000000000",
        "e8030000000000000700000005000000",
        "00100000080000000000000000000000",
    ];
    const GOLDEN_RECORD: [&str; 3] = [
        "48784a7201010000050000002de2f6a2",
        "4d000000000000008000000003000000",
        "02000000efbeadde4cbb719a00000000",
    ];

    #[test]
    fn segment_names_and_ids_are_inverse() {
        assert_eq!(segment_name(0x1a), "journal-0000001a.seg");
        assert_eq!(segment_id("journal-0000001a.seg"), Some(0x1a));
        for other in ["journal-1a.seg", "journal-0000001A.seg", "journal-0000001a.new", "LOCK"] {
            assert_eq!(segment_id(other), None, "{other}");
        }
    }

    #[test]
    fn records_are_as_long_as_the_alignment_allows() {
        assert_eq!([0, 1, 16, 17].map(record_len), [48, 64, 64, 80]);
    }
}
