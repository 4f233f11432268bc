//! The scene of a run, drawn from its seed: queues with their configurations, sizes small enough
//! that segments roll, checkpoints happen and messages are evicted within a few hundred steps, and
//! the items to send.
//!
//! An [`Item`] is one logical operation: a key and its content. The content is a function of its
//! number and a *variant*, so that every payload can be checked.

use std::sync::Arc;

use hapax_core::{
    Blob, Bounds, Config, Content, DedupScope, Differs, Fence, Fingerprint, Guarantee, OnDead,
    OnGroupDead, OnLost, Order, QueueName, Recipe, Time,
};
use hapax_partition::Options;
use hapax_store::disk;

use crate::Random;

/// The environment of a run.
#[derive(Clone, Debug)]
pub struct Scene {
    pub queues: Vec<QueueSpec>,
    /// Queues are changed, deleted and created again during the run.
    pub changes_queues: bool,
    pub partition: Options,
    pub store: disk::Options,
}

/// One queue, and its initial configuration. Its deduplication scope never changes.
#[derive(Clone, Debug)]
pub struct QueueSpec {
    pub name: QueueName,
    pub config: Config,
}

/// The index of an item in the run's list.
pub type ItemId = usize;

/// How an item is sent: other variants conflict with the first.
pub type Variant = u8;

/// Number of variants.
pub const VARIANTS: Variant = 4;

/// One logical operation.
#[derive(Clone, Debug)]
pub struct Item {
    pub number: u64,
    pub queue: usize,
    /// Empty for a message without a key.
    pub key: Arc<str>,
    pub group: Option<Arc<str>>,
    /// Its key is claimed; nothing is ever delivered.
    pub claim: bool,
    /// When the operation was issued, if its sends contain it.
    pub issued_at: Option<Time>,
    pub delay_ms: Option<u64>,
    pub ttl_ms: Option<u64>,
    /// The emit that uses this key because another message has its own.
    pub aside_of: Option<ItemId>,
}

impl Scene {
    pub fn draw(random: &mut Random) -> Self {
        let count = random.between(1, 3) as usize;
        let queues = draw_queues(random, count);
        let changes_queues = random.share(2, 3);
        let seed = random.bits();
        let partition = Options {
            partition: 3,
            partitions: 5,
            memory_bytes: 1_024 << random.between(3, 8),
            journal_bytes: 1_024 << random.between(2, 6),
            batches_in_flight: random.between(2, 8) as usize,
            seed,
            recipe: recipe(seed),
            ..draw_steps(random)
        };
        let mut store = disk::Options { identity: random.bits(), ..disk::Options::default() };
        store.journal.segment_bytes = 16_384 << random.below(3);
        store.journal.pending_bytes_max = 32_768;
        // As large as four segments and as the memory, as in a broker.
        let four = 4 * u64::from(store.journal.segment_bytes);
        store.journal.free_bytes_min = four.max(partition.memory_bytes as u64);
        store.archive.reserve_bytes = 8 << 10;
        store.archive.shrink_bytes_min = 4 << 10;
        store.archive.merge_fan_in = random.between(2, 4) as usize;
        if random.one_in(4) {
            store.archive.filter_bytes_max = 0;
        }
        Self { queues, changes_queues, partition, store }
    }
}

/// Chooses one of the recipes.
fn recipe(seed: u64) -> Recipe {
    let mut secret = [0; 32];
    Random::new(seed).fill(&mut secret);
    if seed.is_multiple_of(2) { Recipe::First } else { Recipe::second(&secret) }
}

