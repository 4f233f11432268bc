//! Chooses the messages of the next batch when not all of them fit. Every tenant has the same
//! share, so that a flood of one tenant delays the others by one batch and not by everything in the
//! queue. The order within a tenant is kept. Small commands (settles, receives, look-ups) always
//! go. While a checkpoint is behind, tenants that have sent much since it began wait for it, and
//! the others continue from a reserve. While another tenant sends little, a flood pauses after each
//! of its batches, and longer if the machine has no idle core: otherwise the other tenant would
//! wait for a core at every step. The delay with which the writer is woken shows whether there is
//! an idle core; if there is, the pause is short.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use hapax_core::Command;

use super::inbox::Ask;

/// About the bytes of messages of one batch, including overhead.
const BATCH_BYTES: usize = 1_024 * 1_024;
const MESSAGE_BYTES: usize = 128;
/// Bytes in flight to the disk at once.
const IN_FLIGHT_BYTES: usize = 4 * 1_024 * 1_024;
/// The same if several tenants share a partition: each waits for what is before it.
const SHARED_BATCH_BYTES: usize = 128 * 1_024;
const SHARED_IN_FLIGHT_BYTES: usize = 512 * 1_024;
/// A tenant of a shared partition that sends more than this at once is a flood.
const FLOOD_BYTES: usize = 16 * 1_024;
/// How long it counts as one.
const FLOODS_FOR: Duration = Duration::from_secs(1);
/// How long a flood waits after each batch while another tenant sends little.
const REST_MIN: Duration = Duration::from_micros(200);
const REST_MAX: Duration = Duration::from_millis(16);
/// A writer that is woken later than this had to wait for a core.
const LATE: Duration = Duration::from_micros(500);
/// How long a partition counts as shared after requests of two tenants.
const SHARED_FOR: Duration = Duration::from_secs(10);

/// A request with its size, computed once however long it waits.
pub(super) struct Weighed {
    pub(super) ask: Ask,
    /// Bytes of messages; 0 for small commands.
    bytes: usize,
    /// The tenant, if it is known.
    tenant: Option<u64>,
}

impl Weighed {
    pub(super) fn new(ask: Ask) -> Self {
        let (bytes, tenant) = weigh(&ask);
        Self { ask, bytes, tenant }
    }
}

/// What tenants used of a partition.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// Bytes of messages since the last checkpoint began.
    taken: HashMap<u64, usize>,
    /// The tenant that sent last.
    last: Option<u64>,
    shared_until: Option<Instant>,
    /// The tenants that sent more than a little at once.
    flooded: HashMap<u64, Flood>,
    /// The time until which a tenant counts as one that sends little.
    modest_until: Option<Instant>,
    /// The end of the pause of a flood.
    rest_ends: Option<Instant>,
    /// How long a flood rests after each batch.
    rest: Duration,
}

#[derive(Debug)]
struct Flood {
    last: Instant,
    rests_until: Instant,
}

#[derive(Default)]
struct Share {
    asked: usize,
    used: usize,
    /// One of its requests has to wait, and so do all behind it.
    is_full: bool,
}

impl Shares {
    /// A checkpoint began: counts start from zero.
    pub(super) fn begin(&mut self, now: Instant) {
        self.taken.clear();
        self.flooded.retain(|_, flood| now.saturating_duration_since(flood.last) < SHARED_FOR);
    }

    /// Bytes that may be in flight to the disk.
    pub(super) fn in_flight_bytes(&self, now: Instant) -> usize {
        if self.is_shared(now) { SHARED_IN_FLIGHT_BYTES } else { IN_FLIGHT_BYTES }
    }

    fn is_shared(&self, now: Instant) -> bool {
        self.shared_until.is_some_and(|until| now < until)
    }

    /// The rest of the current pause.
    pub(super) fn rests(&self, now: Instant) -> Duration {
        self.rest_ends.map_or(Duration::ZERO, |end| end.saturating_duration_since(now))
    }

    /// The writer was woken this late. If that happens often there is no idle core, and floods
    /// pause longer to leave one to the others.
    pub(super) fn woken(&mut self, late: Duration) {
        let rest = if late > LATE { self.rest * 2 } else { self.rest - self.rest / 128 };
        self.rest = rest.clamp(REST_MIN, REST_MAX);
    }

