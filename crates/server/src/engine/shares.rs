//! Whose messages go into the next batch, when not all of them can.
//!
//! Every tenant has the same share, so that a flood of one costs the others the time of a batch and
//! not that of everything before them. Within a tenant the order stays. What is small (settles,
//! receives, questions) always goes.
//!
//! While a checkpoint is behind, those who took much since it was cut wait for it, and the others
//! go on from a reserve.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use hapax_core::Command;

use super::inbox::Ask;

/// Messages of one batch, about, with what each costs besides its bytes.
const BATCH_BYTES: usize = 1_024 * 1_024;
const MESSAGE_BYTES: usize = 128;
/// On its way to the disk at once.
const IN_FLIGHT_BYTES: usize = 4 * 1_024 * 1_024;
/// The same where several tenants share a partition: each waits for what is before it.
const SHARED_BATCH_BYTES: usize = 128 * 1_024;
const SHARED_IN_FLIGHT_BYTES: usize = 512 * 1_024;
/// How long a partition counts as shared after two tenants asked for something.
const SHARED_FOR: Duration = Duration::from_secs(10);

/// What tenants took of a partition.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// Bytes of messages since the last checkpoint was cut.
    taken: HashMap<u64, usize>,
    /// Who asked last.
    last: Option<u64>,
    shared_until: Option<Instant>,
}

#[derive(Default)]
struct Share {
    used: usize,
    /// One of its asks has to wait, and so have all behind it.
    is_full: bool,
}

impl Shares {
    /// A checkpoint was cut: everybody begins anew.
    pub(super) fn begin(&mut self) {
        self.taken.clear();
    }

    /// How many bytes may be on their way to the disk.
    pub(super) fn in_flight_bytes(&self, now: Instant) -> usize {
        if self.is_shared(now) { SHARED_IN_FLIGHT_BYTES } else { IN_FLIGHT_BYTES }
    }

    fn is_shared(&self, now: Instant) -> bool {
        self.shared_until.is_some_and(|until| now < until)
    }

    /// Moves what has to wait from `asks` to `later`. With a reserve, only tenants that took less
    /// than their part of it since the last checkpoint was cut send messages.
    pub(super) fn share_out(
        &mut self,
        now: Instant,
        reserve: Option<usize>,
        asks: &mut Vec<Ask>,
        later: &mut Vec<Ask>,
    ) {
        debug_assert!(later.is_empty(), "who waited is asked first");
        let weights: Vec<(usize, Option<u64>)> = asks.iter().map(weigh).collect();
        for tenant in weights.iter().filter_map(|(_, tenant)| *tenant) {
            if self.last.replace(tenant).is_some_and(|last| last != tenant) {
                self.shared_until = Some(now + SHARED_FOR);
            }
        }
        let batch = if self.is_shared(now) { SHARED_BATCH_BYTES } else { BATCH_BYTES };
        let mut shares: HashMap<u64, Share> = HashMap::new();
        for (_, tenant) in weights.iter().filter(|(weight, _)| *weight > 0) {
            shares.entry(tenant.unwrap_or_default()).or_default();
        }
        let is_all = weights.iter().map(|(weight, _)| weight).sum::<usize>() <= batch;
        let each = if is_all { batch } else { batch / shares.len().max(1) };
        let known = self.taken.len().max(shares.len());
        let reserved = reserve.map(|bytes| bytes / (known + 1));
        let mut goes = weights.into_iter().map(|(weight, tenant)| {
            let tenant = tenant.unwrap_or_default();
            let Some(share) = shares.get_mut(&tenant).filter(|_| weight > 0) else { return true };
            let taken = self.taken.entry(tenant).or_default();
            share.is_full |= share.used > 0 && share.used + weight > each;
            share.is_full |= reserved.is_some_and(|reserved| *taken + weight > reserved);
            if !share.is_full {
                share.used += weight;
                *taken += weight;
            }
            !share.is_full
        });
        later.extend(asks.extract_if(.., |_| !goes.next().unwrap_or(true)));
    }
}

