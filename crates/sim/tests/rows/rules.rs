//! A12 to A16: what clients, clocks and poison do.

use hapax_core::{
    Answer, Blob, Claim, Command, Config, Content, Differs, Invalid, Outcome, Place, Purge, Recipe,
    Settled, Time,
};
use hapax_partition::Clock;
use hapax_sim::volume::Trigger;

use crate::rig::{Rig, START, content, done, fail, key, queue, receive, send};

fn claim(name: &str, fingerprint: &str) -> Command {
    Command::Claim(Box::new(Claim::new(
        &Recipe::First,
        queue(),
        content(name, ""),
        Recipe::First.own(fingerprint),
    )))
}

#[test]
fn a12_another_body_conflicts_a_claim_is_in_flight_and_a_bad_key_is_refused() {
    let mut rig = Rig::new(Config::default());
    let Answer::Accepted { id: first, .. } = rig.send("order", "one") else { panic!() };
    let answer = rig.send("order", "two");
    let Answer::Conflict { differs, id, .. } = answer else { panic!("{answer:?}") };
    assert_eq!((differs, id), (vec![Differs::Body], first));
    let mut rig = rig.killed();
    assert!(matches!(rig.send("order", "two"), Answer::Conflict { .. }), "also after a restart");

    let Outcome::Claimed(Answer::Fresh(_)) = rig.call(claim("work", "x")) else { panic!() };
    let mut rig = rig.killed();
    let Outcome::Claimed(Answer::InFlight(held)) = rig.call(claim("work", "x")) else { panic!() };
    assert_eq!(held.place, Place::Leased);
    let other = rig.call(claim("work", "y"));
    assert!(matches!(other, Outcome::Claimed(Answer::Conflict { .. })), "{other:?}");

    assert_eq!(rig.send("", "body"), Answer::Invalid(Invalid::MissingKey));
    let bad = |key: &str| Content::builder(key).build(b"").unwrap_err();
    assert_eq!(bad("tab\there"), Invalid::KeyCharacter(3));
    assert_eq!(bad(&"k".repeat(256)), Invalid::KeyLength(256));
}

fn short() -> Config {
    Config { retention_ms: Some(10_000), retry_horizon_ms: 5_000, ..Config::default() }
}

#[test]
fn a13_a_retry_is_a_duplicate_to_the_edge_of_the_window_by_journal_time() {
    let mut rig = Rig::new(short());
    rig.send("order", "body");
    let lease = rig.receive(1)[0].lease;
    rig.settle(lease, done("result"));
    let finished = rig.now;
    for (wait, checkpoint) in [(0, false), (5_000, true), (9_999, false)] {
        rig.now = finished + wait;
        if checkpoint {
            rig.checkpoint();
        }
        let answer = rig.send("order", "body");
        let Answer::Done(told) = answer else { panic!("after {wait} ms: {answer:?}") };
        assert_eq!(told.result.unwrap().body, "result");
        assert_eq!(told.remembered_until, Time(finished + 10_000));
        rig = rig.killed();
    }
    rig.now = finished + 10_000;
    assert!(matches!(rig.send("order", "body"), Answer::Accepted { .. }), "the window is over");
}

/// K8: executed once, or refused, never twice, also in the very millisecond of the edge.
#[test]
fn a13_a_dated_key_is_refused_from_the_moment_it_is_forgotten() {
    let mut rig = Rig::new(short());
    let born = Time(rig.now);
    let dated = || match send("order", "body") {
        Command::Send(send) => {
            Command::Send(hapax_core::SendMessage { issued_at: Some(born), ..send })
        }
        other => other,
    };
    assert!(matches!(rig.call(dated()), Outcome::Sent(Answer::Accepted { .. })));
    let lease = rig.receive(1)[0].lease;
    rig.settle(lease, done("result"));
    rig.now = born.0 + 9_999;
    assert!(matches!(rig.call(dated()), Outcome::Sent(Answer::Done(_))));
    for late in [10_000, 10_001] {
        rig.now = born.0 + late;
        let answer = rig.call(dated());
        assert_eq!(answer, Outcome::Sent(Answer::TooOld { dated: born }), "after {late} ms");
    }
}

#[test]
fn a13_a_purge_leaves_the_keys_unless_it_is_told_to_take_them() {
    for keys in [false, true] {
        let mut rig = Rig::new(short());
        rig.send("done", "body");
        let lease = rig.receive(1)[0].lease;
        rig.settle(lease, done("result"));
        rig.send("waiting", "body");
        rig.call(Command::Purge(Purge { queue: queue(), keys }));
        rig.call(Command::Expire);
        let mut rig = rig.killed();
        assert!(rig.receive(10).is_empty(), "what waited is gone");
        let (ended, purged) = (rig.send("done", "body"), rig.send("waiting", "body"));
        if keys {
            assert!(matches!(ended, Answer::Accepted { .. }), "{ended:?}");
            assert!(matches!(purged, Answer::Accepted { .. }), "{purged:?}");
        } else {
            assert!(matches!(ended, Answer::Done(_)), "{ended:?}");
            assert!(matches!(purged, Answer::Dead { .. }), "{purged:?}");
        }
    }
}

