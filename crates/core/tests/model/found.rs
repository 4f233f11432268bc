//! Bugs that random cases found, by name, as short as they shrank to.

use hapax_core::{Config, Guarantee, OnGroupDead, Order, Place};

use super::ops::*;

fn queue(queue: u8, config: Config) -> Op {
    let config = Config {
        retention_ms: Some(1_000),
        retry_horizon_ms: 500,
        lease_ms: 100,
        backoff_min_ms: 0,
        backoff_max_ms: 0,
        ..config
    };
    Op::Configure { queue, config: Laws(Box::new(config)), if_version: None }
}

fn grouped() -> Config {
    Config { order: Order::Group, ..Config::default() }
}

fn keyless() -> Config {
    Config { guarantee: Guarantee::AtLeastOnce, ..Config::default() }
}

fn sent(key: Option<u8>, group: Option<u8>) -> Sent {
    let (delay_ms, ttl_ms, issued_ago_ms) = (None, None, None);
    let (content_type, own) = (false, None);
    let (queue, body, used_up) = (0, 0, false);
    Sent { queue, key, group, body, content_type, own, delay_ms, ttl_ms, issued_ago_ms, used_up }
}

fn send(key: u8, group: Option<u8>) -> Op {
    Op::Send(sent(Some(key), group))
}

fn claim(key: u8) -> Op {
    Op::Claim { sent: sent(Some(key), None), lease_ms: None, worker: 0, id: None }
}

fn receive(max: u32) -> Op {
    let (lease_ms, worker, receive_id, several) = (None, 0, None, true);
    Op::Receive(Take { queue: 0, max, lease_ms, worker, receive_id, several })
}

fn settle(lease: LeasePick, verb: Do) -> Op {
    Op::Settle { lease, verb }
}

fn done() -> Do {
    Do::Done { result: None, emits: Vec::new() }
}

fn dies() -> Do {
    Do::Fail { error: 0, delay_ms: None, dead: true }
}

fn redrive() -> Op {
    Op::Redrive { queue: 0, id: 0, which: Which::All, dry_run: false, per_s: None, check: false }
}

/// Each bug with the case that showed it.
pub(crate) fn cases() -> Vec<(&'static str, Vec<Op>)> {
    use LeasePick::{Held, Recent};
    let plain = || queue(0, Config::default());
    let held = Config { on_group_dead: OnGroupDead::Park, ..grouped() };
    let late = |key, ms| Op::Send(Sent { delay_ms: Some(ms), ..sent(Some(key), Some(0)) });
    let short = |key| Op::Send(Sent { ttl_ms: Some(1), ..sent(Some(key), Some(0)) });
    let browse = Op::Browse { queue: 0, place: Place::Ready, cursor: None, limit: 1 };
    let discard = Op::Discard(Named { queue: 0, key: KeyPick::IdOf(0), group: None });
    let other = || queue(2, Config::default());
    vec![
        (
            "a key whose retention ends is counted until then",
            vec![plain(), send(0, None), receive(1), settle(Held(0), done()), Op::Wait(1_100)],
        ),
        (
            "k7 a lease is unknown once its key's retention is over, swept or not",
            [
                vec![plain(), claim(0), settle(Held(0), done())],
                vec![Op::Wait(1_000), settle(Recent(0), done())],
            ]
            .concat(),
        ),
        (
            "a key that a purge took is not counted when its message ends later",
            [
                vec![plain(), send(0, None), receive(1), Op::Purge { queue: 0, keys: true }],
                vec![Op::Expire, settle(Held(0), done())],
            ]
            .concat(),
        ),
        (
            "a dead claim that is redriven is not delivered",
            vec![plain(), claim(0), settle(Held(0), dies()), redrive(), Op::Expire, receive(1)],
        ),
        (
            "l6 a dead message holds its followers, not those in front of it",
            [
                vec![queue(0, held), late(1, 1), send(0, Some(0)), receive(1)],
                vec![settle(Held(0), dies()), Op::Wait(1), receive(1)],
            ]
            .concat(),
        ),
        (
            "a group that is over is not read again from an older row",
            [
                vec![queue(0, grouped()), late(1, 400), short(0), Op::Wait(400), receive(1)],
                vec![Op::Checkpoint, Op::Crash, settle(Held(0), done()), send(0, None)],
            ]
            .concat(),
        ),
        (
            "a group that only the rows know is older than one in memory",
            [
                vec![queue(0, grouped()), send(1, Some(1)), Op::Checkpoint, Op::Crash],
                vec![send(0, Some(0)), receive(1)],
            ]
            .concat(),
        ),
        (
            "an id finds no message of another queue",
            [
                vec![plain(), queue(1, keyless())],
                vec![Op::Send(Sent { queue: 1, ..sent(None, None) }), discard],
            ]
            .concat(),
        ),
        (
            "what came back and was evicted is found again",
            [
                vec![plain(), send(0, None), send(1, None), Op::Checkpoint, receive(3), Op::Crash],
                vec![settle(Held(0), Do::Release), Op::Checkpoint, Op::Evict { keep: 0 }],
                vec![send(3, None), receive(3)],
            ]
            .concat(),
        ),
        (
            "a page of outdated rows is not the last one",
            [
                vec![plain(), send(0, None), send(1, None), send(2, None), Op::Checkpoint],
                vec![receive(2), Op::Crash, browse],
            ]
            .concat(),
        ),
        (
            "the number of a deleted queue is not given again",
            [
                vec![other(), to(2), remembered(2), Op::Delete { queue: 2 }, Op::Expire],
                vec![Op::Checkpoint, Op::Crash, other(), to(2), remembered(2)],
            ]
            .concat(),
        ),
    ]
}

fn to(queue: u8) -> Op {
    Op::Send(Sent { queue, ..sent(Some(0), None) })
}

fn remembered(queue: u8) -> Op {
    let (lease_ms, worker, receive_id, several) = (None, 0, Some(0), false);
    Op::Receive(Take { queue, max: 1, lease_ms, worker, receive_id, several })
}
