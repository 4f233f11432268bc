//! The rate limits of tenants, so that a noisy one cannot use the whole broker. Checked by every
//! send; a frame of many messages checks once. Without limits nothing is looked up; otherwise a
//! shared lock is taken for the look-up, and the bucket itself is one number, changed without a
//! lock. Kept in memory only: a restart resets it.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use serde::{Deserialize, Serialize};

const NANOS_PER_S: u128 = 1_000_000_000;

/// The limits of one tenant. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Messages per second over all queues, on average, with bursts of one second's worth.
    pub sends_per_s: Option<u64>,
    pub max_queues: Option<u64>,
}

/// The limits of all tenants, and their use.
#[derive(Debug)]
pub struct Tenants {
    default: Limits,
    given: BTreeMap<Box<str>, Limits>,
    /// Whether any tenant has a rate at all.
    is_rated: bool,
    /// The zero of the buckets' time.
    since: Instant,
    /// The buckets of all tenants that have sent something.
    buckets: RwLock<HashMap<Box<str>, Option<Arc<Bucket>>>>,
}

impl Tenants {
    /// Tenants without limits of their own get the default ones.
    pub fn new(default: Limits, given: BTreeMap<Box<str>, Limits>, now: Instant) -> Self {
        let is_rated = given.values().chain([&default]).any(|limits| limits.sends_per_s.is_some());
        Self { default, given, is_rated, since: now, buckets: RwLock::default() }
    }

    pub fn unlimited(now: Instant) -> Self {
        Self::new(Limits::default(), BTreeMap::new(), now)
    }

    pub fn limits(&self, tenant: &str) -> Limits {
        self.given.get(tenant).copied().unwrap_or(self.default)
    }

    /// Takes `count` sends from the tenant's rate, all of them or none. The error is how many
    /// milliseconds to wait before trying again. A count larger than one second's worth is let
    /// through by a full bucket, and leaves a debt.
    pub fn take_sends(&self, tenant: &str, count: u64, now: Instant) -> Result<(), u64> {
        if !self.is_rated {
            return Ok(());
        }
        let at_ns = u64::try_from(now.saturating_duration_since(self.since).as_nanos());
        let at_ns = at_ns.unwrap_or(u64::MAX);
        let buckets = self.buckets.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(bucket) = buckets.get(tenant) {
            return bucket.as_ref().map_or(Ok(()), |bucket| bucket.take(count, at_ns));
        }
        drop(buckets);
        self.bucket(tenant).map_or(Ok(()), |bucket| bucket.take(count, at_ns))
    }

    /// Whether any tenant has a rate at all.
    pub fn is_rated(&self) -> bool {
        self.is_rated
    }

    /// Returns `count` sends to the tenant's rate.
    pub fn give_back(&self, tenant: &str, count: u64) {
        if count == 0 {
            return;
        }
        if let Some(bucket) = self.bucket(tenant) {
            bucket.give_back(count);
        }
    }

    /// Whether a tenant that has this many queues may create another. The error is its limit.
    pub fn may_create_queue(&self, tenant: &str, have: u64) -> Result<(), u64> {
        match self.limits(tenant).max_queues {
            Some(max) if have >= max => Err(max),
            _ => Ok(()),
        }
    }

    fn bucket(&self, tenant: &str) -> Option<Arc<Bucket>> {
        let mut buckets = self.buckets.write().unwrap_or_else(PoisonError::into_inner);
        let make = || self.limits(tenant).sends_per_s.map(|per_s| Arc::new(Bucket::new(per_s)));
        buckets.entry(tenant.into()).or_insert_with(make).clone()
    }
}

/// A bucket of one second's sends, as the time at which it will be full again.
#[derive(Debug)]
struct Bucket {
    per_s: u64,
    full_at_ns: AtomicU64,
}

impl Bucket {
    fn new(per_s: u64) -> Self {
        Self { per_s, full_at_ns: AtomicU64::new(0) }
    }

    fn take(&self, count: u64, at_ns: u64) -> Result<(), u64> {
        if self.per_s == 0 {
            // Nothing is accepted before the limit is changed; retry rarely.
            return Err(60_000);
        }
        // What is missing now, and the most that may be missing before `count` is taken.
        let may_miss_ns = self.cost_ns(self.per_s - count.min(self.per_s));
        let mut full_at_ns = self.full_at_ns.load(Ordering::Relaxed);
        loop {
            let missing_ns = full_at_ns.saturating_sub(at_ns);
            if missing_ns > may_miss_ns {
                return Err((missing_ns - may_miss_ns).div_ceil(1_000_000));
            }
            let after = full_at_ns.max(at_ns).saturating_add(self.cost_ns(count));
            // Relaxed: the number guards no other data.
            match self.full_at_ns.compare_exchange_weak(
                full_at_ns,
                after,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(()),
                Err(changed) => full_at_ns = changed,
            }
        }
    }

    fn give_back(&self, count: u64) {
        let cost_ns = self.cost_ns(count);
        // A time that has passed is a full bucket, however long ago. Relaxed as above.
        self.full_at_ns
            .update(Ordering::Relaxed, Ordering::Relaxed, |at| at.saturating_sub(cost_ns));
    }