#[test]
fn a14_a_wall_clock_set_by_two_hours_ends_no_key_and_no_lease_and_is_told() {
    const HOUR: i64 = 3_600_000;
    for jump in [2 * HOUR, -2 * HOUR] {
        let mut rig = Rig::new(short());
        rig.send("finished", "body");
        let lease = rig.receive(1)[0].lease;
        rig.settle(lease, done("result"));
        rig.send("held", "body");
        let lease = rig.receive(1)[0].lease;
        let mut clock = Clock::start(Time(rig.now), Time(START), 0);
        assert_eq!(clock.alarm(), None);
        // Nine seconds later by the monotonic clock, two hours away by the wall clock.
        let wall = Time((START as i64 + jump) as u64 + 9_000);
        rig.now = clock.now(wall, 9_000_000).0;
        assert_eq!(clock.alarm().map(i64::signum), Some(jump.signum()), "an alarm tells");
        assert!(matches!(rig.send("finished", "body"), Answer::Done(_)), "within its retention");
        assert!(rig.receive(1).is_empty(), "nobody else gets it");
        let settled = rig.settle(lease, done("in time"));
        assert_eq!(settled, Settled::Ok { place: Place::Done, deadline: None });
    }
}

#[test]
fn a15_a_dead_workers_message_is_redelivered_and_its_stale_lease_is_harmless() {
    let mut rig = Rig::new(Config { lease_ms: 1_000, backoff_min_ms: 0, ..Config::default() });
    rig.send("order", "body");
    let first = rig.receive(1).remove(0);
    assert!(rig.receive(1).is_empty());
    let mut rig = rig.killed();
    rig.now += 1_000;
    rig.call(Command::Expire);
    rig.now += 2_000;
    let second = rig.receive(1).remove(0);
    assert_eq!((second.id, second.attempt), (first.id, 2));
    assert!(second.lease.fence > first.lease.fence);
    let mut rig = rig.killed();
    let stale = rig.settle(first.lease, done("stale"));
    assert!(matches!(stale, Settled::LeaseLost { .. }), "{stale:?}");
    let settled = rig.settle(second.lease, done("fresh"));
    assert_eq!(settled, Settled::Ok { place: Place::Done, deadline: None });
    let stale = rig.settle(first.lease, done("stale"));
    let result = Some(Blob { content_type: None, body: "fresh".into() });
    assert_eq!(stale, Settled::LeaseLost { place: Some(Place::Done), result });
    let Answer::Done(told) = rig.send("order", "body") else { panic!() };
    assert_eq!(told.result.unwrap().body, "fresh");
}

#[test]
fn a16_a_crash_at_any_write_while_poison_dies_leaves_it_dead_once_and_neighbours_flow() {
    let (mut before, mut after) = (0, 0);
    for nth in 1..14 {
        for power in [false, true] {
            let config = Config { max_attempts: 1, ..Config::default() };
            let mut rig = Rig::new(config);
            for name in ["poison", "good", "better"] {
                rig.send(name, "body");
            }
            let lease = rig.receive(1)[0].lease;
            let trigger = Trigger::nth(nth);
            rig.disk.faults(|faults| match power {
                true => faults.power_cut = trigger,
                false => faults.kill = trigger,
            });
            // Its death and a checkpoint right after it, until the end comes.
            let died =
                rig.try_call(vec![Command::Settle(hapax_core::Settle { lease, verb: fail() })]);
            let told = died.is_ok();
            let _ = rig.partition.checkpoint();
            while rig.workers.step().is_ok_and(|worked| worked) {}
            rig.disk.heal();
            if rig.disk.stopped().is_none() {
                rig.disk.crash();
            }
            let mut rig = Rig::open(&rig.disk).unwrap();
            if !told {
                before += 1;
                let settled = rig.settle(lease, fail());
                assert_eq!(settled, Settled::Ok { place: Place::Dead, deadline: None });
            } else {
                after += 1;
            }
            assert!(matches!(rig.send("poison", "body"), Answer::Dead { attempts: 1, .. }));
            let Outcome::Queue(view) = rig.call(Command::Show(queue())) else { panic!() };
            assert_eq!((view.stats.dead, view.stats.ready), (1, 2), "at write {nth}");
            let good = rig.receive(10);
            let names: Vec<&str> = good.iter().map(|d| d.content.key()).collect();
            assert_eq!(names, ["good", "better"]);
            let view = rig.call(Command::Look(key("poison")));
            assert!(matches!(view, Outcome::Key(view) if view.place == Place::Dead));
        }
    }
    assert!(before > 0 && after > 0, "{before} before it was told, {after} after");
}

#[test]
fn a16_poison_is_tried_as_often_as_its_queue_says_and_no_more() {
    let mut rig = Rig::new(Config { max_attempts: 3, backoff_min_ms: 0, ..Config::default() });
    rig.send("poison", "body");
    for attempt in 1..=3 {
        let delivery = rig.receive(1).remove(0);
        assert_eq!(delivery.attempt, attempt, "counted over restarts");
        let place = if attempt < 3 { Place::Delayed } else { Place::Dead };
        let settled = rig.settle(delivery.lease, fail());
        assert!(matches!(settled, Settled::Ok { place: now, .. } if now == place), "{settled:?}");
        rig = rig.killed();
        rig.now += 1;
    }
    assert!(rig.try_call(vec![receive(1)]).is_ok_and(|told| told == [Outcome::Received(vec![])]));
    let duplicate = rig.call(send("poison", "body"));
    assert!(matches!(duplicate, Outcome::Sent(Answer::Dead { attempts: 3, .. })), "{duplicate:?}");
}
