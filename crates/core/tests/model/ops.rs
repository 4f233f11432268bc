//! What a random caller may do: few names, so that they collide often.

use std::fmt;

use hapax_core::{
    Bounds, Config, DedupScope, Expected, Guarantee, OnDead, OnGroupDead, OnLost, Order, Place,
    UndatedKeys,
};
use proptest::prelude::*;
use proptest::sample::select;

/// One step of a case. Names are small numbers; [`super::run`] gives them meaning.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Configure {
        queue: u8,
        config: Laws,
        if_version: Option<Expected>,
    },
    Delete {
        queue: u8,
    },
    Pause {
        queue: u8,
    },
    Resume {
        queue: u8,
    },
    Purge {
        queue: u8,
        keys: bool,
    },
    Send(Sent),
    Claim {
        sent: Sent,
        lease_ms: Option<u64>,
        worker: u8,
        id: Option<u8>,
    },
    Receive(Take),
    Settle {
        lease: LeasePick,
        verb: Do,
    },
    Look(Named),
    Browse {
        queue: u8,
        place: Place,
        cursor: Option<u64>,
        limit: usize,
    },
    Show {
        queue: u8,
    },
    Forget(Named),
    Replay {
        named: Named,
        content: Option<(u8, bool)>,
    },
    Discard(Named),
    Resolve {
        named: Named,
        done: Option<Option<u8>>,
    },
    Redrive {
        queue: u8,
        id: u8,
        which: Which,
        dry_run: bool,
        per_s: Option<u32>,
        /// Only asks what it would be answered.
        check: bool,
    },
    Progress {
        queue: u8,
        id: u8,
    },
    Cancel {
        queue: u8,
        id: u8,
    },
    Relayed {
        which: u8,
        how: Reached,
    },
    /// An emit that was refused is filed in its queue.
    DeadLetter {
        which: u8,
    },
    StoreFull(bool),
    /// Time passes; everything that is due happens.
    Wait(u64),
    /// No time passes, but what is under way goes on, to its end.
    Expire,
    /// The same for one step.
    Tick,
    /// Several in one batch.
    Batch(Vec<Op>),
    Crash,
    Checkpoint,
    BeginCheckpoint,
    FinishCheckpoint,
    CancelCheckpoint,
    /// So much of each place stays in memory.
    Evict {
        keep: usize,
    },
}

/// A configuration that prints only what is not the usual.
#[derive(Clone)]
pub(crate) struct Laws(pub(crate) Box<Config>);

impl fmt::Debug for Laws {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = Config { max_body_bytes: 64, retry_horizon_ms: 500, ..Config::default() };
        let (laws, usual) = (format!("{:?}", self.0), format!("{usual:?}"));
        let usual: Vec<&str> = usual.split(", ").collect();
        let own: Vec<&str> = laws.split(", ").filter(|part| !usual.contains(part)).collect();
        f.write_str(&own.join(", "))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) queue: u8,
    /// One of few keys, or the id of a message that lives.
    pub(crate) key: KeyPick,
    pub(crate) group: Option<u8>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyPick {
    Key(u8),
    IdOf(u8),
}

#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) queue: u8,
    pub(crate) key: Option<u8>,
    pub(crate) group: Option<u8>,
    pub(crate) body: u8,
    pub(crate) content_type: bool,
    pub(crate) own: Option<u8>,
    pub(crate) delay_ms: Option<u64>,
    pub(crate) ttl_ms: Option<u64>,
    /// How long ago the operation was born; below zero where its clock is ahead.
    pub(crate) issued_ago_ms: Option<i64>,
    /// Its tenant may send nothing new.
    pub(crate) used_up: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Take {
    pub(crate) queue: u8,
    pub(crate) max: u32,
    pub(crate) lease_ms: Option<u64>,
    pub(crate) worker: u8,
    pub(crate) receive_id: Option<u8>,
    pub(crate) several: bool,
}