/// How much is done at once: little, so that a handful of messages reaches what takes thousands in
/// production.
pub(crate) fn draw_steps(random: &mut Random) -> Options {
    let mut small = |most: usize| match random.one_in(3) {
        true => 1_000,
        false => random.between(1, most as u64) as usize,
    };
    let expire_step = small(6);
    let bounds = Bounds {
        expire_step,
        // Now and then an epoch is raised while its owner continues.
        fences: if expire_step == 2 { 24 } else { Bounds::default().fences },
        tick_step: small(12),
        job_step: small(6),
        refill: small(8),
        groups_at_once: small(4),
        browse: small(4),
        // A tenant may use half of them, and there is only one.
        relays: 2 * small(6),
        relay_bytes: small(6) * 16_384,
        receive_bytes: small(6) * 100,
        index_places: if expire_step % 2 == 0 { 4 } else { Bounds::default().index_places },
    };
    let (batch, range, evict) = (small(8), small(8), small(8));
    Options {
        bounds,
        batch_bytes: batch * 128,
        range_bytes: range * 256,
        rows_passed: range,
        evict_step: evict,
        copy_step: evict,
        ..Options::default()
    }
}

pub(crate) fn draw_queues(random: &mut Random, count: usize) -> Vec<QueueSpec> {
    let mut queues = Vec::new();
    for name in ["alpha", "beta", "gamma"].into_iter().take(count) {
        let Ok(name) = QueueName::new("sim", name) else { unreachable!("a plain name") };
        let dedup_scope = if random.one_in(5) { DedupScope::Group } else { DedupScope::Queue };
        queues.push(QueueSpec { name, config: draw_config(random, dedup_scope) });
    }
    queues
}

/// Another configuration that the queue may change to without being recreated.
pub(crate) fn draw_change(random: &mut Random, before: &Config) -> Config {
    let drawn = draw_config(random, before.dedup_scope);
    let config = Config {
        order: before.order,
        on_group_dead: match before.order {
            Order::Group => drawn.on_group_dead,
            Order::None => OnGroupDead::Continue,
        },
        // There may be messages without a key, which could not be named once they are parked.
        on_lost: if before.on_lost == OnLost::Park { drawn.on_lost } else { OnLost::Redeliver },
        ..drawn
    };
    debug_assert_eq!(config.check(), Ok(()));
    config
}

/// The largest result.
const RESULT_BYTES_MAX: u64 = 100;

pub(crate) fn draw_config(random: &mut Random, dedup_scope: DedupScope) -> Config {
    let guarantee = match random.below(10) {
        0 => Guarantee::AtMostOnce,
        1 | 2 => Guarantee::AtLeastOnce,
        _ => Guarantee::ExactlyOnce,
    };
    let order = if random.one_in(3) { Order::Group } else { Order::None };
    let retention_ms = match random.below(4) {
        0 => Some(random.between(1_000, 8_000)),
        1 => Some(random.between(8_000, 60_000)),
        2 => Some(7 * 24 * 3_600_000),
        _ => None,
    };
    let backoff_min_ms = random.below(200);
    let config = Config {
        guarantee,
        order,
        dedup_scope,
        retention_ms,
        retry_horizon_ms: retention_ms.map_or(1_000, |retention| retention / 2),
        lease_ms: random.between(100, 4_000),
        max_attempts: random.between(1, 5) as u32,
        backoff_min_ms,
        backoff_max_ms: backoff_min_ms + random.below(1_000),
        delay_ms: if random.one_in(6) { random.between(1, 300) } else { 0 },
        ttl_ms: random.one_in(6).then(|| random.between(500, 10_000)),
        on_dead: *random.pick(OnDead::ALL).unwrap_or(&OnDead::Pin),
        on_group_dead: match order {
            Order::Group if random.one_in(2) => OnGroupDead::Park,
            _ => OnGroupDead::Continue,
        },
        on_lost: match guarantee {
            // A parked message without a key could not be named.
            Guarantee::AtMostOnce | Guarantee::AtLeastOnce => OnLost::Redeliver,
            Guarantee::ExactlyOnce if random.one_in(4) => OnLost::Park,
            Guarantee::ExactlyOnce => OnLost::Redeliver,
        },
        max_messages: random.one_in(10).then(|| random.between(5, 40)),
        max_body_bytes: match random.one_in(6) {
            true => random.between(RESULT_BYTES_MAX, 220),
            false => Config::default().max_body_bytes,
        },
        ..Config::default()
    };
    debug_assert_eq!(config.check(), Ok(()));
    config
}

