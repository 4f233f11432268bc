//! The messages of one run, and the ledger that every system must balance.
//!
//! A message is made from its number alone, so both ends can make it: the producer to send it,
//! the worker to compare every byte of what it got. The ledger notes each delivery and fails on
//! the second of one message, on a foreign key and on a changed body; the run counts only if in
//! the end every message was accepted once, delivered once and settled once.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use uuid::Uuid;

/// How many of the keys are sent again after a run, where keys are remembered.
pub(crate) const REPEATED: u64 = 1_000;

/// The smallest body: the number of its message.
pub(crate) const BODY_BYTES_MIN: usize = 8;

/// How often a producer that waits for workers looks how far they are.
pub(crate) const BACKLOG_PAUSE: Duration = Duration::from_millis(1);

/// Set when somebody asks the program to stop. Every loop looks at it.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

pub(crate) fn interrupt() {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

pub(crate) fn fail_if_interrupted() -> Result<()> {
    ensure!(!INTERRUPTED.load(Ordering::Relaxed), "stopped by a signal");
    Ok(())
}

/// What one run sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// How many messages.
    pub(crate) count: u64,
    /// How many bytes each body has.
    pub(crate) size: usize,
    /// Another seed makes other keys and other bodies.
    pub(crate) seed: u64,
    /// How many messages may be sent and not yet settled: at so many, producers wait.
    pub(crate) backlog: u64,
}

impl Load {
    /// A UUID of version 4, made of the number and the seed.
    pub(crate) fn key(&self, number: u64) -> Uuid {
        let first = mix(number ^ mix(self.seed));
        let second = mix(first ^ self.seed);
        let random = u128::from(first) << 64 | u128::from(second);
        uuid::Builder::from_random_bytes(random.to_le_bytes()).into_uuid()
    }

    /// Replaces what is in `body`: the number first, then bytes that do not compress.
    pub(crate) fn body(&self, number: u64, body: &mut Vec<u8>) {
        body.resize(self.size.next_multiple_of(BODY_BYTES_MIN), 0);
        let (words, _) = body.as_chunks_mut::<BODY_BYTES_MIN>();
        let mut state = number ^ self.seed;
        for (place, word) in words.iter_mut().enumerate() {
            *word = if place == 0 { number.to_le_bytes() } else { mix(state).to_le_bytes() };
            state = state.wrapping_add(GOLDEN);
        }
        body.truncate(self.size);
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of SplitMix64, which is a bijection.
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Who did what in one run, shared by its producers and workers.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) load: Load,
    begun: Instant,
    /// The next number to send.
    next: AtomicU64,
    accepted: AtomicU64,
    settled: AtomicU64,
    /// One bit per message.
    delivered: Vec<AtomicU64>,
    /// Why the first of the producers and workers failed; the others give up then.
    failure: OnceLock<anyhow::Error>,
    /// From the start to the confirmation of the last settle.
    took: OnceLock<Duration>,
}

impl Ledger {
    /// Starts the clock.
    pub(crate) fn open(load: Load) -> Self {
        let words = load.count.div_ceil(64);
        Self {
            load,
            begun: Instant::now(),
            next: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            delivered: (0..words).map(|_| AtomicU64::new(0)).collect(),
            failure: OnceLock::new(),
            took: OnceLock::new(),
        }
    }

    /// Whether the workers have come so far that `batch` more messages may follow.
    pub(crate) fn has_room(&self, batch: u64) -> bool {
        let sent = self.next.load(Ordering::Relaxed).saturating_add(batch);
        sent <= self.settled.load(Ordering::Relaxed).saturating_add(self.load.backlog)
    }

    /// The next numbers to send, `batch` at most; none when all have been taken.
    pub(crate) fn take(&self, batch: u64) -> Result<Option<Range<u64>>> {
        self.fail_if_over()?;
        let first = self.next.fetch_add(batch, Ordering::Relaxed);
        let last = first.saturating_add(batch).min(self.load.count);
        Ok((first < last).then_some(first..last))
    }

    /// The system has confirmed that it accepted so many messages.
    pub(crate) fn accepted(&self, messages: u64) {
        self.accepted.fetch_add(messages, Ordering::Relaxed);
    }

    /// A worker was given this message. `scratch` is a buffer to be used again.
    pub(crate) fn delivered(&self, key: Uuid, body: &[u8], scratch: &mut Vec<u8>) -> Result<()> {
        let number = body.first_chunk::<BODY_BYTES_MIN>().context("a body without its number")?;
        let number = u64::from_le_bytes(*number);
        ensure!(number < self.load.count, "message {number} was never sent");
        self.load.body(number, scratch);
        ensure!(body == scratch.as_slice(), "the body of message {number} was changed");
        ensure!(key == self.load.key(number), "the key of message {number} was changed");
        let bit = 1 << (number % 64);
        let word = usize::try_from(number / 64).ok().and_then(|word| self.delivered.get(word));
        let before = word.context("a ledger that is too short")?.fetch_or(bit, Ordering::Relaxed);
        ensure!(before & bit == 0, "message {number} was delivered twice");
        Ok(())
    }

    /// The system has confirmed that it settled so many messages.
    pub(crate) fn settled(&self, messages: u64) {
        let before = self.settled.fetch_add(messages, Ordering::Relaxed);
        if before + messages == self.load.count {
            self.took.get_or_init(|| self.begun.elapsed());
        }
    }