    /// Records the tenants of the requests, and the bytes of each.
    fn see(&mut self, now: Instant, asks: &[Weighed]) -> HashMap<u64, Share> {
        let mut shares: HashMap<u64, Share> = HashMap::new();
        for ask in asks.iter().filter(|ask| ask.bytes > 0) {
            let tenant = ask.tenant.unwrap_or_default();
            let share = shares.entry(tenant).or_default();
            share.asked += ask.bytes;
            if share.asked > FLOOD_BYTES {
                let flood = Flood { last: now, rests_until: now };
                self.flooded.entry(tenant).or_insert(flood).last = now;
            }
        }
        for tenant in asks.iter().filter_map(|ask| ask.tenant) {
            if self.last.replace(tenant).is_some_and(|last| last != tenant) {
                self.shared_until = Some(now + SHARED_FOR);
            }
            let flood = self.flooded.get(&tenant);
            if flood.is_none_or(|flood| now.saturating_duration_since(flood.last) >= FLOODS_FOR) {
                self.modest_until = Some(now + SHARED_FOR);
            }
        }
        shares
    }

    /// Moves requests that have to wait from `asks` to `later`. With a reserve, only tenants that
    /// used less than their part of it since the last checkpoint began may send messages.
    pub(super) fn share_out(
        &mut self,
        now: Instant,
        reserve: Option<usize>,
        asks: &mut Vec<Weighed>,
        later: &mut Vec<Weighed>,
    ) {
        debug_assert!(later.is_empty(), "who waited is asked first");
        let mut shares = self.see(now, asks);
        let is_shared = self.is_shared(now);
        let batch = if is_shared { SHARED_BATCH_BYTES } else { BATCH_BYTES };
        let is_paced = is_shared && self.modest_until.is_some_and(|until| now < until);
        let rest = self.rest.max(REST_MIN);
        self.rest_ends = None;
        let is_all = asks.iter().map(|ask| ask.bytes).sum::<usize>() <= batch;
        let each = if is_all { batch } else { batch / shares.len().max(1) };
        let known = self.taken.len().max(shares.len());
        let reserved = reserve.map(|bytes| bytes / (known + 1));
        later.extend(asks.extract_if(.., |ask| {
            let tenant = ask.tenant.unwrap_or_default();
            let share = shares.get_mut(&tenant).filter(|_| ask.bytes > 0);
            let Some(share) = share else { return false };
            let taken = self.taken.entry(tenant).or_default();
            let flood = self.flooded.get_mut(&tenant);
            let flood = flood.filter(|_| is_paced && share.asked > FLOOD_BYTES);
            if let Some(flood) = flood.as_deref().filter(|flood| now < flood.rests_until) {
                share.is_full |= share.used == 0; // Else this is its batch.
                let end = self.rest_ends.get_or_insert(flood.rests_until);
                *end = flood.rests_until.min(*end);
            }
            share.is_full |= share.used > 0 && share.used + ask.bytes > each;
            share.is_full |= reserved.is_some_and(|reserved| *taken + ask.bytes > reserved);
            if !share.is_full {
                share.used += ask.bytes;
                *taken += ask.bytes;
                if let Some(flood) = flood {
                    flood.rests_until = now + rest;
                }
            }
            share.is_full
        }));
    }
}