impl QueueSpec {
    /// A new item of this queue. Claims have their own kind of key.
    pub fn item(
        config: &Config,
        random: &mut Random,
        queue: usize,
        number: u64,
        now: Time,
    ) -> Item {
        let claim = random.one_in(12) && config.guarantee != Guarantee::AtMostOnce;
        let keyless = config.guarantee == Guarantee::AtLeastOnce && !claim && random.one_in(3);
        let needs_group = config.dedup_scope == DedupScope::Group;
        let grouped = needs_group || (!claim && random.share(3, 4) && config.order == Order::Group);
        let group = grouped.then(|| format!("g{}", random.below(5)).into());
        let key = match keyless {
            true => String::new(),
            false => format!("{}-{number}", if claim { "claim" } else { "key" }),
        };
        Item {
            number,
            queue,
            key: key.into(),
            group,
            claim,
            issued_at: (!keyless && random.one_in(6)).then_some(now),
            delay_ms: random.one_in(8).then(|| random.below(800)),
            ttl_ms: (!claim && random.one_in(12)).then(|| random.between(1, 5_000)),
            aside_of: None,
        }
    }
}

impl Item {
    pub fn is_keyless(&self) -> bool {
        self.key.is_empty()
    }

    /// The content of this variant: another body, content type or group.
    pub fn content(&self, variant: Variant, scope: DedupScope) -> Arc<Content> {
        let other_group = format!("other-{}", self.number % 7);
        let group = match variant {
            3 if scope == DedupScope::Queue => Some(other_group.as_str()),
            _ => self.group.as_deref(),
        };
        let content_type = if variant == 2 { "text/other" } else { "text/plain" };
        let body = if self.claim { Vec::new() } else { self.body(variant, scope) };
        let number = self.number.to_string();
        let built = Content::builder(&self.key)
            .content_type(Some(content_type))
            .group(group)
            .header("number", &number)
            .build(&body);
        let Ok(content) = built else { unreachable!("an item keeps every bound") };
        content
    }

    pub fn fingerprint(&self, recipe: &Recipe, variant: Variant, scope: DedupScope) -> Fingerprint {
        if !self.claim {
            let content = self.content(variant, scope);
            return recipe.fingerprint(content.body(), content.group());
        }
        recipe.fingerprint(format!("claim {}", variant.min(1)).as_bytes(), None)
    }

    /// What a conflict between the two variants reports; empty if they are the same.
    pub fn differs(&self, first: Variant, second: Variant, scope: DedupScope) -> Vec<Differs> {
        let of = |variant| self.fingerprint(&Recipe::First, variant, scope);
        of(first).differs(&of(second))
    }

    fn body(&self, variant: Variant, scope: DedupScope) -> Vec<u8> {
        let other = variant == 1 || (variant == 3 && scope == DedupScope::Group);
        let mut random = Random::new(self.number ^ u64::from(other) << 32);
        let most = if random.one_in(20) { 2_000 } else { 200 };
        let mut padding = vec![0; random.below(most) as usize];
        random.fill(&mut padding);
        let mut body = format!("item {} {other} ", self.number).into_bytes();
        body.extend_from_slice(&padding);
        body
    }
}

/// The result that the holder of a lease stores, different for every lease.
pub fn result_of(item: &Item, fence: Fence) -> Option<Blob> {
    if fence.0.is_multiple_of(7) {
        return None;
    }
    let mut random = Random::new(item.number ^ fence.0);
    let mut body = format!("result {} {} ", item.number, fence.0).into_bytes();
    let mut padding = vec![0; random.below(60) as usize];
    random.fill(&mut padding);
    body.extend_from_slice(&padding);
    debug_assert!(body.len() as u64 <= RESULT_BYTES_MAX, "every queue takes every result");
    Some(Blob { content_type: Some("text/result".into()), body: body.into() })
}

/// The recovery point saved under a name.
pub fn point_of(item: &Item, name: &str) -> bytes::Bytes {
    format!("point {} {name}", item.number).into_bytes().into()
}
