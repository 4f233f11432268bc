//! Which faults happen to which orders: drawn from the seed, so that a run can be repeated; every
//! kind happens once in a number of orders.

/// A fault that may happen to an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    /// The customer sends it twice at once.
    SentTwice,
    /// The reply to the customer is lost, and the customer sends the order again.
    ReplyLost,
    /// The gateway charges, and its reply is lost.
    GatewaySilent,
    /// The gateway charges, and the worker is killed before it gets the reply.
    KilledAfterCharge,
    /// The worker is killed after its commit, before it has acknowledged the message.
    KilledAfterCommit,
    /// The gateway is slow.
    Slow,
}

impl Fault {
    /// One order in this many.
    pub(crate) fn every(self) -> u32 {
        match self {
            Self::SentTwice | Self::Slow => 4,
            Self::ReplyLost => 5,
            Self::GatewaySilent => 7,
            Self::KilledAfterCharge => 19,
            Self::KilledAfterCommit => 17,
        }
    }
}

/// The faults of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    seed: u64,
    are_off: bool,
}

impl Faults {
    pub(crate) fn new(seed: u64, chaos: bool) -> Self {
        Self { seed, are_off: !chaos }
    }

    pub(crate) fn are_off(self) -> bool {
        self.are_off
    }

    /// Whether it happens to an order.
    pub(crate) fn has(self, fault: Fault, order: u32) -> bool {
        let every = fault.every();
        let offset = fastrand::Rng::with_seed(self.seed ^ (fault as u64) << 56).u32(..every);
        !self.are_off && order % every == offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_fault_happens_once_in_so_many_orders() {
        for seed in 0..50 {
            for fault in [Fault::SentTwice, Fault::ReplyLost, Fault::KilledAfterCommit] {
                let met = (0..fault.every()).filter(|&n| Faults::new(seed, true).has(fault, n));
                assert_eq!(met.count(), 1, "{fault:?}, seed {seed}");
                assert!(!(0..100).any(|n| Faults::new(seed, false).has(fault, n)));
            }
        }
    }
}