/// Which lease is settled.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LeasePick {
    /// One that is held, counted from the newest.
    Held(u8),
    /// Any that was ever handed out, counted from the newest.
    Recent(u8),
    /// Nobody's.
    Foreign(u8),
}

#[derive(Clone, Debug)]
pub(crate) enum Do {
    Done { result: Option<u8>, emits: Vec<Emitted> },
    Fail { error: u8, delay_ms: Option<u64>, dead: bool },
    Release,
    Park { error: u8, delay_ms: Option<u64>, dead: bool },
    Extend { lease_ms: Option<u64> },
    Begin,
    Save { name: u8, data: u8 },
}

#[derive(Clone, Debug)]
pub(crate) struct Emitted {
    pub(crate) queue: u8,
    pub(crate) name: u8,
    pub(crate) key: Option<u8>,
    pub(crate) body: u8,
    pub(crate) own: Option<u8>,
    pub(crate) ttl_ms: Option<u64>,
}

#[derive(Clone, Debug)]
pub(crate) enum Which {
    Keys {
        keys: Vec<u8>,
        group: Option<u8>,
    },
    Filter {
        error: Option<u8>,
        group: Option<u8>,
        dead_ago_ms: Option<u64>,
        dead_within_ms: Option<u64>,
    },
    All,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Reached {
    Arrived,
    Later,
    Refused,
}

pub(crate) const QUEUES: u8 = 3;
pub(crate) const KEYS: u8 = 5;
pub(crate) const GROUPS: u8 = 2;

/// A case: how much is done at once, and the steps, which begin with the queues.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) bounds: Bounds,
    /// The data is that of 0.1.
    pub(crate) is_first: bool,
    pub(crate) ops: Vec<Op>,
}

pub(crate) fn case() -> impl Strategy<Value = Case> {
    let queues = [config(), config(), config()];
    let ops = prop::collection::vec(op(), 1..120);
    (bounds(), any::<bool>(), queues, ops).prop_map(|(bounds, is_first, queues, mut ops)| {
        let first = queues.into_iter().zip(0..).map(|(config, queue)| Op::Configure {
            queue,
            config: Laws(Box::new(config)),
            if_version: None,
        });
        ops.splice(0..0, first);
        Case { bounds, is_first, ops }
    })
}

/// Few at once, so that a handful of messages meets what comes after the first step.
pub(crate) fn bounds() -> impl Strategy<Value = Bounds> {
    let few = || prop_oneof![3 => 1usize..4, 1 => Just(1_000)];
    let bytes = prop_oneof![1 => 1usize..40, 3 => Just(100_000)];
    let steps = (few(), few(), few(), few(), few(), few());
    let index_places = prop_oneof![2 => Just(4usize), 1 => Just(8), 1 => Just(4_096)];
    (steps, bytes, index_places).prop_map(
        |(
            (expire_step, job_step, tick_step, refill, groups_at_once, browse),
            receive_bytes,
            index_places,
        )| {
            Bounds {
                index_places,
                expire_step,
                job_step,
                tick_step,
                refill,
                receive_bytes,
                groups_at_once,
                browse,
                ..Bounds::default()
            }
        },
    )
}

fn queue() -> impl Strategy<Value = u8> {
    prop_oneof![5 => Just(0u8), 4 => Just(1u8), 3 => 0..QUEUES]
}

fn key() -> impl Strategy<Value = u8> {
    0..KEYS
}

fn group() -> impl Strategy<Value = Option<u8>> {
    prop::option::weighted(0.7, 0..GROUPS)
}

fn lease_ms() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![6 => Just(None), 3 => (100u64..900).prop_map(Some), 1 => Just(Some(5))]
}

