//! Who is gone, at times made by hand.

use super::*;
use crate::members::NodeRow;

const OWN: Uuid = Uuid::from_u128(1);
const PEER: Uuid = Uuid::from_u128(2);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn node(id: Uuid, heartbeat: u64) -> NodeRow {
    let text = String::new;
    let state = Some(NodeState::Serving);
    let (name, address, release) = (text(), text(), text());
    NodeRow { id, name, address, release, feature: 1, state, heartbeat, told_ms: 0 }
}

fn seen(heartbeat: u64) -> Seen {
    Seen { nodes: vec![node(OWN, 0), node(PEER, heartbeat)], partitions: Vec::new() }
}

/// Beats and reads every half second.
fn run(judge: &mut Judge, from: u64, to: u64, heartbeat: impl Fn(u64) -> u64) -> Judgement {
    for now in (from..=to).step_by(500) {
        judge.beat(ms(now));
        judge.note(ms(now), &seen(heartbeat(now)));
    }
    judge.judge(ms(to))
}

#[test]
fn a_peer_is_gone_after_a_lease_without_a_new_heartbeat() {
    let mut judge = Judge::new(OWN, Timings::default());
    assert!(!judge.judge(ms(0)).may_claim, "nothing was heard yet");
    let alive = run(&mut judge, 0, 10_000, |now| now);
    assert!(alive.gone.is_empty() && alive.may_claim && !alive.cut_off);
    assert!(run(&mut judge, 10_500, 12_500, |_| 10_000).gone.is_empty());
    assert_eq!(run(&mut judge, 13_000, 13_000, |_| 10_000).gone, [PEER]);
    assert!(run(&mut judge, 13_500, 13_500, |_| 10_001).gone.is_empty(), "it was only slow");
}

#[test]
fn after_an_outage_everybody_gets_a_whole_lease() {
    let mut judge = Judge::new(OWN, Timings::default());
    run(&mut judge, 0, 2_000, |_| 7);
    // The database is away for five seconds; nobody beats.
    judge.missed();
    let away = judge.judge(ms(7_000));
    assert!(away.gone.is_empty() && !away.may_claim && away.cut_off);
    assert!(run(&mut judge, 7_000, 9_500, |_| 7).gone.is_empty());
    assert_eq!(run(&mut judge, 10_000, 10_000, |_| 7).gone, [PEER]);
}

#[test]
fn a_pause_of_this_node_is_an_outage() {
    let mut judge = Judge::new(OWN, Timings::default());
    run(&mut judge, 0, 1_000, |_| 7);
    // Stopped for a minute, without a failed heartbeat.
    let woken = judge.judge(ms(61_000));
    assert!(woken.gone.is_empty() && !woken.may_claim && woken.cut_off);
    assert!(run(&mut judge, 61_000, 63_500, |_| 7).gone.is_empty());
    assert_eq!(run(&mut judge, 64_000, 64_000, |_| 7).gone, [PEER]);
}

#[test]
fn who_was_fenced_holds_off_twice_as_long_each_time() {
    let mut judge = Judge::new(OWN, Timings::default());
    run(&mut judge, 0, 1_000, |now| now);
    judge.fenced(ms(1_000));
    assert!(!run(&mut judge, 1_500, 5_500, |now| now).may_claim);
    assert!(run(&mut judge, 6_000, 6_000, |now| now).may_claim);
    judge.fenced(ms(6_000));
    assert!(!run(&mut judge, 6_500, 15_500, |now| now).may_claim);
    assert!(run(&mut judge, 16_000, 16_000, |now| now).may_claim);
    judge.forgive();
    judge.fenced(ms(16_000));
    assert!(run(&mut judge, 16_500, 21_000, |now| now).may_claim);
}

#[test]
fn a_node_that_stops_claims_nothing() {
    let mut judge = Judge::new(OWN, Timings::default());
    assert!(run(&mut judge, 0, 1_000, |now| now).may_claim);
    let mut seen = seen(1_000);
    seen.nodes[0].state = Some(NodeState::Draining);
    judge.note(ms(1_000), &seen);
    assert!(!judge.judge(ms(1_000)).may_claim);
}
