//! Which orders meet with which mischief: drawn from the seed alone, so that a run can be repeated,
//! and every kind comes up once in so many orders.

/// What may happen to an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mischief {
    /// The customer sends it twice at once.
    SentTwice,
    /// The reply to the customer is lost, who sends it again.
    ReplyLost,
    /// The gateway charges, and its reply is lost.
    GatewaySilent,
    /// The gateway charges, and the worker that asked is killed before it hears.
    KilledAfterCharge,
    /// The worker is killed after its commit, before it has acknowledged the message.
    KilledAfterCommit,
    /// The gateway takes its time.
    Slow,
}

impl Mischief {
    /// One order in so many.
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

#[derive(Clone, Copy, Debug)]
pub(crate) struct Fate {
    seed: u64,
    is_kind: bool,
}

impl Fate {
    pub(crate) fn new(seed: u64, chaos: bool) -> Self {
        Self { seed, is_kind: !chaos }
    }

    pub(crate) fn is_kind(self) -> bool {
        self.is_kind
    }

    /// Whether an order meets with it.
    pub(crate) fn has(self, mischief: Mischief, order: u32) -> bool {
        let every = mischief.every();
        let offset = fastrand::Rng::with_seed(self.seed ^ (mischief as u64) << 56).u32(..every);
        !self.is_kind && order % every == offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_mischief_comes_up_once_in_so_many_orders() {
        for seed in 0..50 {
            for mischief in [Mischief::SentTwice, Mischief::ReplyLost, Mischief::KilledAfterCommit]
            {
                let met = (0..mischief.every()).filter(|&n| Fate::new(seed, true).has(mischief, n));
                assert_eq!(met.count(), 1, "{mischief:?}, seed {seed}");
                assert!(!(0..100).any(|n| Fate::new(seed, false).has(mischief, n)));
            }
        }
    }
}
