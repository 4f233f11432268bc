//! Compares what tenants hold with their limits. Measured once a second, not at every send: a
//! tenant may exceed its limit by what it sends in a second, which `sends_per_s` bounds.

use std::collections::BTreeMap;
use std::time::Duration;

use arc_swap::ArcSwap;
use hapax_core::{QueueName, QueueView, Quota};

use super::Service;

/// The most that one tenant may hold. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ceiling {
    pub max_messages: Option<u64>,
    pub max_bytes: Option<u64>,
}

/// How often tenants are measured, and the retry delay of those that are full.
pub(crate) const EVERY_MS: u64 = 1_000;
/// How long partitions have to report what their queues hold.
const SURVEY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Weights {
    ceilings: BTreeMap<Box<str>, Ceiling>,
    /// Tenants that have reached a limit, and which one.
    full: ArcSwap<BTreeMap<Box<str>, Quota>>,
}

impl Weights {
    pub(super) fn new(ceilings: BTreeMap<Box<str>, Ceiling>) -> Self {
        let bounded = |ceiling: &Ceiling| *ceiling != Ceiling::default();
        let ceilings = ceilings.into_iter().filter(|(_, ceiling)| bounded(ceiling)).collect();
        Self { ceilings, full: ArcSwap::default() }
    }

    /// The limit that the tenant has reached, if any.
    pub(super) fn used_up(&self, tenant: &str) -> Option<Quota> {
        if self.ceilings.is_empty() {
            return None;
        }
        self.full.load().get(tenant).copied()
    }

    fn weigh(&self, queues: &[(QueueName, QueueView)]) {
        let full = self.ceilings.iter().filter_map(|(tenant, ceiling)| {
            let own = || queues.iter().filter(|(name, _)| *name.tenant == **tenant);
            let messages: u64 = own().map(|(_, view)| view.stats.messages()).sum();
            let bytes: u64 = own().map(|(_, view)| view.stats.bytes).sum();
            let is_many = ceiling.max_messages.is_some_and(|max| messages >= max);
            let is_large = ceiling.max_bytes.is_some_and(|max| bytes >= max);
            let quota = match (is_many, is_large) {
                (true, _) => Quota::TenantMessages,
                (_, true) => Quota::TenantBytes,
                (false, false) => return None,
            };
            Some((tenant.clone(), quota))
        });
        self.full.store(full.collect::<BTreeMap<_, _>>().into());
    }
}

impl Service {
    /// Measures what tenants hold, if any has a limit.
    pub async fn weigh_tenants(&self) {
        let weights = &self.0.weights;
        if weights.ceilings.is_empty() {
            return;
        }
        // A slow partition counts with its last report: the others are still measured.
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
        assert_eq!(weights.used_up("shop"), Some(Quota::TenantMessages));
        assert_eq!(weights.used_up("bank"), None);
        weights.weigh(&[queue("shop", 9), queue("bank", 1_000)]);
        assert_eq!(weights.used_up("shop"), None);
    }
}
