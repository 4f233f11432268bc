//! Claims: a key taken by a caller who does the work itself.

use std::sync::Arc;

use bytes::Bytes;
use hapax_core::*;

use super::script::{check, name};
use crate::support::{World, recipe};

#[test]
fn claim_fresh_then_in_flight_then_done_with_the_result() {
    check(
        "
        queue  orders
        claim  k1 f by=w1            => fresh in=30s
        claim  k1 f by=w2            => in_flight leased attempts=1 in=30s
        claim  k1 g                  => conflict fingerprint
        receive w 10                 => none
        settle k1 save step one      => ok leased
        settle k1 done result=x      => ok done
        settle k1 done result=x      => ok done
        claim  k1 f                  => done x
        claim  k1 g                  => conflict fingerprint
        show   leased done keys      => leased=0 done=1 keys=1
        ",
    );
}

#[test]
fn claim_released_frees_the_key() {
    check(
        "
        queue  orders
        claim  k1 f                  => fresh
        settle k1 release            => ok discarded
        settle k1 release            => ok discarded
        settle k1 done               => lease_lost
        look   k1                    => no_such_key
        claim  k1 g                  => fresh
        settle k1 done result=x      => ok done
        claim  k1 f                  => conflict fingerprint
        claim  k1 g                  => done x
        ",
    );
}

#[test]
fn claim_failed_frees_the_key_unless_it_is_final() {
    check(
        "
        queue  orders
        claim  k1 f                  => fresh
        settle k1 fail error=one     => ok discarded
        settle k1 fail error=one     => ok discarded
        claim  k1 f                  => fresh
        settle k1 fail error=two dead  => ok dead
        claim  k1 f                  => dead two
        show   dead                  => dead=1
        discard k1                   => ok
        claim  k1 f                  => discarded two
        forget k1                    => ok
        claim  k1 f                  => fresh
        ",
    );
}

