//! The outcome of every message of a run: the proof that each was sent, delivered and settled once,
//! unchanged.
//!
//! Producers and workers share a ledger. It hands out the numbers of messages to send, and keeps
//! three bits for each: its send was confirmed, it was delivered, its settle was confirmed. A
//! message that is not as it was sent is an error at once; what is missing in the end is listed
//! by [`Ledger::faults`].

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, ensure};
use hapax_client::Id;
use uuid::Uuid;

use crate::interrupt;
use crate::messages::Messages;

/// Number of keys that are sent again after a run, if keys are remembered.
pub const REPEATED: u64 = 1_000;

/// Pause of a producer that waits for workers.
pub const BACKLOG_PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub struct Ledger {
    messages: Messages,
    /// Number of messages that may be sent and not yet settled: at this many, producers wait.
    backlog: u64,
    /// The next number to send.
    next: AtomicU64,
    sent: Bits,
    delivered: Bits,
    settled: Bits,
    /// Number of messages that are settled.
    done: AtomicU64,
    /// For each message the ids that its producer and its worker saw, combined so that equal ones
    /// leave 0. Empty if they are not compared.
    ids: Vec<AtomicU64>,
    /// Messages whose settle was confirmed twice.
    doubled: AtomicU64,
    redelivered: AtomicU64,
    leases_lost: AtomicU64,
    duplicates: AtomicU64,
    /// Error of the first producer or worker that failed.
    failure: OnceLock<Error>,
    start: Instant,
    /// Time until the confirmation of the last settle.
    took: OnceLock<Duration>,
}

impl Ledger {
    /// Starts the clock.
    pub fn open(messages: Messages, backlog: u64) -> Self {
        let count = messages.count();
        Self {
            messages,
            backlog,
            next: AtomicU64::new(0),
            sent: Bits::new(count),
            delivered: Bits::new(count),
            settled: Bits::new(count),
            done: AtomicU64::new(0),
            ids: Vec::new(),
            doubled: AtomicU64::new(0),
            redelivered: AtomicU64::new(0),
            leases_lost: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
            failure: OnceLock::new(),
            start: Instant::now(),
            took: OnceLock::new(),
        }
    }

    /// Starts the clock, and compares the ids of messages as well.
    pub fn open_with_ids(messages: Messages, backlog: u64) -> Self {
        let ids = (0..messages.count()).map(|_| AtomicU64::new(0)).collect();
        Self { ids, ..Self::open(messages, backlog) }
    }

    pub fn messages(&self) -> &Messages {
        &self.messages
    }

    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// The next numbers to send: at most `most` of them, and none while the backlog has room for
    /// fewer than `least`, unless they are the last.
    pub fn take(&self, least: u64, most: u64) -> Option<Range<u64>> {
        let mut first = self.next.load(Ordering::Relaxed);
        loop {
            let left = self.messages.count() - first;
            let room = self.done().saturating_add(self.backlog).saturating_sub(first);
            let taken = room.min(left).min(most);
            if taken == 0 || taken < least.min(left) {
                return None;
            }
            let end = first + taken;
            let swapped =
                self.next.compare_exchange(first, end, Ordering::Relaxed, Ordering::Relaxed);
            match swapped {
                Ok(_) => return Some(first..end),
                Err(now) => first = now,
            }
        }
    }

    /// Whether every number has been taken.
    pub fn is_taken(&self) -> bool {
        self.taken() == self.messages.count()
    }