    /// How long it takes to earn `count` sends.
    fn cost_ns(&self, count: u64) -> u64 {
        let cost = (u128::from(count) * NANOS_PER_S).div_ceil(u128::from(self.per_s));
        u64::try_from(cost).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn per_s(sends: u64) -> Limits {
        Limits { sends_per_s: Some(sends), ..Limits::default() }
    }

    #[test]
    fn what_is_given_back_can_be_taken_again_and_no_more() {
        let now = Instant::now();
        let tenants = Tenants::new(per_s(10), BTreeMap::new(), now);
        assert_eq!(tenants.take_sends("shop", 10, now), Ok(()));
        assert_eq!(tenants.take_sends("shop", 1, now), Err(100));
        tenants.give_back("shop", 3);
        assert_eq!(tenants.take_sends("shop", 3, now), Ok(()));
        assert_eq!(tenants.take_sends("shop", 1, now), Err(100));
        tenants.give_back("shop", 10);
        let later = now + Duration::from_secs(5);
        assert_eq!(tenants.take_sends("shop", 10, later), Ok(()));
        assert_eq!(tenants.take_sends("shop", 1, later), Err(100), "a bucket is not over full");
    }

    #[test]
    fn a_second_of_sends_may_come_at_once_and_then_the_rate_counts() {
        let start = Instant::now();
        let tenants = Tenants::new(per_s(100), BTreeMap::new(), start);
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(tenants.take_sends("shop", 60, at(0)), Ok(()));
        assert_eq!(tenants.take_sends("shop", 60, at(0)), Err(200), "all of them or none");
        assert_eq!(tenants.take_sends("shop", 40, at(0)), Ok(()));
        assert_eq!(tenants.take_sends("shop", 1, at(0)), Err(10));
        assert_eq!(tenants.take_sends("shop", 1, at(9)), Err(1));
        assert_eq!(tenants.take_sends("shop", 1, at(10)), Ok(()));
        assert_eq!(tenants.take_sends("bank", 100, at(10)), Ok(()), "another tenant's is its own");
        // However long it was still, no more than a second's worth is saved up.
        assert_eq!(tenants.take_sends("shop", 100, at(60_000)), Ok(()));
        assert_eq!(tenants.take_sends("shop", 1, at(60_000)), Err(10));
    }

    #[test]
    fn a_frame_larger_than_the_rate_gets_through_and_is_paid_for_later() {
        let start = Instant::now();
        let tenants = Tenants::new(per_s(100), BTreeMap::new(), start);
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(tenants.take_sends("shop", 1_000, at(0)), Ok(()));
        assert_eq!(tenants.take_sends("shop", 1, at(0)), Err(9_010));
        assert_eq!(tenants.take_sends("shop", 1, at(9_010)), Ok(()));
        assert_eq!(tenants.take_sends("shop", 1_000, at(9_010)), Err(1_000), "a full bucket");
    }

    #[test]
    fn the_time_to_wait_is_exact() {
        let start = Instant::now();
        for rate in [1, 3, 7, 999, 1_000_000, u64::MAX] {
            let tenants = Tenants::new(per_s(rate), BTreeMap::new(), start);
            let mut now = start;
            let mut taken = 0_u64;
            for count in [rate, 1, rate / 2 + 1, 5, rate.saturating_mul(3), 1] {
                if let Err(wait_ms) = tenants.take_sends("shop", count, now) {
                    let early = now + Duration::from_millis(wait_ms - 1);
                    assert!(tenants.take_sends("shop", count, early).is_err(), "{rate} {count}");
                    now += Duration::from_millis(wait_ms);
                    assert_eq!(tenants.take_sends("shop", count, now), Ok(()), "{rate} {count}");
                }
                taken = taken.saturating_add(count);
            }
            assert!(taken >= rate);
        }
    }

    #[test]
    fn threads_together_take_no_more_than_the_rate() {
        let start = Instant::now();
        let tenants = Tenants::new(per_s(1_000), BTreeMap::new(), start);
        let taken: u64 = std::thread::scope(|scope| {
            let take = || {
                let is_taken = |_: &u64| tenants.take_sends("shop", 1, start).is_ok();
                (0..1_000).filter(is_taken).count() as u64
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(taken, 1_000);
    }

    #[test]
    fn limits_are_the_tenants_own_or_the_default() {
        let start = Instant::now();
        let shop = Limits { sends_per_s: None, max_queues: Some(2) };
        let given = BTreeMap::from([("shop".into(), shop), ("idle".into(), per_s(0))]);
        let tenants = Tenants::new(per_s(1), given, start);
        assert_eq!(tenants.take_sends("shop", u64::MAX, start), Ok(()));
        assert_eq!(tenants.take_sends("shop", u64::MAX, start), Ok(()));
        assert_eq!(tenants.take_sends("bank", 1, start), Ok(()));
        assert_eq!(tenants.take_sends("bank", 1, start), Err(1_000));
        assert_eq!(tenants.take_sends("idle", 1, start), Err(60_000));
        assert_eq!(tenants.may_create_queue("shop", 1), Ok(()));
        assert_eq!(tenants.may_create_queue("shop", 2), Err(2));
        assert_eq!(tenants.may_create_queue("bank", u64::MAX), Ok(()));
        assert_eq!(Tenants::unlimited(start).take_sends("any", u64::MAX, start), Ok(()));
    }
}