#[test]
fn k10_what_a_freed_claim_saved_can_be_forgotten() {
    check(
        "
        queue  orders
        claim  k1 f                  => fresh
        settle k1 save charged 17    => ok leased
        forget k1                    => invalid State(\"leased\")
        settle k1 release            => ok discarded
        show   keys                  => keys=0
        forget k1                    => ok
        forget k1                    => no_such_key
        show   keys                  => keys=0
        claim  k1 f                  => fresh
        settle k1 release            => ok discarded
        forget k1                    => no_such_key
        ",
    );
}

#[test]
fn claim_lost_frees_the_key() {
    check(
        "
        queue  orders
        claim  k1 f by=w1 lease=10s  => fresh in=10s
        wait   9s
        claim  k1 f by=w2            => in_flight leased attempts=1 in=1s
        wait   1s
        wait   1s
        claim  k1 g by=w2            => fresh
        look   k1 history            => history=lost@w1,freed@w1,claimed
        show   lost                  => lost=1
        ",
    );
}

#[test]
fn claim_after_a_lost_one_gets_what_that_one_saved() {
    check(
        "
        queue  orders lease=10s
        claim  k1 f by=w1            => fresh
        settle k1 save charged yes   => ok leased
        wait   1h
        claim  k1 f by=w2            => fresh {charged=yes}
        settle k1 release            => ok discarded
        claim  k1 f by=w3            => fresh {charged=yes}
        ",
    );
}

#[test]
fn l8_a_begun_claim_lost_in_a_queue_that_parks_is_parked() {
    check(
        "
        queue  orders on_lost=park lease=10s
        claim  k1 f                  => fresh
        claim  k2 f                  => fresh
        settle k1 begin              => ok leased
        settle k2 begin              => ok leased
        wait   10s
        claim  k1 f                  => parked attempts=1
        resolve k1 done x            => ok
        resolve k2 retry             => ok
        claim  k1 f                  => done x
        claim  k2 f                  => fresh
        ",
    );
}

#[test]
fn l8_a_claim_that_never_began_is_freed_also_where_the_queue_parks() {
    check(
        "
        queue  orders on_lost=park lease=10s
        claim  k1 f by=w1            => fresh
        claim  k2 f by=w1            => fresh
        settle k2 save charged yes   => ok leased
        wait   10s
        show   parked leased         => parked=0 leased=0
        claim  k1 f by=w2            => fresh
        claim  k2 f by=w2            => fresh {charged=yes}
        settle k1@ begin             => ok leased
        settle k1@ park error=half   => ok parked
        claim  k1 f                  => parked attempts=1
        settle k2@ park error=half   => ok discarded
        settle k2@ park error=half   => ok discarded
        claim  k2 f                  => fresh {charged=yes}
        ",
    );
}

#[test]
fn a_claim_asked_for_again_under_its_id_gets_the_same_lease_while_it_is_held() {
    check(
        "
        queue  orders lease=10s
        claim  k1 f by=w1 id=c1      => fresh in=10s
        wait   4s
        claim  k1 f by=w1 id=c1      => fresh in=6s again
        claim  k1 f by=w2 id=c2      => in_flight leased attempts=1
        claim  k1 f by=w2            => in_flight leased attempts=1
        claim  k1 g by=w1 id=c1      => conflict fingerprint
        claim  k1 f by=w1 id=-*0     => invalid Id
        claim  k1 f by=w1 id=x*129   => invalid Id
        settle k1 save charged yes   => ok leased
        claim  k1 f by=w1 id=c1      => fresh {charged=yes} again
        settle k1 begin              => ok leased
        claim  k1 f by=w1 id=c1      => fresh {charged=yes} again
        show   leased sent           => leased=1 sent=1
        settle k1 done result=x      => ok done
        claim  k1 f by=w1 id=c1      => done x
        ",
    );
}

#[test]
fn a_claim_id_names_nothing_once_its_claim_is_over() {
    check(
        "
        queue  orders lease=10s
        claim  k1 f by=w1 id=c1      => fresh
        settle k1 release            => ok discarded
        claim  k1 f by=w1 id=c1      => fresh
        wait   10s
        claim  k1 f by=w2 id=c2      => fresh
        claim  k1 f by=w1 id=c1      => in_flight leased attempts=1
        claim  k2 f by=w1 id=c1      => fresh
        ",
    );
}

#[test]
fn k1_claims_of_a_queue_that_was_created_again_get_nothing_that_the_old_one_saved() {
    check(
        "
        queue  orders lease=10s
        claim  k1 f                  => fresh
        claim  k2 f                  => fresh
        settle k1 save charged yes   => ok leased
        settle k2 save charged yes   => ok leased
        settle k1 release            => ok discarded
        settle k2 release            => ok discarded
        purge  keys                  => ok
        wait   1s
        claim  k1 f                  => fresh
        settle k1 release            => ok discarded
        delete                       => ok
        wait   1s
        queue  orders lease=10s
        claim  k2 f                  => fresh
        look   k2 history points     => history=claimed points={}
        ",
    );
}

#[test]
fn claim_extended_is_held_longer() {
    check(
        "
        queue  orders
        claim  k1 f lease=10s        => fresh
        wait   9s
        settle k1 extend lease=1h    => ok leased in=1h
        wait   59m
        claim  k1 f                  => in_flight leased attempts=1
        settle k1 done               => ok done
        ",
    );
}

#[test]
fn claim_and_send_share_their_keys() {
    check(
        "
        queue  orders
        claim  k1 f                  => fresh
        send   k1 a fp=f             => in_flight leased attempts=1
        settle k1 done result=x      => ok done
        send   k1 a fp=f             => done x
        send   k2 a fp=f             => accepted ready
        claim  k2 f                  => in_flight ready attempts=0
        receive w 1                  => k2#1
        settle k2 done result=y      => ok done
        claim  k2 f                  => done y
        ",
    );
}

#[test]
fn claim_of_a_dead_message_is_fresh_where_the_queue_does_not_pin() {
    check(
        "
        queue  orders max_attempts=1 on_dead=rerun
        send   k1 a fp=f             => accepted ready
        receive w1 1                 => k1#1
        settle k1 fail               => ok dead
        claim  k1 f by=w2            => fresh
        settle k1@w1 done            => lease_lost leased
        settle k1 done result=x      => ok done
        send   k1 a fp=f             => done x
        show   dead leased           => dead=0 leased=0
        ",
    );
}

#[test]
fn claim_emits_as_a_message_does() {
    check(
        "
        queue  emails
        queue  orders
        claim  k1 f                  => fresh
        settle k1 done emit=emails:receipt:hi  => ok done
        relays                       => emails derive(k1,0,receipt) hi tries=0
        relay  reached               => accepted ready
        ",
    );
}

#[test]
fn claim_needs_a_key_and_a_lease_within_bounds() {
    check(
        "
        queue  orders
        claim  - f                   => invalid MissingKey
        claim  k1 f lease=99ms       => invalid LeaseLength(99)
        claim  k1 f lease=13h        => invalid LeaseLength(46800000)
        claim  k1 f by=w*65          => invalid Worker
        claim  k1 f lease=12h        => fresh
        ",
    );
}

#[test]
fn what_a_freed_claim_saved_is_not_told_once_another_message_had_its_key() {
    let mut world = World::new();
    let (queue, of) = (name("orders"), recipe().fingerprint(b"", None));
    let config = Config { on_dead: OnDead::Release, ..Config::default() };
    world.run(Command::Configure(Box::new(Configure {
        queue: queue.clone(),
        config,
        if_version: None,
    })));
    let content: Arc<Content> = Content::builder("k1").build(b"").unwrap();
    let claim =
        || Command::Claim(Box::new(Claim::new(&recipe(), queue.clone(), Arc::clone(&content), of)));
    let Outcome::Claimed(Answer::Fresh(fresh)) = world.run(claim()) else { panic!() };
    let lease = fresh.lease;
    let verb = Verb::Save { name: "step".into(), data: Bytes::from_static(b"one") };
    world.run(Command::Settle(Settle { lease, verb }));
    world.run(Command::Settle(Settle { lease, verb: Verb::Release }));
    // The record of the freed key is in the rows alone, and read once for the whole batch.
    world.checkpoint();
    let send = SendMessage::new(&recipe(), queue.clone(), Arc::clone(&content));
    let letter = Command::DeadLetter(Box::new(DeadLetter { send, error: "refused".into() }));
    let answers = world.run_all(vec![letter, claim()]);
    assert!(matches!(answers[0], Outcome::Sent(Answer::Dead { .. })), "{answers:?}");
    let Outcome::Claimed(Answer::Fresh(fresh)) = &answers[1] else { panic!("{answers:?}") };
    assert!(fresh.recovery_points.is_empty(), "{fresh:?}");
}