fn config() -> impl Strategy<Value = Config> {
    let laws = (
        prop_oneof![4 => Just(Guarantee::ExactlyOnce), 2 => Just(Guarantee::AtLeastOnce),
            1 => Just(Guarantee::AtMostOnce)],
        prop_oneof![Just(Order::None), Just(Order::Group)],
        prop_oneof![3 => Just(DedupScope::Queue), 1 => Just(DedupScope::Group)],
        select(OnDead::ALL),
        select(OnGroupDead::ALL),
        select(OnLost::ALL),
        prop_oneof![9 => Just(UndatedKeys::Accept), 1 => Just(UndatedKeys::Refuse)],
    );
    let times = (
        prop_oneof![5 => (1_000u64..5_000).prop_map(Some), 1 => Just(None)],
        prop_oneof![9 => Just(500u64), 1 => Just(2_000u64)],
        100u64..1_000,
        1u32..4,
        (0u64..300, 0u64..600),
        prop_oneof![4 => Just(0u64), 1 => Just(400u64)],
        prop_oneof![4 => Just(None), 1 => (500u64..2_500).prop_map(Some)],
    );
    let quotas = (
        prop_oneof![9 => Just(64u64), 1 => Just(6u64)],
        prop_oneof![5 => Just(None), 1 => (1u64..5).prop_map(Some)],
        prop_oneof![5 => Just(None), 1 => (15u64..80).prop_map(Some)],
        prop_oneof![6 => Just(None), 1 => (1u32..4).prop_map(Some)],
        prop::bool::weighted(0.3),
    );
    (laws, times, quotas).prop_map(|(laws, times, quotas)| {
        let (guarantee, order, dedup_scope, on_dead, on_group_dead, on_lost, undated_keys) = laws;
        let (retention_ms, retry_horizon_ms, lease_ms, max_attempts, backoff, delay_ms, ttl_ms) =
            times;
        let (max_body_bytes, max_messages, max_bytes, sends_per_s, keep_bodies) = quotas;
        // Most random combinations are made to be allowed; the refused ones need a few only.
        let parks = order == Order::Group || lease_ms % 16 == 0;
        let loses = guarantee != Guarantee::AtMostOnce || lease_ms % 16 == 1;
        Config {
            guarantee,
            order,
            dedup_scope,
            retention_ms,
            retry_horizon_ms,
            undated_keys,
            lease_ms,
            max_attempts,
            backoff_min_ms: backoff.0.min(backoff.1),
            backoff_max_ms: backoff.0.max(backoff.1),
            delay_ms,
            ttl_ms,
            on_dead,
            on_group_dead: if parks { on_group_dead } else { OnGroupDead::Continue },
            on_lost: if loses { on_lost } else { OnLost::Redeliver },
            max_body_bytes,
            max_messages,
            max_bytes,
            sends_per_s,
            keep_bodies,
        }
    })
}

fn sent() -> impl Strategy<Value = Sent> {
    let name = (queue(), prop::option::weighted(0.93, key()), group());
    let what = (
        prop_oneof![5 => Just(0u8), 1 => 1u8..4],
        prop::bool::weighted(0.1),
        prop::option::weighted(0.1, 0..2u8),
    );
    let when = (
        prop_oneof![6 => Just(None), 2 => (1u64..1_500).prop_map(Some), 1 => Just(Some(0))],
        prop_oneof![8 => Just(None), 2 => (1u64..2_000).prop_map(Some), 1 => Just(Some(0))],
        prop_oneof![18 => Just(None), 2 => (-8_000i64..8_000).prop_map(Some),
            1 => Just(Some(-90_000_000))],
    );
    let used_up = prop::bool::weighted(0.05);
    (name, what, when, used_up).prop_map(|(name, what, when, used_up)| {
        let (queue, key, group) = name;
        let (body, content_type, own) = what;
        let (delay_ms, ttl_ms, issued_ago_ms) = when;
        Sent {
            queue,
            key,
            group,
            body,
            content_type,
            own,
            delay_ms,
            ttl_ms,
            issued_ago_ms,
            used_up,
        }
    })
}

fn named() -> impl Strategy<Value = Named> {
    let key = prop_oneof![8 => key().prop_map(KeyPick::Key), 1 => (0u8..9).prop_map(KeyPick::IdOf)];
    (queue(), key, group()).prop_map(|(queue, key, group)| Named { queue, key, group })
}