/// How many bytes of messages it brings, and whose they are.
fn weigh(ask: &Ask) -> (usize, Option<u64>) {
    let (tenant, bytes) = match ask {
        Ask::Wait(waiter) => match waiter.receives_from() {
            Some(queue) => (&queue.tenant, 0),
            None => return (0, None),
        },
        Ask::Commands(list, _) => match list.first() {
            Some(Command::Send(first)) => {
                let sizes = list.iter().map(|command| match command {
                    Command::Send(send) => send.content.size() + MESSAGE_BYTES,
                    _ => 0,
                });
                (&first.queue.tenant, sizes.sum())
            }
            Some(Command::Receive(first)) => (&first.queue.tenant, 0),
            _ => return (0, None),
        },
        _ => return (0, None),
    };
    let mut hasher = DefaultHasher::new();
    tenant.hash(&mut hasher);
    (bytes, Some(hasher.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_core::{Content, QueueName, Send};

    fn share_out(asks: &mut Vec<Ask>, later: &mut Vec<Ask>) {
        Shares::default().share_out(Instant::now(), None, asks, later);
    }

    fn sends(tenant: &str, key: &str, bytes: usize) -> Ask {
        let queue = QueueName::new(tenant, "orders").unwrap();
        let content = Content::builder(key).build(&vec![b'x'; bytes]).unwrap();
        Ask::Commands(vec![Command::Send(Send::new(queue, content))], Box::new(drop))
    }

    fn keys(asks: &[Ask]) -> Vec<&str> {
        asks.iter()
            .filter_map(|ask| match ask {
                Ask::Commands(list, _) => list.first(),
                _ => None,
            })
            .filter_map(|command| match command {
                Command::Send(send) => Some(send.content.key()),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn a_small_load_goes_as_it_is() {
        let mut asks = vec![sends("a", "a1", 1_000), sends("b", "b1", 1_000), Ask::Drain];
        let mut later = Vec::new();
        share_out(&mut asks, &mut later);
        assert_eq!((asks.len(), later.len()), (3, 0));
    }

    #[test]
    fn a_flood_leaves_others_their_share_and_keeps_its_own_order() {
        let mut asks: Vec<Ask> =
            (0..9).map(|n| sends("noisy", &format!("n{n}"), 25 * 1_024)).collect();
        asks.push(sends("quiet", "q0", 100));
        asks.push(Ask::Drain);
        asks.push(sends("noisy", "small", 10));
        let mut later = Vec::new();
        share_out(&mut asks, &mut later);
        assert_eq!(keys(&asks), ["n0", "n1", "q0"]);
        assert_eq!(asks.len(), 4, "what brings no messages goes too");
        assert_eq!(keys(&later), ["n2", "n3", "n4", "n5", "n6", "n7", "n8", "small"]);
    }

    #[test]
    fn one_that_is_larger_than_a_batch_goes_alone() {
        let mut asks = vec![sends("a", "large", 4 << 20), sends("a", "next", 10)];
        let mut later = Vec::new();
        share_out(&mut asks, &mut later);
        assert_eq!((keys(&asks), keys(&later)), (vec!["large"], vec!["next"]));
    }

    #[test]
    fn a_partition_of_one_tenant_takes_large_batches_and_a_shared_one_small_ones() {
        let mut shares = Shares::default();
        let now = Instant::now();
        let flood = || -> Vec<Ask> {
            (0..20).map(|n| sends("noisy", &format!("n{n}"), 100 * 1_024)).collect()
        };
        let (mut asks, mut later) = (flood(), Vec::new());
        shares.share_out(now, None, &mut asks, &mut later);
        assert_eq!((asks.len(), later.len()), (10, 10));
        assert_eq!(shares.in_flight_bytes(now), IN_FLIGHT_BYTES);
        let (mut asks, mut later) = (vec![sends("quiet", "q", 10)], Vec::new());
        shares.share_out(now, None, &mut asks, &mut later);
        assert_eq!(shares.in_flight_bytes(now), SHARED_IN_FLIGHT_BYTES);
        let (mut asks, mut later) = (flood(), Vec::new());
        shares.share_out(now, None, &mut asks, &mut later);
        assert_eq!((asks.len(), later.len()), (1, 19));
        let later_on = now + 2 * SHARED_FOR;
        assert_eq!(shares.in_flight_bytes(later_on), IN_FLIGHT_BYTES);
        let (mut asks, mut later) = (flood(), Vec::new());
        shares.share_out(later_on, None, &mut asks, &mut later);
        assert_eq!((asks.len(), later.len()), (10, 10), "alone again");
    }

    #[test]
    fn while_a_checkpoint_is_behind_the_flood_waits_and_others_go_on() {
        let mut shares = Shares::default();
        let now = Instant::now();
        let (mut asks, mut later) = (vec![sends("noisy", "n0", 900 * 1_024)], Vec::new());
        shares.share_out(now, None, &mut asks, &mut later);
        assert_eq!(keys(&asks), ["n0"]);
        let reserve = Some(300 * 1_024);
        let mut asks = vec![sends("noisy", "n1", 10), Ask::Drain, sends("quiet", "q0", 50 * 1_024)];
        shares.share_out(now, reserve, &mut asks, &mut later);
        assert_eq!((keys(&asks), keys(&later)), (vec!["q0"], vec!["n1"]));
        assert_eq!(asks.len(), 2, "what brings no messages goes too");
        let (mut asks, mut later) = (vec![sends("quiet", "q1", 60 * 1_024)], Vec::new());
        shares.share_out(now, reserve, &mut asks, &mut later);
        assert_eq!(keys(&later), ["q1"], "a third of the reserve is its share");
        shares.begin();
        let mut asks = vec![sends("noisy", "n1", 10), sends("quiet", "q1", 60 * 1_024)];
        let mut later = Vec::new();
        shares.share_out(now, reserve, &mut asks, &mut later);
        assert_eq!(keys(&asks), ["n1", "q1"]);
    }
}
