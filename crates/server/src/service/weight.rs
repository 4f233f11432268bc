//! Compares what tenants hold with their limits. Measured once a second, not at every send: a
//! tenant may exceed its limit by what it sends in a second, which `sends_per_s` bounds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use arc_swap::ArcSwap;
use hapax_core::{QueueName, QueueView};
use hapax_wire::Code;

use super::Service;
use crate::problem::Problem;

/// How much one tenant may hold. `None` is no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ceiling {
    pub max_messages: Option<u64>,
    pub max_bytes: Option<u64>,
}

/// How long partitions have to report what their queues hold.
const SURVEY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Weights {
    ceilings: BTreeMap<Box<str>, Ceiling>,
    /// Tenants that hold as much as they may.
    full: ArcSwap<BTreeSet<Box<str>>>,
}

impl Weights {
    pub(super) fn new(ceilings: BTreeMap<Box<str>, Ceiling>) -> Self {
        let bounded = |ceiling: &Ceiling| *ceiling != Ceiling::default();
        let ceilings = ceilings.into_iter().filter(|(_, ceiling)| bounded(ceiling)).collect();
        Self { ceilings, full: ArcSwap::default() }
    }

    /// Whether the tenant may send more.
    pub(super) fn check(&self, tenant: &str) -> Result<(), Problem> {
        if self.ceilings.is_empty() || !self.full.load().contains(tenant) {
            return Ok(());
        }
        let detail = "the tenant has reached its max_messages or max_bytes; process some messages \
                      first";
        Err(Problem::new(Code::OverQuota, detail))
    }

    fn weigh(&self, queues: &[(QueueName, QueueView)]) {
        let full = self.ceilings.iter().filter(|(tenant, ceiling)| {
            let own = || queues.iter().filter(|(name, _)| name.tenant == **tenant);
            let messages: u64 = own().map(|(_, view)| view.stats.messages()).sum();
            let bytes: u64 = own().map(|(_, view)| view.stats.bytes).sum();
            ceiling.max_messages.is_some_and(|max| messages >= max)
                || ceiling.max_bytes.is_some_and(|max| bytes >= max)
        });
        self.full.store(full.map(|(tenant, _)| tenant.clone()).collect::<BTreeSet<_>>().into());
    }
}

impl Service {
    /// Weighs what tenants hold, where any is bounded.
    pub async fn weigh_tenants(&self) {
        let weights = &self.0.weights;
        if weights.ceilings.is_empty() {
            return;
        }
        // A slow partition counts with what it reported last: the others go on being weighed.
        weights.weigh(&self.engine().survey(SURVEY).await.queues);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_core::{Config, Stats, Time};

    #[test]
    fn a_full_tenant_sends_nothing_and_its_neighbour_goes_on() {
        let ceiling = Ceiling { max_messages: Some(10), max_bytes: None };
        let weights = Weights::new([("shop".into(), ceiling)].into());
        let queue = |tenant, ready| {
            let view = QueueView {
                number: 0,
                config: Config::default(),
                version: 1,
                created_at: Time(0),
                paused: false,
                stats: Stats { ready, ..Stats::default() },
                oldest_ready_at: None,
            };
            (QueueName::new(tenant, "orders").unwrap(), view)
        };
        weights.weigh(&[queue("shop", 10), queue("bank", 1_000)]);
        assert_eq!(weights.check("shop").unwrap_err().code, Code::OverQuota);
        assert_eq!(weights.check("bank"), Ok(()));
        weights.weigh(&[queue("shop", 9), queue("bank", 1_000)]);
        assert_eq!(weights.check("shop"), Ok(()));
    }
}
