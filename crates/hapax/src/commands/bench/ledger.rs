//! What became of every message: the proof that each was sent, delivered and settled once.
//!
//! A body carries its number. For each number three bits are kept, for its confirmed send, its
//! delivery and its confirmed settle, and a mixture of the ids that its producer and its worker
//! were told: equal ones leave nothing behind.

use std::sync::atomic::{AtomicU64, Ordering};

use hapax_client::Id;

pub(super) const NUMBER_BYTES: usize = 8;

#[derive(Debug)]
pub(super) struct Ledger {
    count: u64,
    body: Vec<u8>,
    sent: Bits,
    delivered: Bits,
    settled: Bits,
    ids: Vec<AtomicU64>,
    done: AtomicU64,
    pub(super) faults: Faults,
}

/// What must not happen, and what may but is told.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// Sends that were not answered as accepted.
    pub(super) refused: AtomicU64,
    /// Bodies that are not what was sent.
    pub(super) changed: AtomicU64,
    /// Settles confirmed more than once.
    pub(super) doubled: AtomicU64,
    /// Deliveries after the first, which happen when a lease is lost.
    pub(super) redelivered: AtomicU64,
    pub(super) leases_lost: AtomicU64,
}

#[derive(Debug)]
struct Bits(Vec<AtomicU64>);

impl Bits {
    fn new(count: u64) -> Self {
        Self((0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    /// Whether it was not set before.
    fn set(&self, number: u64) -> bool {
        let bit = 1 << (number % 64);
        let word = self.0.get((number / 64) as usize);
        word.is_some_and(|word| word.fetch_or(bit, Ordering::Relaxed) & bit == 0)
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }
}

impl Ledger {
    pub(super) fn new(count: u64, size: usize) -> Self {
        let body = (0..size.saturating_sub(NUMBER_BYTES)).map(|place| (place % 251) as u8);
        Self {
            count,
            body: body.collect(),
            sent: Bits::new(count),
            delivered: Bits::new(count),
            settled: Bits::new(count),
            ids: (0..count).map(|_| AtomicU64::new(0)).collect(),
            done: AtomicU64::new(0),
            faults: Faults::default(),
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// The body of a number.
    pub(super) fn body(&self, number: u64) -> Vec<u8> {
        let mut body = Vec::with_capacity(NUMBER_BYTES + self.body.len());
        body.extend_from_slice(&number.to_le_bytes());
        body.extend_from_slice(&self.body);
        body
    }

    /// The number of a body that is as it was sent.
    pub(super) fn read(&self, body: &[u8]) -> Option<u64> {
        let (number, rest) = body.split_first_chunk::<NUMBER_BYTES>()?;
        let number = u64::from_le_bytes(*number);
        let is_ours = number < self.count && rest == self.body;
        if !is_ours {
            self.faults.changed.fetch_add(1, Ordering::Relaxed);
        }
        is_ours.then_some(number)
    }

    pub(super) fn sent(&self, number: u64, id: Id) {
        if self.sent.set(number) {
            self.mix(number, id);
        }
    }

    pub(super) fn delivered(&self, number: u64, id: Id) {
        match self.delivered.set(number) {
            true => self.mix(number, id),
            false => drop(self.faults.redelivered.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Notes a confirmed settle.
    pub(super) fn settled(&self, number: u64) {
        let counter = match self.settled.set(number) {
            true => &self.done,
            false => &self.faults.doubled,
        };
        counter.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }

    fn mix(&self, number: u64, id: Id) {
        let (first, second) = id.0.split_at(8);
        let half = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        if let Some(mixture) = self.ids.get(number as usize) {
            let id = half(first).rotate_left(1) ^ half(second);
            mixture.fetch_xor(id, Ordering::Relaxed);
        }
    }

    /// Everything that is wrong; nothing where every message lived once.
    pub(super) fn verify(&self) -> Vec<String> {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let other = self.ids.iter().filter(|mixture| load(mixture) != 0).count() as u64;
        let rules = [
            (self.count - self.sent.count(), "sends without a confirmation"),
            (self.count - self.settled.count(), "messages that were not done"),
            (other, "messages delivered under another id than they were sent"),
            (load(&self.faults.refused), "sends refused or taken for duplicates"),
            (load(&self.faults.changed), "bodies that are not what was sent"),
            (load(&self.faults.doubled), "messages that were done twice"),
        ];
        let wrong = rules.into_iter().filter(|(count, _)| *count > 0);
        wrong.map(|(count, what)| format!("{count} {what}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lived(count: u64) -> Ledger {
        let ledger = Ledger::new(count, 20);
        for number in 0..count {
            assert_eq!(ledger.read(&ledger.body(number)), Some(number));
            ledger.sent(number, Id([number as u8; 16]));
            ledger.delivered(number, Id([number as u8; 16]));
            ledger.settled(number);
        }
        ledger
    }

    #[test]
    fn lives_lived_once_leave_nothing_to_say() {
        assert_eq!(lived(100).verify(), Vec::<String>::new());
    }

    #[test]
    fn every_kind_of_fault_is_noticed() {
        let missing = Ledger::new(3, 8);
        missing.sent(0, Id([1; 16]));
        let wrong = missing.verify().join("; ");
        assert!(wrong.contains("2 sends without"), "{wrong}");
        assert!(wrong.contains("3 messages that were not done"), "{wrong}");
        let doubled = lived(2);
        doubled.settled(1);
        assert_eq!(doubled.verify(), ["1 messages that were done twice"]);
        let other = Ledger::new(1, 8);
        other.sent(0, Id([1; 16]));
        other.delivered(0, Id([2; 16]));
        other.settled(0);
        assert_eq!(other.verify(), ["1 messages delivered under another id than they were sent"]);
        let changed = lived(1);
        let mut body = changed.body(0);
        *body.last_mut().unwrap() ^= 1;
        assert_eq!(changed.read(&body), None);
        assert_eq!(changed.verify(), ["1 bodies that are not what was sent"]);
    }
}