/// The bytes of its messages, and their tenant.
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
    use super::super::inbox::Reply;
    use super::*;
    use hapax_core::{Content, QueueName, Receive, SendMessage};
    use hapax_partition::wait::{Turn, Waiter};

    fn share_out(asks: &mut Vec<Weighed>, later: &mut Vec<Weighed>) {
        Shares::default().share_out(Instant::now(), None, asks, later);
    }

    fn sends(tenant: &str, key: &str, bytes: usize) -> Weighed {
        let queue = QueueName::new(tenant, "orders").unwrap();
        let content = Content::builder(key).build(&vec![b'x'; bytes]).unwrap();
        let commands =
            vec![Command::Send(SendMessage::new(&hapax_core::Recipe::First, queue, content))];
        Weighed::new(Ask::Commands(commands, Box::new(drop)))
    }

    fn small() -> Weighed {
        Weighed::new(Ask::Drain)
    }

    fn keys(asks: &[Weighed]) -> Vec<&str> {
        asks.iter()
            .filter_map(|ask| match &ask.ask {
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
        let mut asks = vec![sends("a", "a1", 1_000), sends("b", "b1", 1_000), small()];
        let mut later = Vec::new();
        share_out(&mut asks, &mut later);
        assert_eq!((asks.len(), later.len()), (3, 0));
    }

    #[test]
    fn a_flood_leaves_others_their_share_and_keeps_its_own_order() {
        let mut asks: Vec<Weighed> =
            (0..9).map(|n| sends("noisy", &format!("n{n}"), 25 * 1_024)).collect();
        asks.push(sends("quiet", "q0", 100));
        asks.push(small());
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
        let flood = || -> Vec<Weighed> {
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
        let mut asks = vec![sends("noisy", "n1", 10), small(), sends("quiet", "q0", 50 * 1_024)];
        shares.share_out(now, reserve, &mut asks, &mut later);
        assert_eq!((keys(&asks), keys(&later)), (vec!["q0"], vec!["n1"]));
        assert_eq!(asks.len(), 2, "what brings no messages goes too");
        let (mut asks, mut later) = (vec![sends("quiet", "q1", 60 * 1_024)], Vec::new());
        shares.share_out(now, reserve, &mut asks, &mut later);
        assert_eq!(keys(&later), ["q1"], "a third of the reserve is its share");
        shares.begin(now);
        let mut asks = vec![sends("noisy", "n1", 10), sends("quiet", "q1", 60 * 1_024)];
        let mut later = Vec::new();
        shares.share_out(now, reserve, &mut asks, &mut later);
        assert_eq!(keys(&asks), ["n1", "q1"]);
    }

    fn flood(tenant: &str) -> Vec<Weighed> {
        (0..4).map(|n| sends(tenant, &format!("{tenant}{n}"), 100 * 1_024)).collect()
    }

    /// Shares out these asks, and tells which of them went.
    fn went(shares: &mut Shares, now: Instant, mut asks: Vec<Weighed>) -> Vec<String> {
        shares.share_out(now, None, &mut asks, &mut Vec::new());
        keys(&asks).into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn while_somebody_asks_for_little_a_flood_rests_after_each_batch() {
        let mut shares = Shares::default();
        let now = Instant::now();
        assert_eq!(went(&mut shares, now, flood("noisy")).len(), 4, "nobody else is there");
        assert!(shares.rests(now).is_zero());
        assert_eq!(went(&mut shares, now, vec![sends("quiet", "q0", 10)]), ["q0"]);
        assert_eq!(went(&mut shares, now, flood("noisy")), ["noisy0"]);
        let rest = shares.rests(now);
        assert_eq!(rest, REST_MIN, "with a core to spare it is short");
        let mut asks = flood("noisy");
        asks.push(sends("quiet", "q1", 10));
        asks.push(small());
        asks.push(sends("other", "large", 50 * 1_024));
        assert_eq!(went(&mut shares, now, asks), ["q1", "large"], "the others go on");
        assert_eq!(went(&mut shares, now + rest, flood("noisy")), ["noisy0"]);
    }

    #[test]
    fn a_flood_rests_longer_where_no_core_is_to_spare() {
        let mut shares = Shares::default();
        let now = Instant::now();
        went(&mut shares, now, vec![sends("quiet", "q", 10)]);
        let mut rest = |late: &[Duration]| {
            late.iter().for_each(|late| shares.woken(*late));
            shares.flooded.clear();
            assert_eq!(went(&mut shares, now, flood("noisy")), ["noisy0"]);
            shares.rests(now)
        };
        let first = rest(&[LATE * 2; 4]);
        assert_eq!(first, REST_MIN * 8);
        assert_eq!(rest(&[Duration::from_secs(1); 20]), REST_MAX, "never for long");
        assert!(rest(&[Duration::ZERO; 200]) < REST_MAX / 2);
        assert_eq!(rest(&[Duration::ZERO; 2_000]), REST_MIN);
    }

    #[test]
    fn floods_do_not_rest_for_each_other() {
        let mut shares = Shares::default();
        let now = Instant::now();
        let both = || flood("a").into_iter().chain(flood("b")).collect();
        went(&mut shares, now, both());
        assert!(shares.rests(now).is_zero());
        // Also what brings little, of one that floods.
        went(&mut shares, now, vec![sends("a", "a", 10)]);
        assert_eq!(went(&mut shares, now, both()), ["a0", "b0"]);
        assert!(shares.rests(now).is_zero());
        // Who floods no more asks for little again, some time later.
        let then = now + 2 * SHARED_FOR;
        shares.begin(then);
        went(&mut shares, then, flood("b").into_iter().chain([sends("a", "a", 10)]).collect());
        assert_eq!(shares.rests(then), REST_MIN);
    }

    fn receive(tenant: &str) -> Receive {
        Receive {
            queue: QueueName::new(tenant, "orders").unwrap(),
            max: 1,
            lease_ms: None,
            worker: "worker".into(),
            receive_id: None,
            several_per_group: false,
        }
    }

    /// Shares of a partition where a flood has just begun its rest beside somebody else.
    fn at_rest(now: Instant) -> Shares {
        let mut shares = Shares::default();
        went(&mut shares, now, vec![sends("quiet", "q", 10)]);
        assert_eq!(went(&mut shares, now, flood("noisy")), ["noisy0"]);
        assert_eq!(shares.rests(now), REST_MIN);
        shares
    }

    #[test]
    fn who_flooded_and_brings_little_now_does_not_rest() {
        let now = Instant::now();
        let mut shares = at_rest(now);
        assert_eq!(went(&mut shares, now, vec![sends("noisy", "little", 10)]), ["little"]);
        assert!(shares.rests(now).is_zero(), "nobody waits for the end of a rest");
        assert_eq!(went(&mut shares, now, flood("noisy")).len(), 0, "but a flood does");
    }

    #[test]
    fn a_flood_does_not_rest_for_what_it_brought_before() {
        let mut shares = Shares::default();
        let now = Instant::now();
        assert_eq!(went(&mut shares, now, vec![sends("noisy", "little", 10)]), ["little"]);
        for _ in 0..3 {
            assert_eq!(went(&mut shares, now, flood("noisy")).len(), 4);
            assert!(shares.rests(now).is_zero());
        }
        // Nor for somebody who was there long ago, where another one floods as well.
        went(&mut shares, now, vec![sends("quiet", "q", 10)]);
        let then = now + 2 * SHARED_FOR;
        let both = || flood("a").into_iter().chain(flood("noisy")).collect();
        for _ in 0..3 {
            assert_eq!(went(&mut shares, then, both()), ["a0", "noisy0"]);
            assert!(shares.rests(then).is_zero());
        }
    }

    #[test]
    fn whoever_receives_or_waits_for_messages_asks_for_little_too() {
        let now = Instant::now();
        let once = Ask::Commands(vec![Command::Receive(receive("quiet"))], Box::new(drop));
        let waiter = Waiter::receive(receive("quiet"), Turn::default(), Box::new(drop) as Reply);
        for ask in [once, Ask::Wait(Box::new(waiter))] {
            let mut shares = Shares::default();
            went(&mut shares, now, vec![Weighed::new(ask)]);
            assert_eq!(went(&mut shares, now, flood("noisy")), ["noisy0"]);
            assert_eq!(shares.rests(now), REST_MIN);
        }
    }

    #[test]
    fn every_message_of_an_ask_is_weighed() {
        let queue = QueueName::new("noisy", "orders").unwrap();
        let send = |n: usize| {
            let key = format!("n{n}");
            let content = Content::builder(&key).build(&[b'x'; 1_024]).unwrap();
            Command::Send(SendMessage::new(&hapax_core::Recipe::First, queue.clone(), content))
        };
        let many = || Weighed::new(Ask::Commands((0..100).map(send).collect(), Box::new(drop)));
        let mut shares = Shares::default();
        let now = Instant::now();
        went(&mut shares, now, vec![sends("quiet", "q", 10)]);
        assert_eq!(went(&mut shares, now, vec![many(), many()]).len(), 1, "one is a batch");
        assert_eq!(shares.rests(now), REST_MIN, "and a flood");
    }

    #[test]
    fn the_rest_that_ends_first_is_waited_for() {
        let now = Instant::now();
        let mut shares = at_rest(now);
        let then = now + REST_MIN / 2;
        assert_eq!(went(&mut shares, then, flood("late")), ["late0"]);
        let both = flood("late").into_iter().chain(flood("noisy")).collect();
        assert_eq!(went(&mut shares, then, both).len(), 0);
        assert_eq!(shares.rests(then), REST_MIN / 2);
    }

    #[test]
    fn a_batch_of_many_asks_is_followed_by_one_rest() {
        let mut shares = Shares::default();
        let now = Instant::now();
        went(&mut shares, now, vec![sends("quiet", "q", 10)]);
        let many = || (0..20).map(|n| sends("noisy", &format!("n{n}"), 10 * 1_024)).collect();
        assert_eq!(went(&mut shares, now, many()).len(), 12);
        assert_eq!(shares.rests(now), REST_MIN);
        assert_eq!(went(&mut shares, now + REST_MIN, many()).len(), 12);
    }

    #[test]
    fn a_flood_that_goes_on_is_one_after_a_checkpoint_too() {
        let mut shares = Shares::default();
        let now = Instant::now();
        let both = || flood("a").into_iter().chain(flood("b")).collect();
        went(&mut shares, now, both());
        let then = now + 2 * SHARED_FOR;
        went(&mut shares, then, both());
        shares.begin(then);
        // Each of them asks for little now and then, and rests for that no more than before.
        went(&mut shares, then, vec![sends("a", "a", 10), sends("b", "b", 10)]);
        assert_eq!(went(&mut shares, then, both()), ["a0", "b0"]);
        assert!(shares.rests(then).is_zero());
    }

    #[test]
    fn everything_is_taken_soon_and_in_the_order_of_its_tenant() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20 {
            let mut shares = Shares::default();
            let (mut now, mut brought, mut waiting) = (Instant::now(), 0, Vec::new());
            let mut next: HashMap<String, usize> = HashMap::new();
            for round in 0..400 {
                for _ in 0..random.usize(..if round < 100 { 6 } else { 1 }) {
                    let tenant = ["a", "b", "c", "quiet"][random.usize(..4)];
                    let most = if tenant == "quiet" { 100 } else { 60 * 1_024 };
                    let key = format!("{tenant} {brought}");
                    waiting.push(sends(tenant, &key, random.usize(..most)));
                    brought += 1;
                }
                shares.woken(if random.bool() { LATE * 2 } else { Duration::ZERO });
                let reserve = (round < 100 && random.u8(..4) == 0).then_some(100 * 1_024);
                let mut later = Vec::new();
                shares.share_out(now, reserve, &mut waiting, &mut later);
                for key in keys(&waiting) {
                    let (tenant, number) = key.split_once(' ').unwrap();
                    let number: usize = number.parse().unwrap();
                    let least = next.insert(tenant.to_owned(), number + 1).unwrap_or_default();
                    assert!(number >= least, "{key} came after {least}");
                }
                let rests = shares.rests(now);
                assert!(rests <= REST_MAX);
                let none_went = keys(&waiting).is_empty() && !later.is_empty();
                assert!(!none_went || reserve.is_some() || !rests.is_zero(), "nobody is woken");
                now += if none_went { rests } else { Duration::ZERO };
                waiting = later;
            }
            assert!(waiting.is_empty(), "{} still wait", waiting.len());
        }
    }

    #[test]
    fn one_large_message_does_not_make_a_flood_for_long() {
        let mut shares = Shares::default();
        let now = Instant::now();
        went(&mut shares, now, vec![sends("quiet", "large", 17 * 1_024)]);
        went(&mut shares, now, flood("noisy"));
        assert!(shares.rests(now).is_zero(), "both bring much");
        let then = now + FLOODS_FOR;
        went(&mut shares, then, vec![sends("quiet", "little", 10)]);
        went(&mut shares, then, flood("noisy"));
        assert_eq!(shares.rests(then), REST_MIN);
    }
}
