//! The leases in a worker's hands, and when each is to be extended.
//!
//! Times are those of the monotonic clock here, and lengths those that the broker told: the two
//! wall clocks are never compared.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::delivery::Lease;

/// Until the broker has told, which it does before the first delivery.
const LENGTH: Duration = Duration::from_secs(30);
/// A lease is extended when this part of it is over: a second try then comes in time.
const EXTEND_AT: f64 = 0.4;

#[derive(Debug)]
pub(super) struct Leases {
    length: Duration,
    held: HashMap<u64, Hold>,
    /// When something is to be done about a lease, and its fence.
    due: BTreeSet<(Instant, u64)>,
}

#[derive(Debug)]
struct Hold {
    lease: Lease,
    /// Ours until then if the last extension was not heard.
    until: Instant,
    due: Instant,
    /// Asked to be extended, and not answered.
    asked: Option<Instant>,
    lost: watch::Sender<bool>,
}

/// What is to be done about a lease now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    Extend {
        fence: u64,
        lease: Lease,
        length: Duration,
    },
    /// Its time is over, and the broker did not answer.
    Lost(u64),
}

impl Leases {
    pub(super) fn new() -> Self {
        Self { length: LENGTH, held: HashMap::new(), due: BTreeSet::new() }
    }

    pub(super) fn set_length(&mut self, length: Duration) {
        self.length = length;
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// A lease came in.
    pub(super) fn take(&mut self, fence: u64, lease: Lease, now: Instant) {
        let (until, due) = (now + self.length, now + self.length.mul_f64(EXTEND_AT));
        let hold = Hold { lease, until, due, asked: None, lost: watch::Sender::new(false) };
        self.due.insert((due, fence));
        if let Some(before) = self.held.insert(fence, hold) {
            self.due.remove(&(before.due, fence));
        }
    }

    /// It is settled, or no longer ours.
    pub(super) fn drop(&mut self, fence: u64) {
        if let Some(hold) = self.held.remove(&fence) {
            self.due.remove(&(hold.due, fence));
        }
    }

    pub(super) fn lease(&self, fence: u64) -> Option<Lease> {
        self.held.get(&fence).map(|hold| hold.lease.clone())
    }

    pub(super) fn watch(&self, fence: u64) -> Option<watch::Receiver<bool>> {
        self.held.get(&fence).map(|hold| hold.lost.subscribe())
    }

    /// It is lost: whoever works under it is told, and it is not extended any more. Tells whether
    /// that was news.
    pub(super) fn lose(&mut self, fence: u64) -> bool {
        let Some(hold) = self.held.get_mut(&fence) else { return false };
        self.due.remove(&(hold.due, fence));
        !hold.lost.send_replace(true)
    }

    pub(super) fn is_lost(&self, fence: u64) -> bool {
        self.held.get(&fence).is_none_or(|hold| *hold.lost.borrow())
    }

    /// The broker extended it.
    pub(super) fn extended(&mut self, fence: u64) {
        let length = self.length;
        if let Some(hold) = self.held.get_mut(&fence)
            && let Some(asked) = hold.asked.take()
        {
            // Counted from before the call: the broker counts from later.
            hold.until = asked + length;
        }
    }

    /// The broker could not extend it now; there may be time for another try.
    pub(super) fn not_extended(&mut self, fence: u64) {
        if let Some(hold) = self.held.get_mut(&fence) {
            hold.asked = None;
        }
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// What is to be done by now.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Due> {
        let mut list = Vec::new();
        while let Some((due, fence)) = self.due.first().copied()
            && due <= now
        {
            self.due.pop_first();
            let Some(hold) = self.held.get_mut(&fence) else { continue };
            if hold.until <= now {
                list.push(Due::Lost(fence));
                continue;
            }
            if hold.asked.is_none() {
                hold.asked = Some(now);
                let lease = hold.lease.clone();
                list.push(Due::Extend { fence, lease, length: self.length });
            }
            // Looked at again in time, and when it would be over.
            hold.due = (now + self.length.mul_f64(EXTEND_AT)).min(hold.until.max(now));
            if hold.due <= now {
                hold.due = hold.until;
            }
            self.due.insert((hold.due, fence));
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    const SECOND: Duration = Duration::from_secs(1);

    fn leases() -> (Leases, Instant) {
        let mut leases = Leases::new();
        leases.set_length(10 * SECOND);
        let now = Instant::now();
        leases.take(7, Lease(Bytes::from_static(b"seven")), now);
        (leases, now)
    }

    #[test]
    fn a_lease_is_extended_in_time_and_again() {
        let (mut leases, now) = leases();
        assert_eq!(leases.next_due(), Some(now + 4 * SECOND));
        assert_eq!(leases.due(now + 3 * SECOND), []);
        assert!(matches!(leases.due(now + 4 * SECOND)[..], [Due::Extend { fence: 7, .. }]));
        leases.extended(7);
        assert_eq!(leases.due(now + 7 * SECOND), []);
        assert!(matches!(leases.due(now + 8 * SECOND)[..], [Due::Extend { fence: 7, .. }]));
        leases.drop(7);
        assert_eq!((leases.len(), leases.next_due()), (0, None));
    }

    #[test]
    fn a_lease_that_nobody_extends_is_lost_when_its_time_is_over() {
        let (mut leases, now) = leases();
        let lost = leases.watch(7).unwrap();
        assert_eq!(leases.due(now + 5 * SECOND).len(), 1);
        assert_eq!(leases.due(now + 9 * SECOND), [], "asked, and not answered");
        assert_eq!(leases.next_due(), Some(now + 10 * SECOND));
        assert_eq!(leases.due(now + 10 * SECOND), [Due::Lost(7)]);
        assert!(leases.lose(7) && !leases.lose(7), "it is news once");
        assert!(*lost.borrow() && leases.is_lost(7));
        assert_eq!(leases.next_due(), None, "and not extended any more");
    }

    #[test]
    fn a_refused_extension_is_tried_again_while_there_is_time() {
        let (mut leases, now) = leases();
        assert_eq!(leases.due(now + 4 * SECOND).len(), 1);
        leases.not_extended(7);
        assert!(matches!(leases.due(now + 8 * SECOND)[..], [Due::Extend { fence: 7, .. }]));
    }
}
