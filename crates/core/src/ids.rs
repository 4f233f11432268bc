//! Basic types: time, sequence, fence, message id.

use std::fmt;

/// Partition time: milliseconds since 1970, as written in the journal. Never a clock reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// Later than any other time; stands for "never".
    pub const NEVER: Self = Self(u64::MAX);

    pub fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds from `earlier` to `self`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The inputs of a batch from outside: the time, and a random number for jitter. The same stamp and
/// the same commands make the same decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub at: Time,
    pub random: u64,
}

/// Position of a message in its partition, from 1. Orders messages by age.
pub type Seq = u64;

/// Identifies and orders leases: it grows with every lease of a partition, and no two partitions of
/// a broker issue the same one. The upper part is the owner's epoch, so a new owner's fences are
/// above all earlier ones, including those it never saw. The lower part counts up in steps of the
/// number of partitions from the partition's own number: `epoch << 40 | (n * partitions +
/// partition)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

impl Fence {
    pub(crate) const COUNTER_BITS: u32 = 40;
    /// Epochs are below this, so that a fence fits a signed 64-bit column.
    pub const EPOCHS: u32 = 1 << 23;

    pub fn new(epoch: u32, counter: u64) -> Self {
        assert!(epoch < Self::EPOCHS, "an epoch is refused when its partition is opened");
        assert!(counter < 1 << Self::COUNTER_BITS, "an epoch is raised before its fences end");
        Self(u64::from(epoch) << Self::COUNTER_BITS | counter)
    }

    pub fn epoch(self) -> u32 {
        (self.0 >> Self::COUNTER_BITS) as u32
    }

    pub fn counter(self) -> u64 {
        self.0 & ((1 << Self::COUNTER_BITS) - 1)
    }

    pub(crate) fn plus(self, count: u64) -> Self {
        Self::new(self.epoch(), self.counter() + count)
    }

    /// The first counter of a partition that is above `counter`.
    pub(crate) fn counter_above(counter: u64, partition: u16, partitions: u16) -> u64 {
        let (partition, partitions) = (u64::from(partition), u64::from(partitions));
        debug_assert!(partition < partitions);
        let next = match (counter + 1).checked_sub(partition) {
            Some(rest) => rest.div_ceil(partitions) * partitions + partition,
            None => partition,
        };
        debug_assert!(next > counter && next % partitions == partition);
        next
    }
}

/// Identifies a message: (time, partition, sequence) in the form of a UUIDv7. It sorts by time, and
/// is a dated key when used as a key elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub [u8; 16]);

const _: () = assert!(crate::limits::PARTITIONS_MAX <= 1 << 12, "an id has 12 bits for it");

impl MessageId {
    pub fn new(at: Time, partition: u16, seq: Seq) -> Self {
        debug_assert!(partition < crate::limits::PARTITIONS_MAX);
        debug_assert!(seq < 1 << 62);
        let high = (at.0 << 16) | 0x7000 | u64::from(partition & 0x0fff);
        let low = (0b10 << 62) | (seq & ((1 << 62) - 1));
        Self((u128::from(high) << 64 | u128::from(low)).to_be_bytes())
    }

    /// The partition that issued it.
    pub fn partition(self) -> u16 {
        let [_, _, _, _, _, _, high, low, ..] = self.0;
        u16::from_be_bytes([high, low]) & 0x0fff
    }

    /// Reads the hyphenated form.
    pub fn parse(text: &str) -> Option<Self> {
        hapax_keys::parse_uuid(text).map(|value| Self(value.to_be_bytes()))
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Written for every delivery without a key; `format!` takes ten times as long.
        const PLACES: [usize; 16] = [0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34];
        let digit = |nibble: u8| nibble + if nibble < 10 { b'0' } else { b'a' - 10 };
        let mut text = [b'-'; 36];
        for (place, byte) in PLACES.into_iter().zip(self.0) {
            if let Some([high, low]) = text.get_mut(place..place + 2) {
                (*high, *low) = (digit(byte >> 4), digit(byte & 15));
            }
        }
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_uuid_of_version_7_that_reads_back() {
        let id = MessageId::new(Time(0x0190_1234_5678), 5, 77);
        assert_eq!(id.to_string(), "01901234-5678-7005-8000-00000000004d");
        assert_eq!(MessageId::parse(&id.to_string()), Some(id));
        assert_eq!(id.partition(), 5);
        assert_eq!(MessageId::parse("not a uuid"), None);
    }

    #[test]
    fn ids_sort_by_time_and_then_by_sequence() {
        let first = MessageId::new(Time(1_000), 9, 5);
        assert!(first < MessageId::new(Time(1_001), 0, 1));
        assert!(first < MessageId::new(Time(1_000), 9, 6));
    }

    #[test]
    fn a_later_owners_fence_is_above_every_fence_of_an_earlier_one() {
        assert!(Fence::new(2, 0) > Fence::new(1, (1 << 40) - 1));
        assert_eq!(Fence::new(3, 9).epoch(), 3);
        assert_eq!(Fence::new(3, 9).counter(), 9);
    }

    #[test]
    fn the_largest_fence_fits_a_signed_number() {
        let largest = Fence::new(Fence::EPOCHS - 1, (1 << 40) - 1);
        assert_eq!(i64::try_from(largest.0), Ok(i64::MAX));
    }

    #[test]
    fn a_partition_counts_its_fences_in_steps_of_all_partitions() {
        let above = |counter| Fence::counter_above(counter, 2, 5);
        assert_eq!([0, 1, 2, 6, 7, 11].map(above), [2, 2, 7, 7, 12, 12]);
        assert_eq!([0, 1, 2].map(|counter| Fence::counter_above(counter, 0, 1)), [1, 2, 3]);
    }
}
