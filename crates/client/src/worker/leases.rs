//! The leases that a worker holds, and when each must be extended.
//!
//! A lease is identified by the number that the worker gave to its delivery, not by its fence: the
//! partitions of an older broker may give out the same fences. Times are those of the local
//! monotonic clock, and lengths those that the broker reported: the two wall clocks are never
//! compared.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::delivery::Lease;
use crate::retry::moment;

/// The length until the broker has reported it, which it does with the first delivery.
const LENGTH: Duration = Duration::from_secs(30);
/// A lease is extended after this part of it, which leaves time for a second try.
const EXTEND_AT: f64 = 0.4;

/// The number of a delivery in this worker: deliveries are counted from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Number(u64);

#[derive(Debug)]
pub(super) struct Leases {
    length: Duration,
    next: u64,
    held: HashMap<Number, Hold>,
    /// The times at which a lease must be extended or is lost.
    due: BTreeSet<(Instant, Number)>,
}

#[derive(Debug)]
struct Hold {
    lease: Lease,
    fence: u64,
    /// Held until then, if the last extension was lost.
    until: Instant,
    /// Requested by a handler: no automatic extension may end before.
    wanted: Instant,
    due: Instant,
    /// An extension was sent and not answered.
    is_asked: bool,
    lost: watch::Sender<bool>,
}

/// What to do about a lease now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    Extend {
        number: Number,
        length: Duration,
    },
    /// Its time has passed without an answer of the broker.
    Lost(Number),
}

impl Leases {
    pub(super) fn new() -> Self {
        Self { length: LENGTH, next: 0, held: HashMap::new(), due: BTreeSet::new() }
    }

    pub(super) fn set_length(&mut self, length: Duration) {
        self.length = length;
    }