    /// Whether there is nothing left for a worker to do.
    pub(crate) fn is_complete(&self) -> Result<bool> {
        self.fail_if_over()?;
        Ok(self.settled.load(Ordering::Relaxed) >= self.load.count)
    }

    /// One of the producers and workers has ended. If it failed, the others will give up.
    pub(crate) fn ended(&self, outcome: Result<()>) {
        if let Err(error) = outcome {
            // Only the first tells the cause; the others follow from it.
            let _ = self.failure.set(error);
        }
    }

    /// The time that all lives took, if every account balances.
    pub(crate) fn close(self) -> Result<Duration> {
        if let Some(failure) = self.failure.into_inner() {
            return Err(failure);
        }
        let count = self.load.count;
        let accepted = self.accepted.into_inner();
        ensure!(accepted == count, "{accepted} of {count} messages were accepted");
        let delivered: u64 =
            self.delivered.into_iter().map(|word| u64::from(word.into_inner().count_ones())).sum();
        ensure!(delivered == count, "{delivered} of {count} messages were delivered");
        let settled = self.settled.into_inner();
        ensure!(settled == count, "{settled} of {count} messages were settled");
        self.took.into_inner().context("nobody settled the last message")
    }

    /// Fails where the run cannot come to its end any more.
    pub(crate) fn fail_if_over(&self) -> Result<()> {
        fail_if_interrupted()?;
        ensure!(self.failure.get().is_none(), "another connection of this run failed");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: Load = Load { count: 100, size: 100, seed: 7, backlog: 64 };

    fn deliver(ledger: &Ledger, number: u64) -> Result<()> {
        let mut body = Vec::new();
        LOAD.body(number, &mut body);
        ledger.delivered(LOAD.key(number), &body, &mut Vec::new())
    }

    /// Everything right, except for what `tamper` does.
    fn close_after(tamper: impl FnOnce(&Ledger)) -> Result<Duration> {
        let ledger = Ledger::open(LOAD);
        while let Some(numbers) = ledger.take(7).unwrap() {
            ledger.accepted(numbers.end - numbers.start);
            for number in numbers.filter(|number| *number != 42) {
                deliver(&ledger, number).unwrap();
                ledger.settled(1);
            }
        }
        tamper(&ledger);
        ledger.close()
    }

    #[test]
    fn producers_wait_while_too_much_is_unsettled() {
        let ledger = Ledger::open(LOAD);
        assert!(ledger.has_room(64) && !ledger.has_room(65));
        ledger.take(60).unwrap();
        assert!(ledger.has_room(4) && !ledger.has_room(5));
        ledger.settled(10);
        assert!(ledger.has_room(14) && !ledger.has_room(15));
    }

    #[test]
    fn a_ledger_that_balances_tells_the_time() {
        let took = close_after(|ledger| {
            deliver(ledger, 42).unwrap();
            ledger.settled(1);
        });
        took.unwrap();
    }

    #[test]
    fn a_message_that_was_not_delivered_is_noticed() {
        let error = close_after(|ledger| ledger.settled(1)).unwrap_err();
        assert_eq!(error.to_string(), "99 of 100 messages were delivered");
    }

    #[test]
    fn a_message_that_was_not_settled_is_noticed() {
        let error = close_after(|ledger| deliver(ledger, 42).unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "99 of 100 messages were settled");
    }

    #[test]
    fn a_second_delivery_is_noticed() {
        let error = close_after(|ledger| ledger.ended(deliver(ledger, 3))).unwrap_err();
        assert_eq!(error.to_string(), "message 3 was delivered twice");
    }

    #[test]
    fn a_changed_body_and_a_changed_key_are_noticed() {
        let ledger = Ledger::open(LOAD);
        let mut body = Vec::new();
        LOAD.body(5, &mut body);
        let key = LOAD.key(6);
        let error = ledger.delivered(key, &body, &mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "the key of message 5 was changed");
        *body.last_mut().unwrap() ^= 1;
        let error = ledger.delivered(LOAD.key(5), &body, &mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "the body of message 5 was changed");
    }

    #[test]
    fn bodies_have_the_size_that_was_asked_for() {
        let mut body = vec![1; 3_000];
        for size in [8, 9, 100, 1_024] {
            Load { size, ..LOAD }.body(1, &mut body);
            assert_eq!(body.len(), size);
        }
    }

    #[test]
    fn keys_and_bodies_differ_by_number_and_by_seed() {
        let other = Load { seed: 8, ..LOAD };
        let mut bodies = [Vec::new(), Vec::new(), Vec::new()];
        let [first, second, third] = &mut bodies;
        LOAD.body(1, first);
        LOAD.body(2, second);
        other.body(1, third);
        assert!(first != second && first != third);
        assert!(LOAD.key(1) != LOAD.key(2) && LOAD.key(1) != other.key(1));
    }

    #[test]
    fn the_first_failure_is_the_one_that_is_told() {
        let ledger = Ledger::open(LOAD);
        ledger.ended(Err(anyhow::anyhow!("the cause")));
        assert!(ledger.take(1).is_err() && ledger.is_complete().is_err());
        ledger.ended(Err(anyhow::anyhow!("what follows")));
        assert_eq!(ledger.close().unwrap_err().to_string(), "the cause");
    }
}