fn lease_pick() -> impl Strategy<Value = LeasePick> {
    prop_oneof![
        7 => (0u8..6).prop_map(LeasePick::Held),
        4 => (0u8..12).prop_map(LeasePick::Recent),
        1 => (0u8..9).prop_map(LeasePick::Foreign),
    ]
}

fn verb() -> impl Strategy<Value = Do> {
    let more = (
        prop::option::weighted(0.2, 0u8..2),
        prop_oneof![6 => Just(None), 1 => (0u64..900).prop_map(Some)],
    );
    let emitted = (0..=QUEUES, 0u8..3, prop::option::of(key()), 0u8..3, more);
    let emitted = emitted.prop_map(|(queue, name, key, body, (own, ttl_ms))| Emitted {
        queue,
        name,
        key,
        body,
        own,
        ttl_ms,
    });
    let emits = prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(emitted, 1..3)];
    let result = prop::option::of(0u8..3);
    let delay = prop_oneof![3 => Just(None), 1 => (0u64..500).prop_map(Some)];
    prop_oneof![
        4 => (result, emits).prop_map(|(result, emits)| Do::Done { result, emits }),
        5 => (0u8..3, delay.clone(), prop::bool::weighted(0.3))
            .prop_map(|(error, delay_ms, dead)| Do::Fail { error, delay_ms, dead }),
        2 => Just(Do::Release),
        2 => (0u8..3, delay, prop::bool::weighted(0.3))
            .prop_map(|(error, delay_ms, dead)| Do::Park { error, delay_ms, dead }),
        2 => lease_ms().prop_map(|lease_ms| Do::Extend { lease_ms }),
        3 => Just(Do::Begin),
        2 => (0u8..4, 0u8..3).prop_map(|(name, data)| Do::Save { name, data }),
    ]
}

fn redrive() -> impl Strategy<Value = Op> {
    let which = prop_oneof![
        2 => (prop::collection::vec(key(), 0..4), prop::option::weighted(0.3, 0..GROUPS))
            .prop_map(|(keys, group)| Which::Keys { keys, group }),
        2 => (
            prop::option::of(0u8..3),
            prop::option::weighted(0.3, 0..GROUPS),
            prop::option::weighted(0.3, 0u64..2_000),
            prop::option::weighted(0.3, 0u64..2_000),
        )
            .prop_map(|(error, group, dead_ago_ms, dead_within_ms)| Which::Filter {
                error,
                group,
                dead_ago_ms,
                dead_within_ms,
            }),
        3 => Just(Which::All),
    ];
    let per_s = prop_oneof![3 => Just(None), 2 => (0u32..4).prop_map(Some)];
    (queue(), 0u8..8, which, prop::bool::weighted(0.2), per_s, prop::bool::weighted(0.1)).prop_map(
        |(queue, id, which, dry_run, per_s, check)| Op::Redrive {
            queue,
            id,
            which,
            dry_run,
            per_s,
            check,
        },
    )
}

fn operate() -> impl Strategy<Value = Op> {
    let place = select(Place::ALL.to_vec());
    let cursor = prop::option::weighted(0.4, 0u64..12);
    let content = prop::option::weighted(0.7, (0u8..2, prop::bool::weighted(0.1)));
    prop_oneof![
        4 => named().prop_map(Op::Look),
        3 => (queue(), place, cursor, 0usize..6).prop_map(|(queue, place, cursor, limit)| {
            Op::Browse { queue, place, cursor, limit }
        }),
        1 => queue().prop_map(|queue| Op::Show { queue }),
        2 => named().prop_map(Op::Forget),
        3 => (named(), content).prop_map(|(named, content)| Op::Replay { named, content }),
        2 => named().prop_map(Op::Discard),
        2 => (named(), prop::option::of(prop::option::of(0u8..2)))
            .prop_map(|(named, done)| Op::Resolve { named, done }),
        5 => redrive(),
        1 => (queue(), 0u8..8).prop_map(|(queue, id)| Op::Progress { queue, id }),
        1 => (queue(), 0u8..8).prop_map(|(queue, id)| Op::Cancel { queue, id }),
        2 => (0u8..4, select(vec![Reached::Arrived, Reached::Later, Reached::Refused]))
            .prop_map(|(which, how)| Op::Relayed { which, how }),
        2 => (0u8..4).prop_map(|which| Op::DeadLetter { which }),
        1 => queue().prop_map(|queue| Op::Pause { queue }),
        2 => queue().prop_map(|queue| Op::Resume { queue }),
        3 => (queue(), any::<bool>()).prop_map(|(queue, keys)| Op::Purge { queue, keys }),
        1 => (0..=QUEUES, config(), prop::option::weighted(0.4, expected())).prop_map(
            |(queue, config, if_version)| Op::Configure {
                queue,
                config: Laws(Box::new(config)),
                if_version,
            }
        ),
    ]
}