    pub(super) fn length(&self) -> Duration {
        self.length
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// Adds a lease and returns its number.
    pub(super) fn take(&mut self, fence: u64, lease: Lease, now: Instant) -> Number {
        let number = Number(self.next);
        self.next += 1;
        let (until, due) = (now + self.length, now + self.length.mul_f64(EXTEND_AT));
        let lost = watch::Sender::new(false);
        let hold = Hold { lease, fence, until, wanted: until, due, is_asked: false, lost };
        self.due.insert((due, number));
        self.held.insert(number, hold);
        number
    }

    /// Removes a lease that is settled or lost.
    pub(super) fn drop(&mut self, number: Number) {
        if let Some(hold) = self.held.remove(&number) {
            self.due.remove(&(hold.due, number));
        }
    }

    pub(super) fn lease(&self, number: Number) -> Option<Lease> {
        self.held.get(&number).map(|hold| hold.lease.clone())
    }

    pub(super) fn watch(&self, number: Number) -> Option<watch::Receiver<bool>> {
        self.held.get(&number).map(|hold| hold.lost.subscribe())
    }

    /// Marks a lease as lost: its handler is notified, and it is no longer extended. Returns
    /// whether it was not lost before.
    pub(super) fn lose(&mut self, number: Number) -> bool {
        let Some(hold) = self.held.get_mut(&number) else { return false };
        self.due.remove(&(hold.due, number));
        !hold.lost.send_replace(true)
    }

    /// Whether another worker may have the message by now.
    pub(super) fn is_lost(&self, number: Number, now: Instant) -> bool {
        self.held.get(&number).is_none_or(|hold| hold.until <= now || *hold.lost.borrow())
    }

    /// Schedules an extension of the leases that may be lost, by the fences that the broker
    /// reported. Only the answer to an extension is certain.
    pub(super) fn doubt(&mut self, fences: &[u64], now: Instant) {
        let fences: HashSet<u64> = fences.iter().copied().collect();
        for (number, hold) in &mut self.held {
            if fences.contains(&hold.fence) && !*hold.lost.borrow() {
                self.due.remove(&(hold.due, *number));
                hold.due = now;
                hold.is_asked = false;
                self.due.insert((now, *number));
            }
        }
    }

    /// The broker extended it. Counted from before the call, so that the local deadline is not
    /// later than the broker's.
    pub(super) fn extended(&mut self, number: Number, until: Instant) {
        if let Some(hold) = self.held.get_mut(&number) {
            hold.is_asked = false;
            hold.until = hold.until.max(until);
        }
    }

    /// The broker could not extend it now; it is tried again if there is time.
    pub(super) fn not_extended(&mut self, number: Number) {
        if let Some(hold) = self.held.get_mut(&number) {
            hold.is_asked = false;
        }
    }

    /// A handler asks for a longer lease: no automatic extension may shorten it. Returns the length
    /// to ask for, which is not below the present one.
    pub(super) fn want(&mut self, number: Number, length: Duration, now: Instant) -> Duration {
        let Some(hold) = self.held.get_mut(&number) else { return length };
        hold.wanted = hold.wanted.max(hold.until).max(moment(now, length));
        hold.wanted.saturating_duration_since(now)
    }

    /// A handler's extension was answered: the lease is held until then, or unchanged.
    pub(super) fn granted(&mut self, number: Number, until: Option<Instant>) {
        if let Some(hold) = self.held.get_mut(&number) {
            match until {
                Some(until) => hold.until = hold.until.max(until),
                None => hold.wanted = hold.until,
            }
        }
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// The leases to extend or to give up now.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Due> {
        let mut list = Vec::new();
        while let Some((due, number)) = self.due.first().copied()
            && due <= now
        {
            self.due.pop_first();
            let Some(hold) = self.held.get_mut(&number) else { continue };
            if hold.until <= now {
                list.push(Due::Lost(number));
                continue;
            }
            if !hold.is_asked {
                hold.is_asked = true;
                let length = self.length.max(hold.wanted.saturating_duration_since(now));
                list.push(Due::Extend { number, length });
            }
            // Checked again for the next extension, and when it would end.
            hold.due = (now + self.length.mul_f64(EXTEND_AT)).min(hold.until.max(now));
            if hold.due <= now {
                hold.due = hold.until;
            }
            self.due.insert((hold.due, number));
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    const SECOND: Duration = Duration::from_secs(1);

    fn leases() -> (Leases, Number, Instant) {
        let mut leases = Leases::new();
        leases.set_length(10 * SECOND);
        let now = Instant::now();
        let number = leases.take(7, Lease(Bytes::from_static(b"seven")), now);
        (leases, number, now)
    }

    fn extension(due: &[Due]) -> Option<(Number, Duration)> {
        match due {
            [Due::Extend { number, length }] => Some((*number, *length)),
            _ => None,
        }
    }

    #[test]
    fn a_lease_is_extended_in_time_and_again() {
        let (mut leases, number, now) = leases();
        let extended = Some((number, 10 * SECOND));
        assert_eq!(leases.next_due(), Some(now + 4 * SECOND));
        assert_eq!(leases.due(now + 3 * SECOND), []);
        assert_eq!(extension(&leases.due(now + 4 * SECOND)), extended);
        leases.extended(number, now + 14 * SECOND);
        assert_eq!(leases.due(now + 7 * SECOND), []);
        assert_eq!(extension(&leases.due(now + 8 * SECOND)), extended);
        leases.drop(number);
        assert_eq!((leases.len(), leases.next_due()), (0, None));
    }

    #[test]
    fn a_lease_that_nobody_extends_is_lost_when_its_time_is_over() {
        let (mut leases, number, now) = leases();
        let lost = leases.watch(number).unwrap();
        assert_eq!(leases.due(now + 5 * SECOND).len(), 1);
        assert_eq!(leases.due(now + 9 * SECOND), [], "asked, and not answered");
        assert_eq!(leases.next_due(), Some(now + 10 * SECOND));
        assert_eq!(leases.due(now + 10 * SECOND), [Due::Lost(number)]);
        assert!(leases.lose(number) && !leases.lose(number), "it is news once");
        assert!(*lost.borrow() && leases.is_lost(number, now));
        assert_eq!(leases.next_due(), None, "and not extended any more");
    }

    #[test]
    fn a_refused_extension_is_tried_again_while_there_is_time() {
        let (mut leases, number, now) = leases();
        assert_eq!(leases.due(now + 4 * SECOND).len(), 1);
        leases.not_extended(number);
        assert!(extension(&leases.due(now + 8 * SECOND)).is_some());
    }

    #[test]
    fn leases_with_equal_fences_are_two() {
        let (mut leases, first, now) = leases();
        let second = leases.take(7, Lease(Bytes::from_static(b"other")), now);
        assert_eq!(leases.lease(first), Some(Lease(Bytes::from_static(b"seven"))));
        leases.drop(second);
        assert_eq!((leases.len(), leases.lease(second)), (1, None));
        assert_eq!(extension(&leases.due(now + 4 * SECOND)), Some((first, 10 * SECOND)));
    }

    #[test]
    fn a_fence_that_was_lost_is_asked_about_and_not_believed() {
        let (mut leases, first, now) = leases();
        let second = leases.take(8, Lease(Bytes::from_static(b"eight")), now);
        leases.doubt(&[7, 99], now + SECOND);
        assert!(!leases.is_lost(first, now) && !leases.is_lost(second, now));
        assert_eq!(extension(&leases.due(now + SECOND)), Some((first, 10 * SECOND)));
        leases.lose(first);
        leases.doubt(&[7], now + SECOND);
        assert_eq!(leases.due(now + SECOND), [], "that is known");
    }

    #[test]
    fn an_extension_never_asks_for_less_than_the_handler_did() {
        let (mut leases, number, now) = leases();
        assert_eq!(leases.want(number, 60 * SECOND, now), 60 * SECOND);
        let due = leases.due(now + 4 * SECOND);
        assert_eq!(extension(&due), Some((number, 56 * SECOND)), "not answered yet");
        leases.granted(number, Some(now + 60 * SECOND));
        assert_eq!(leases.due(now + 8 * SECOND), [], "asked, and not answered");
        leases.extended(number, now + 60 * SECOND);
        let due = leases.due(now + 12 * SECOND);
        assert_eq!(extension(&due), Some((number, 48 * SECOND)));
        leases.extended(number, now + 60 * SECOND);
        let due = leases.due(now + 55 * SECOND);
        assert_eq!(extension(&due), Some((number, 10 * SECOND)), "and then as ever");
    }

    #[test]
    fn what_a_handler_asked_for_in_vain_is_not_asked_for_again() {
        let (mut leases, number, now) = leases();
        assert_eq!(leases.want(number, 60 * SECOND, now), 60 * SECOND);
        leases.granted(number, None);
        assert_eq!(leases.want(number, SECOND, now), 10 * SECOND, "never less than there is");
        assert_eq!(extension(&leases.due(now + 4 * SECOND)), Some((number, 10 * SECOND)));
    }
}