    /// Number of messages that were taken to be sent.
    pub fn taken(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Whether producers wait: as many messages are sent and not settled as may be, or all are.
    pub fn is_full(&self) -> bool {
        self.is_taken() || self.taken() >= self.done().saturating_add(self.backlog)
    }

    /// Notes the confirmation of a send, and the id that it named.
    pub fn sent(&self, number: u64, id: Option<Id>) {
        if self.sent.set(number) {
            self.combine(number, id);
        }
    }

    /// Notes a send that was answered as a duplicate: it was repeated after a broken connection.
    pub fn duplicate(&self) {
        self.duplicates.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes a delivery and returns the number of its message.
    pub fn delivered(&self, key: Option<Uuid>, body: &[u8], id: Option<Id>) -> Result<u64> {
        let number = self.messages.verify(key, body)?;
        match self.delivered.set(number) {
            true => self.combine(number, id),
            false => drop(self.redelivered.fetch_add(1, Ordering::Relaxed)),
        }
        Ok(number)
    }

    /// Notes the confirmation of settles.
    pub fn settled(&self, numbers: impl IntoIterator<Item = u64>) {
        let (mut new, mut doubled) = (0, 0);
        for number in numbers {
            match self.settled.set(number) {
                true => new += 1,
                false => doubled += 1,
            }
        }
        self.doubled.fetch_add(doubled, Ordering::Relaxed);
        let before = self.done.fetch_add(new, Ordering::AcqRel);
        if before + new == self.messages.count() {
            self.took.get_or_init(|| self.elapsed());
        }
    }

    /// Notes a settle that was refused because its lease was lost.
    pub fn lease_lost(&self) {
        self.leases_lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of messages that are settled.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }

    /// Time until the confirmation of the last settle, once there was one.
    pub fn took(&self) -> Option<Duration> {
        self.took.get().copied()
    }

    pub fn is_complete(&self) -> bool {
        self.done() >= self.messages.count()
    }

    /// Number of deliveries after the first of a message, which follow a lost lease.
    pub fn redelivered(&self) -> u64 {
        self.redelivered.load(Ordering::Relaxed)
    }

    pub fn leases_lost(&self) -> u64 {
        self.leases_lost.load(Ordering::Relaxed)
    }

    /// Notes the end of a producer or worker. After a failure the others fail at their next
    /// [`check`](Ledger::check).
    pub fn ended(&self, outcome: Result<()>) {
        if let Err(error) = outcome {
            // The first is the cause; the others follow from it.
            let _ = self.failure.set(error);
        }
    }

    /// Fails if the run can no longer succeed.
    pub fn check(&self) -> Result<()> {
        interrupt::check()?;
        ensure!(self.failure.get().is_none(), "another connection of this run failed");
        Ok(())
    }

    /// All errors; empty if every message was sent, delivered and settled.
    pub fn faults(&self) -> Vec<String> {
        let count = self.messages.count();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let other_ids = self.ids.iter().filter(|combined| load(combined) != 0).count() as u64;
        let rules = [
            (count - self.sent.count(), "sends without a confirmation"),
            (count - self.delivered.count(), "messages that were not delivered"),
            (count - self.settled.count(), "messages that were not done"),
            (other_ids, "messages delivered under another id than they were sent"),
            (load(&self.doubled), "messages that were done twice"),
        ];
        list(&rules)
    }

    /// The time that all lives took, if nothing is wrong. Repeated sends and deliveries are errors
    /// here: nothing failed that would cause them.
    pub fn close(self) -> Result<Duration> {
        let repeated = list(&[
            (self.duplicates.load(Ordering::Relaxed), "new keys taken for duplicates"),
            (self.redelivered(), "messages delivered again"),
            (self.leases_lost(), "leases lost"),
        ]);
        let faults = [self.faults(), repeated].concat().join("; ");
        if let Some(failure) = self.failure.into_inner() {
            return Err(failure);
        }
        ensure!(faults.is_empty(), "{faults}");
        self.took.into_inner().context("the last settle was not confirmed")
    }

    fn combine(&self, number: u64, id: Option<Id>) {
        let combined = usize::try_from(number).ok().and_then(|place| self.ids.get(place));
        if let (Some(combined), Some(id)) = (combined, id) {
            let id = u128::from_be_bytes(id.0);
            let half = ((id >> 64) as u64).rotate_left(1) ^ id as u64;
            combined.fetch_xor(half, Ordering::Relaxed);
        }
    }
}

fn list(rules: &[(u64, &str)]) -> Vec<String> {
    let broken = rules.iter().filter(|(count, _)| *count > 0);
    broken.map(|(count, what)| format!("{count} {what}")).collect()
}

/// One bit per message.
#[derive(Debug)]
struct Bits(Vec<AtomicU64>);

impl Bits {
    fn new(count: u64) -> Self {
        Self((0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    /// Whether it was not set before.
    fn set(&self, number: u64) -> bool {
        let bit = 1 << (number % 64);
        let word = usize::try_from(number / 64).ok().and_then(|word| self.0.get(word));
        word.is_some_and(|word| word.fetch_or(bit, Ordering::Relaxed) & bit == 0)
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> Ledger {
        Ledger::open_with_ids(Messages::new(100, 100, 7), 64)
    }

    fn id(number: u64) -> Option<Id> {
        Some(Id(u128::from(number).to_be_bytes()))
    }

    fn deliver(ledger: &Ledger, number: u64) {
        let messages = ledger.messages();
        let (key, body) = (messages.key(number), messages.body(number));
        assert_eq!(ledger.delivered(Some(key), &body, id(number)).unwrap(), number);
    }

    /// Every message is sent, and every one but 42 delivered and settled.
    fn all_but_42() -> Ledger {
        let ledger = open();
        while let Some(numbers) = ledger.take(7, 7) {
            for number in numbers {
                ledger.sent(number, id(number));
                if number != 42 {
                    deliver(&ledger, number);
                    ledger.settled([number]);
                }
            }
        }
        ledger
    }

    fn all() -> Ledger {
        let ledger = all_but_42();
        deliver(&ledger, 42);
        ledger.settled([42]);
        ledger
    }

    #[track_caller]
    fn check(ledger: Ledger, expected: &str) {
        assert_eq!(ledger.close().unwrap_err().to_string(), expected);
    }

    #[test]
    fn a_ledger_that_balances_tells_the_time() {
        assert_eq!(all().faults(), Vec::<String>::new());
        all().close().unwrap();
    }

    #[test]
    fn producers_wait_while_too_much_is_unsettled() {
        let ledger = open();
        assert_eq!(ledger.take(65, 65), None);
        assert_eq!(ledger.take(60, 60), Some(0..60));
        assert_eq!(ledger.take(5, 5), None);
        assert!(!ledger.is_full() && ledger.taken() == 60);
        assert_eq!(ledger.take(1, 50), Some(60..64));
        assert_eq!(ledger.take(1, 50), None);
        assert!(ledger.is_full());
        ledger.settled(0..30);
        assert!(!ledger.is_full());
        assert_eq!(ledger.take(31, 31), None);
        assert_eq!(ledger.take(20, 25), Some(64..89));
        assert!(!ledger.is_taken());
    }

    #[test]
    fn the_last_messages_may_be_fewer_than_a_batch() {
        let ledger = open();
        assert_eq!(ledger.take(60, 60), Some(0..60));
        ledger.settled(0..60);
        assert_eq!(ledger.take(60, 60), Some(60..100));
        assert!(ledger.is_taken());
        assert_eq!(ledger.take(1, 1), None);
    }

    #[test]
    fn a_send_without_a_confirmation_is_noticed() {
        let ledger = Ledger::open(Messages::new(1, 8, 0), 1);
        deliver(&ledger, 0);
        ledger.settled([0]);
        check(ledger, "1 sends without a confirmation");
    }

    #[test]
    fn a_message_that_was_not_delivered_or_not_settled_is_noticed() {
        let undelivered = all_but_42();
        undelivered.settled([42]);
        let faults = undelivered.faults().join("; ");
        assert!(faults.starts_with("1 messages that were not delivered"), "{faults}");
        let unsettled = all_but_42();
        deliver(&unsettled, 42);
        check(unsettled, "1 messages that were not done");
    }

    #[test]
    fn a_message_under_another_id_is_noticed() {
        let ledger = all_but_42();
        let messages = ledger.messages();
        ledger.delivered(Some(messages.key(42)), &messages.body(42), id(43)).unwrap();
        ledger.settled([42]);
        check(ledger, "1 messages delivered under another id than they were sent");
    }

    #[test]
    fn a_second_settle_is_noticed() {
        let ledger = all();
        ledger.settled([3, 4]);
        check(ledger, "2 messages that were done twice");
    }

    #[test]
    fn a_second_delivery_is_counted_and_an_error_where_nothing_excuses_it() {
        let ledger = all();
        deliver(&ledger, 3);
        assert_eq!(ledger.faults(), Vec::<String>::new());
        assert_eq!(ledger.redelivered(), 1);
        check(ledger, "1 messages delivered again");
        let ledger = all();
        ledger.duplicate();
        ledger.lease_lost();
        check(ledger, "1 new keys taken for duplicates; 1 leases lost");
    }

    #[test]
    fn the_first_failure_is_the_one_that_is_reported() {
        let ledger = open();
        ledger.check().unwrap();
        ledger.ended(Err(anyhow::anyhow!("the cause")));
        assert!(ledger.check().is_err());
        ledger.ended(Err(anyhow::anyhow!("a consequence")));
        check(ledger, "the cause");
    }
}