fn expected() -> impl Strategy<Value = Expected> {
    prop_oneof![
        1 => Just(Expected::Absent),
        1 => Just(Expected::Present),
        6 => (0u32..6, 1u64..4)
            .prop_map(|(number, version)| Expected::Version { number, version }),
    ]
}

/// A few commands that are decided in one batch: a queue may be made, changed or go in its middle.
fn batch() -> impl Strategy<Value = Op> {
    let configure = |queue| {
        config().prop_map(move |config| Op::Configure {
            queue,
            config: Laws(Box::new(config)),
            if_version: None,
        })
    };
    queue().prop_flat_map(move |queue| {
        let here = move |sent: Sent| Sent { queue, ..sent };
        let claim = (sent(), lease_ms(), 0u8..2);
        let op = prop_oneof![
            8 => sent().prop_map(move |sent| Op::Send(here(sent))),
            2 => claim.prop_map(move |(sent, lease_ms, worker)| {
                Op::Claim { sent: here(sent), lease_ms, worker, id: None }
            }),
            3 => configure(queue),
            2 => Just(Op::Delete { queue }),
            4 => (lease_pick(), verb()).prop_map(|(lease, verb)| Op::Settle { lease, verb }),
            2 => named().prop_map(Op::Look),
            1 => named().prop_map(Op::Forget),
        ];
        prop::collection::vec(op, 2..7).prop_map(Op::Batch)
    })
}

fn op() -> impl Strategy<Value = Op> {
    let take = (queue(), 1u32..5, lease_ms(), 0u8..2, prop::option::weighted(0.3, 0u8..6));
    let take = (take, any::<bool>()).prop_map(|((queue, max, lease_ms, worker, id), several)| {
        Take { queue, max, lease_ms, worker, receive_id: id, several }
    });
    let claim = (sent(), lease_ms(), 0u8..2, prop::option::weighted(0.6, 0u8..2));
    prop_oneof![
        60 => sent().prop_map(Op::Send),
        12 => claim.prop_map(|(sent, lease_ms, worker, id)| {
            Op::Claim { sent, lease_ms, worker, id }
        }),
        35 => take.prop_map(Op::Receive),
        50 => (lease_pick(), verb()).prop_map(|(lease, verb)| Op::Settle { lease, verb }),
        55 => operate(),
        30 => prop_oneof![3 => 1u64..400, 3 => 400u64..2_000, 1 => 2_000u64..310_000]
            .prop_map(Op::Wait),
        4 => Just(Op::Expire),
        20 => Just(Op::Tick),
        12 => batch(),
        4 => queue().prop_map(|queue| Op::Delete { queue }),
        1 => any::<bool>().prop_map(Op::StoreFull),
        12 => Just(Op::Crash),
        10 => Just(Op::Checkpoint),
        5 => Just(Op::BeginCheckpoint),
        4 => Just(Op::FinishCheckpoint),
        2 => Just(Op::CancelCheckpoint),
        10 => (0usize..3).prop_map(|keep| Op::Evict { keep }),
    ]
}
